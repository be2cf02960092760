"""Verbs on jobs by id: cancel, redrive, discard, reprioritise, move. For jobs by filter, see bulk operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from litestar.params import JSONBody

from headgate.api.http.codec import (
    NOTHING,
    Input,
    Milliseconds,
    Output,
    Priority,
    RawJson,
    Reason,
    StateName,
    TopicName,
    answers,
    payload_bytes,
    span,
)
from headgate.api.http.problems import ItemError, item_error
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import PathId, post
from headgate.control.admin import JobAnswer
from headgate.domain import limits

TAG = ["job verbs"]
Ids = Annotated[
    list[UUID],
    msgspec.Meta(min_length=1, max_length=limits.VERB_MAX_JOBS, description="Different ids, at most 1,000."),
]
PerSecond = Annotated[float, msgspec.Meta(ge=0, le=100_000, description="Maximum jobs per second; 0: no limit.")]


class WithReason(Input, kw_only=True):
    """What every verb takes."""

    reason: Reason = ""


class Redriving(WithReason, kw_only=True):
    """How a job returns to its topic."""

    payload: Annotated[RawJson, msgspec.Meta(description="Replaces the payload.")] = msgspec.UNSET
    payload_base64: str | None = None
    delay_ms: Milliseconds = 0


class Reprioritising(WithReason, kw_only=True):
    """The new priority."""

    priority: Priority


class Moving(WithReason, kw_only=True):
    """The new topic, which is created if it does not exist."""

    topic: TopicName


class JobIds(WithReason, kw_only=True):
    """Which jobs."""

    ids: Ids


class RedriveJobs(WithReason, kw_only=True):
    """Which jobs, and how they return to their topics."""

    ids: Ids
    delay_ms: Milliseconds = 0
    per_second: PerSecond = 0.0


class ReprioritiseJobs(WithReason, kw_only=True):
    """Which jobs, and their new priority."""

    ids: Ids
    priority: Priority


class MoveJobs(WithReason, kw_only=True):
    """Which jobs, and their new topic."""

    ids: Ids
    topic: TopicName


class JobChange(Output, kw_only=True):
    """What a verb did to one job."""

    id: str
    changed: bool
    state: Annotated[
        StateName | Literal[""], msgspec.Meta(description="After the call; left out if there is no such job.")
    ] = ""
    error: Annotated[ItemError | None, msgspec.Meta(description="Why nothing was changed.")] = None


class JobChanges(Output, kw_only=True):
    """One answer for each id, in the order of the request."""

    results: list[JobChange]


# ---------------------------------------------------------------------- one job


@post("/v1/jobs/{job_id:str}/cancel", uses="AdminService/CancelJobs", tags=TAG)
async def cancel_job(request: ApiRequest, job_id: PathId, data: JSONBody[WithReason | None] = None) -> JobChange:
    """Cancel a job: a queued one at once; the worker of a running one is asked to stop."""
    reason = "" if data is None else data.reason
    return _only(await request.cases.admin.cancel(request.caller, [job_id], reason=reason))


@post("/v1/jobs/{job_id:str}/redrive", uses="AdminService/RedriveJobs", tags=TAG)
async def redrive_job(request: ApiRequest, job_id: PathId, data: JSONBody[Redriving | None] = None) -> JobChange:
    """Return a finished job to its topic, perhaps with another payload."""
    given = data or Redriving()
    replaced = given.payload is not msgspec.UNSET or given.payload_base64 is not None
    answers = await request.cases.admin.redrive(
        request.caller,
        [job_id],
        payload=payload_bytes(given.payload, given.payload_base64) if replaced else None,
        delay=span(given.delay_ms) or NOTHING,
        reason=given.reason,
    )
    return _only(answers)


@post("/v1/jobs/{job_id:str}/discard", uses="AdminService/DiscardJobs", tags=TAG)
async def discard_job(request: ApiRequest, job_id: PathId, data: JSONBody[WithReason | None] = None) -> JobChange:
    """Delete a dead or cancelled job; its history stays."""
    reason = "" if data is None else data.reason
    return _only(await request.cases.admin.discard(request.caller, [job_id], reason=reason))


@post("/v1/jobs/{job_id:str}/reprioritise", uses="AdminService/ReprioritiseJobs", tags=TAG)
async def reprioritise_job(request: ApiRequest, job_id: PathId, data: JSONBody[Reprioritising]) -> JobChange:
    """Change the priority of a queued job."""
    return _only(
        await request.cases.admin.reprioritise(request.caller, [job_id], priority=data.priority, reason=data.reason)
    )


@post("/v1/jobs/{job_id:str}/move", uses="AdminService/MoveJobs", tags=TAG)
async def move_job(request: ApiRequest, job_id: PathId, data: JSONBody[Moving]) -> JobChange:
    """Move a queued job to another topic."""
    return _only(await request.cases.admin.move(request.caller, [job_id], topic=data.topic, reason=data.reason))


# ---------------------------------------------------------------------- many jobs


@post("/v1/jobs/cancel", uses="AdminService/CancelJobs", tags=TAG)
async def cancel_jobs(request: ApiRequest, data: JSONBody[JobIds]) -> JobChanges:
    """Cancel jobs."""
    return _changes(await request.cases.admin.cancel(request.caller, data.ids, reason=data.reason))


@post("/v1/jobs/redrive", uses="AdminService/RedriveJobs", tags=TAG)
async def redrive_jobs(request: ApiRequest, data: JSONBody[RedriveJobs]) -> JobChanges:
    """Return finished jobs to their topics."""
    return _changes(
        await request.cases.admin.redrive(
            request.caller,
            data.ids,
            delay=span(data.delay_ms) or NOTHING,
            per_second=data.per_second,
            reason=data.reason,
        )
    )


@post("/v1/jobs/discard", uses="AdminService/DiscardJobs", tags=TAG)
async def discard_jobs(request: ApiRequest, data: JSONBody[JobIds]) -> JobChanges:
    """Delete dead and cancelled jobs; their history stays."""
    return _changes(await request.cases.admin.discard(request.caller, data.ids, reason=data.reason))


@post("/v1/jobs/reprioritise", uses="AdminService/ReprioritiseJobs", tags=TAG)
async def reprioritise_jobs(request: ApiRequest, data: JSONBody[ReprioritiseJobs]) -> JobChanges:
    """Change the priority of queued jobs."""
    return _changes(
        await request.cases.admin.reprioritise(request.caller, data.ids, priority=data.priority, reason=data.reason)
    )


@post("/v1/jobs/move", uses="AdminService/MoveJobs", tags=TAG)
async def move_jobs(request: ApiRequest, data: JSONBody[MoveJobs]) -> JobChanges:
    """Move queued jobs to another topic."""
    return _changes(await request.cases.admin.move(request.caller, data.ids, topic=data.topic, reason=data.reason))


def _only(answers: Sequence[JobAnswer]) -> JobChange:
    """The answer of a single job; why nothing was changed is the answer of the request."""
    (one,) = answers
    if one.error is not None:
        raise one.error
    return _change(one)


def _changes(answers: Sequence[JobAnswer]) -> JobChanges:
    return JobChanges(results=[_change(one) for one in answers])


def _change(one: JobAnswer) -> JobChange:
    return answers.of(JobChange, one, error=item_error(one.error))
