"""Schedules: put, read, pause, trigger, preview; and who may. The rules of schedules are in domain/schedules.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from headgate.control.payload_check import PayloadCheck
from headgate.control.ports import ScheduleStore
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.identity import Identity, PermissionDenied
from headgate.domain.ids import JobId
from headgate.domain.pacing import Pace
from headgate.domain.schedules import (
    ScheduleSpec,
    Timing,
    check_schedule_name,
    check_timing,
    first_occurrence,
    occurrences,
)
from headgate.domain.timestamps import EPOCH
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_aware, check_integer, check_page_size, check_reason, shown
from headgate.domain.views import ScheduledJob, ScheduleView

NEXT_DEFAULT: Final = 5
"""Next occurrences in an answer, unless the client says how many."""
PREVIEW_SPAN: Final = timedelta(days=36_525)
PREVIEW_BEFORE: Final = datetime(2200, 1, 1, tzinfo=UTC)


class Schedules:
    """Schedules of the caller's tenant; a token limited to topics reaches only schedules of those topics."""

    def __init__(
        self,
        store: ScheduleStore,
        *,
        topics_ready: Callable[[Iterable[int]], None],
        wake: Callable[[], None],
        payloads: PayloadCheck,
    ) -> None:
        """`topics_ready` gets the topic of a new job, so that it is claimed at once; `wake` wakes the scheduler."""
        self._store, self._topics_ready, self._wake, self._payloads = store, topics_ready, wake, payloads

    async def put(
        self, caller: Identity, name: str, spec: ScheduleSpec, *, expected: int | None
    ) -> tuple[ScheduleView, bool]:
        """Create or replace a schedule. `expected` None: any version; 0: it must not exist; else this exact version.

        Returns whether it has changed: putting the same spec again writes nothing.
        """
        check_schedule_name(name)
        if expected is not None:
            check_integer(expected, field="expected_version", low=0, high=2**31 - 1)
        caller.allowed([spec.topic])
        spec = spec.checked(now=await self._store.now())
        self._payloads.refuse(caller.tenant, spec.topic, spec.payload)
        if caller.topics is not None and not _is_named_after(name, caller.topics):
            await self._check_exists(caller, name)
        answer = await self._store.put(
            caller.tenant, name, spec, expected=expected, who=caller.subject, topics=caller.topics
        )
        self._wake()
        return answer

    async def get(self, caller: Identity, name: str) -> ScheduleView:
        """One schedule. Raises NotFound."""
        return await self._visible(caller, name)

    async def listed(
        self, caller: Identity, *, after: str = "", limit: int = limits.PAGE_DEFAULT, source: str | None = None
    ) -> list[ScheduleView]:
        """A page in the order of names."""
        check_page_size(limit)
        return await self._store.listed(caller.tenant, after=after, limit=limit, topics=caller.topics, source=source)

    async def lag(self, caller: Identity) -> timedelta | None:
        """How late the most overdue occurrence is, of all schedules; None if none is to fire."""
        return await self._store.lag(caller.tenant, topics=caller.topics)

    async def delete(self, caller: Identity, name: str, *, expected: int | None, reason: str) -> None:
        """Remove a schedule; its jobs stay."""
        await self._visible(caller, name)
        await self._store.delete(
            caller.tenant, name, expected=expected, who=caller.subject, reason=check_reason(reason)
        )

    async def pause(self, caller: Identity, name: str, *, reason: str) -> ScheduleView:
        """Stop firing until resumed; its jobs stay."""
        await self._visible(caller, name)
        return await self._store.pause(caller.tenant, name, who=caller.subject, reason=check_reason(reason))

    async def resume(self, caller: Identity, name: str, *, reason: str, since: datetime | None = None) -> ScheduleView:
        """Continue with the next occurrence from now on; occurrences missed meanwhile are skipped.

        `since` is the `paused_at` of the pause to end. Raises VersionConflict if it was paused again since.
        """
        if since is not None:
            check_aware(since, field="since")
        await self._visible(caller, name)
        view = await self._store.resume(
            caller.tenant, name, who=caller.subject, reason=check_reason(reason), since=since
        )
        self._wake()
        return view

    async def trigger(self, caller: Identity, name: str, *, request: JobId, reason: str) -> tuple[JobId, bool]:
        """Create one job now; the same request again returns the same job. Returns whether it is new."""
        await self._visible(caller, name)
        job_id, created, topic_no = await self._store.trigger(
            caller.tenant, name, request=request, who=caller.subject, reason=check_reason(reason)
        )
        self._topics_ready([topic_no])
        return job_id, created

    async def jobs(self, caller: Identity, name: str, *, before: datetime | None, limit: int) -> list[ScheduledJob]:
        """The jobs that it created, newest occurrence first."""
        check_page_size(limit)
        await self._visible(caller, name)
        return await self._store.jobs(caller.tenant, name, before=before, limit=limit)

    async def recent_jobs(
        self, caller: Identity, listed: Sequence[ScheduleView], *, limit: int
    ) -> dict[int, list[ScheduledJob]]:
        """The newest jobs of schedules that were listed for this caller, by the number of the schedule."""
        check_page_size(limit)
        return await self._store.recent_jobs(caller.tenant, [one.schedule_no for one in listed], limit=limit)

    async def upcoming(self, caller: Identity, name: str, *, count: int) -> tuple[ScheduleView, list[datetime]]:
        """The next occurrences of a stored schedule; none while it is paused or when it has ended."""
        check_integer(count, field="count", low=1, high=limits.OCCURRENCES_MAX)
        view = await self._visible(caller, name)
        if view.next_at is None:
            return view, []
        return view, await _list(view.spec.timing, view.next_at, view.spec.ends_at, count)

    async def preview(
        self, timing: Timing, *, count: int, after: datetime | None = None, ends_at: datetime | None = None
    ) -> list[datetime]:
        """The occurrences that a schedule with this timing would have; nothing is stored."""
        check_integer(count, field="count", low=1, high=limits.OCCURRENCES_MAX)
        if (
            after is not None and not EPOCH <= after < PREVIEW_BEFORE
        ):  # near the ends of the calendar, arithmetic overflows
            raise InvalidInput("after", f"must be from 1970 to 2199, got {shown(after)}")
        now = await self._store.now() if after is None else after
        timing = check_timing(timing, now=now)
        first = first_occurrence(timing, now=now, last=None, ends_at=ends_at)
        if first is None:
            return []
        return await _list(timing, first, ends_at, count)

    async def _visible(self, caller: Identity, name: str) -> ScheduleView:
        view = await self._store.get(caller.tenant, check_schedule_name(name))
        if caller.topics is not None and view.spec.topic not in caller.topics:
            raise NotFound("schedule", name)
        return view

    async def _check_exists(self, caller: Identity, name: str) -> None:
        """Refuse a new name that the caller may not choose; the answer does not reveal whether the name is taken."""
        try:
            await self._visible(caller, name)
        except NotFound:
            raise PermissionDenied(
                f"the token of {caller.subject} permits some topics only: a new schedule must be named after one of"
                ' them, "TOPIC" or "TOPIC/NAME"'
            ) from None


def _is_named_after(name: str, topics: TopicSet) -> bool:
    return name in topics or any(name.startswith(f"{topic}/") for topic in topics.names)


async def _list(timing: Timing, first: datetime, ends_at: datetime | None, count: int) -> list[datetime]:
    # Finding a leap day on a certain weekday scans 28 years: a thousand of these would block the event loop.
    until = first + PREVIEW_SPAN if ends_at is None else min(ends_at, first + PREVIEW_SPAN)
    found, pace = [first], Pace(time.monotonic)
    for at in islice(occurrences(timing, first, until=until), count - 1):
        await pace.rest()
        found.append(at)
    return found
