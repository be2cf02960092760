"""BatchService: open, seal and read batches. Translates and delegates to control/batches.py."""

from __future__ import annotations

from typing import Any, ClassVar

from headgate.api.grpc import codec, submit_codec
from headgate.api.grpc.auth import caller
from headgate.api.grpc.methods import Context
from headgate.control.batches import Batches
from headgate.domain import limits
from headgate.domain.dependencies import BatchStatus
from headgate.domain.ids import id_from_bytes
from headgate.wire import batches_pb2 as pb


class BatchService:
    """OpenBatch, SealBatch, GetBatch, ListBatches."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["BatchService"]

    def __init__(self, batches: Batches[Any, Any]) -> None:
        self._batches = batches

    async def open_batch(self, request: pb.OpenBatchRequest, _call: Context) -> pb.BatchInfo:
        """Open a batch with its callback; the same id once."""
        opened = await self._batches.open(
            caller(),
            request.on_done if request.HasField("on_done") else None,
            submit_codec.submission_of,
            batch_id=id_from_bytes(request.id) if request.id else None,
            name=request.name,
            needs=submit_codec.needs_of(request.needs),
            on_failure=submit_codec.on_failure_of(request.on_failure),
            expires_in=codec.span(request.expires_in_ms, "expires_in_ms") if request.expires_in_ms else None,
        )
        return info(opened)

    async def seal_batch(self, request: pb.SealBatchRequest, _call: Context) -> pb.BatchInfo:
        """No more members."""
        return info(await self._batches.seal(caller(), id_from_bytes(request.id)))

    async def get_batch(self, request: pb.GetBatchRequest, _call: Context) -> pb.BatchInfo:
        """A batch as it is now."""
        return info(await self._batches.get(caller(), id_from_bytes(request.id)))

    async def list_batches(self, request: pb.ListBatchesRequest, _call: Context) -> pb.ListBatchesResponse:
        """Batches, newest first."""
        found, following = await self._batches.list(
            caller(),
            open_only=request.open,
            before=id_from_bytes(request.before, field="before") if request.before else None,
            limit=request.limit or limits.PAGE_DEFAULT,
        )
        return pb.ListBatchesResponse(
            batches=[info(one) for one in found], next=b"" if following is None else following.bytes
        )


def info(batch: BatchStatus) -> pb.BatchInfo:
    """A batch as read."""
    return codec.answers.of(pb.BatchInfo, batch, counts=codec.state_counts(batch.counts))
