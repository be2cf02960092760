"""I20: a bulk operation changes each matching job once, comes to its end, and its counts add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.fault.lab.checker.model import NEVER, Model, Operation, Violation
from tests.fault.lab.history import Event

DONE: Final = 2
LEAVES: Final = {"cancel": (6, 7), "redrive": (8,), "reprioritise": (9,)}
"""The entries of a job's timeline by which each verb is known."""


def operations_change_each_once(model: Model) -> Iterator[Violation]:
    """The jobs of an operation carry its tag, and what it did to them its reason: nothing else touches either."""
    stored = {event["id"]: event for event in model.of_kind["final_operation"]}
    touched: dict[str, Counter[str]] = {}
    for event in model.of_kind["final_event"]:
        if event["reason"] and event["kind"] in {kind for kinds in LEAVES.values() for kind in kinds}:
            touched.setdefault(event["reason"], Counter())[event["job_id"]] += 1
    for one in model.asked("operation"):
        number = str(one.data["id"])
        if one.status == "fail":
            continue
        if number not in stored:
            if one.status == "ok":
                yield Violation(invariant="I20", text=f"operation {number} was started, and is not there", at=one.t_end)
            continue
        yield from _one(model, one, stored[number], touched.get(str(one.data["reason"]), Counter()))


def _one(model: Model, one: Operation, stored: Event, touched: Counter[str]) -> Iterator[Violation]:
    name = f"operation {one.data['verb']} {stored['id']}"
    if stored["state"] != DONE:
        yield Violation(invariant="I20", text=f"{name} is in state {stored['state']} at the end", at=one.t)
        return
    if stored["matched"] != stored["changed"] + stored["skipped"] + stored["errors"]:
        yield Violation(invariant="I20", text=f"{name}: {dict(stored.data)} does not add up", at=one.t)
    theirs = {row.job for row in model.tagged.get(str(one.data["tag"]), ())}
    for job, times in touched.items():
        if times > 1:
            yield Violation(invariant="I20", text=f"{name} changed job {job} {times} times", at=one.t, job=job)
        if job not in theirs and not model.gone(job):
            yield Violation(invariant="I20", text=f"{name} changed job {job}, which does not match", at=one.t, job=job)
    if stored["changed"] != len(touched):
        yield Violation(
            invariant="I20",
            text=f"{name} counts {stored['changed']} changes; {len(touched)} jobs were changed",
            at=one.t,
        )
    for job in sorted(theirs - touched.keys()):
        if _had_to_be_changed(model, one, stored, job):
            yield Violation(invariant="I20", text=f"{name} passed over job {job}", at=one.t, job=job)


def _had_to_be_changed(model: Model, one: Operation, stored: Event, job: str) -> bool:
    """Acknowledged before it was asked for, and in a state it is about from then to its end; the load submits jobs
    to be cancelled or moved that are not due in time, and redrives those of which it saw that they are dead."""
    if stored["errors"] or any(verb.data.get("id") != one.data["id"] for verb in model.verbs_of.get(job, ())):
        return False
    if one.data["verb"] == "redrive":
        return job in one.data["jobs"]
    row = model.row_of[job]
    return job in one.data["jobs"] and (stored["finished_at"] or NEVER) < row.run_at - model.skew_us
