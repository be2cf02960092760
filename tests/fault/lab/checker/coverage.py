"""What a run should have met at least sometimes: without these, its green says little.

`IN_A_MINUTE` is what a minute of the mix must have met, `IN_ALL` all scenarios together: one that was never met fails
the run, for then some invariant was judged by nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tests.fault.lab.checker.cancels import told_judged
from tests.fault.lab.checker.limits import full
from tests.fault.lab.checker.model import DEAD, Model, Operation, ok
from tests.fault.lab.checker.order import pairs_judged
from tests.fault.lab.checker.pauses import target_of
from tests.fault.lab.checker.timing import lateness_judged

IN_A_MINUTE: Final = (
    "keyed_repeat", "reopened_stream", "handed_back",
    "lease_lost", "retried", "dead_letter", "redriven", "cancelled_running", "paused_topic",
    "paused_tenant", "paused_everything", "paused_with_end", "key_limit_full", "order_pairs", "lateness_judged",
    "told_judged", "unique_kept", "unique_replaced", "callback_ran", "child_ran", "child_cancelled", "operation_done",
)  # fmt: skip
IN_ALL: Final = (
    *IN_A_MINUTE,
    # A minute meets these now and then: which faults fall on which moment depends on the machine.
    "instance_change",
    "lease_expired",
    "limit_full",
    "coalesced_fire",
    "stale_result",
    "duplicate_result",
    "ambiguous_submit",
    "ambiguous_call",
)


def not_reached(coverage: Mapping[str, int], wanted: Iterable[str]) -> list[str]:
    """Those of the wanted that were never met."""
    return [name for name in wanted if not coverage.get(name)]


def sometimes(model: Model) -> dict[str, int]:
    """How often each was seen."""
    codes = [receipt.code for receipt in model.receipts]
    instances: dict[str, set[str]] = {}
    for event in model.of_kind["hello_ack"]:
        instances.setdefault(event.proc, set()).add(event["instance"])
    covers = [
        event for event in model.of_kind["final_fired"] if event["covers_from"] not in (None, event["occurrence"])
    ]
    found = {
        "stale_result": codes.count("stale"),
        "duplicate_result": codes.count("duplicate"),
        "ambiguous_submit": sum(one.what.startswith("submit") and one.status == "info" for one in model.operations),
        "ambiguous_call": sum(not one.what.startswith("submit") and one.status == "info" for one in model.operations),
        "keyed_repeat": sum(_met(one, "key") or _met(one, "id") for one in model.asked("submit")),
        "instance_change": sum(len(seen) > 1 for seen in instances.values()),
        "reopened_stream": sum(event.get("resumed", False) for event in model.of_kind["hello"]),
        "lease_expired": sum(fact.kind == 3 for fact in model.facts),
        "handed_back": sum(fact.kind == 4 for fact in model.facts),
        "lease_lost": len(model.of_kind["lost"]) + sum(bool(event["lost"]) for event in model.of_kind["hello_ack"]),
        "retried": sum(fact.kind == 1 and fact.run_at is not None for fact in model.facts),
        "dead_letter": sum(row.state == DEAD for row in model.rows),
        "redriven": sum(fact.kind == 8 for fact in model.facts),
        "cancelled_running": len(model.of_kind["cancel"]),
        "coalesced_fire": len(covers),
        "order_pairs": pairs_judged(model),
        "lateness_judged": lateness_judged(model),
        "told_judged": told_judged(model),
        **_pauses(model),
        **full(model),
        **_linked(model),
        "operation_done": sum(
            event["state"] == 2 and event["changed"] > 0 for event in model.of_kind["final_operation"]
        ),
    }
    for event in model.of_kind["sometimes"]:
        found[event["what"]] = found.get(event["what"], 0) + 1
    return found


def _met(one: Operation, name: str) -> bool:
    return name in one.data and ok(one) and one.answer.get("created") is False


def _pauses(model: Model) -> dict[str, int]:
    found = dict.fromkeys(("paused_topic", "paused_tenant", "paused_everything", "paused_with_end"), 0)
    for one in model.asked("pause"):
        if ok(one):
            tenant, topic = target_of(one)
            found["paused_topic" if topic else "paused_tenant" if tenant else "paused_everything"] += 1
            found["paused_with_end"] += "until_us" in one.data
    return found


def _linked(model: Model) -> dict[str, int]:
    callbacks = {event["callback_id"] for event in model.of_kind["final_batch"]}
    children = {event["child_id"] for event in model.of_kind["final_dependency"]} - callbacks
    state = {row.job: row.state for row in model.rows}
    unique = [one for one in model.asked("submit") if _met(one, "unique")]
    return {
        "unique_kept": sum(one.data.get("on_conflict") == "keep" for one in unique),
        "unique_replaced": sum(one.data.get("on_conflict") == "replace" for one in unique),
        "callback_ran": sum(state.get(job) == 5 for job in callbacks),
        "child_ran": sum(state.get(job) == 5 for job in children),
        "child_cancelled": sum(state.get(job) == 7 for job in children),
    }
