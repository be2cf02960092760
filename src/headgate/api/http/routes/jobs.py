"""Jobs: submit, read, wait for results, search, count."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from litestar import Response
from litestar.params import FromQuery, HeaderParameter, JSONBody, QueryParameter

from headgate.api.http.codec import (
    BYTES,
    NOT_A_PAGE,
    Input,
    JobInfo,
    Output,
    counts_of,
    job_info,
    job_line,
    media_type_of,
    tagged,
)
from headgate.api.http.new_jobs import NewJob, RawJob, SubmitReceipt, raw_job, receipt_of, submission_of
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import PageSize, PathId, get, post
from headgate.control.bulk import COUNT_DEFAULT
from headgate.control.jobs import WAIT_MAX_SECONDS
from headgate.control.submit import taken
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, WrongState
from headgate.domain.ids import IdKind
from headgate.domain.states import State
from headgate.domain.states import SubmitReceipt as Receipt
from headgate.domain.views import JobView

TAG = ["jobs"]

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        max_length=limits.KEY_MAX_CHARS,
        description="The same key, topic and payload again is the same job, for 24 hours.",
    ),
]
Filter = Annotated[str, QueryParameter(description="See docs/reference/filters.md; empty: all jobs.")]
WaitSeconds = Annotated[
    float,
    QueryParameter(ge=0, le=WAIT_MAX_SECONDS, description="Wait this long for the job to end, at most a minute."),
]


# The domain checks it, with a clearer text: this only describes it.
PREFIX = QueryParameter(
    description="4 to 32 hexadecimal digits; dashes do not count.", schema_extra={"pattern": "^[0-9A-Fa-f-]{4,40}$"}
)


class NewJobs(Input, kw_only=True):
    """Many jobs to submit."""

    jobs: Annotated[list[NewJob], msgspec.Meta(min_length=1, max_length=limits.SUBMIT_BATCH_MAX)]
    atomic: Annotated[bool, msgspec.Meta(description="All or nothing; at most 5,000 jobs.")] = False


class SubmitReceipts(Output, kw_only=True):
    """One receipt for each job, in order."""

    receipts: list[SubmitReceipt]


class JobPage(Output, kw_only=True):
    """One page. It can be short although more pages follow: only a missing cursor is the end."""

    jobs: list[JobInfo]
    cursor: Annotated[str, msgspec.Meta(description="Of the next page; left out on the last one.")] = ""
    partial: Annotated[
        bool, msgspec.Meta(description="The page is short: 10,000 jobs were looked at. The next page continues.")
    ] = False


class JobCounts(msgspec.Struct, kw_only=True):
    """The number of jobs that match."""

    counts: dict[str, int]
    total: int
    exact: Annotated[bool, msgspec.Meta(description="False: there are at least this many.")]


class FoundIds(msgspec.Struct, kw_only=True):
    """Ids that begin with some digits."""

    ids: list[str]
    more: Annotated[bool, msgspec.Meta(description="Further ids begin with these digits.")]


@post("/v1/jobs", uses="ProducerService/Submit", status=201, tags=TAG, statuses={200: "The job existed already."})
async def submit_job(
    request: ApiRequest, data: JSONBody[NewJob], idempotency_key: IdempotencyKey = None
) -> Response[SubmitReceipt]:
    """Submit a job.

    201 for a new job, 200 for one that was submitted before with the same id or key and the same payload. 409 with
    another payload.
    """
    job = raw_job(data, key=unquoted(idempotency_key))
    result = taken(await request.cases.submits.one(request.caller, job, submission_of, plain=False))
    receipt = receipt_of(result)
    return Response(
        receipt,
        status_code=201 if result.receipt is Receipt.CREATED else 200,
        headers={"location": f"/v1/jobs/{receipt.id}"},
    )


@post("/v1/jobs/batch", uses="ProducerService/SubmitBatch", tags=TAG)
async def submit_jobs(
    request: ApiRequest, data: JSONBody[NewJobs], idempotency_key: IdempotencyKey = None
) -> SubmitReceipts:
    """Submit many jobs.

    One receipt for each, in order; a refused job does not affect the others, unless `atomic` is set. With
    Idempotency-Key, each job without a `key` has KEY/INDEX.
    """
    key = unquoted(idempotency_key)
    jobs = [_indexed(job, index, key) for index, job in enumerate(data.jobs)]
    results = await request.cases.submits.many(request.caller, jobs, submission_of, atomic=data.atomic)
    return SubmitReceipts(receipts=[receipt_of(one) for one in results])


@get("/v1/jobs", uses="BulkService/ListJobs", tags=TAG)
async def list_jobs(
    request: ApiRequest,
    filter: Filter = "",  # noqa: A002 - the name of the parameter
    limit: PageSize = limits.PAGE_DEFAULT,
    cursor: Annotated[str, QueryParameter(description="Of the previous page, with the same filter.")] = "",
    oldest_first: FromQuery[bool] = False,
) -> JobPage:
    """List and search jobs, newest first, without payloads, results and events."""
    page = await request.cases.bulk.list_jobs(request.caller, filter, limit=limit, cursor=cursor, oldest=oldest_first)
    return JobPage(
        jobs=[job_line(one, request.caller.tenant) for one in page.jobs], cursor=page.cursor, partial=page.partial
    )


@get("/v1/jobs/count", uses="BulkService/CountJobs", tags=TAG)
async def count_jobs(
    request: ApiRequest,
    filter: Filter = "",  # noqa: A002 - the name of the parameter
    up_to: Annotated[int, QueryParameter(ge=1, le=100_000, description="Count no further.")] = COUNT_DEFAULT,
) -> JobCounts:
    """Count jobs."""
    found = await request.cases.bulk.count_jobs(request.caller, filter, up_to=up_to)
    return JobCounts(counts=counts_of(found.by_state), total=found.total, exact=found.exact)


@get("/v1/jobs/{job_id:str}", uses="ProducerService/GetJob", tags=TAG, etag=True)
async def get_job(
    request: ApiRequest,
    job_id: PathId,
    with_payload: FromQuery[bool] = False,
    with_result: FromQuery[bool] = False,
    with_events: FromQuery[bool] = False,
    events_before: Annotated[int, QueryParameter(ge=0, description="Only events before the one of this number.")] = 0,
) -> Response[JobInfo]:
    """Read a job."""
    found = await request.cases.jobs.get(
        request.caller,
        job_id,
        payload=with_payload,
        result=with_result,
        events=with_events,
        events_before=events_before,
    )
    return tagged(request, job_info(found))


@get("/v1/jobs/{job_id:str}/wait", uses="ProducerService/WaitResult", tags=TAG)
async def wait_for_job(request: ApiRequest, job_id: PathId, wait_seconds: WaitSeconds = 30.0) -> JobInfo:
    """Read a job with its result when it has ended, or as it is when the time is over."""
    return job_info(await _waited(request, job_id, wait_seconds))


@get(
    "/v1/jobs/{job_id:str}/result",
    uses="ProducerService/WaitResult",
    tags=TAG,
    produces="*/*",
    statuses={202: "The job has not ended yet: ask again.", 204: "The job has ended without a result."},
)
async def get_result(request: ApiRequest, job_id: PathId, wait_seconds: WaitSeconds = 0.0) -> Response[bytes]:
    """Read the result of a completed job as it is.

    application/json if it is JSON, else application/octet-stream. 202 while the job has not ended, 409 if it is dead or
    cancelled.
    """
    found = await _waited(request, job_id, wait_seconds)
    if not found.state.is_final:
        body = msgspec.json.encode(job_info(found))
        return Response(body, status_code=202, media_type="application/json", headers={"retry-after": "1"})
    if found.state is not State.COMPLETED:
        raise WrongState(job_id, verb="read the result of", state=found.state.label, allowed="completed")
    if not found.result:
        return Response(b"", status_code=204)
    return Response(found.result, media_type=media_type_of(found.result), headers=NOT_A_PAGE)


@get(
    "/v1/jobs/{job_id:str}/payload",
    uses="ProducerService/GetJob",
    tags=TAG,
    produces="*/*",
    statuses={204: "The payload is empty."},
)
async def get_payload(request: ApiRequest, job_id: PathId) -> Response[bytes]:
    """Read the payload of a job as it is, with its content type."""
    found = await request.cases.jobs.get(request.caller, job_id, payload=True)
    if not found.payload:
        return Response(b"", status_code=204)
    media_type = _safe_type(media_type_of(found.payload, found.headers))
    return Response(found.payload, media_type=media_type, headers=NOT_A_PAGE)


@get("/v1/ids", uses="AdminService/FindIds", tags=TAG)
async def find_ids(
    request: ApiRequest,
    prefix: Annotated[str, PREFIX],
    kind: FromQuery[Literal["job", "batch", "operation"]] = "job",
) -> FoundIds:
    """Find ids by their first digits."""
    ids, more = await request.cases.admin.find_ids(request.caller, IdKind.parse(kind), prefix)
    return FoundIds(ids=[str(one) for one in ids], more=more)


async def _waited(request: ApiRequest, job_id: UUID, seconds: float) -> JobView:
    waiting = request.cases.jobs.wait(request.caller, job_id, seconds=seconds)
    return await request.while_connected(waiting) if seconds else await waiting


def _indexed(job: NewJob, index: int, key: str | None) -> RawJob:
    try:
        return raw_job(job, key=f"{key}/{index}" if key is not None and job.key is None else None)
    except InvalidInput as error:
        raise InvalidInput(f"jobs[{index}].{error.field}", error.problem, hint=error.hint) from None


def unquoted(value: str | None) -> str | None:
    """The key of the header: the drafts of the standard put it in quotes, most clients do not."""
    if value is not None and len(value) > 2 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


def _safe_type(named: str) -> str:
    """A media type as a producer has given it, unless it could not stand in a header."""
    return named if named.isascii() and named.isprintable() else BYTES
