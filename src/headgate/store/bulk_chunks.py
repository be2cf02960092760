"""How bulk operations are carried out: by whichever instance comes first, one chunk per transaction.

A chunk takes an operation's row (SKIP LOCKED), reads the next ids below its cursor, locks those jobs, asks the filter
once more, applies the verb, and moves cursor and counts. All of that commits or none of it: a crash in the middle
leaves the cursor where it was and no job changed, so the next chunk, on any instance, does the same work again.

The cursor only goes down, so an operation ends, whatever its own verb does to what matches.
Locks are taken in the order: operation, then jobs by id. No transaction that holds a job waits for an operation.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain import failpoints, limits
from headgate.domain.bulk import CHUNK, Chunk, Progress, Verb
from headgate.domain.errors import (
    HeadgateError,
    InvalidInput,
    OutcomeUnknown,
    ReadOnly,
    StorageFull,
    StoreBusy,
    StoreUnavailable,
    TooSlow,
)
from headgate.domain.filter_parser import parse
from headgate.domain.ids import TenantNo
from headgate.domain.states import State
from headgate.domain.topic_sets import TopicSet
from headgate.store import audit, listing, matching, verbs
from headgate.store.bulk import transaction
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.names import Names
from headgate.store.rows import from_row
from headgate.store.tenant_lane import confine

SMALLER: Final = (CHUNK, 25, 1)
"""The size of a chunk after 0, 1, 2 and more failures in a row: a job that cannot be changed is found, and left."""
REST: Final = timedelta(milliseconds=100)
UNREADABLE_MOST: Final = 20
REST_UNREADABLE: Final = timedelta(seconds=3)
"""A filter that this release cannot read came with another one: its instances have a minute to take the operation."""
SLOW_MOST: Final = 4
"""How often in a row an operation may be cancelled for taking too long before it is given up: others wait for it."""
TAKE: Final = """
SELECT tenant_no, id, verb, filter, topics, parameters, per_second, as_of, below, failures, who, reason
  FROM headgate.bulk_operations
 WHERE state IN (0, 1) /* pending, running */ AND rest_until <= headgate.clock_v1()  -- index: bulk_operations_active
   AND verb = ANY ($1::smallint[])                   -- one that a newer release brought is left to its instances
 ORDER BY touched_at LIMIT 1 FOR UPDATE SKIP LOCKED"""
TAKE_AGAIN: Final = """
SELECT id FROM headgate.bulk_operations
 WHERE tenant_no = $1 AND id = $2 AND below = $3 AND state IN (0, 1) /* pending, running */ FOR UPDATE SKIP LOCKED"""
HOLD: Final = "SELECT headgate.hold_matched_v1($1, $2, $3)"
ADVANCE: Final = """
UPDATE headgate.bulk_operations
   SET state = $3::smallint, below = $4, looked = looked + $5, matched = matched + $6, changed = changed + $7,
       skipped = skipped + $8, errors = errors + $9, failures = 0, error = coalesce($10, error), instance_no = $11,
       started_at = coalesce(started_at, headgate.clock_v1()), touched_at = headgate.clock_v1(),
       rest_until = headgate.clock_v1() + $12::interval,
       finished_at = CASE WHEN $3::smallint >= 2 THEN headgate.clock_v1() END
 WHERE tenant_no = $1 AND id = $2
RETURNING matched, changed, skipped, errors"""
STUMBLE: Final = """
UPDATE headgate.bulk_operations
   SET failures = failures + 1, error = $4, touched_at = headgate.clock_v1(), instance_no = $5,
       rest_until = headgate.clock_v1() + $6::interval
 WHERE tenant_no = $1 AND id = $2 AND state IN (0, 1) /* pending, running */ AND below = $3"""
FAIL: Final = """
UPDATE headgate.bulk_operations
   SET state = 4 /* failed */, error = $3, instance_no = $4, touched_at = headgate.clock_v1(),
       finished_at = headgate.clock_v1()
 WHERE tenant_no = $1 AND id = $2 AND state IN (0, 1) /* pending, running */ RETURNING id"""
# When the next operation may go on; NULL when there is none. index: bulk_operations_active
NEXT: Final = """
SELECT extract(epoch FROM min(rest_until) - headgate.clock_v1())::float8 FROM headgate.bulk_operations
 WHERE state IN (0, 1) /* pending, running */"""
KNOWN: Final = [int(verb) for verb in Verb]
_PASSING: Final = (StoreUnavailable, OutcomeUnknown, StoreBusy, StorageFull, ReadOnly)
_FINAL: Final = frozenset(state for state in State if state.is_final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The operation a chunk belongs to."""

    tenant_no: int
    id: UUID
    verb: Verb
    filter: str
    topics: TopicSet | None
    parameters: Mapping[str, object]
    per_second: int | None
    as_of: datetime
    below: UUID
    failures: int
    who: str
    reason: str


async def run_chunk(db: Connection, names: Names, *, instance_no: int) -> Chunk | None:
    """The next chunk of the operation that has waited longest; None when there is none to work on.

    A chunk that fails for a reason of its own is tried again smaller, in the end job by job; a job that cannot be
    changed at all is counted as an error and passed over. An operation whose filter cannot be read, or is too slow for
    this database every time, fails. An outage of the database is the caller's to wait out.
    """
    taken: list[Task] = []
    try:
        async with transaction(db):
            return await _run(db, names, instance_no, taken)
    except HeadgateError as error:
        if not taken or (isinstance(error, _PASSING) and not isinstance(error, TooSlow)):
            raise
        return await _stumbled(db, taken[0], error, instance_no)


async def _run(db: Connection, names: Names, instance_no: int, taken: list[Task]) -> Chunk | None:
    with translating(writing=True):
        row = await db.fetchrow(TAKE, KNOWN)
    if row is None:
        return None
    task = _task(row)
    taken.append(task)
    await confine(db, task.tenant_no)
    wanted = await matching.compiled(db, task.tenant_no, parse(task.filter), as_of=task.as_of, topics=task.topics)
    if wanted is None:
        return await _advance(db, task, instance_no, None, Chunk(tenant_no=task.tenant_no, operation_id=task.id))
    wanted = matching.bounded(wanted, task.as_of)
    found = await listing.step(db, task.tenant_no, wanted, below=task.below, limit=_size(task))
    ids = [row.id for row in found.rows]
    changed: list[UUID] = []
    requeued: list[tuple[int, UUID]] = []
    if ids:
        with translating(writing=True):
            await db.execute(HOLD, task.tenant_no, ids, task.verb.reaches <= _FINAL)
        held = [row.id for row in await listing.still_matching(db, task.tenant_no, wanted, ids)]
        if held:
            # Oldest first: within a chunk, redriven jobs keep the order in which they were submitted.
            changed, requeued = await _APPLY[task.verb](db, names, task, held[::-1])
    chunk = Chunk(
        tenant_no=task.tenant_no,
        operation_id=task.id,
        matched=len(ids),
        changed=len(changed),
        skipped=len(ids) - len(changed),
        requeued=requeued,
    )
    return await _advance(db, task, instance_no, found, chunk)


async def _advance(
    db: Connection, task: Task, instance_no: int, found: listing.Step | None, chunk: Chunk, *, error: str | None = None
) -> Chunk:
    over = found is None or not found.more
    rest = timedelta(seconds=chunk.changed / task.per_second) if task.per_second else timedelta(0)
    with translating(writing=True):
        totals = await db.fetchrow(
            ADVANCE,
            task.tenant_no,
            task.id,
            int(Progress.DONE if over else Progress.RUNNING),
            task.below if found is None else found.below,
            0 if found is None else found.looked,
            chunk.matched,
            chunk.changed,
            chunk.skipped,
            chunk.errors,
            error,
            instance_no or None,
            rest,
        )
    if over and totals is not None:
        await audit.record(
            db,
            task.tenant_no,
            actor=task.who,
            verb="end_bulk",
            target=f"operation {task.id}",
            reason=task.reason,
            detail=dict(zip(("matched", "changed", "skipped", "errors"), totals, strict=True)),
        )
    if failpoints.armed:
        await failpoints.armed.reach("bulk.before_commit")
    return replace(chunk, over=over)


async def _stumbled(db: Connection, task: Task, error: HeadgateError, instance_no: int) -> Chunk:
    text = str(error)[:1000]
    nothing = Chunk(tenant_no=task.tenant_no, operation_id=task.id, error=text)
    hopeless = None  # after how many failures in a row
    if isinstance(error, InvalidInput) and error.field == "filter":
        hopeless = UNREADABLE_MOST
    elif isinstance(error, TooSlow):
        hopeless = SLOW_MOST
    if hopeless is not None and task.failures >= hopeless:
        async with transaction(db):
            await _fail(db, task, text, instance_no)
        return replace(nothing, over=True)
    if hopeless is not None or task.failures < len(SMALLER) - 1:
        rest = REST if hopeless is None else REST_UNREADABLE
        async with transaction(db):
            with translating(writing=True):
                await db.execute(STUMBLE, task.tenant_no, task.id, task.below, text, instance_no or None, rest)
        return nothing
    return await _pass_over(db, task, text, instance_no)


async def _pass_over(db: Connection, task: Task, text: str, instance_no: int) -> Chunk:
    """Leave the one job behind that could not be changed."""
    nothing = Chunk(tenant_no=task.tenant_no, operation_id=task.id, error=text)
    async with transaction(db):
        with translating(writing=True):
            row = await db.fetchrow(TAKE_AGAIN, task.tenant_no, task.id, task.below)
        if row is None:
            return nothing  # another instance was quicker, or it was cancelled
        wanted = await matching.compiled(db, task.tenant_no, parse(task.filter), as_of=task.as_of, topics=task.topics)
        if wanted is None:
            return nothing
        wanted = matching.bounded(wanted, task.as_of)
        found = await listing.step(db, task.tenant_no, wanted, below=task.below, limit=1)
        chunk = replace(nothing, matched=len(found.rows), errors=len(found.rows))
        return await _advance(db, task, instance_no, found, chunk, error=text)


async def _fail(db: Connection, task: Task, text: str, instance_no: int) -> None:
    with translating(writing=True):
        ended = await db.fetchval(FAIL, task.tenant_no, task.id, text, instance_no or None)
    if ended is not None:
        await audit.record(
            db,
            task.tenant_no,
            actor=task.who,
            verb="fail_bulk",
            target=f"operation {task.id}",
            reason=text[: limits.REASON_MAX_CHARS].replace("\n", " "),
        )


def _size(task: Task) -> int:
    size = SMALLER[min(task.failures, len(SMALLER) - 1)]
    # At most a second's worth, or a slow limit would come in bursts.
    return size if task.per_second is None else min(size, task.per_second)


# --- the verbs --------------------------------------------------------------------------------------------------------

Applied = tuple[list[UUID], list[tuple[int, UUID]]]
"""The jobs that were changed, and (topic number, job) of those that may be claimed at a new place."""


async def _cancel(db: Connection, names: Names, task: Task, ids: Sequence[UUID]) -> Applied:
    del names
    done = await verbs.cancel(db, task.tenant_no, ids, who=task.who, reason=task.reason)
    return [job_id for job_id, one in done.items() if one.changed], []


async def _redrive(db: Connection, names: Names, task: Task, ids: Sequence[UUID]) -> Applied:
    del names
    delay = timedelta(milliseconds=_parameter(task, "delay_ms", 0))
    done = await verbs.redrive(db, task.tenant_no, ids, delay=delay, who=task.who, reason=task.reason)
    return list(done), [] if delay else [(one.topic_no, one.id) for one in done.values()]


async def _discard(db: Connection, names: Names, task: Task, ids: Sequence[UUID]) -> Applied:
    del names
    return list(await verbs.discard(db, task.tenant_no, ids, who=task.who, reason=task.reason)), []


async def _reprioritise(db: Connection, names: Names, task: Task, ids: Sequence[UUID]) -> Applied:
    del names
    priority = _parameter(task, "priority", 0)
    done = await verbs.reprioritise(db, task.tenant_no, ids, priority=priority, who=task.who, reason=task.reason)
    changed = [job_id for job_id, (one, _) in done.items() if one.changed]
    return changed, [(place.topic_no, place.id) for _, place in done.values() if place is not None]


async def _move(db: Connection, names: Names, task: Task, ids: Sequence[UUID]) -> Applied:
    topic = await names.topic(db, TenantNo(task.tenant_no), str(task.parameters["topic"]))
    done = await verbs.move(db, task.tenant_no, ids, topic_no=topic.no, who=task.who, reason=task.reason)
    changed = [job_id for job_id, one in done.items() if one.changed]
    return changed, [(topic.no, job_id) for job_id in changed]


_APPLY: Final[Mapping[Verb, Callable[[Connection, Names, Task, Sequence[UUID]], Awaitable[Applied]]]] = {
    Verb.CANCEL: _cancel,
    Verb.REDRIVE: _redrive,
    Verb.DISCARD: _discard,
    Verb.REPRIORITISE: _reprioritise,
    Verb.MOVE: _move,
}


def _parameter(task: Task, name: str, otherwise: int) -> int:
    value = task.parameters.get(name, otherwise)
    return value if isinstance(value, int) else otherwise


def _task(row: asyncpg.Record) -> Task:
    parameters, topics = json.loads(row[5]), TopicSet.stored(row[4])
    return from_row(Task, row, verb=Verb(row[2]), topics=topics, parameters=parameters)


class BulkChunks:
    """Fits the bulk runner's port."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_chunk(self) -> Chunk | None:
        async with self._database.lane("upkeep").use() as db:
            chunk = await run_chunk(db, self._database.names, instance_no=self._database.instance_no)
        if failpoints.armed and chunk is not None:
            await failpoints.armed.reach("bulk.after_commit")
        return chunk

    async def next_chunk_in(self) -> float | None:
        async with self._database.lane("upkeep").use() as db:
            with translating(writing=False):
                waits: float | None = await db.fetchval(NEXT)
        return waits
