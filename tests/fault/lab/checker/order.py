"""I6: higher priority first, and first come first served within a priority, on a topic without limits.

Judged is every attempt, first ones and later ones, over any number of servers. What the promise allows is one batch in
flight for each server: a claim that had looked before the job was claimable. In a calm time no claim takes MARGIN_US,
so whoever is claimed later than that after a better job was there has overtaken it, and not one may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.fault.lab.checker.model import Fact, Model, Operation, Violation, ok

TOPIC: Final = "ranked"
MARGIN_US: Final = 1_000_000
"""The longest that a claim may be in flight: it may have begun before the job was there."""
TICK_US: Final = 1_000_000
"""A job that waits for a time is claimable when a server has seen that it is due: at the next tick, at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    job: str
    tenant: str
    priority: int
    asked: int  # its rank lies between these two, whatever the attempt
    answered: int
    available: int
    claimed: int


def priority_first(model: Model) -> Iterator[Violation]:
    """Count the attempts that were passed over by one that should have come later."""
    found: list[tuple[_Ranked, _Ranked]] = []
    ranked = _ranked(model)
    for a in ranked:
        for b in ranked:
            if b.tenant == a.tenant and b.available < a.claimed - MARGIN_US and b.claimed > a.claimed:
                better = b.priority > a.priority or (b.priority == a.priority and b.answered < a.asked)
                if better and model.calm(a.claimed, b.claimed, margin_us=2 * MARGIN_US):
                    found.append((a, b))
    if found:
        a, b = found[0]
        yield Violation(
            invariant="I6",
            text=f"{len(found)} inversions; the first: {a.job} of priority {a.priority} was claimed "
            f"{(b.claimed - a.claimed) / 1e6:.3f} s before {b.job} of priority {b.priority}, which had waited "
            f"{(a.claimed - b.available) / 1e6:.3f} s by then",
            job=b.job,
        )


def judged(model: Model) -> int:
    """How many jobs were claimed in a time calm enough for their order to be judged."""
    return sum(model.calm(one.claimed, one.claimed, margin_us=2 * MARGIN_US) for one in _ranked(model))


def _ranked(model: Model) -> list[_Ranked]:
    ends: dict[tuple[str, int], Fact] = {(fact.job, fact.epoch): fact for fact in model.facts if fact.claimed}
    found: list[_Ranked] = []
    for one in model.asked("submit"):
        if one.data["topic"] != TOPIC or not ok(one):
            continue
        job = one.jobs[0]
        if job in model.verbs_of:  # a redrive gives a new rank, at a time that is not stored
            continue
        for claim in model.claims_of.get(job, ()):
            available = _available(one, claim.epoch, ends.get((job, claim.epoch - 1)))
            if available is not None:
                found.append(
                    _Ranked(
                        job=job,
                        tenant=one.tenant,
                        priority=int(one.data.get("priority", 0)),
                        asked=one.w,
                        answered=one.w_end,
                        available=available,
                        claimed=claim.at,
                    )
                )
    return found


def _available(submit: Operation, epoch: int, before: Fact | None) -> int | None:
    """From when on an attempt could have been claimed; None: that is not stored."""
    if epoch == 1:
        return submit.w_end
    if before is None:
        return None
    if before.state == 0 or before.run_at is None:  # it went straight back
        return before.at if before.state == 0 else None
    return max(before.at, before.run_at) + TICK_US
