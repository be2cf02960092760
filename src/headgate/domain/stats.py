"""Figures over time: what jobs of a tenant or a topic did in each interval, how long they took, what fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from headgate.domain.bulk import DeadGroup
from headgate.domain.errors import InvalidInput
from headgate.domain.histogram import WAITS_US, quantile
from headgate.domain.states import State
from headgate.domain.validation import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How far a series reaches back, and how long each of its intervals is."""

    name: str
    span: timedelta
    step: timedelta

    @property
    def seconds(self) -> int:
        """The length of an interval."""
        return int(self.step.total_seconds())


_MINUTE: Final = timedelta(minutes=1)
WINDOWS: Final[Mapping[str, Window]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Window(name="15m", span=timedelta(minutes=15), step=_MINUTE),
            Window(name="1h", span=timedelta(hours=1), step=_MINUTE),
            Window(name="6h", span=timedelta(hours=6), step=5 * _MINUTE),
            Window(name="24h", span=timedelta(hours=24), step=5 * _MINUTE),
            Window(name="7d", span=timedelta(days=7), step=60 * _MINUTE),
        )
    }
)
DEFAULT_WINDOW: Final = "1h"
FAILING_WITHIN: Final = timedelta(hours=1)
SERIES_TOPICS_MAX: Final = 200
"""Topics in a series for a caller who may see only some."""


def window_of(name: str, *, field: str = "since") -> Window:
    """The window of this name; empty: the default."""
    found = WINDOWS.get(name or DEFAULT_WINDOW)
    if found is None:
        raise InvalidInput(field, f"must be one of {', '.join(WINDOWS)}, got {shown(name)}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long jobs took, in seconds; estimated within the buckets of a histogram, as Prometheus does."""

    count: int
    p50: float
    p99: float

    @classmethod
    def of(cls, counts: Sequence[int]) -> Latency | None:
        """From the counts of a histogram with the bounds WAITS_US; None if there are none."""
        count = sum(counts)
        if not count:
            return None
        return cls(
            count=count,
            p50=quantile(WAITS_US, counts, 0.5) / 1_000_000,
            p99=quantile(WAITS_US, counts, 0.99) / 1_000_000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """Number of changes of jobs. `failed`: attempts that ended with a retry, or made their job dead."""

    submitted: int = 0
    started: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What happened from `at` on, for one step. `flows` None: no server was running, and nothing is known.

    `depth` is the number of pending jobs at its end. `oldest_due` is the longest that a due job had waited in it: of a
    topic also while it was paused, else of topics that were not. A latency is None if no job was started, or none has
    ended.
    """

    at: datetime
    flows: Flows | None
    depth: int | None
    oldest_due: timedelta | None = None
    pickup: Latency | None = None
    run: Latency | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Intervals without a hole, oldest first; the last one is under way. `topic` empty: all that the caller may see."""

    now: datetime
    window: Window
    topic: str
    intervals: Sequence[Interval]
    counts: Mapping[State, int] = field(hash=False)  # at this moment
    pickup: Latency | None = None  # of the whole window
    run: Latency | None = None
    partial: bool = False  # the caller may see more topics than one series has

    @property
    def total(self) -> Flows:
        """All intervals together."""
        return _added(self.intervals) or Flows()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """What fails now: attempts by topic and kind of error, largest group first.

    Of the newest `looked_at` events of jobs. `exact`: there are no further ones since `since`.
    """

    since: datetime
    groups: Sequence[DeadGroup]
    looked_at: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLatencies:
    """How many jobs of a topic waited and ran for how long, counted by the bounds WAITS_US."""

    topic_no: int
    pickup: Sequence[int]
    run: Sequence[int]


def depths(pending: int, changes: Sequence[int]) -> list[int]:
    """Pending jobs at the end of each interval, from how many there are now and how they changed in each interval."""
    found, depth = [], pending
    for change in reversed(changes):
        found.append(max(0, depth))
        depth -= change
    return found[::-1]


def joined(intervals: Sequence[Interval], most: int) -> list[Interval]:
    """Put neighbouring intervals together until there are at most this many.

    Flows are added. The depth is the last known one: it is that of the end. Ages and latencies are the highest ones:
    the histograms, which could be added, are not known here.
    """
    at_once = max(1, -(-len(intervals) // most))
    parts = [intervals[first : first + at_once] for first in range(0, len(intervals), at_once)]
    return [
        Interval(
            at=part[0].at,
            flows=_added(part),
            depth=next((one.depth for one in reversed(part) if one.depth is not None), None),
            oldest_due=max((one.oldest_due for one in part if one.oldest_due is not None), default=None),
            pickup=_slowest([one.pickup for one in part]),
            run=_slowest([one.run for one in part]),
        )
        for part in parts
    ]


def _added(intervals: Sequence[Interval]) -> Flows | None:
    known = [one.flows for one in intervals if one.flows is not None]
    if not known:
        return None
    return Flows(**{name: sum(getattr(one, name) for one in known) for name in Flows.__dataclass_fields__})


def _slowest(found: Sequence[Latency | None]) -> Latency | None:
    known = [one for one in found if one is not None]
    if not known:
        return None
    return Latency(
        count=sum(one.count for one in known), p50=max(one.p50 for one in known), p99=max(one.p99 for one in known)
    )
