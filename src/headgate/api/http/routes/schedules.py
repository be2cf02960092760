"""Schedules: jobs created at given times, one per occurrence."""

from __future__ import annotations

from typing import Annotated, Literal, assert_never
from uuid import UUID

import msgspec
from litestar import Response
from litestar.params import JSONBody, PathParameter, QueryParameter

from headgate.api.http.codec import (
    NOTHING,
    Attempts,
    Input,
    Microseconds,
    Milliseconds,
    Output,
    Priority,
    RawJson,
    RetryPolicyIn,
    RetryPolicyOut,
    StateName,
    TopicName,
    answers,
    at_us,
    content,
    moment,
    payload_bytes,
    policy_out,
    span,
    tagged,
)
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.job_verbs import WithReason
from headgate.api.http.routing import PageSize, delete, get, post, put
from headgate.control.schedules import NEXT_DEFAULT
from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.ids import parse_job_id
from headgate.domain.schedules import After, At, CatchUp, Cron, Every, Overlap, ScheduleSpec, Timing, WhenFull
from headgate.domain.timestamps import EPOCH, MAX_US
from headgate.domain.validation import to_ms
from headgate.domain.views import ScheduledJob, ScheduleView

TAG = ["schedules"]
VERSION_MAX = 2**31 - 1
Name = Annotated[
    str,
    PathParameter(
        max_length=limits.SCHEDULE_NAME_MAX_CHARS,
        description="Name of the schedule; a slash is written %2F.",
        schema_extra={"pattern": f"^{limits.SCHEDULE_NAME_PATTERN}$"},  # checked by the use case, in its own words
    ),
]
Occurrences = Annotated[int, msgspec.Meta(ge=1, le=limits.OCCURRENCES_MAX)]
Version = Annotated[
    Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)] | None,
    msgspec.Meta(description="Not set: any; 0: the schedule must not exist; else this exact version."),
]


class AfterIn(Input, kw_only=True):
    """Once, this long after the schedule was stored."""

    delay_ms: Milliseconds


class EveryIn(Input, kw_only=True):
    """At anchor + k × interval."""

    interval_ms: Annotated[int, msgspec.Meta(ge=1_000, le=31_622_400_000)]
    anchor_us: Annotated[Microseconds, msgspec.Meta(description="Default: 1970-01-01.")] = 0


class CronIn(Input, kw_only=True):
    """By the clocks of a time zone."""

    expression: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.CRON_MAX_CHARS)]
    zone: Annotated[str, msgspec.Meta(max_length=limits.ZONE_MAX_CHARS, description="IANA time zone.")] = "UTC"


class TimingIn(Input, kw_only=True):
    """When: set one of them."""

    at_us: Microseconds | None = None
    after: AfterIn | None = None
    every: EveryIn | None = None
    cron: CronIn | None = None

    def timing(self) -> Timing:
        """The timing; raises InvalidInput."""
        given = [one for one in (self.at_us, self.after, self.every, self.cron) if one is not None]
        if len(given) != 1:
            raise InvalidInput("timing", "must have one of at_us, after, every and cron")
        match given[0]:
            case int(at):
                return At(at=moment(at, field="at_us") or EPOCH)
            case AfterIn(delay_ms=delay):
                return After(delay=span(delay) or NOTHING)
            case EveryIn(interval_ms=interval, anchor_us=anchor):
                return Every(
                    interval=span(interval) or NOTHING, anchor=moment(anchor, field="every.anchor_us") or EPOCH
                )
            case CronIn(expression=expression, zone=zone):
                return Cron(expression=expression, zone=zone)
            case never:
                assert_never(never)


class SpecIn(Input, kw_only=True):
    """What a schedule creates, and when."""

    topic: TopicName
    timing: TimingIn
    payload: Annotated[RawJson, msgspec.Meta(description="Any JSON value.")] = msgspec.UNSET
    payload_base64: str | None = None
    priority: Priority | None = None
    max_attempts: Attempts | None = None
    retry: RetryPolicyIn | None = None
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=limits.HEADERS_MAX)] = {}
    tags: Annotated[list[str], msgspec.Meta(max_length=limits.TAGS_MAX)] = []
    overlap: Literal["allow", "skip", "replace"] = "allow"
    catch_up: Literal["one", "all", "none"] = "one"
    catch_up_most: Annotated[int, msgspec.Meta(ge=1, le=limits.CATCH_UP_MAX)] = limits.CATCH_UP_MAX
    ends_us: Annotated[Microseconds, msgspec.Meta(description="No occurrence after this; 0: no end.")] = 0
    when_full: Literal["wait", "skip"] = "wait"
    source: Annotated[str, msgspec.Meta(description="The program that declares it; empty: a person.")] = ""


class PutSchedule(Input, kw_only=True):
    """A schedule to create or replace."""

    spec: SpecIn
    expected_version: Version = None


class ResumeScheduleIn(WithReason, kw_only=True):
    """Which pause to end."""

    paused_us: Annotated[
        Microseconds,
        msgspec.Meta(description="Only the pause that began then, else `version_conflict`; 0: any."),
    ] = 0


class TriggerIn(WithReason, kw_only=True):
    """One job now."""

    request_id: Annotated[
        UUID | None, msgspec.Meta(description="A UUID of version 7; repeat it to repeat the request safely.")
    ] = None


class PreviewIn(Input, kw_only=True):
    """A timing to try."""

    timing: TimingIn
    count: Occurrences = NEXT_DEFAULT
    after_us: Annotated[Microseconds, msgspec.Meta(description="Start from here; 0: now.")] = 0
    ends_us: Microseconds = 0


class TimingOut(Output, kw_only=True):
    """When."""

    at_us: int = 0
    after: dict[str, int] = {}
    every: dict[str, int] = {}
    cron: dict[str, str] = {}


class SpecOut(Output, kw_only=True):
    """What a schedule creates, and when."""

    topic: str
    timing: TimingOut
    payload: RawJson = msgspec.UNSET
    payload_base64: str = ""
    priority: int | None = None
    max_attempts: int = 0
    retry: RetryPolicyOut | None = None
    headers: dict[str, str] = {}
    tags: list[str] = []
    overlap: str
    catch_up: str
    catch_up_most: int = 0
    ends_us: int = 0
    when_full: str
    source: str = ""


class ScheduleInfo(Output, kw_only=True):
    """A schedule as it is now."""

    name: str
    version: int
    spec: SpecOut
    next_us: Annotated[int, msgspec.Meta(description="Left out: the schedule has ended.")] = 0
    last_us: int = 0
    last_job_id: str = ""
    fired: int = 0
    skipped: int = 0
    last_skip: str = ""
    last_skip_us: int = 0
    last_error: str = ""
    paused: bool = False
    paused_by: str = ""
    paused_us: int = 0
    reason: str = ""
    created_us: int
    changed_us: int
    changed_by: str = ""
    full_since_us: int = 0


class PutOut(Output, kw_only=True):
    """The schedule as stored."""

    schedule: ScheduleInfo
    changed: Annotated[bool, msgspec.Meta(description="False: the stored schedule was the same.")]


class SchedulePage(Output, kw_only=True):
    """One page by name; the last name is `after` of the next."""

    schedules: list[ScheduleInfo]


class Triggered(msgspec.Struct, kw_only=True):
    """The job that was created."""

    job_id: str
    created: Annotated[bool, msgspec.Meta(description="False: created by an earlier call with this request_id.")]


class Upcoming(Output, kw_only=True):
    """Occurrences."""

    at_us: list[int]
    zone: str
    paused: Annotated[bool, msgspec.Meta(description="The schedule is paused: these do not fire.")] = False


class ScheduledJobOut(Output, kw_only=True):
    """A job and its occurrence."""

    job_id: str
    occurrence_us: int
    covers_from_us: int = 0
    triggered: bool = False
    state: StateName | Literal[""] = ""


class ScheduledJobs(Output, kw_only=True):
    """Newest occurrence first; that of the last one is `before_us` of the next page."""

    jobs: list[ScheduledJobOut]


@get("/v1/schedules", uses="ScheduleService/List", tags=TAG)
async def list_schedules(
    request: ApiRequest,
    after: Annotated[str, QueryParameter(description="The last name of the previous page.")] = "",
    limit: PageSize = limits.PAGE_DEFAULT,
    source: Annotated[str | None, QueryParameter(description="Only those declared by this program.")] = None,
) -> SchedulePage:
    """List schedules by name."""
    found = await request.cases.schedules.listed(request.caller, after=after, limit=limit, source=source)
    return SchedulePage(schedules=[_info(one) for one in found])


@put("/v1/schedules/{name:str}", uses="ScheduleService/Put", tags=TAG)
async def put_schedule(request: ApiRequest, name: Name, data: JSONBody[PutSchedule]) -> PutOut:
    """Create or replace a schedule. Putting the same again changes nothing."""
    view, changed = await request.cases.schedules.put(
        request.caller, name, _spec_of(data.spec), expected=data.expected_version
    )
    return PutOut(schedule=_info(view), changed=changed)


@get("/v1/schedules/{name:str}", uses="ScheduleService/Get", tags=TAG, etag=True)
async def get_schedule(request: ApiRequest, name: Name) -> Response[ScheduleInfo]:
    """Read a schedule."""
    return tagged(request, _info(await request.cases.schedules.get(request.caller, name)))


@delete("/v1/schedules/{name:str}", uses="ScheduleService/Delete", status=204, tags=TAG)
async def delete_schedule(
    request: ApiRequest,
    name: Name,
    expected_version: Annotated[int | None, QueryParameter(ge=0, le=VERSION_MAX)] = None,
    reason: Annotated[str, QueryParameter(max_length=limits.REASON_MAX_CHARS)] = "",
) -> None:
    """Remove a schedule; its jobs stay."""
    await request.cases.schedules.delete(request.caller, name, expected=expected_version, reason=reason)


@post("/v1/schedules/{name:str}/pause", uses="ScheduleService/Pause", tags=TAG)
async def pause_schedule(request: ApiRequest, name: Name, data: JSONBody[WithReason | None] = None) -> ScheduleInfo:
    """Stop firing until resumed; its jobs stay."""
    reason = "" if data is None else data.reason
    return _info(await request.cases.schedules.pause(request.caller, name, reason=reason))


@post("/v1/schedules/{name:str}/resume", uses="ScheduleService/Resume", tags=TAG)
async def resume_schedule(
    request: ApiRequest, name: Name, data: JSONBody[ResumeScheduleIn | None] = None
) -> ScheduleInfo:
    """Continue with the next occurrence from now on."""
    given = data or ResumeScheduleIn()
    since = moment(given.paused_us, field="paused_us")
    return _info(await request.cases.schedules.resume(request.caller, name, reason=given.reason, since=since))


@post("/v1/schedules/{name:str}/trigger", uses="ScheduleService/Trigger", tags=TAG)
async def trigger_schedule(request: ApiRequest, name: Name, data: JSONBody[TriggerIn | None] = None) -> Triggered:
    """Create one job now, besides the occurrences."""
    given = data or TriggerIn()
    asked = given.request_id
    job_id, created = await request.cases.schedules.trigger(
        request.caller,
        name,
        request=request.cases.new_id() if asked is None else parse_job_id(asked, field="request_id"),
        reason=given.reason,
    )
    return Triggered(job_id=str(job_id), created=created)


@get("/v1/schedules/{name:str}/next", uses="ScheduleService/Next", tags=TAG)
async def next_occurrences(
    request: ApiRequest,
    name: Name,
    count: Annotated[int, QueryParameter(ge=1, le=limits.OCCURRENCES_MAX)] = NEXT_DEFAULT,
) -> Upcoming:
    """The next occurrences of a schedule."""
    view, found = await request.cases.schedules.upcoming(request.caller, name, count=count)
    return Upcoming(at_us=[at_us(one) for one in found], zone=_zone(view.spec.timing), paused=view.paused)


@post("/v1/occurrences", uses="ScheduleService/Next", tags=TAG)
async def preview_occurrences(request: ApiRequest, data: JSONBody[PreviewIn]) -> Upcoming:
    """The occurrences that a schedule with this timing would have; nothing is stored."""
    timing = data.timing.timing()
    found = await request.cases.schedules.preview(
        timing,
        count=data.count,
        after=moment(data.after_us, field="after_us"),
        ends_at=moment(data.ends_us, field="ends_us"),
    )
    return Upcoming(at_us=[at_us(one) for one in found], zone=_zone(timing))


@get("/v1/schedules/{name:str}/jobs", uses="ScheduleService/Jobs", tags=TAG)
async def list_scheduled_jobs(
    request: ApiRequest,
    name: Name,
    before_us: Annotated[int, QueryParameter(ge=0, le=MAX_US)] = 0,
    limit: PageSize = limits.PAGE_DEFAULT,
) -> ScheduledJobs:
    """List the jobs that a schedule created, newest occurrence first."""
    found = await request.cases.schedules.jobs(
        request.caller, name, before=moment(before_us, field="before_us"), limit=limit
    )
    return ScheduledJobs(jobs=[_scheduled_job(one) for one in found])


def _spec_of(spec: SpecIn) -> ScheduleSpec:
    return ScheduleSpec(
        topic=spec.topic,
        timing=spec.timing.timing(),
        payload=payload_bytes(spec.payload, spec.payload_base64, field="spec.payload"),
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        policy=None if spec.retry is None else spec.retry.policy(),
        headers=spec.headers,
        tags=tuple(spec.tags),
        overlap=Overlap(spec.overlap),
        catch_up=CatchUp(spec.catch_up),
        catch_up_most=spec.catch_up_most,
        ends_at=moment(spec.ends_us, field="spec.ends_us"),
        source=spec.source,
        when_full=WhenFull(spec.when_full),
    )


def _info(view: ScheduleView) -> ScheduleInfo:
    paused_us = at_us(view.paused_at) if view.paused else 0
    return answers.of(ScheduleInfo, view, spec=_spec(view.spec), paused_us=paused_us)


def _spec(spec: ScheduleSpec) -> SpecOut:
    payload, payload_base64 = content(spec.payload, spec.headers)
    return answers.of(
        SpecOut,
        spec,
        timing=_timing(spec.timing),
        payload=payload,
        payload_base64=payload_base64,
        retry=None if spec.policy is None else policy_out(spec.policy),
        headers=dict(spec.headers),
        catch_up_most=spec.catch_up_most if spec.catch_up is CatchUp.ALL else 0,
    )


def _timing(timing: Timing) -> TimingOut:
    match timing:
        case At(at=at):
            return TimingOut(at_us=at_us(at))
        case After(delay=delay, at=at):
            return TimingOut(after={"delay_ms": to_ms(delay), "at_us": at_us(at)})
        case Every(interval=interval, anchor=anchor):
            return TimingOut(every={"interval_ms": to_ms(interval), "anchor_us": at_us(anchor)})
        case Cron(expression=expression, zone=zone):
            return TimingOut(cron={"expression": expression, "zone": zone})
        case _:
            assert_never(timing)


def _zone(timing: Timing) -> str:
    return timing.zone if isinstance(timing, Cron) else "UTC"


def _scheduled_job(job: ScheduledJob) -> ScheduledJobOut:
    return answers.of(ScheduledJobOut, job)
