"""Schedules with what stands in their way: whether their topic is paused, when they fire next, what they made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headgate.control.admin import Admin
from headgate.control.schedules import Schedules
from headgate.domain.identity import Identity
from headgate.domain.views import Pause, ScheduledJob, ScheduleView, Skip

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
    runs: Mapping[int, Sequence[ScheduledJob | Skip]]
    next_after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePage:
    """One schedule: `upcoming` in UTC, `runs` newest first; `history`: also what was skipped; `pause`: of its topic."""

    now: datetime
    view: ScheduleView
    upcoming: Sequence[datetime]
    runs: Sequence[ScheduledJob]
    history: Sequence[ScheduledJob | Skip]
    pause: Pause | None


def history(
    runs: Sequence[ScheduledJob], skips: Sequence[Skip], *, limit: int, before: datetime | None = None
) -> list[ScheduledJob | Skip]:
    """Runs and skipped occurrences, newest first. `runs` are the newest `limit` ones, of those before a time.

    What was skipped before the oldest of these is left out, unless no older run follows.
    """
    oldest = runs[-1].occurrence if len(runs) == limit else None
    fitting = [one for one in skips if (before is None or one.at < before) and (oldest is None or one.at >= oldest)]
    return sorted([*runs, *fitting], key=_at, reverse=True)


def _at(one: ScheduledJob | Skip) -> datetime:
    return one.at if isinstance(one, Skip) else one.occurrence


async def schedule_list(
    admin: Admin, schedules: Schedules, caller: Identity, *, after: str = "", limit: int
) -> ScheduleList:
    """A page of schedules."""
    found = await schedules.listed(caller, after=after, limit=limit)
    status = await admin.status(caller)
    runs = await schedules.recent_jobs(caller, found, limit=RECENT_LISTED)
    return ScheduleList(
        now=status.now,
        schedules=found,
        pauses=status.pauses_by_topic(one.spec.topic for one in found),
        runs={
            one.schedule_no: history(runs.get(one.schedule_no, ()), one.skips, limit=RECENT_LISTED)[:RECENT_LISTED]
            for one in found
        },
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
        history=history(runs, view.skips, limit=RECENT, before=before),
        pause=status.pauses_by_topic([view.spec.topic]).get(view.spec.topic),
    )
