"""`hg.admin.schedules`: schedules made and looked after at run time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias, Unpack
from uuid import UUID
from zoneinfo import ZoneInfo

from headgate.domain import limits
from headgate.domain.ids import JobId, id_from_bytes, parse_job_id
from headgate.domain.timestamps import unix_us
from headgate.domain.units import exact
from headgate.domain.validation import check_aware, check_integer, check_page_size, check_topic
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.codec import body_of
from headgate.sdk.connection import Connection
from headgate.sdk.ids import new_id_maker
from headgate.sdk.outcomes import Seconds
from headgate.sdk.records import record
from headgate.sdk.rpc import Answered, Asked, Method
from headgate.sdk.schedule_specs import ScheduleOptions, spec, timing
from headgate.sdk.times import time_of, time_or_none
from headgate.wire import schedules_pb2 as pb

_PAGE: Final = 500

PUT: Final = Method("ScheduleService/Put", pb.PutScheduleRequest, pb.PutScheduleResponse)
GET: Final = Method("ScheduleService/Get", pb.GetScheduleRequest, pb.Schedule)
LIST: Final = Method("ScheduleService/List", pb.ListSchedulesRequest, pb.ListSchedulesResponse)
DELETE: Final = Method("ScheduleService/Delete", pb.DeleteScheduleRequest, pb.DeleteScheduleResponse)
PAUSE: Final = Method("ScheduleService/Pause", pb.PauseScheduleRequest, pb.Schedule)
RESUME: Final = Method("ScheduleService/Resume", pb.ResumeScheduleRequest, pb.Schedule)
TRIGGER: Final = Method("ScheduleService/Trigger", pb.TriggerScheduleRequest, pb.TriggerScheduleResponse)
NEXT: Final = Method("ScheduleService/Next", pb.NextRequest, pb.NextResponse)
JOBS: Final = Method("ScheduleService/Jobs", pb.ScheduleJobsRequest, pb.ScheduleJobsResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule. `when` is readable text: `0 7 * * 1-5 Europe/Zurich`, `every 0:05:00`, `at 2026-…`."""

    name: str
    version: int
    topic: str
    when: str
    zone: str
    overlap: str
    catch_up: str
    when_full: str
    priority: int | None  # None: its topic's
    max_attempts: int  # 0: its topic's
    payload: bytes
    tags: tuple[str, ...]
    headers: dict[str, str] = field(hash=False)
    next_at: datetime | None
    last_at: datetime | None
    ends_at: datetime | None
    last_job_id: JobId | None
    fired: int
    skipped: int
    full_since: datetime | None  # since when its next occurrence waits because its topic's backlog is full
    last_skip: str
    last_skip_at: datetime | None
    last_error: str
    paused: bool
    paused_by: str
    paused_at: datetime | None
    reason: str
    source: str
    created_at: datetime | None
    changed_at: datetime | None
    changed_by: str

    @property
    def state(self) -> str:
        """active, paused or ended."""
        return "paused" if self.paused else "ended" if self.next_at is None else "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """One job of a schedule. It covers the occurrences from `covers_from` to its own."""

    job_id: JobId
    occurrence: datetime
    covers_from: datetime | None
    triggered: bool
    state: str


# Inside the class, `list` is its method.
Infos: TypeAlias = list[ScheduleInfo]
Runs: TypeAlias = list[ScheduledRun]
Moments: TypeAlias = list[datetime]


class Schedules:
    """Put, get, list, pause, resume, trigger, next, delete. Changing needs the scope `operate`, looking `read`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ids = new_id_maker()

    async def put(
        self,
        name: str,
        topic: str,
        payload: object = b"",
        *,
        cron: str | None = None,
        zone: str = "UTC",
        every: Seconds | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        after: Seconds | None = None,
        version: int | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Create or replace a schedule; the same again changes nothing.

        When: one of `cron` (with a `zone`), `every` (on a grid from `anchor`), `at` and `after` (once). `version`: only
        if the schedule still has it, 0 only if there is none. Raises VersionConflict, AlreadyExists.
        """
        when = timing(cron=cron, zone=zone, every=every, anchor=anchor, at=at, after=after)
        made = spec(check_topic(topic), when, body_of(payload), options)
        info, _ = await self.put_spec(name, made, version=version)
        return info

    async def put_spec(
        self, name: str, made: pb.ScheduleSpec, *, version: int | None = None
    ) -> tuple[ScheduleInfo, bool]:
        """As `put`, for one that is in its wire form already; says whether anything changed."""
        request = pb.PutScheduleRequest(name=utf8_text(name, field="name"), spec=made)
        if self._connection.encryption is not None:
            request.spec.payload = self._connection.encryption.seal_template(made.payload, name=name)
        if version is not None:
            request.expected_version = check_integer(version, field="version", low=0, high=2**31 - 1)
        answer = await self._call(PUT, request, name)
        return schedule_info(answer.schedule), answer.changed

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises NotFound."""
        return schedule_info(await self._call(GET, pb.GetScheduleRequest(name=utf8_text(name, field="name")), name))

    async def list(self, *, source: str | None = None) -> Infos:
        """All schedules in the order of their names; `source`: only what that program declares."""
        return [info async for info in self._pages(source)]

    async def delete(self, name: str, *, version: int | None = None, reason: str = "") -> None:
        """Remove it. The jobs it made stay."""
        request = pb.DeleteScheduleRequest(name=utf8_text(name, field="name"), reason=utf8_text(reason, field="reason"))
        if version is not None:
            request.expected_version = check_integer(version, field="version", low=0, high=2**31 - 1)
        await self._call(DELETE, request, name)

    async def pause(self, name: str, *, reason: str = "") -> ScheduleInfo:
        """Make no more jobs until resumed."""
        request = pb.PauseScheduleRequest(name=utf8_text(name, field="name"), reason=utf8_text(reason, field="reason"))
        return schedule_info(await self._call(PAUSE, request, name))

    async def resume(self, name: str, *, reason: str = "", since: datetime | None = None) -> ScheduleInfo:
        """Go on with the next occurrence from now.

        `since` is the `paused_at` of the pause to end. Raises VersionConflict if it was paused again since.
        """
        request = pb.ResumeScheduleRequest(name=utf8_text(name, field="name"), reason=utf8_text(reason, field="reason"))
        if since is not None:
            request.paused_us = unix_us(check_aware(since, field="since"))
        return schedule_info(await self._call(RESUME, request, name))

    async def trigger(self, name: str, *, request_id: UUID | str | None = None, reason: str = "") -> JobId:
        """Make one job now, whatever the overlap policy; the same `request_id` again gives the same job."""
        request = self._ids.next_id() if request_id is None else parse_job_id(request_id, field="request_id")
        message = pb.TriggerScheduleRequest(
            name=utf8_text(name, field="name"), request_id=request.bytes, reason=utf8_text(reason, field="reason")
        )
        return id_from_bytes((await self._call(TRIGGER, message, name)).job_id)

    async def next(self, name: str, count: int = 5) -> Moments:
        """The next occurrences, by the clocks of its zone."""
        check_integer(count, field="count", low=1, high=limits.OCCURRENCES_MAX)
        return _moments(await self._call(NEXT, pb.NextRequest(name=utf8_text(name, field="name"), count=count), name))

    async def preview(
        self,
        count: int = 5,
        *,
        cron: str | None = None,
        zone: str = "UTC",
        every: Seconds | None = None,
        anchor: datetime | None = None,
        start: datetime | None = None,
    ) -> Moments:
        """The occurrences such a schedule would have from `start` (now); nothing is stored."""
        when = timing(cron=cron, zone=zone, every=every, anchor=anchor)
        check_integer(count, field="count", low=1, high=limits.OCCURRENCES_MAX)
        after_us = 0 if start is None else unix_us(check_aware(start, field="start"))
        request = pb.NextRequest(timing=when, count=count, after_us=after_us)
        return _moments(await self._call(NEXT, request, "preview"))

    async def jobs(self, name: str, *, limit: int = 50, before: datetime | None = None) -> Runs:
        """The jobs it made, newest occurrence first."""
        check_page_size(limit)
        before_us = 0 if before is None else unix_us(check_aware(before, field="before"))
        request = pb.ScheduleJobsRequest(name=utf8_text(name, field="name"), limit=limit, before_us=before_us)
        return [record(ScheduledRun, job) for job in (await self._call(JOBS, request, name)).jobs]

    async def _pages(self, source: str | None) -> AsyncIterator[ScheduleInfo]:
        after = ""
        while True:
            request = pb.ListSchedulesRequest(after=after, limit=_PAGE)
            if source is not None:
                request.source = utf8_text(source, field="source")
            page = (await self._call(LIST, request, "")).schedules
            for found in page:
                yield schedule_info(found)
            if len(page) < _PAGE:
                return
            after = page[-1].name

    async def _call(self, method: Method[Asked, Answered], request: Asked, name: str) -> Answered:
        return await self._connection.call(method, request, about=("schedule", name))


def schedule_info(found: pb.Schedule) -> ScheduleInfo:
    """Read a schedule off the wire."""
    made = found.spec
    when, zone = timing_text(made.timing)
    catch_up = pb.CatchUp.Name(made.catch_up).removeprefix("CATCH_UP_").lower()
    return record(
        ScheduleInfo,
        found,
        made,
        when=when,
        zone=zone,
        overlap=pb.Overlap.Name(made.overlap).removeprefix("OVERLAP_").lower(),
        catch_up=f"all up to {made.catch_up_most}" if catch_up == "all" else catch_up,
        when_full=pb.WhenFull.Name(made.when_full).removeprefix("WHEN_FULL_").lower(),
    )


def timing_text(when: pb.Timing) -> tuple[str, str]:
    """A timing as text, and its time zone."""
    match when.WhichOneof("kind"):
        case "cron":
            return f"{when.cron.expression} {when.cron.zone}", when.cron.zone
        case "every":
            start = "" if not when.every.anchor_us else f" from {time_or_none(when.every.anchor_us):%Y-%m-%dT%H:%M:%SZ}"
            return f"every {exact(timedelta(milliseconds=when.every.interval_ms))}{start}", "UTC"
        case "after":
            return f"once, after {exact(timedelta(milliseconds=when.after.delay_ms))}", "UTC"
        case _:
            return f"once, at {time_or_none(when.at_us):%Y-%m-%dT%H:%M:%SZ}", "UTC"


def _moments(answer: pb.NextResponse) -> list[datetime]:
    zone = ZoneInfo(answer.zone or "UTC")
    return [(time_of(at)).astimezone(zone) for at in answer.at_us]
