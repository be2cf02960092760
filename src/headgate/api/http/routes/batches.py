"""Batches: groups of jobs with a callback job that runs when all of them are done."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from headgate.api.http.codec import (
    Input,
    Milliseconds,
    NeedsName,
    OnFailureName,
    Output,
    StateName,
    answers,
    counts_of,
    id_text,
    span,
    tagged,
)
from headgate.api.http.new_jobs import NewJob, raw_job, submission_of
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import PageSize, PathId, get, post
from headgate.domain import limits
from headgate.domain.dependencies import BatchStatus, Needs, OnParentFailure

TAG = ["batches"]


class NewBatch(Input, kw_only=True):
    """A batch to open. Opening the same id again is the same batch."""

    id: UUID | None = None
    name: Annotated[str, msgspec.Meta(max_length=limits.BATCH_NAME_MAX_CHARS)] = ""
    on_done: Annotated[NewJob | None, msgspec.Meta(description="The callback; not set: none.")] = None
    needs: Annotated[NeedsName, msgspec.Meta(description="What `on_done` requires of each member.")] = "ended"
    on_failure: Annotated[
        OnFailureName, msgspec.Meta(description="What happens to `on_done` when a member fails and it needs success.")
    ] = "cancel"
    expires_in_ms: Annotated[
        Milliseconds | None, msgspec.Meta(description="A batch not sealed by then is closed. Default: 24 hours.")
    ] = None


class BatchInfo(Output, kw_only=True):
    """A batch as it is now."""

    id: str
    name: str = ""
    needs: NeedsName
    created_us: int
    expires_us: int
    sealed_us: Annotated[int, msgspec.Meta(description="Left out: the batch is open.")] = 0
    expired: bool = False
    total: int = 0
    counted: int = 0
    counts: dict[str, int] = {}
    callback_id: str = ""
    callback_state: StateName | Literal[""] = ""
    more_members: bool = False


class BatchPage(Output, kw_only=True):
    """One page. It can be short although more pages follow."""

    batches: list[BatchInfo]
    next: Annotated[str, msgspec.Meta(description="`before` of the next page; left out on the last one.")] = ""


@post("/v1/batches", uses="BatchService/OpenBatch", status=201, tags=TAG)
async def open_batch(request: ApiRequest, data: JSONBody[NewBatch]) -> Response[BatchInfo]:
    """Open a batch."""
    opened = await request.cases.batches.open(
        request.caller,
        None if data.on_done is None else raw_job(data.on_done),
        submission_of,
        batch_id=data.id,
        name=data.name,
        needs=Needs.parse(data.needs, field="needs"),
        on_failure=OnParentFailure.parse(data.on_failure, field="on_failure"),
        expires_in=span(data.expires_in_ms),
    )
    return Response(_info(opened), status_code=201, headers={"location": f"/v1/batches/{opened.id}"})


@get("/v1/batches", uses="BatchService/ListBatches", tags=TAG)
async def list_batches(
    request: ApiRequest,
    open: Annotated[bool, QueryParameter(description="Only batches that accept jobs.")] = False,  # noqa: A002
    before: Annotated[UUID | None, QueryParameter(description="`next` of the previous page.")] = None,
    limit: PageSize = limits.PAGE_DEFAULT,
) -> BatchPage:
    """List batches, newest first, without the counts of their members."""
    found, following = await request.cases.batches.list(request.caller, open_only=open, before=before, limit=limit)
    return BatchPage(batches=[_info(one) for one in found], next=id_text(following))


@get("/v1/batches/{batch_id:str}", uses="BatchService/GetBatch", tags=TAG, etag=True)
async def get_batch(request: ApiRequest, batch_id: PathId) -> Response[BatchInfo]:
    """Read a batch."""
    return tagged(request, _info(await request.cases.batches.get(request.caller, batch_id)))


@post("/v1/batches/{batch_id:str}/seal", uses="BatchService/SealBatch", tags=TAG)
async def seal_batch(request: ApiRequest, batch_id: PathId) -> BatchInfo:
    """Take no more members: the callback can run."""
    return _info(await request.cases.batches.seal(request.caller, batch_id))


def _info(batch: BatchStatus) -> BatchInfo:
    return answers.of(BatchInfo, batch, counts=counts_of(batch.counts))
