"""What is read for one screen: one set of calls, the same few for every place."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from headgate.cli.bulk import operation_lines
from headgate.cli.job_report import JobReport
from headgate.cli.lists import NameFilter
from headgate.cli.schedule import schedule_lines
from headgate.cli.top import pages
from headgate.cli.top.pages import Page
from headgate.cli.top.places import FIELDS, Place, View
from headgate.cli.top.texts import POINTS
from headgate.domain.bulk import DeadGroup, masked_group
from headgate.domain.errors import HeadgateError
from headgate.domain.filters import Field, InvalidFilter
from headgate.domain.limits import LIST_LOOK_AT
from headgate.domain.redaction import Redaction
from headgate.domain.topic_figures import Rates
from headgate.domain.workers import MORE_WORKERS
from headgate.sdk import Forbidden, Headgate
from headgate.sdk.admin import Status

T = TypeVar("T")
Names: TypeAlias = Callable[[T], Mapping[Field, Sequence[str]]]
"""What an entry is found by."""
ROWS: Final = 200
"""Entries of one list; a filter finds others."""
FAILING_SECONDS: Final = 10.0
"""What fails is read at most this often, and only after attempts have failed."""
RECENT_SECONDS: Final = 15 * 60
"""A group of errors without a failure in this time is not shown as failing now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One read: the status, what the place shows, and what fails."""

    place: Place
    status: Status
    page: Page
    failing: Sequence[DeadGroup]
    done: Sequence[float]  # completed jobs per second between the last reads


class Completions:
    """Completed jobs per second between two reads: for the sparkline, which has to move with each of them."""

    def __init__(self) -> None:
        self._before: Counter[datetime] = Counter()
        self._at: datetime | None = None

    def since_previous(self, status: Status) -> float:
        """Since the previous read; the average of the last minutes, if there is none."""
        by_minute: Counter[datetime] = Counter()
        for topic in status.topics:
            for flow in topic.flows:
                by_minute[flow.minute] += flow.completed
        before, at = self._before, self._at
        self._before, self._at = by_minute, status.now
        if at is None or status.now <= at:
            return sum(status.rates.values(), Rates()).completed
        # A minute that is no longer reported has no difference: `-` of counters leaves negative ones out.
        return (by_minute - before).total() / (status.now - at).total_seconds()


class Reader:
    """Reads for the screen, one call after the other: the status, the place, and periodically what fails."""

    def __init__(self, hg: Headgate, redaction: Redaction, *, plain: bool = False) -> None:
        self._hg, self._redaction, self._plain = hg, redaction, plain
        self._completions = Completions()
        self._done: deque[float] = deque(maxlen=POINTS)
        self._failing: Sequence[DeadGroup] = ()
        self._failing_at = -FAILING_SECONDS

    async def read(self, place: Place) -> Snapshot:
        """Read everything that the screen shows; raises HeadgateError.

        What the token may not read, and a job that does not exist, is a note on the page: the rest is shown.
        """
        status = await self._hg.admin.status()
        self._done.append(self._completions.since_previous(status))
        try:
            page = await self._page(place, status)
        except HeadgateError as error:
            if not isinstance(error, Forbidden | InvalidFilter) and error.code != "not_found":
                raise
            page = Page(note=str(error))
        await self._read_failing(status)
        return Snapshot(place=place, status=status, page=page, failing=self._failing, done=tuple(self._done))

    async def _read_failing(self, status: Status) -> None:
        failed = any(flow.retried or flow.dead for topic in status.topics for flow in topic.flows)
        if not failed and not self._failing:
            return
        if time.monotonic() - self._failing_at >= FAILING_SECONDS:
            self._failing_at = time.monotonic()
            groups = (await self._hg.admin.failing(limit=10)).groups
            recent = [one for one in groups if (status.now - one.last_at).total_seconds() < RECENT_SECONDS]
            self._failing = self._masked(recent)

    def _masked(self, groups: Sequence[DeadGroup]) -> list[DeadGroup]:
        return [masked_group(one, self._redaction) for one in groups]

    async def _page(self, place: Place, status: Status) -> Page:
        admin, now, mask = self._hg.admin, status.now, self._redaction.masked_text
        match place.view:
            case View.TOPICS:
                found = self._chosen(place, status.topics, lambda one: {Field.TOPIC: (one.topic,)})
                return pages.topics(found, status, plain=self._plain)
            case View.JOBS:
                listed = await admin.jobs_matching(place.filter).page(limit=ROWS)
                found_jobs = pages.jobs(listed.jobs, now=now, mask=mask)
                if listed.partial:
                    note = (
                        f"{len(listed.jobs):,} of the first {LIST_LOOK_AT:,} jobs match; the others were not looked at"
                    )
                    return replace(found_jobs, note=note)
                return _bounded(found_jobs, more=bool(listed.cursor))
            case View.WORKERS:
                connected = await admin.workers.list(running=True)
                workers = self._chosen(
                    place, connected, lambda one: {Field.WORKER: (one.worker,), Field.TOPIC: one.topics}
                )
                shown = pages.workers(workers, now=now)
                return replace(shown, note=MORE_WORKERS) if connected.more_workers else shown
            case View.SCHEDULES:
                schedules = self._chosen(
                    place,
                    await admin.schedules.list(),
                    lambda one: {Field.SCHEDULE: (one.name,), Field.TOPIC: (one.topic,)},
                )
                return pages.schedules(schedules, now=now)
            case View.DEAD:
                groups = await admin.dead.groups(limit=ROWS)
                chosen = self._chosen(place, self._masked(groups.groups), lambda one: {Field.TOPIC: (one.topic,)})
                return _bounded(pages.dead_groups(chosen, now=now), more=not groups.exact)
            case View.OPERATIONS:
                listed_operations = await admin.bulk.list(limit=ROWS)
                operations = self._chosen(place, listed_operations, lambda one: {Field.TOPIC: (one.verb, one.filter)})
                return pages.operations(operations, now=now, plain=self._plain)
            case View.JOB:
                info = await self._hg.get(UUID(place.subject), payload=True, result=True)
                report = JobReport(info=info, events=await admin.jobs.events(info.id), redaction=self._redaction)
                return Page(lines=tuple(report.lines(full=True)), item=info)
            case View.LOG:
                log = await admin.jobs.logs(place.subject, limit=ROWS, newest=True)
                return _bounded_log(pages.log_lines(log.lines, mask=mask), count=len(log.lines), more=log.more)
            case View.EVENTS:
                return pages.events(await admin.jobs.events(place.subject), now=now, mask=mask)
            case View.SCHEDULE:
                schedule = await admin.schedules.get(place.subject)
                return Page(lines=tuple(schedule_lines(schedule)), item=schedule)
            case View.OPERATION:
                operation = await admin.bulk.get(place.subject)
                return Page(lines=tuple(operation_lines(operation)), item=operation)

    def _chosen(self, place: Place, found: Sequence[T], names: Names[T]) -> list[T]:
        """The entries that the filter of the place selects: by its fields, or by a part of a name."""
        if ":" in place.filter:
            chosen = NameFilter(place.filter, *FIELDS.get(place.view, ()))
            return [one for one in found if chosen.matches(names(one))]
        part = place.filter.strip("*").lower()
        return [one for one in found if any(part in name.lower() for all_ in names(one).values() for name in all_)]


def _bounded_log(page: Page, *, count: int, more: bool) -> Page:
    # Not the number of its rows: some say that lines are missing.
    return replace(page, note=f"the newest {count:,} lines are shown") if more else page


def _bounded(page: Page, *, more: bool) -> Page:
    return replace(page, note=f"the first {len(page.rows):,} are shown; / finds others") if more and page.rows else page
