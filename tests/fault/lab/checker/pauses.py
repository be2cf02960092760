"""I7: after a pause has returned nothing of its target starts, on any server, until a resume is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fault.lab.checker.model import FAIL, NEVER, Model, Operation, Violation, ok


def surely_in_force(pause: Operation, resumes: list[Operation]) -> tuple[int, int]:
    """From the pause's answer to the first asking of a resume that may have come after it, by the wall clock."""
    undone = min((one.w for one in resumes if one.status != FAIL and one.w_end > pause.w), default=NEVER)
    return pause.w_end, undone


def nothing_starts_while_paused(model: Model) -> Iterator[Violation]:
    """By the time of the claim, as stored; that of a completed and redriven attempt is its arrival at most."""
    resumes = model.asked("resume")
    for pause in model.asked("pause"):
        if not ok(pause):
            continue
        tenant, topic = pause.tenant, pause.data.get("topic")
        same = [one for one in resumes if one.tenant == tenant and one.data.get("topic") == topic]
        start, end = surely_in_force(pause, same)
        for claim in model.claims:
            within = start + model.skew_us < claim.at < end - model.skew_us
            if within and claim.tenant == tenant and topic in (None, claim.topic):
                yield Violation(
                    invariant="I7",
                    text=f"job {claim.job} of {tenant}/{claim.topic}, epoch {claim.epoch}, was claimed "
                    f"{(claim.at - start) / 1e6:.3f} s after the pause of {topic or 'the tenant'} had returned",
                    at=pause.t_end, job=claim.job,
                )  # fmt: skip
