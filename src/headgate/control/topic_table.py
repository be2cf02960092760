"""Topics at a glance: what waits, runs, comes in and goes out, what pauses a topic, and what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from headgate.control.admin import Admin
from headgate.control.topics import Topics
from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.identity import Identity
from headgate.domain.states import State
from headgate.domain.topic_figures import NEARLY_FULL, Rates, rates_of, wait_of, waits_long
from headgate.domain.validation import check_topic, shown
from headgate.domain.views import Pause, Status, TopicStatus, TopicView


class TopicWarning(StrEnum):
    """What needs attention."""

    UNHANDLED = "unhandled"  # jobs wait, and no connected worker asks for them
    LATE = "late"  # the oldest due job waits for more than WAITING_LONG
    AT_LIMIT = "at_limit"  # jobs wait, and as many run as permitted
    NEARLY_FULL = "nearly_full"  # the backlog is close to its maximum


class Order(StrEnum):
    """How a table of topics is sorted; all but the name: largest first."""

    NAME = "name"
    QUEUED = "queued"
    OLDEST = "oldest"
    FAILED = "failed"

    @classmethod
    def parse(cls, text: str) -> Order:
        """The order of this name. Raises InvalidInput."""
        try:
            return cls(text)
        except ValueError:
            raise InvalidInput("sort", f"must be one of {', '.join(cls)}, got {shown(text)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic."""

    status: TopicStatus
    queued: int
    running: int
    oldest: timedelta | None
    rates: Rates
    pause: Pause | None
    warnings: Sequence[TopicWarning]

    @property
    def name(self) -> str:
        return self.status.topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """The topics that match, and the pauses that reach further than one topic."""

    now: datetime
    rows: Sequence[TopicRow]
    matching: int
    total: int
    pauses: Sequence[Pause]


async def topic_table(
    admin: Admin, caller: Identity, *, search: str = "", order: Order = Order.NAME, offset: int = 0, limit: int = 100
) -> TopicTable:
    """A part of the topics whose names contain `search`."""
    status = await admin.status(caller)
    rows = rows_of(status)
    found = [one for one in rows if search.lower() in one.name.lower()]
    found.sort(key=_KEYS[order])
    return TopicTable(
        now=status.now,
        rows=found[offset : offset + limit],
        matching=len(found),
        total=len(rows),
        pauses=status.wide_pauses,
    )


async def topic_row(admin: Admin, caller: Identity, name: str) -> tuple[datetime, TopicRow]:
    """One topic. Raises NotFound."""
    caller.allowed([check_topic(name)])
    status = await admin.status(caller)
    for row in rows_of(status):
        if row.name == name:
            return status.now, row
    raise NotFound("topic", name)


def rows_of(status: Status) -> list[TopicRow]:
    """All topics of a status."""
    pauses = status.pauses_by_topic(one.topic for one in status.topics)
    return [_row(one, status.now, pauses.get(one.topic)) for one in status.topics]


def _row(one: TopicStatus, now: datetime, pause: Pause | None) -> TopicRow:
    queued = sum(count for state, count in one.counts.items() if not state.is_final and state is not State.RUNNING)
    running = one.counts.get(State.RUNNING, 0)
    oldest = wait_of(one, now)
    return TopicRow(
        status=one,
        queued=queued,
        running=running,
        oldest=oldest,
        rates=rates_of(one.flows, now),
        pause=pause,
        warnings=list(_warnings(one, queued, running, oldest, paused=pause is not None)),
    )


def _warnings(
    one: TopicStatus, queued: int, running: int, oldest: timedelta | None, *, paused: bool
) -> Sequence[TopicWarning]:
    found = []
    if one.unhandled:
        found.append(TopicWarning.UNHANDLED)
    elif oldest is not None and not paused:
        if one.max_running is not None and running >= one.max_running:
            found.append(TopicWarning.AT_LIMIT)
        elif waits_long(oldest):
            found.append(TopicWarning.LATE)
    if one.max_backlog is not None and queued >= one.max_backlog * NEARLY_FULL:
        found.append(TopicWarning.NEARLY_FULL)
    return found


_KEYS: Final = {
    Order.NAME: lambda row: row.name,
    Order.QUEUED: lambda row: (-row.queued, row.name),
    Order.OLDEST: lambda row: (-(row.oldest or timedelta(seconds=-1)), row.name),
    Order.FAILED: lambda row: (-(row.rates.failed_share or 0.0), row.name),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """One topic with its policy."""

    now: datetime
    row: TopicRow
    view: TopicView


async def topic_page(admin: Admin, topics: Topics, caller: Identity, name: str) -> TopicPage:
    """One topic. Raises NotFound."""
    view = await topics.get(caller, name)
    now, row = await topic_row(admin, caller, name)
    return TopicPage(now=now, row=row, view=view)
