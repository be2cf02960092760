"""What producers call for batches: open, seal, look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

import grpc

from headgate.api.grpc import codec
from headgate.api.grpc.auth import caller
from headgate.api.grpc.methods import grpc_service, unary
from headgate.control.batch_ports import BatchStore
from headgate.domain import limits
from headgate.domain.dependencies import BatchStatus, NewBatch
from headgate.domain.errors import NotFound
from headgate.domain.identity import Identity
from headgate.domain.ids import JobId, parse_job_id
from headgate.wire import batches_pb2 as pb

Call: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class BatchService:
    """OpenBatch, SealBatch, GetBatch."""

    def __init__(self, store: BatchStore, *, make_id: Callable[[], JobId]) -> None:
        self._store, self._make_id = store, make_id

    async def open_batch(self, request: pb.OpenBatchRequest, _call: Call) -> pb.BatchInfo:
        """Open a batch with its callback; the same id once."""
        identity = caller()
        callback = None
        if request.HasField("on_done"):
            callback = codec.submission_of(
                request.on_done, tenant=identity.tenant, make_id=self._make_id, sees=identity.topics
            )
            identity.allowed([callback.topic])
        batch = NewBatch(
            id=parse_job_id(codec.id_of(request.id, field="id"), field="id") if request.id else self._make_id(),
            name=request.name,
            needs=codec.needs_of(request.needs),
            on_failure=codec.on_failure_of(request.on_failure),
            expires_in=codec.span(request.expires_in_ms, "expires_in_ms")
            if request.expires_in_ms
            else limits.BATCH_EXPIRY_DEFAULT,
            topics=identity.topics,
        )
        return info(await self._store.open_batch(identity.tenant, batch, callback=callback))

    async def seal_batch(self, request: pb.SealBatchRequest, _call: Call) -> pb.BatchInfo:
        """No more members."""
        identity = caller()
        batch_id = codec.id_of(request.id, field="id")
        if identity.topics is not None:
            await self._permitted(identity, batch_id)
        return info(await self._store.seal_batch(identity.tenant, batch_id))

    async def get_batch(self, request: pb.GetBatchRequest, _call: Call) -> pb.BatchInfo:
        """A batch as it stands."""
        identity = caller()
        return info(await self._permitted(identity, codec.id_of(request.id, field="id")))

    async def _permitted(self, identity: Identity, batch_id: UUID) -> BatchStatus:
        """The batch, unless it belongs to a topic that the token does not permit: then there is none."""
        status = await self._store.batch(identity.tenant, batch_id)
        if not status.is_visible_to(identity.topics):
            raise NotFound("batch", str(batch_id))
        return status


def info(batch: BatchStatus) -> pb.BatchInfo:
    """A batch as read."""
    return pb.BatchInfo(
        id=batch.id.bytes,
        name=batch.name,
        needs=codec.needs_word(batch.needs),
        created_us=codec.at_us(batch.created_at),
        expires_us=codec.at_us(batch.expires_at),
        sealed_us=codec.at_us(batch.sealed_at),
        expired=batch.expired,
        total=batch.total,
        counted=batch.counted,
        counts=codec.state_counts(batch.counts),
        callback_id=batch.callback_id.bytes if batch.callback_id else b"",
        callback_state=codec.state_of(batch.callback_state),
    )


def batch_methods(service: BatchService) -> grpc.GenericRpcHandler:
    """The service's calls."""
    return grpc_service(
        "headgate.v1.BatchService",
        {
            "OpenBatch": unary(service.open_batch, pb.OpenBatchRequest, pb.BatchInfo),
            "SealBatch": unary(service.seal_batch, pb.SealBatchRequest, pb.BatchInfo),
            "GetBatch": unary(service.get_batch, pb.GetBatchRequest, pb.BatchInfo),
        },
    )
