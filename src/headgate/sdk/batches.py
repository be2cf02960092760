"""Batches: jobs submitted together, and one that runs when all of them have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar, Unpack
from uuid import UUID

from headgate.domain import limits
from headgate.domain.dependencies import Needs, NewBatch, OnParentFailure
from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId, parse_job_id
from headgate.domain.validation import check_page_size, check_payload, check_topic, shown, to_ms
from headgate.sdk.codec import encode
from headgate.sdk.connection import Connection
from headgate.sdk.handles import JobHandle
from headgate.sdk.options import JobOptions, prepared
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.records import record, state_word
from headgate.sdk.rpc import Method
from headgate.sdk.submitting import Bound, submit
from headgate.sdk.tasks import Task
from headgate.wire import batches_pb2 as pb
from headgate.wire import jobs_pb2 as jobs

P = ParamSpec("P")
R = TypeVar("R")

OPEN: Final = Method("BatchService/OpenBatch", pb.OpenBatchRequest, pb.BatchInfo)
SEAL: Final = Method("BatchService/SealBatch", pb.SealBatchRequest, pb.BatchInfo)
GET: Final = Method("BatchService/GetBatch", pb.GetBatchRequest, pb.BatchInfo)
LIST: Final = Method("BatchService/ListBatches", pb.ListBatchesRequest, pb.ListBatchesResponse)
PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInfo:
    """A batch. `counts` maps states to members, of the first `counted` of `total`.

    `more_members`: it has more than `total`. A list counts at most 200 members of an open batch.
    """

    id: JobId
    name: str
    needs: str
    sealed: bool
    expired: bool
    created_at: datetime
    expires_at: datetime
    total: int
    counted: int
    counts: dict[str, int] = field(default_factory=dict, hash=False)
    callback_id: JobId | None = None
    callback_state: str = ""
    more_members: bool = False


class Batch:
    """One batch, open until it is sealed.

    Used as `async with hg.batch(...) as batch`: opened at the start and sealed at the end. If the block raises, it
    stays open, so that `on_done` does not run for a part of the jobs: seal it yourself, or let it expire.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        name: str = "",
        on_done: Bound | None = None,
        needs: Literal["succeeded", "ended"] = "ended",
        on_failure: Literal["cancel", "ignore", "block"] = "cancel",
        expires_in: Seconds = limits.BATCH_EXPIRY_DEFAULT,
        id: UUID | str | None = None,  # noqa: A002
    ) -> None:
        """Checks the arguments; sends nothing."""
        self._connection = connection
        batch = NewBatch(
            id=connection.ids.next_id() if id is None else parse_job_id(id, field="id"),
            name=name,
            needs=Needs.parse(needs, field="needs"),
            on_failure=OnParentFailure.parse(on_failure, field="on_failure"),
            expires_in=timedelta(milliseconds=delay_in_ms(expires_in, field="expires_in")),
        )
        if on_done is not None and not isinstance(on_done, Bound):
            raise InvalidInput(
                "on_done", f"must be a task with its arguments, got {shown(on_done)}", hint="task.bind()"
            )
        self.id = batch.id
        self._request = pb.OpenBatchRequest(
            id=batch.id.bytes,
            name=batch.name,
            needs=jobs.Needs.ValueType(int(batch.needs)),
            on_failure=jobs.OnParentFailure.ValueType(int(batch.on_failure)),
            expires_in_ms=to_ms(batch.expires_in),
        )
        if on_done is not None:
            callback, body, options = on_done.options.id or connection.ids.next_id(), on_done.payload, on_done.options
            if connection.tracing is not None:
                options = connection.tracing.carrying(options)
            if connection.encryption is not None:
                (body,) = connection.encryption.seal_payloads([body], [callback.bytes], options)
            self._request.on_done.CopyFrom(options.new_job(on_done.topic, callback.bytes, body))
            self._request.on_done.new_id = on_done.options.id is None

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"

    async def open(self) -> Self:
        """Open it; harmless when repeated."""
        await self._connection.call(OPEN, self._request, about=("batch", str(self.id)))
        return self

    async def submit(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job as part of the batch; see `Task.submit`."""
        return await self._put(task.bind(*args, **kwargs))

    async def submit_many(
        self, task: Task[..., R], calls: Iterable[Mapping[str, object] | Sequence[object]]
    ) -> list[JobHandle[R]]:
        """Store many jobs as part of the batch; see `Task.submit_many`."""
        return await task.with_options(batch=self.id).submit_many(calls)

    async def submit_to(self, topic: str, payload: object = b"", **options: Unpack[JobOptions]) -> JobHandle[Any]:
        """Store a job for a topic that is handled elsewhere. Bytes are sent as they are, all else as JSON."""
        body = check_payload(payload if isinstance(payload, bytes) else encode(payload, path="payload"))
        return await self._put(Bound(check_topic(topic), body, prepared(**options)))

    async def submit_bound(self, calls: Iterable[Bound]) -> list[JobHandle[Any]]:
        """Store jobs of any tasks, many at once; raises the first error when all have been answered."""
        handles: list[JobHandle[Any]] = []
        waiting = iter(calls)
        while page := list(islice(waiting, PAGE)):
            answers = await asyncio.gather(*map(self._put, page), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                handles.append(answer)
        return handles

    async def _put(self, bound: Bound) -> JobHandle[Any]:
        options = bound.options.over({"batch": self.id})
        return await submit(self._connection, bound.topic, bound.payload, options, returns=bound.returns)

    async def seal(self) -> BatchInfo:
        """Add no more jobs: `on_done` runs once all members have ended. Harmless when repeated."""
        return await seal_batch(self._connection, self.id)

    async def status(self) -> BatchInfo:
        """Read the batch."""
        return await batch_status(self._connection, self.id)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.seal()


async def batch_status(connection: Connection, batch_id: UUID | str) -> BatchInfo:
    """Read a batch. Raises NotFound."""
    known = parse_job_id(batch_id, field="batch")
    request = pb.GetBatchRequest(id=known.bytes)
    return batch_info(await connection.call(GET, request, about=("batch", str(known))))


async def seal_batch(connection: Connection, batch_id: UUID | str) -> BatchInfo:
    """Seal a batch that was opened elsewhere."""
    known = parse_job_id(batch_id, field="batch")
    request = pb.SealBatchRequest(id=known.bytes)
    return batch_info(await connection.call(SEAL, request, about=("batch", str(known))))


async def list_batches(
    connection: Connection, *, open_only: bool, limit: int, before: UUID | str | None
) -> list[BatchInfo]:
    """Read batches, newest first, in several calls if the server looked at many and found few."""
    check_page_size(limit)
    request = pb.ListBatchesRequest(open=open_only, limit=limit)
    request.before = b"" if before is None else parse_job_id(before, field="before").bytes
    found: list[BatchInfo] = []
    while request.limit:
        page = await connection.call(LIST, request)
        found += map(batch_info, page.batches)
        request.before, request.limit = page.next, limit - len(found) if page.next else 0
    return found


def batch_info(found: pb.BatchInfo) -> BatchInfo:
    """Read a batch from a message."""
    return record(
        BatchInfo,
        found,
        needs="ended" if found.needs == jobs.NEEDS_ENDED else "succeeded",
        sealed=bool(found.sealed_us),
        counts={state_word(one.state): one.count for one in found.counts},
        callback_state=state_word(found.callback_state) if found.callback_id else "",
    )
