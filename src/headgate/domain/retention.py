"""How long finished jobs and other history are kept. Pure: no clock, no I/O.

Ages are counted by whole UTC days: a job is removed when the day on which it ended has been over for longer than its
rule says. So it is kept for at least that long, and for less than a day longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from headgate.domain.validation import check_span

KEEP_MIN: Final = timedelta(days=1)
KEEP_MAX: Final = timedelta(days=3650)
KEEP_RULES: Final = ("keep_completed", "keep_dead", "keep_cancelled")
"""The settings of a topic; without one, the rule for all topics applies."""


def check_keep(value: object, *, field: str) -> timedelta:
    """Accept how long something is kept: 1 day to 10 years."""
    return check_span(value, field=field, low=KEEP_MIN, high=KEEP_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """The rules for topics that have none of their own, and for the audit."""

    completed: timedelta = timedelta(days=7)
    dead: timedelta = timedelta(days=30)
    cancelled: timedelta = timedelta(days=7)
    audit: timedelta = timedelta(days=365)

    def __post_init__(self) -> None:
        for name in ("completed", "dead", "cancelled", "audit"):
            check_keep(getattr(self, name), field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStatus:
    """What is kept, from which day on there are finished jobs, and how many days wait to be cleared."""

    rules: RetentionRules
    oldest_day: date | None = None
    days_waiting: int = 0
    oldest_waiting: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What one pass removed. `more`: something is left; `blocked`: of which nothing could be removed just now."""

    jobs: int = 0
    days: int = 0
    other: int = 0
    more: bool = False
    blocked: bool = False
