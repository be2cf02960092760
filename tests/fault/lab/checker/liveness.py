"""I13: when the faults are over everything comes to an end, in time, and everyone is there."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fault.lab.checker.model import Model, Violation, ok


def all_comes_to_an_end(model: Model) -> Iterator[Violation]:
    """Drained in time; probes answered; servers and workers alive, and every worker with an open stream.

    A server that ended while no fault ended it is a violation, also when the laboratory has started it again.
    """
    for event in model.of_kind["ended_by_itself"]:
        text = f"{event['name']} ended with exit code {event['code']}, and no fault of the run has ended it"
        yield Violation(invariant="I13", text=text, at=event.t)
    for one in model.asked("drain"):
        if not ok(one):
            left = "; ".join(map(str, one.answer.get("left", ())))
            yield Violation(
                invariant="I13",
                text=f"not drained within {one.data['within_s']:.0f} s: {one.answer.get('text')}; left: {left}",
                at=one.t_end,
            )
    for one in model.asked("probe"):
        if not ok(one):
            yield Violation(
                invariant="I13", text=f"a job of {one.tenant} did not complete: {one.answer.get('text')}", at=one.t
            )
    for event in model.of_kind["lives"]:
        if not event["alive"]:
            yield Violation(invariant="I13", text=f"{event['name']} has ended by itself", at=event.t)
        elif event["name"].startswith("w") and not _connected(model, event["name"], event.t):
            yield Violation(invariant="I13", text=f"{event['name']} lives, but has no stream", at=event.t)
    for row in model.rows:
        if row.live and row.state != 4:  # one that waits for others stays, visibly
            yield Violation(invariant="I13", text=f"job {row.job} is still in state {row.state}", job=row.job)


def _connected(model: Model, proc: str, until: int) -> bool:
    open_streams: set[int] = set()
    for event in model.events:
        if event.t > until:
            break
        if event.proc != proc:
            continue
        if event.kind == "proc":
            open_streams.clear()
        elif event.kind == "hello_ack":
            open_streams.add(event["stream"])
        elif event.kind == "stream_end":
            open_streams.discard(event["stream"])
    return bool(open_streams)
