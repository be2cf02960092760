"""I9: nothing starts before its time: neither a delayed job nor a retry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.fault.lab.checker.model import REDRIVEN, Model, Violation, ok

ROUNDING_US: Final = 1_000


def not_before_its_time(model: Model) -> Iterator[Violation]:
    """A delay counts from the asking at the earliest; a retry's time is what its failure has stored."""
    for one in model.asked("submit"):
        delay = float(one.data.get("delay", 0))
        if not delay or not ok(one) or not one.answer.get("created", True):
            continue
        if any(fact.kind == REDRIVEN for fact in model.facts_of.get(one.jobs[0], ())):
            continue  # cancelled and redriven before it was due: now it is
        due = one.w + round(delay * 1e6)
        for claim in model.claims_of.get(one.jobs[0], ())[:1]:
            if claim.epoch % 1024 == 1 and claim.at < due - model.skew_us:
                yield _early(claim.job, claim.epoch, due - claim.at, one.t)
    for job, facts in model.facts_of.items():
        claims = model.claims_of.get(job, ())
        for fact in facts:
            if fact.run_at is None:
                continue
            after = next((claim for claim in claims if claim.epoch == fact.epoch + 1), None)
            # A redrive in between counts from the start.
            anew = any(later.at > fact.at and later.epoch == fact.epoch and later.kind == REDRIVEN for later in facts)
            if after is not None and not anew and after.at < fact.run_at - ROUNDING_US:
                yield _early(job, after.epoch, fact.run_at - after.at, 0)


def _early(job: str, epoch: int, by_us: int, at: int) -> Violation:
    return Violation(
        invariant="I9",
        text=f"job {job}, epoch {epoch}, was claimed {by_us / 1e6:.3f} s before its time",
        at=at,
        job=job,
    )
