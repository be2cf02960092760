"""I18: the callback of a batch runs once, after all its members have ended, and always runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.fault.lab.checker.model import CANCELLED, COMPLETED, Model, Violation, ok
from tests.fault.lab.history import Event


def callbacks_run_once_after_all(model: Model) -> Iterator[Violation]:
    """By the batches as stored, and by what was answered to those who made them. Callbacks of the load need no success
    of the members, so one that does not complete was cancelled by a client, or its batch was never sealed."""
    members: defaultdict[str, set[str]] = defaultdict(set)
    for event in model.of_kind["final_member"]:
        members[event["batch_id"]].add(event["job_id"])
    stored = {event["id"]: event for event in model.of_kind["final_batch"]}
    for one in model.asked("batch"):
        number = str(one.data.get("batch", ""))
        known = {str(job) for job in one.answer.get("jobs", ())}
        lost = {job for job in known - members[number] if not model.gone(job)} if number in stored else set()
        if lost:
            yield Violation(
                invariant="I18", text=f"batch {number} has lost its members {sorted(lost)}", at=one.t_end, job=min(lost)
            )
        if not ok(one) or not number or one.answer.get("expired"):
            continue  # too late to be sealed, and the answer said so
        if number not in stored or stored[number]["expired"]:
            yield Violation(
                invariant="I18",
                text=f"batch {number} was sealed, and {'expired' if number in stored else 'is not there'}",
                at=one.t_end,
            )
    for batch in stored.values():
        yield from _callback(model, batch, members[batch["id"]])


def _callback(model: Model, batch: Event, members: set[str]) -> Iterator[Violation]:
    if batch["sealed_at"] is None:
        yield Violation(invariant="I18", text=f"batch {batch['id']} is still open, past its time")
        return
    if batch["total"] != len(members) and not any(model.gone(job) for job in members):
        yield Violation(
            invariant="I18", text=f"batch {batch['id']} counts {batch['total']} members and has {len(members)}"
        )
    job = batch["callback_id"]
    row = model.row_of.get(job) if job else None
    if job is None or model.gone(job):
        return
    if row is None:
        yield Violation(invariant="I18", text=f"the callback {job} of batch {batch['id']} is not there", job=job)
        return
    expected = CANCELLED if batch["expired"] else COMPLETED
    if row.state != expected and job not in model.verbs_of:
        yield Violation(
            invariant="I18",
            text=f"the callback {job} of batch {batch['id']} is in state {row.state}, {expected} was to come",
            job=job,
        )
    claims = model.claims_of.get(job, ())
    if not claims or claims[0].epoch % 1024 != 1:
        return
    for member in sorted(members):
        ended = model.first_end.get(member)
        alive = member in model.row_of and model.row_of[member].live and member not in model.verbs_of
        if alive or (ended is not None and ended > claims[0].at + model.skew_us):
            yield Violation(
                invariant="I18",
                text=f"the callback {job} of batch {batch['id']} was claimed before its member {member} had ended",
                job=job,
            )
