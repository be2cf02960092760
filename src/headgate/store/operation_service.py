"""The store as the verbs about many jobs and the operation runner use it.

What looks at many jobs has a lane of its own: a count may take a second, and nobody who reads one job waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from headgate.control.revocation import StartedBulk
from headgate.domain import failpoints
from headgate.domain.bulk import BulkOperation, Counted, DeadGroups, JobPage, Plan, Preview
from headgate.domain.filters import JobFilter, Term
from headgate.store import dead_letters, matching, operation_chunks, operations
from headgate.store.errors import translating
from headgate.store.service import Store

# When the next operation may go on; NULL when there is none. index: operations_active
NEXT: Final = """
SELECT extract(epoch FROM min(rest_until) - headgate.clock_v1())::float8 FROM headgate.operations
 WHERE state IN (0, 1) /* pending, running */"""


class OperationStore:
    """Fits control/operations.py and dispatch/operations.py."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_jobs(
        self,
        tenant: str,
        wanted: JobFilter,
        *,
        topics: frozenset[str] | None,
        limit: int,
        cursor: str,
        oldest: bool,
    ) -> JobPage:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._store.lane("list").use() as db:
            return await matching.list_matching(
                db, self._store.names, tenant_no, wanted, topics=topics, limit=limit, cursor=cursor, oldest=oldest
            )

    async def count_jobs(self, tenant: str, wanted: JobFilter, *, topics: frozenset[str] | None, up_to: int) -> Counted:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._store.lane("list").use() as db:
            now = await matching.clock(db)
            found = await matching.compiled(db, tenant_no, wanted, as_of=now, topics=topics)
            return await matching.count_matching(db, tenant_no, found, up_to=up_to)

    async def dead_groups(
        self, tenant: str, named: Sequence[Term], *, topics: frozenset[str] | None, limit: int
    ) -> DeadGroups:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._store.lane("list").use() as db:
            return await dead_letters.dead_groups(
                db, self._store.names, tenant_no, named=named, topics=topics, limit=limit
            )

    async def preview(self, tenant: str, plan: Plan, *, topics: frozenset[str] | None) -> Preview:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._store.lane("list").use() as db:
            return await operations.preview(db, self._store.names, tenant_no, plan, topics=topics)

    async def start(
        self, tenant: str, operation_id: UUID, plan: Plan, *, who: str, topics: frozenset[str] | None, credential: str
    ) -> BulkOperation:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._store.lane("list").use() as db:
            expected = await operations.expected(db, tenant_no, plan, topics=topics)
        async with self._store.lane("operate").use() as db:
            return await operations.start(
                db,
                self._store.names,
                tenant_no,
                operation_id,
                plan,
                who=who,
                topics=topics,
                credential=credential,
                expected=expected,
            )

    async def operation(self, tenant: str, operation_id: UUID, *, topics: frozenset[str] | None) -> BulkOperation:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._store.lane("read").use() as db:
            return await operations.get(db, tenant_no, operation_id, topics=topics)

    async def operations(
        self, tenant: str, *, active: bool, before: UUID | None, limit: int, topics: frozenset[str] | None
    ) -> list[BulkOperation]:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._store.lane("read").use() as db:
            return await operations.list_operations(
                db, tenant_no, active=active, before=before, limit=limit, topics=topics
            )

    async def cancel(
        self, tenant: str, operation_id: UUID, *, who: str, reason: str, topics: frozenset[str] | None
    ) -> BulkOperation:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._store.lane("operate").use() as db:
            return await operations.cancel(db, tenant_no, operation_id, who=who, reason=reason, topics=topics)

    async def started(self) -> list[StartedBulk]:
        async with self._store.lane("operate").use() as db:
            return await operations.started(db)

    async def end_revoked(self, operation: StartedBulk, *, reason: str) -> None:
        async with self._store.lane("operate").use() as db:
            await operations.cancel(db, operation.tenant_no, operation.id, who="headgate", reason=reason)

    async def run_chunk(self) -> operation_chunks.Chunk | None:
        async with self._store.lane("operate").use() as db:
            chunk = await operation_chunks.run_chunk(db, self._store.names, instance_no=self._store.instance_no)
        if failpoints.armed and chunk is not None:
            await failpoints.armed.reach("operation.after_commit")
        return chunk

    async def next_chunk_in(self) -> float | None:
        async with self._store.lane("operate").use() as db:
            with translating(writing=False):
                waits: float | None = await db.fetchval(NEXT)
        return waits
