"""Schedules with what stands in their way: whether their topic is paused, when they fire next, what they made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headgate.control.admin import Admin
from headgate.control.schedules import Schedules
from headgate.domain.identity import Identity
from headgate.domain.views import Pause, ScheduledJob, ScheduleView

UPCOMING: Final = 5
RECENT: Final = 20
RECENT_LISTED: Final = 10
"""Runs of each schedule in a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleList:
    """A page of schedules by name. `pauses`: of their topics, by topic. `next_after` empty: it is the last page.

    `runs`: the last ones of each, newest first, by its number.
    """

    now: datetime
    schedules: Sequence[ScheduleView]
    pauses: Mapping[str, Pause]
    runs: Mapping[int, Sequence[ScheduledJob]]
    next_after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePage:
    """One schedule: `upcoming` in UTC, `runs` newest first; `pause`: of its topic."""

    now: datetime
    view: ScheduleView
    upcoming: Sequence[datetime]
    runs: Sequence[ScheduledJob]
    pause: Pause | None


async def schedule_list(
    admin: Admin, schedules: Schedules, caller: Identity, *, after: str = "", limit: int = 100
) -> ScheduleList:
    """A page of schedules."""
    found = await schedules.listed(caller, after=after, limit=limit)
    status = await admin.status(caller)
    return ScheduleList(
        now=status.now,
        schedules=found,
        pauses=status.pauses_by_topic(one.spec.topic for one in found),
        runs=await schedules.recent_jobs(caller, found, limit=RECENT_LISTED),
        next_after=found[-1].name if len(found) == limit else "",
    )


async def schedule_page(
    admin: Admin, schedules: Schedules, caller: Identity, name: str, *, before: datetime | None = None
) -> SchedulePage:
    """One schedule. Raises NotFound."""
    view, upcoming = await schedules.upcoming(caller, name, count=UPCOMING)
    runs = await schedules.jobs(caller, name, before=before, limit=RECENT)
    status = await admin.status(caller)
    return SchedulePage(
        now=status.now,
        view=view,
        upcoming=upcoming,
        runs=runs,
        pause=status.pauses_by_topic([view.spec.topic]).get(view.spec.topic),
    )
