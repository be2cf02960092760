"""I7: after a pause has returned nothing of its target starts, on any server, until a resume is asked for or it ends.

A target is a topic, a tenant or everything. A pause of the same target that is asked for later takes the place of this
one, with another end perhaps, and is judged by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.fault.lab.checker.model import FAIL, NEVER, Claim, Model, Operation, Violation, ok

Target = tuple[str, str]
"""Tenant and topic; an empty one stands for all of them."""


def target_of(operation: Operation) -> Target:
    """What a pause or resume is about."""
    if operation.data.get("everything"):
        return "", ""
    return operation.tenant, str(operation.data.get("topic") or "")


def covers(target: Target, claim: Claim) -> bool:
    """Whether a job of this claim belongs to the target."""
    tenant, topic = target
    return tenant in ("", claim.tenant) and topic in ("", claim.topic)


def surely_in_force(pause: Operation, others: Sequence[Operation]) -> tuple[int, int]:
    """From the pause's answer to its own end, or to the first asking of what may have come after it, by the wall clock.

    `others` are the resumes and pauses of its target.
    """
    undone = min(
        (one.w for one in others if one is not pause and one.status != FAIL and one.w_end > pause.w), default=NEVER
    )
    return pause.w_end, min(undone, int(pause.data.get("until_us") or NEVER))


def nothing_starts_while_paused(model: Model) -> Iterator[Violation]:
    """By the time of the claim, as stored; that of a completed and redriven attempt is its arrival at most."""
    verbs = model.asked("pause", "resume")
    for pause in verbs:
        if pause.what != "pause" or not ok(pause):
            continue
        target = target_of(pause)
        start, end = surely_in_force(pause, [one for one in verbs if target_of(one) == target])
        named = "/".join(filter(None, target)) or "everything"
        for claim in model.claims:
            if start + model.skew_us < claim.at < end - model.skew_us and covers(target, claim):
                yield Violation(
                    invariant="I7",
                    text=f"job {claim.job} of {claim.tenant}/{claim.topic}, epoch {claim.epoch}, was claimed "
                    f"{(claim.at - start) / 1e6:.3f} s after the pause of {named} had returned",
                    at=pause.t_end, job=claim.job,
                )  # fmt: skip
