"""I6: higher priority first, and first come first served within a priority, on a topic without limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.fault.lab.checker.model import Model, Violation, ok

TOPIC: Final = "ranked"
MARGIN_US: Final = 1_000_000
"""A job counts as available this long after its submit was answered: a claim may have begun before."""
PER_SERVER: Final = 20
"""Inversions allowed for each further server: each claims in batches, by what it saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    job: str
    tenant: str
    priority: int
    asked: int
    available: int
    claimed: int


def priority_first(model: Model) -> Iterator[Violation]:
    """Count the jobs that were passed over by one that should have come later."""
    found: list[tuple[_Ranked, _Ranked]] = []
    ranked = _ranked(model)
    for a in ranked:
        for b in ranked:
            if b.tenant == a.tenant and b.available < a.claimed - MARGIN_US and b.claimed > a.claimed:
                better = b.priority > a.priority or (b.priority == a.priority and b.available < a.asked)
                if better and model.calm(a.claimed, b.claimed, margin_us=2 * MARGIN_US):
                    found.append((a, b))
    allowed = PER_SERVER * (model.servers - 1)
    if len(found) > allowed:
        a, b = found[0]
        yield Violation(
            invariant="I6",
            text=f"{len(found)} inversions (allowed: {allowed}); the first: {a.job} of priority {a.priority} was "
            f"claimed {(b.claimed - a.claimed) / 1e6:.3f} s before {b.job} of priority {b.priority}, which had waited",
            job=b.job,
        )


def judged(model: Model) -> int:
    """How many jobs were claimed in a time calm enough for their order to be judged."""
    return sum(model.calm(one.claimed, one.claimed, margin_us=2 * MARGIN_US) for one in _ranked(model))


def _ranked(model: Model) -> list[_Ranked]:
    found: list[_Ranked] = []
    for one in model.asked("submit"):
        if one.data["topic"] != TOPIC or not ok(one):
            continue
        job = one.jobs[0]
        claims = model.claims_of.get(job, ())
        # Those that came back (retries, hand-backs, verbs) have another rank, or are looked for in another way.
        if len(claims) == 1 and claims[0].epoch == 1 and job not in model.verbs_of:
            priority = int(one.data.get("priority", 0))
            found.append(
                _Ranked(
                    job=job,
                    tenant=one.tenant,
                    priority=priority,
                    asked=one.w,
                    available=one.w_end,
                    claimed=claims[0].at,
                )
            )
    return found
