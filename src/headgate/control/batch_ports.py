"""What the batch verbs ask of the store."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from headgate.domain.dependencies import BatchStatus, NewBatch
from headgate.domain.jobs import Submission


class BatchStore(Protocol):
    """Opening, sealing and reading batches of a tenant. All raise NotFound for another tenant's."""

    async def open_batch(self, tenant: str, batch: NewBatch, *, callback: Submission | None) -> BatchStatus: ...
    async def seal_batch(self, tenant: str, batch_id: UUID) -> BatchStatus: ...
    async def batch(self, tenant: str, batch_id: UUID) -> BatchStatus: ...
