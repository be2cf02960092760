"""Batches: open one with its callback job, seal it, look at it. Members are submitted as any other job."""

from __future__ import annotations

from builtins import list as list_of
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Generic
from uuid import UUID

from headgate.control.ports import Account, BatchStore, Rows
from headgate.control.submit import Job, ReadJob, Submits
from headgate.domain import limits
from headgate.domain.batch_graph import BatchGraph
from headgate.domain.dependencies import BatchStatus, Needs, NewBatch, OnParentFailure
from headgate.domain.errors import NotFound
from headgate.domain.identity import Identity
from headgate.domain.ids import JobId, parse_job_id


class Batches(Generic[Rows, Account]):
    """Batches of the caller's tenant; one of topics that its token does not permit does not exist for it."""

    def __init__(
        self,
        store: BatchStore,
        submits: Submits[Rows, Account],
        *,
        make_id: Callable[[], JobId],
        on_sealed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._submits, self._make_id = store, submits, make_id
        self._on_sealed = on_sealed  # the batch's callback may be claimable

    async def open(
        self,
        caller: Identity,
        callback: Job | None,
        read: ReadJob[Job],
        *,
        batch_id: UUID | None = None,
        name: str = "",
        needs: Needs = Needs.ENDED,
        on_failure: OnParentFailure = OnParentFailure.CANCEL,
        expires_in: timedelta | None = None,
    ) -> BatchStatus:
        """Open a batch; the same id opens it once. `callback` is a job that runs when all members are done."""
        submission = None if callback is None else self._submits.submission(caller, callback, read)
        if submission is not None:
            self._submits.payloads.refuse(caller.tenant, submission.topic, submission.payload)
        batch = NewBatch(
            id=self._make_id() if batch_id is None else parse_job_id(batch_id, field="id"),
            name=name,
            needs=needs,
            on_failure=on_failure,
            expires_in=limits.BATCH_EXPIRY_DEFAULT if expires_in is None else expires_in,
            topics=caller.topics,
        )
        return await self._store.open_batch(caller.tenant, batch, callback=submission)

    async def seal(self, caller: Identity, batch_id: UUID) -> BatchStatus:
        """Take no more members."""
        if caller.topics is not None:
            await self.get(caller, batch_id)
        status = await self._store.seal_batch(caller.tenant, batch_id)
        self._on_sealed()
        return status

    async def get(self, caller: Identity, batch_id: UUID) -> BatchStatus:
        """One batch. Raises NotFound, also for a batch of topics that the token does not permit."""
        status = await self._store.batch(caller.tenant, batch_id)
        if not status.is_visible_to(caller.topics):
            raise NotFound("batch", str(batch_id))
        return status

    async def graph(self, caller: Identity, batch_id: UUID) -> BatchGraph:
        """A batch with its first members and what they wait for; without members of topics that the token hides."""
        found = await self._store.graph(caller.tenant, batch_id)
        topics = caller.topics
        if topics is None:
            return found
        if not found.batch.is_visible_to(topics):
            raise NotFound("batch", str(batch_id))
        return replace(found, members=[one for one in found.members if one.topic in topics])

    async def list(
        self, caller: Identity, *, open_only: bool = False, before: UUID | None = None, limit: int
    ) -> tuple[list_of[BatchStatus], UUID | None]:
        """Batches, newest first, without the counts of their members, and `before` of the next page if there is one."""
        return await self._store.batches(
            caller.tenant, open_only=open_only, before=before, limit=limit, topics=caller.topics
        )
