"""I6: higher priority first, and first come first served within a priority, on a topic without limits.

Judged are pairs of attempts, first ones and later ones, over any number of servers: of two that are claimed one after
the other, the later must have waited for MARGIN_US when the other was claimed. What the promise allows is one batch in
flight for each server: a claim that had looked before the job was claimable. In a calm time no claim takes MARGIN_US.
Two claims at once skip what the other has locked, and either may commit first: pairs within TOGETHER_US are left out.

A job that waits for a time becomes claimable when a server sees that it is due, which is not stored. Servers take the
one that has been due for longest first: so it was claimable when one that was due later has been claimed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from tests.fault.lab.checker.model import Fact, Model, Operation, Violation, ok

TOPIC: Final = "ranked"
MARGIN_US: Final = 1_000_000
"""The longest that a claim may be in flight: it may have begun before the job was there."""
TOGETHER_US: Final = 250_000
"""Two claims of different servers may overlap for so long: a batch is locked before the time of its claim is read."""


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
    """Count the pairs of which the worse was claimed first."""
    found = [(first, then) for first, then in _pairs(model) if _better(then, first)]
    if found:
        a, b = found[0]
        yield Violation(
            invariant="I6",
            text=f"{len(found)} inversions; the first: {a.job} of priority {a.priority} was claimed "
            f"{(b.claimed - a.claimed) / 1e6:.3f} s before {b.job} of priority {b.priority}, which had waited "
            f"{(a.claimed - b.available) / 1e6:.3f} s by then",
            job=b.job,
        )


def pairs_judged(model: Model) -> int:
    """How many pairs were compared: both waited at the same time, one of them is the better, and nothing was broken."""
    return sum(1 for _ in _pairs(model))


def _pairs(model: Model) -> Iterator[tuple[_Ranked, _Ranked]]:
    """Those of which one is the better, in the order of their claims."""
    by_tenant: defaultdict[str, list[_Ranked]] = defaultdict(list)
    for one in sorted(_ranked(model), key=lambda one: one.claimed):
        by_tenant[one.tenant].append(one)
    for ranked in by_tenant.values():
        for first, then in combinations(ranked, 2):
            if (
                then.available < first.claimed - MARGIN_US
                and then.claimed > first.claimed + TOGETHER_US
                and (_better(first, then) or _better(then, first))
                and model.calm(first.claimed, then.claimed, margin_us=2 * MARGIN_US)
            ):
                yield first, then


def _better(one: _Ranked, other: _Ranked) -> bool:
    return one.priority > other.priority or (one.priority == other.priority and one.answered < other.asked)


def _ranked(model: Model) -> list[_Ranked]:
    ends: dict[tuple[str, int], Fact] = {(fact.job, fact.epoch): fact for fact in model.facts if fact.claimed}
    due = _Due(model, ends)
    found: list[_Ranked] = []
    submits = [one for one in model.asked("submit", "submit_many") if one.data["topic"] == TOPIC and ok(one)]
    for one, job in ((asked, str(job)) for asked in submits for job in asked.answer.get("jobs", asked.jobs)):
        if job in model.verbs_of:  # a redrive gives a new rank, at a time that is not stored
            continue
        for claim in model.claims_of.get(job, ()):
            available = _available(one, claim.epoch, ends.get((job, claim.epoch - 1)), due)
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


class _Due:
    """When a waiting job had been made claimable, at the latest: when one that was due after it was claimed."""

    def __init__(self, model: Model, ends: Mapping[tuple[str, int], Fact]) -> None:
        found = sorted(
            (end.run_at, claim.at)
            for claim in model.claims
            if (end := ends.get((claim.job, claim.epoch - 1))) is not None and end.run_at is not None
        )
        self._due = [run_at for run_at, _ in found]
        self._claimed = [claimed for _, claimed in found]
        for place in reversed(range(len(found) - 1)):  # of it and all behind it
            self._claimed[place] = min(self._claimed[place], self._claimed[place + 1])

    def made(self, run_at: int) -> int | None:
        place = bisect_right(self._due, run_at)
        return self._claimed[place] if place < len(self._due) else None


def _available(submit: Operation, epoch: int, before: Fact | None, due: _Due) -> int | None:
    """From when on an attempt could surely have been claimed; None: that is not stored."""
    if epoch % 1024 == 1:
        return submit.w_end
    if before is None:
        return None
    if before.state == 0:  # it went straight back
        return before.at
    return None if before.run_at is None else due.made(before.run_at)
