"""Bulk operations as clients see them: preview, start, look, cancel. bulk_chunks.py carries them out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain import limits
from headgate.domain.bulk import (
    ACTIVE_MAX,
    SAMPLE,
    BulkConflict,
    BulkOperation,
    Counted,
    JobLine,
    Plan,
    Preview,
    Progress,
    StartedBulk,
    Verb,
)
from headgate.domain.errors import NotFound, Refused
from headgate.domain.filters import JobFilter
from headgate.domain.ids import TenantNo
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_page_size
from headgate.store import audit, dead_letters, lane, listing, matching
from headgate.store.arguments import check_tenant_no
from headgate.store.clock import clock
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.names import Names
from headgate.store.rows import from_row
from headgate.store.tenant_calls import TenantCalls, lane_call, named_call, tenant_call

GET: Final = """
SELECT o.id, o.verb, o.state, o.filter, o.topics, o.parameters, o.per_second, o.as_of, o.expected, o.expected_exactly,
       o.looked, o.matched, o.changed, o.skipped, o.errors, o.error, o.who, o.reason, o.created_at, o.started_at,
       o.touched_at, o.finished_at, coalesce(i.name, '')
  FROM headgate.bulk_operations o LEFT JOIN headgate.instances i ON i.instance_no = o.instance_no
 WHERE o.tenant_no = $1 AND o.id = $2"""
LIST: Final = """
SELECT o.id, o.verb, o.state, o.filter, o.topics, o.parameters, o.per_second, o.as_of, o.expected, o.expected_exactly,
       o.looked, o.matched, o.changed, o.skipped, o.errors, o.error, o.who, o.reason, o.created_at, o.started_at,
       o.touched_at, o.finished_at, coalesce(i.name, '')
  FROM headgate.bulk_operations o LEFT JOIN headgate.instances i ON i.instance_no = o.instance_no
 WHERE o.tenant_no = $1 AND o.id < $2 AND (NOT $3 OR o.state IN (0, 1) /* pending, running */)
   AND ($4::text[] IS NULL OR (o.topics IS NOT NULL AND NOT EXISTS (
       SELECT FROM unnest(o.topics) AS t(name) WHERE NOT t.name LIKE ANY ($4))))
 ORDER BY o.id DESC LIMIT $5"""
INSERT: Final = """
INSERT INTO headgate.bulk_operations (tenant_no, id, verb, filter, topics, parameters, per_second, as_of, expected,
                                 expected_exactly, who, reason, credential, created_at, touched_at, rest_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $8, $8, $8)
ON CONFLICT (tenant_no, id) DO NOTHING RETURNING id"""
ACTIVE: Final = """
SELECT count(*) FROM (SELECT FROM headgate.bulk_operations
                       WHERE tenant_no = $1 AND state IN (0, 1) /* pending, running */ LIMIT $2) AS o"""
# Waits for a chunk that is under way, a moment; when it returns, nothing more is changed.
CANCEL: Final = """
UPDATE headgate.bulk_operations
   SET state = 3 /* cancelled */, finished_at = headgate.clock_v1(), touched_at = headgate.clock_v1()
 WHERE tenant_no = $1 AND id = $2 AND state IN (0, 1) /* pending, running */ RETURNING changed"""
# index: bulk_operations_active
STARTED: Final = """
SELECT tenant_no, tenants.name AS tenant, bulk_operations.id, credential, topics, who
  FROM headgate.bulk_operations JOIN headgate.tenants USING (tenant_no)
 WHERE state IN (0, 1) /* pending, running */ AND credential <> ''"""
FORGET: Final = """
DELETE FROM headgate.bulk_operations
 WHERE (tenant_no, id) IN (SELECT tenant_no, id FROM headgate.bulk_operations
                            WHERE finished_at < headgate.clock_v1() - $1::interval LIMIT $2 FOR UPDATE SKIP LOCKED)"""
KEPT: Final = timedelta(days=30)


async def preview(
    db: Connection, names: Names, tenant_no: int, plan: Plan, *, topics: TopicSet | None = None
) -> Preview:
    """What the plan would meet now: a count up to its bound, and the newest few."""
    wanted = await matching.compiled(db, tenant_no, plan.effective, as_of=await clock(db), topics=topics)
    counted = await matching.count_matching(db, tenant_no, wanted)
    sample = [] if wanted is None else await _sample(db, tenant_no, wanted)
    return Preview(
        filter=str(plan.effective),
        counted=counted,
        eligible=sum(n for state, n in counted.by_state.items() if state in plan.verb.reaches),
        sample=await matching.lines(db, names, sample),
    )


async def _sample(db: Connection, tenant_no: int, wanted: listing.Filter) -> list[JobLine]:
    """The newest few: no more than a few pages are looked at for them."""
    rows: list[JobLine] = []
    below = listing.NEWEST
    for _ in range(5):
        found = await listing.step(db, tenant_no, wanted, below=below, limit=SAMPLE - len(rows))
        rows += found.rows
        below = found.below
        if not found.more or len(rows) == SAMPLE:
            break
    return rows


async def count(
    db: Connection,
    tenant_no: int,
    wanted: JobFilter,
    *,
    topics: TopicSet | None = None,
    up_to: int = matching.COUNT_MAX,
) -> Counted:
    """How many jobs match now, counted up to a bound."""
    found = await matching.compiled(db, tenant_no, wanted, as_of=await clock(db), topics=topics)
    return await matching.count_matching(db, tenant_no, found, up_to=up_to)


async def start(
    db: Connection,
    names: Names,
    tenant_no: int,
    operation_id: UUID,
    plan: Plan,
    *,
    who: str,
    topics: TopicSet | None = None,
    credential: str = "",
    expected: Counted | None = None,
) -> BulkOperation:
    """Make the operation, and note it; the same id and the same plan again is the same operation.

    `expected` is the count that people are shown; it changes nothing.
    """
    check_tenant_no(tenant_no)
    if plan.topic is not None:
        await names.topic(db, TenantNo(tenant_no), plan.topic)  # made now, so that a chunk need not
    now = await clock(db)
    counted = expected or Counted(by_state={}, exact=False)
    async with transaction(db):
        with translating(writing=True):
            active = await db.fetchval(ACTIVE, tenant_no, ACTIVE_MAX)
            made = await db.fetchval(
                INSERT,
                tenant_no,
                operation_id,
                int(plan.verb),
                str(plan.effective),
                None if topics is None else topics.listed,
                json.dumps(plan.parameters),
                plan.per_second,
                now,
                counted.total,
                counted.exact,
                who,
                plan.reason,
                credential,
            )
        found = await get(db, tenant_no, operation_id)
        if made is None:
            same = (found.verb, found.filter, found.topics, dict(found.parameters), found.per_second, found.reason)
            if same != (plan.verb, str(plan.effective), topics, plan.parameters, plan.per_second, plan.reason):
                raise BulkConflict(operation_id)
            return found
        if active >= ACTIVE_MAX:
            raise Refused(f"{ACTIVE_MAX} operations are not over yet; wait for some of them, or cancel them")
        await _note(db, tenant_no, found, actor=who, verb="start_bulk", reason=plan.reason)
    return found


async def get(db: Connection, tenant_no: int, operation_id: UUID, *, topics: TopicSet | None = None) -> BulkOperation:
    """The operation as it is now. Raises NotFound, also for one that reaches topics which the caller may not see."""
    check_tenant_no(tenant_no)
    with translating(writing=False):
        row = await db.fetchrow(GET, tenant_no, operation_id)
    found = None if row is None else _operation(row)
    if found is None or not _may_see(found, topics):
        raise NotFound("operation", str(operation_id))
    return found


async def list_operations(
    db: Connection,
    tenant_no: int,
    *,
    active: bool = False,
    before: UUID | None = None,
    limit: int = limits.PAGE_DEFAULT,
    topics: TopicSet | None = None,
) -> list[BulkOperation]:
    """A page of operations, newest first; `before` is the last one of the page before."""
    check_tenant_no(tenant_no)
    check_page_size(limit)
    seen = None if topics is None else topics.like
    with translating(writing=False):
        rows = await db.fetch(LIST, tenant_no, before or listing.NEWEST, active, seen, limit)
    return [_operation(row) for row in rows]


async def started(db: Connection) -> list[StartedBulk]:
    """Operations of all tenants that are not over, and what they were started with. At most ACTIVE_MAX of a tenant."""
    with translating(writing=False):
        rows = await db.fetch(STARTED)
    return [from_row(StartedBulk, row, topics=TopicSet.stored(row["topics"])) for row in rows]


async def forget_old(db: Connection, *, keep: timedelta = KEPT, limit: int = 1_000) -> None:
    """Delete at most `limit` operations that were over long ago; the audit still knows them."""
    with translating(writing=True):
        await db.execute(FORGET, keep, limit)


async def cancel(
    db: Connection,
    tenant_no: int,
    operation_id: UUID,
    *,
    who: str,
    reason: str = "",
    topics: TopicSet | None = None,
) -> BulkOperation:
    """End an operation where it stands: when this returns it changes nothing more. Harmless when it is over."""
    async with transaction(db):
        await get(db, tenant_no, operation_id, topics=topics)
        with translating(writing=True):
            ended = await db.fetchval(CANCEL, tenant_no, operation_id)
        found = await get(db, tenant_no, operation_id)
        if ended is not None:
            await _note(db, tenant_no, found, actor=who, verb="cancel_bulk", reason=reason)
    return found


# --- rows -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def transaction(db: Connection) -> AsyncIterator[None]:
    """A transaction whose beginning and end fail in our own words; a savepoint where a pooler's lane has one open."""
    with translating(writing=True):
        async with lane.transaction(db):
            yield


async def _note(db: Connection, tenant_no: int, one: BulkOperation, *, actor: str, verb: str, reason: str) -> None:
    detail = {"verb": one.verb.label, "filter": one.filter, "expected": one.expected, "changed": one.changed}
    await audit.record(
        db,
        tenant_no,
        actor=actor,
        verb=verb,
        target=f"operation {one.id}",
        reason=reason,
        detail=detail | dict(one.parameters),
    )


def _may_see(one: BulkOperation, topics: TopicSet | None) -> bool:
    return topics is None or topics.covers(one.topics)


def _operation(row: asyncpg.Record) -> BulkOperation:
    parameters, topics = json.loads(row[5]), TopicSet.stored(row[4])
    return from_row(BulkOperation, row, verb=Verb(row[1]), state=Progress(row[2]), topics=topics, parameters=parameters)


class BulkStore(TenantCalls):
    """Fits the ports of control's bulk verbs and of the bulk runner.

    What looks at many jobs has a lane of its own: a count may take a second, and reads of one job do not wait for it.
    """

    list_jobs = named_call("list", matching.list_matching)
    count_jobs = tenant_call("list", count)
    dead_groups = named_call("list", dead_letters.dead_groups)
    preview = named_call("list", preview)
    operation = tenant_call("read", get)
    operations = tenant_call("read", list_operations)
    cancel = tenant_call("admin", cancel)
    started = lane_call("upkeep", started)

    async def start(
        self, tenant: str, operation_id: UUID, plan: Plan, *, who: str, topics: TopicSet | None, credential: str
    ) -> BulkOperation:
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.as_tenant("list", tenant_no) as db:
            counted = await count(db, tenant_no, plan.effective, topics=topics)
        if (
            plan.topic is not None
        ):  # behind a pooler, the call below is one transaction: a rollback takes its names back
            await self._database.topics(tenant, [plan.topic])
        async with self._database.as_tenant("admin", tenant_no) as db:
            return await start(
                db,
                self._database.names,
                tenant_no,
                operation_id,
                plan,
                who=who,
                topics=topics,
                credential=credential,
                expected=counted,
            )

    async def end_revoked(self, operation: StartedBulk, *, reason: str) -> None:
        async with self._database.as_tenant("admin", operation.tenant_no) as db:
            await cancel(db, operation.tenant_no, operation.id, who="headgate", reason=reason)
