"""Bulk operations: one verb for every job that matches a filter; and groups of dead letters, where most begin."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from headgate.api.http.codec import (
    NOTHING,
    Input,
    JobInfo,
    Milliseconds,
    Output,
    Priority,
    Reason,
    TopicName,
    answers,
    counts_of,
    job_line,
    span,
    tagged,
)
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.job_verbs import WithReason
from headgate.api.http.routing import PageSize, PathId, get, post
from headgate.control.bulk import GROUPS_DEFAULT, Request
from headgate.domain import limits
from headgate.domain.bulk import PER_SECOND_MAX, BulkOperation, DeadGroup
from headgate.domain.ids import parse_job_id

TAG = ["bulk operations"]
VerbName = Literal["cancel", "redrive", "discard", "reprioritise", "move"]
BulkStateName = Literal["pending", "running", "done", "cancelled", "failed"]


class BulkPlan(Input, kw_only=True):
    """A verb and the jobs that it applies to."""

    verb: VerbName
    filter: Annotated[str, msgspec.Meta(min_length=1, description="See docs/reference/filters.md.")]
    reason: Reason = ""
    priority: Annotated[Priority | None, msgspec.Meta(description="For reprioritise.")] = None
    topic: Annotated[TopicName | None, msgspec.Meta(description="For move.")] = None
    delay_ms: Annotated[Milliseconds, msgspec.Meta(description="For redrive.")] = 0
    per_second: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=PER_SECOND_MAX)] | None,
        msgspec.Meta(description="Maximum jobs per second; not set: no limit."),
    ] = None


class StartBulk(BulkPlan, kw_only=True):
    """An operation to start. The same id with the same plan is the same operation."""

    id: Annotated[UUID | None, msgspec.Meta(description="A UUID of version 7; not set: the server makes one.")] = None


class BulkPreview(Output, kw_only=True):
    """What an operation would change."""

    filter: Annotated[str, msgspec.Meta(description="With the default states of the verb if the filter names none.")]
    counts: dict[str, int]
    total: int
    eligible: Annotated[int, msgspec.Meta(description="Jobs in a state that the verb applies to.")]
    exact: bool
    sample: list[JobInfo]


class BulkInfo(Output, kw_only=True):
    """An operation as it is now."""

    id: str
    state: BulkStateName
    verb: VerbName
    filter: str
    reason: str = ""
    priority: int | None = None
    topic: str = ""
    delay_ms: int = 0
    per_second: int = 0
    expected: Annotated[int, msgspec.Meta(description="Counted at the start.")] = 0
    expected_exactly: bool = False
    looked: int = 0
    matched: int = 0
    changed: int = 0
    skipped: int = 0
    errors: int = 0
    error: str = ""
    who: str = ""
    created_us: int = 0
    started_us: int = 0
    touched_us: int = 0
    finished_us: int = 0
    instance: str = ""
    topics: Annotated[list[str], msgspec.Meta(description="Topics of the token that started it; left out: any.")] = []


class BulkPage(Output, kw_only=True):
    """One page; the id of the last operation is `before` of the next."""

    operations: list[BulkInfo]


class DeadGroupOut(Output, kw_only=True):
    """Dead jobs, or failed attempts, of one topic with similar errors."""

    topic: str
    group: Annotated[str, msgspec.Meta(description="Use in filters as error_group:…")]
    title: str
    count: int
    first_us: int
    last_us: int
    sample_id: str
    sample_error: str = ""


class DeadGroupsOut(msgspec.Struct, kw_only=True):
    """Largest group first, from the newest dead letters."""

    groups: list[DeadGroupOut]
    looked_at: int
    exact: Annotated[bool, msgspec.Meta(description="False: older dead letters were not read.")]


@post("/v1/bulk/preview", uses="BulkService/PreviewBulk", tags=TAG)
async def preview_bulk(request: ApiRequest, data: JSONBody[BulkPlan]) -> BulkPreview:
    """See what an operation would change, without starting it."""
    found = await request.cases.bulk.preview(request.caller, _request(data))
    return BulkPreview(
        filter=found.filter,
        counts=counts_of(found.counted.by_state),
        total=found.counted.total,
        eligible=found.eligible,
        exact=found.counted.exact,
        sample=[job_line(one, request.caller.tenant) for one in found.sample],
    )


@post("/v1/bulk", uses="BulkService/StartBulk", status=202, tags=TAG)
async def start_bulk(request: ApiRequest, data: JSONBody[StartBulk]) -> Response[BulkInfo]:
    """Start an operation. It runs in the background: read its progress at the Location."""
    operation_id = request.cases.new_id() if data.id is None else parse_job_id(data.id)
    started = await request.cases.bulk.start(request.caller, operation_id, _request(data))
    return Response(_info(started), status_code=202, headers={"location": f"/v1/bulk/{started.id}"})


@get("/v1/bulk", uses="BulkService/ListBulk", tags=TAG)
async def list_bulk(
    request: ApiRequest,
    active: Annotated[bool, QueryParameter(description="Only operations that are not over.")] = False,
    before: Annotated[UUID | None, QueryParameter(description="The last id of the previous page.")] = None,
    limit: PageSize = limits.PAGE_DEFAULT,
) -> BulkPage:
    """List operations, newest first."""
    found = await request.cases.bulk.operations(request.caller, active=active, before=before, limit=limit)
    return BulkPage(operations=[_info(one) for one in found])


@get("/v1/bulk/{operation_id:str}", uses="BulkService/GetBulk", tags=TAG, etag=True)
async def get_bulk(request: ApiRequest, operation_id: PathId) -> Response[BulkInfo]:
    """Read an operation."""
    return tagged(request, _info(await request.cases.bulk.operation(request.caller, operation_id)))


@post("/v1/bulk/{operation_id:str}/cancel", uses="BulkService/CancelBulk", tags=TAG)
async def cancel_bulk(request: ApiRequest, operation_id: PathId, data: JSONBody[WithReason | None] = None) -> BulkInfo:
    """Stop an operation; what it has changed stays changed."""
    reason = "" if data is None else data.reason
    return _info(await request.cases.bulk.cancel(request.caller, operation_id, reason=reason))


@get("/v1/dead-letters", uses="BulkService/ListDeadGroups", tags=TAG)
async def list_dead_groups(
    request: ApiRequest,
    topic: Annotated[str, QueryParameter(description="Can contain wildcards; empty: all.")] = "",
    limit: PageSize = GROUPS_DEFAULT,
) -> DeadGroupsOut:
    """Group dead letters by topic and error."""
    found = await request.cases.bulk.dead_groups(request.caller, topic, limit=limit)
    return DeadGroupsOut(
        groups=[dead_group(one) for one in found.groups],
        looked_at=found.looked_at,
        exact=found.exact,
    )


def _request(plan: BulkPlan) -> Request:
    return Request(
        verb=plan.verb,
        filter=plan.filter,
        reason=plan.reason,
        priority=plan.priority,
        topic=plan.topic,
        delay=span(plan.delay_ms) or NOTHING,
        per_second=plan.per_second,
    )


def _info(one: BulkOperation) -> BulkInfo:
    return answers.of(BulkInfo, one, topics=[] if one.topics is None else one.topics.listed)


def dead_group(group: DeadGroup) -> DeadGroupOut:
    """A group of similar errors."""
    return answers.of(DeadGroupOut, group)
