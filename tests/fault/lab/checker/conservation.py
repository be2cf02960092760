"""I15: the counts for people are the counts of rows, and nothing is used by what has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headgate.domain.states import State
from tests.fault.lab.checker.model import Model, Violation


def everything_adds_up(model: Model) -> Iterator[Violation]:
    """Ledger against recount, usage of limits against what runs, status against rows."""
    rows = Counter((row.tenant, row.topic, row.state) for row in model.rows)
    counted = Counter({(e["tenant"], e["topic"], e["state"]): e["n"] for e in model.of_kind["final_count"] if e["n"]})
    for place in sorted(rows.keys() | counted.keys()):
        if rows[place] != counted[place]:
            tenant, topic, state = place
            yield Violation(
                invariant="I15",
                text=f"{tenant}/{topic}: {counted[place]} are counted as {State(state).label}, {rows[place]} are there",
            )
    running = Counter((row.tenant, row.topic) for row in model.rows if row.state == State.RUNNING)
    for event in model.of_kind["final_limit"]:
        if event["running"] and not running[event["tenant"], event["topic"]]:
            yield Violation(
                invariant="I15",
                text=f"{event['tenant']}/{event['topic']} key {event['limit_key']!r}: {event['running']} are counted "
                "as running, none is",
            )
    for event in model.of_kind["final_status"]:
        shown = Counter({(topic, state): n for topic, by_state in event["topics"].items()
                         for state, n in by_state.items() if n})  # fmt: skip
        there = Counter({(topic, State(state).label): n for (tenant, topic, state), n in rows.items()
                         if tenant == event["tenant"]})  # fmt: skip
        for topic, state in sorted(shown.keys() | there.keys()):
            if shown[topic, state] != there[topic, state]:
                yield Violation(
                    invariant="I15",
                    text=f"status tells {event['tenant']} of {shown[topic, state]} {state} jobs of {topic}; there are "
                    f"{there[topic, state]}",
                    at=event.t,
                )
