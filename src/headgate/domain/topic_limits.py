"""The limits a topic may carry: how much of it runs at once, how fast, in what order by key, how much waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_flag, check_integer, check_span, shown

COUNT_MAX: Final = 1_000_000_000
BACKLOG_MAX: Final = 10**15
PERIOD_MIN: Final = timedelta(milliseconds=1)
PERIOD_MAX: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A token bucket: `count` starts per `period`, and at most `burst` (as many as `count`, if not given) at once.

    In any stretch of time w at most burst + count × w / period jobs start.
    """

    count: int
    period: timedelta
    burst: int | None = None

    def __post_init__(self) -> None:
        check_integer(self.count, field="rate.count", low=1, high=COUNT_MAX)
        check_span(self.period, field="rate.period", low=PERIOD_MIN, high=PERIOD_MAX)
        if self.burst is not None:
            check_integer(self.burst, field="rate.burst", low=1, high=COUNT_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The limits of one topic; None and False mean: none. Those by key concern jobs that were given a limit key."""

    max_running: int | None = None
    rate: Rate | None = None
    max_running_per_key: int | None = None
    key_rate: Rate | None = None
    ordered_by_key: bool = False  # the next of a key starts when the one before has ended for good
    fair_by_key: bool = False  # keys take turns, however many jobs each has
    max_backlog: int | None = None  # waiting jobs, due or not

    def __post_init__(self) -> None:
        if self.max_running is not None:
            check_integer(self.max_running, field="max_running", low=0, high=COUNT_MAX)
        if self.max_running_per_key is not None:
            check_integer(self.max_running_per_key, field="max_running_per_key", low=1, high=COUNT_MAX)
        if self.max_backlog is not None:
            check_integer(self.max_backlog, field="max_backlog", low=0, high=BACKLOG_MAX)
        for name, rate in (("rate", self.rate), ("key_rate", self.key_rate)):
            if rate is not None and not isinstance(rate, Rate):
                raise InvalidInput(name, f"must be a Rate, got {shown(rate)}")
        check_flag(self.ordered_by_key, field="ordered_by_key")
        check_flag(self.fair_by_key, field="fair_by_key")
