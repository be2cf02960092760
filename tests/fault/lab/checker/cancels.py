"""I12: nothing of a cancelled job starts any more, and its worker is notified soon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.fault.lab.checker.model import FAIL, NEVER, Assign, Model, Operation, Violation, ok

TOLD_US: Final = 6_000_000
"""A beat of a third of the lease, a tick of a second, and what a busy machine may add."""
BEFORE_US: Final = 4_000_000
"""A fault that has ended so long before has no part in it any more: links are open again."""


def cancelled_means_cancelled(model: Model) -> Iterator[Violation]:
    """Judged by the stored time of each claim against the cancel's answer."""
    for cancel in model.asked("cancel"):
        if not ok(cancel) or cancel.answer.get("code"):
            continue
        job = str(cancel.data["job"])
        undone = min(
            (
                verb.w
                for verb in model.verbs_of.get(job, ())
                if verb.what == "redrive" and verb.status != FAIL and verb.w_end > cancel.w
            ),
            default=NEVER,
        )
        for claim in model.claims_of.get(job, ()):
            if cancel.w_end + model.skew_us < claim.at < undone - model.skew_us:
                yield Violation(
                    invariant="I12",
                    text=f"job {job}, epoch {claim.epoch}, was claimed {(claim.at - cancel.w_end) / 1e6:.3f} s after "
                    "its cancel had returned",
                    at=cancel.t_end, job=job,
                )  # fmt: skip
        if cancel.answer.get("state") == "running" and cancel.answer.get("changed"):
            yield from _told(model, cancel, job, undone)


def told_judged(model: Model) -> int:
    """How many cancels of running jobs came in a time calm enough to ask when the holder got it."""
    return sum(
        _holder(model, one, str(one.data["job"])) is not None
        for one in model.asked("cancel")
        if ok(one) and one.answer.get("state") == "running" and one.answer.get("changed")
    )


def _holder(model: Model, cancel: Operation, job: str) -> Assign | None:
    """Who ran the job, if nothing on the way of the cancel was broken: other workers do not matter."""
    assigns = [one for one in model.assigns_of.get(job, ()) if one.w < cancel.w]
    if not assigns:
        return None
    holder = max(assigns, key=lambda one: one.epoch)
    others = {one.proc for one in model.of_kind["hello"]} - {holder.proc}
    if not model.calm(cancel.w, cancel.w_end + TOLD_US, margin_us=BEFORE_US, apart_from=others):
        return None
    return holder


def _told(model: Model, cancel: Operation, job: str, undone: int) -> Iterator[Violation]:
    holder = _holder(model, cancel, job)
    if holder is None:
        return
    deadline = min(cancel.w_end + TOLD_US, undone)
    answered = [one.w for one in model.said_of.get(job, ()) if one.epoch == holder.epoch]
    told = [
        event.w
        for kind in ("cancel", "lost")
        for event in model.of_kind[kind]
        if [job, holder.epoch] in event["held"] and event.proc == holder.proc
    ]
    ended = model.events[-1].w if model.events else 0
    if min(answered + told, default=NEVER) > deadline and deadline < ended and deadline < undone:
        yield Violation(
            invariant="I12", text=f"{holder.proc}, which ran job {job}, was not told of its cancel in time",
            at=cancel.t_end, job=job,
        )  # fmt: skip
