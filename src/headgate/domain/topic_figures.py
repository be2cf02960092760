"""The figures of a topic at a glance: rates, the share that fails, how long jobs wait. No I/O.

Every page, command and alert takes them from here, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from headgate.domain.views import FlowMinute

WAITING_LONG: Final = timedelta(minutes=10)
"""A job that is due and waits for longer is worth a warning, unless its topic is paused."""
NEARLY_FULL: Final = 0.9
"""The part of a backlog from which on a warning is shown."""
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Jobs per second since the previous minute began: of the last 60 to 120 seconds. `failed` are attempts."""

    submitted: float = 0.0
    completed: float = 0.0
    failed: float = 0.0

    @property
    def failed_share(self) -> float | None:
        """The part of ended attempts that failed; None if none has ended."""
        ended = self.completed + self.failed
        return self.failed / ended if ended else None

    def __add__(self, other: Rates) -> Rates:
        return Rates(
            submitted=self.submitted + other.submitted,
            completed=self.completed + other.completed,
            failed=self.failed + other.failed,
        )


def rates_of(flows: Sequence[FlowMinute], now: datetime) -> Rates:
    """The rates of the current minute and the one before it: the current one alone has only just begun."""
    since = now.replace(second=0, microsecond=0) - _MINUTE
    seconds = (now - since).total_seconds()
    counted = [flow for flow in flows if flow.minute >= since]
    return Rates(
        submitted=sum(flow.submitted for flow in counted) / seconds,
        completed=sum(flow.completed for flow in counted) / seconds,
        failed=sum(flow.failed for flow in counted) / seconds,
    )


class Waiting(Protocol):
    """A topic, of the server or of the SDK."""

    @property
    def paused(self) -> bool: ...
    @property
    def waiting_since(self) -> datetime | None: ...


def wait_of(topic: Waiting, now: datetime) -> timedelta | None:
    """How long its oldest due job waits; None if none is due."""
    return None if topic.waiting_since is None else max(timedelta(0), now - topic.waiting_since)


def longest_wait(topics: Iterable[Waiting], now: datetime) -> timedelta | None:
    """How long the oldest due job waits that may be dispatched: a pause is a decision, not a delay."""
    waits = [wait for one in topics if not one.paused and (wait := wait_of(one, now)) is not None]
    return max(waits, default=None)


def waits_long(wait: timedelta | None) -> bool:
    """Whether a due job waits for so long that people should look."""
    return wait is not None and wait > WAITING_LONG
