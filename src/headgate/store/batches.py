"""Batches: jobs submitted together, counted together, with a callback that waits for them all.

Members are added by their own submits (`Submission.batch`); here a batch is opened, sealed and read. The callback is a
blocked job from the start, and the batch itself is one of its parents: sealing fulfils that one.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain import limits
from headgate.domain.batch_graph import BatchGraph
from headgate.domain.dependencies import BatchStatus, Needs, NewBatch
from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.flags import JobFlag
from headgate.domain.ids import job_id_time_ms, new_job_id
from headgate.domain.jobs import Submission
from headgate.domain.states import State
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_integer, check_page_size, to_ms
from headgate.store.batch_graphs import batch_graph
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.flush import fill
from headgate.store.listing import LOOK_AT, NEWEST
from headgate.store.names import Names
from headgate.store.partitions import ensure_partitions
from headgate.store.rows import from_row
from headgate.store.submit import submit
from headgate.store.tenant_calls import TenantCalls, named_call, tenant_call

_OLDEST: Final = UUID(int=0)
OPEN: Final = """
INSERT INTO headgate.batches (tenant_no, id, name, needs, on_failure, callback_id, created_at, expires_at, topics)
SELECT $1, $2, $3, $4, $5, $6, c.now, c.now + $7::bigint * interval '1 ms', $8 FROM headgate.clock_v1() AS c(now)
ON CONFLICT (tenant_no, id) DO NOTHING
RETURNING id"""
# The batch as a parent of its callback, and the callback's first word.
BIND: Final = """
WITH bound AS (
    INSERT INTO headgate.job_dependencies (tenant_no, parent_id, child_id, needs, on_failure, met)
    VALUES ($1, $2, $3, 0, 0, 0))
INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, reason)
VALUES ($1, $3, headgate.clock_v1(), 20 /* blocked */, 0, 0, 4 /* blocked */, 'waits for batch ' || $2::uuid)"""
# Also its topics: who opens another topic's batch again must not be shown it.
SAME: Final = """
SELECT name = $3 AND needs = $4 AND on_failure = $5 AND topics IS NOT DISTINCT FROM $6::text[]
  FROM headgate.batches WHERE tenant_no = $1 AND id = $2"""
GET: Final = """
SELECT b.id, b.name, b.needs, b.created_at, b.expires_at, b.sealed_at, b.expired, b.total, b.callback_id,
       b.gone_completed, b.gone_dead, b.gone_cancelled, b.topics
  FROM headgate.batches b WHERE b.tenant_no = $1 AND b.id = $2"""
# By key, a member at a time. None can have ended before its batch was opened, so older days are not looked at.
COUNTS: Final = """
WITH member AS MATERIALIZED (
    SELECT m.job_id FROM headgate.batch_jobs m WHERE m.tenant_no = $1 AND m.batch_id = $2 LIMIT $3)
SELECT f.state, count(*)
  FROM member m
  LEFT JOIN LATERAL (
       (SELECT j.state FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = m.job_id)
        UNION ALL
       (SELECT a.state FROM headgate.archive a
         WHERE a.tenant_no = $1 AND a.id = m.job_id AND a.finished_at >= $4)
        LIMIT 1) AS f ON true
 GROUP BY 1"""
MEMBERS: Final = "SELECT count(*) FROM headgate.batch_jobs WHERE tenant_no = $1 AND batch_id = $2"
# The last of so many batches before one; index: batches_pkey
REACH: Final = (
    "SELECT b.id FROM headgate.batches b WHERE b.tenant_no = $1 AND b.id < $2 ORDER BY b.id DESC OFFSET $3 LIMIT 1"
)
# Newest first, by the ids, which begin with their time; index: batches_pkey. Members of an open batch are counted up to
# a bound; how each member stands is not looked at.
LIST: Final = """
SELECT b.id, b.name, b.needs, b.created_at, b.expires_at, b.sealed_at, b.expired,
       coalesce(b.total, b.gone_completed + b.gone_dead + b.gone_cancelled), b.callback_id, c.state, b.topics,
       CASE WHEN b.total IS NULL THEN (
           SELECT count(*) FROM (SELECT FROM headgate.batch_jobs m
                                  WHERE m.tenant_no = $1 AND m.batch_id = b.id LIMIT $6) AS o) ELSE 0 END
  FROM headgate.batches b
  LEFT JOIN LATERAL (
       (SELECT j.state FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = b.callback_id)
        UNION ALL
       (SELECT a.state FROM headgate.archive a
         WHERE a.tenant_no = $1 AND a.id = b.callback_id AND a.finished_at >= b.created_at)
        LIMIT 1) AS c ON true
 WHERE b.tenant_no = $1 AND b.id < $2 AND b.id >= $7
   AND (NOT $3 OR b.sealed_at IS NULL) AND ($4::text[] IS NULL OR (b.topics IS NOT NULL AND NOT EXISTS (
       SELECT FROM unnest(b.topics) AS t(name) WHERE NOT t.name LIKE ANY ($4))))
 ORDER BY b.id DESC LIMIT $5"""
CALLBACK: Final = """
SELECT j.state FROM headgate.jobs j WHERE j.tenant_no = $1 AND j.id = $2
 UNION ALL
SELECT a.state FROM headgate.archive a WHERE a.tenant_no = $1 AND a.id = $2"""


async def open_batch(
    db: Connection, names: Names, tenant_no: int, batch: NewBatch, *, callback: Submission | None = None
) -> bool:
    """Open a batch, with the job that is to run when all its members are done; False if it is open already.

    The same id with another name, another need or other topics is refused.
    """
    if callback is not None and (callback.dependencies is not None or callback.key is not None):
        raise InvalidInput("on_done", "cannot have a key, a unique key, parents or a batch of its own")
    for again in (False, True):
        with translating(writing=True):
            try:
                async with db.transaction():
                    return await _open(db, names, tenant_no, batch, callback)
            except asyncpg.CheckViolationError as error:
                if error.constraint_name is not None or again:
                    raise
                await ensure_partitions(db)  # see fetch_into_days
    raise AssertionError


async def _open(db: Connection, names: Names, tenant_no: int, batch: NewBatch, callback: Submission | None) -> bool:
    needs, on_failure = int(batch.needs), int(batch.on_failure)
    topics = batch.topics if callback is None else TopicSet.of(callback.topic)
    owners = None if topics is None else topics.listed
    opened = await db.fetchval(
        OPEN,
        tenant_no,
        batch.id,
        batch.name,
        needs,
        on_failure,
        None if callback is None else callback.id,
        to_ms(batch.expires_in),
        owners,
    )
    if opened is None:
        if not await db.fetchval(SAME, tenant_no, batch.id, batch.name, needs, on_failure, owners):
            raise InvalidInput("batch", f"{batch.id} was opened before with another name, need or topic")
        return False
    if callback is not None:
        flush = await fill(db, names, [callback])
        flush.flags = [int(JobFlag.WAITS | JobFlag.HAS_PARENTS)]
        answers = await submit(db, flush)
        if answers and answers[0].error is not None:
            raise answers[0].error
        if answers:
            raise InvalidInput("on_done", f"job {callback.id} was submitted before", hint="leave its id out")
        await db.execute(BIND, tenant_no, batch.id, callback.id)
    return True


async def seal_batch(db: Connection, tenant_no: int, batch_id: UUID) -> None:
    """Take no more members, and let the callback go when all have done their part. Harmless when repeated."""
    with translating(writing=True):
        found = await db.fetchval("SELECT headgate.seal_batch_v1($1, $2, false)", tenant_no, batch_id)
    if not found:
        raise NotFound("batch", str(batch_id))


async def batch_status(db: Connection, tenant_no: int, batch_id: UUID) -> BatchStatus:
    """The batch and how its members stand, counted on demand over at most 10,000 of them."""
    with translating(writing=False):
        row = await db.fetchrow(GET, tenant_no, batch_id)
        if row is None:
            raise NotFound("batch", str(batch_id))
        counts = await db.fetch(COUNTS, tenant_no, batch_id, limits.BATCH_COUNTED_MAX, row[3])
        gone = {State.COMPLETED: row[9], State.DEAD: row[10], State.CANCELLED: row[11]}
        total = row[7] if row[7] is not None else sum(gone.values()) + await db.fetchval(MEMBERS, tenant_no, batch_id)
        found = {State(state): count for state, count in counts if state is not None}
        found |= {state: found.get(state, 0) + count for state, count in gone.items() if count}
        callback = None if row[8] is None else await db.fetchval(CALLBACK, tenant_no, row[8])
    return from_row(
        BatchStatus,
        row[:7],
        needs=Needs(row[2]),
        total=total,
        counted=sum(found.values()),
        counts=found,
        callback_id=row[8],
        callback_state=None if callback is None else State(callback),
        topics=TopicSet.stored(row[12]),
    )


async def list_batches(
    db: Connection,
    tenant_no: int,
    *,
    open_only: bool = False,
    before: UUID | None = None,
    limit: int = limits.PAGE_DEFAULT,
    topics: TopicSet | None = None,
) -> tuple[list[BatchStatus], UUID | None]:
    """A page of batches, newest first, without the counts of their members, and `before` of the next page, if any.

    If only some are asked for, LOOK_AT batches are looked at: the page may be short although others follow.
    """
    check_page_size(limit)
    seen = None if topics is None else topics.like
    first, reach, most = before or NEWEST, None, limits.BATCH_LISTED_MAX
    with translating(writing=False):
        if open_only or seen is not None:
            last = await db.fetchval(REACH, tenant_no, first, LOOK_AT - 1)
            # The whole millisecond of the last one: as a cursor it must not tell the id of a batch of other topics.
            reach = None if last is None else new_job_id(now_ms=job_id_time_ms(last), random_bits=bytes(10))
        rows = await db.fetch(LIST, tenant_no, first, open_only, seen, limit, most + 1, reach or _OLDEST)
    found = [
        from_row(
            BatchStatus,
            row[:7],
            needs=Needs(row[2]),
            total=row[7] + min(row[11], most),
            more_members=row[11] > most,
            counted=0,
            callback_id=row[8],
            callback_state=None if row[9] is None else State(row[9]),
            topics=TopicSet.stored(row[10]),
        )
        for row in rows
    ]
    return found, found[-1].id if len(found) == limit else reach


async def expire_batches(db: Connection, *, limit: int = 1_000) -> int:
    """Close batches that were not sealed in time; returns how many."""
    check_integer(limit, field="limit", low=1, high=100_000)
    with translating(writing=True):
        done: int = await db.fetchval("SELECT headgate.expire_batches_v1($1)", limit)
    return done


async def _graph(db: Connection, names: Names, tenant_no: int, batch_id: UUID) -> BatchGraph:
    return await batch_graph(db, names, tenant_no, await batch_status(db, tenant_no, batch_id))


class BatchStore(TenantCalls):
    """Fits the port of control's batch verbs."""

    batch = tenant_call("read", batch_status)
    batches = tenant_call("read", list_batches)
    graph = named_call("read", _graph)

    async def open_batch(self, tenant: str, batch: NewBatch, *, callback: Submission | None) -> BatchStatus:
        tenant_no = await self._database.tenant_no(tenant)
        if callback is not None:  # before the transaction, whose rollback would take back the number that is cached
            await self._database.topics(tenant, [callback.topic])
        async with self._database.as_tenant("admin", tenant_no, "batch") as db:
            await open_batch(db, self._database.names, tenant_no, batch, callback=callback)
            return await batch_status(db, tenant_no, batch.id)

    async def seal_batch(self, tenant: str, batch_id: UUID) -> BatchStatus:
        """Its callback may be unblocked: the caller tells dispatch."""
        tenant_no = await self._database.tenant_no(tenant)
        async with self._database.as_tenant("admin", tenant_no, "batch") as db:
            await seal_batch(db, tenant_no, batch_id)
            return await batch_status(db, tenant_no, batch_id)
