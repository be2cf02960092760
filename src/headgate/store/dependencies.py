"""The calls around `submit_v1` for jobs with a unique key, parents or a batch, and unblocking jobs that waited.

A job without any of these never comes here. `add` and the submit share one transaction, of one tenant: locks are taken
in the order that functions/add_dependencies_v1.sql explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias
from uuid import UUID

from headgate.domain.dependencies import Dependencies, DependencyView, Needs, Relation
from headgate.domain.errors import BatchSealed, HeadgateError, NotFound
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_integer, to_ms
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.partitions import fetch_into_days

ADD: Final = """
SELECT ord, code, job_id
  FROM headgate.add_dependencies_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"""
REMOVE: Final = "SELECT headgate.remove_dependencies_v1($1, $2, $3, $4, $5, $6)"
PUSH: Final = "SELECT headgate.push_unique_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)"
UNBLOCK: Final = "SELECT tenant_no, topic_no, id, more FROM headgate.unblock_ready_v1($1)"
MEND: Final = "SELECT tenant_no, child_id, met, parent_id, mended FROM headgate.mend_waits_v1($1, $2, $3, $4, $5)"
HOLDER: Final = """
SELECT h.job_id FROM headgate.unique_jobs q
  JOIN headgate.unique_jobs h
    ON h.tenant_no = q.tenant_no AND h.topic_no = q.topic_no AND h.key = q.key AND h.live AND h.job_id <> q.job_id
 WHERE q.tenant_no = $1 AND q.job_id = $2"""
# Counted no further than $3: a parent may have any number of children.
RELATIONS: Final = """
SELECT 'unique', NULL::uuid, 0, 0, q.key, 1::bigint FROM headgate.unique_jobs q WHERE q.tenant_no = $1 AND q.job_id = $2
 UNION ALL
SELECT 'batch', m.batch_id, 0, 0, NULL, 1 FROM headgate.batch_jobs m WHERE m.tenant_no = $1 AND m.job_id = $2
 UNION ALL
SELECT 'parent', p.id, p.needs, p.met, NULL, p.n
  FROM (SELECT d.parent_id AS id, d.needs, d.met, count(*) OVER () AS n
          FROM (SELECT x.parent_id, x.needs, x.met FROM headgate.job_dependencies x
                 WHERE x.tenant_no = $1 AND x.child_id = $2 LIMIT $3) AS d
         ORDER BY d.parent_id LIMIT 100) AS p
 UNION ALL
SELECT 'child', c.id, c.needs, c.met, NULL, c.n
  FROM (SELECT d.child_id AS id, d.needs, d.met, count(*) OVER () AS n
          FROM (SELECT x.child_id, x.needs, x.met FROM headgate.job_dependencies x
                 WHERE x.tenant_no = $1 AND x.parent_id = $2 LIMIT $3) AS d
         ORDER BY d.child_id LIMIT 100) AS c"""
_COUNTED_MAX: Final = 10_000

HELD, CHANGED_BEFORE, NO_PARENT, NO_BATCH, SEALED, AGAIN, KNOWN = 1, 2, 10, 11, 12, 13, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A live job that a submit with its unique key wants to change."""

    holder: UUID
    call_id: UUID  # the submit's own
    asked: Dependencies
    run_at: datetime | None
    delay_ms: int | None
    payload: bytes
    priority: int


async def add(
    db: Connection,
    tenant_no: int,
    ids: Sequence[UUID],
    topic_nos: Sequence[int],
    asked: Sequence[Dependencies],
    stale: Sequence[bool],
) -> dict[int, tuple[int, UUID]]:
    """Write what new jobs depend on; by index, what prevents some (see add_dependencies_v1)."""
    unique = [(ord_, one.unique.key) for ord_, one in enumerate(asked, 1) if one.unique is not None]
    parents = [(ord_, parent) for ord_, one in enumerate(asked, 1) for parent in one.depends_on]
    batches = [(ord_, one.batch) for ord_, one in enumerate(asked, 1) if one.batch is not None]
    scopes, scope_nos, scope_topics = _scopes(asked)
    rows = await db.fetch(
        ADD,
        tenant_no,
        ids,
        topic_nos,
        stale,
        [ord_ for ord_, _ in unique],
        [key for _, key in unique],
        [int(one.needs) for one in asked],
        [int(one.on_parent_failure) for one in asked],
        [ord_ for ord_, _ in parents],
        [parent for _, parent in parents],
        [ord_ for ord_, _ in batches],
        [batch for _, batch in batches],
        scopes,
        scope_nos,
        scope_topics,
    )
    return {ord_ - 1: (code, job_id) for ord_, code, job_id in rows}


def _scopes(asked: Sequence[Dependencies]) -> tuple[list[int], list[int], list[str]]:
    """What callers whose token permits some topics may refer to: a number for each job (0: anything), and the
    patterns for LIKE by number. Empty lists when none is limited so, which is nearly always."""
    if all(one.sees is None for one in asked):
        return [], [], []
    numbers: dict[TopicSet, int] = {}
    of_jobs = [0 if one.sees is None else numbers.setdefault(one.sees, len(numbers) + 1) for one in asked]
    pairs = [(number, topic) for topics, number in numbers.items() for topic in topics.like]
    return of_jobs, [number for number, _ in pairs], [topic for _, topic in pairs]


def refusal(code: int, subject: UUID) -> HeadgateError:
    """Why a job is not made. A parent or batch of another tenant, or of a topic out of sight, is none."""
    if code == SEALED:
        return BatchSealed(subject)
    return NotFound("parent job" if code == NO_PARENT else "batch", str(subject))


async def remove(db: Connection, tenant_no: int, jobs: Iterable[tuple[UUID, Dependencies]]) -> None:
    """Take back what `add` wrote for jobs that were not made after all."""
    found = list(jobs)
    if not found:
        return
    parents = [(job_id, parent) for job_id, asked in found for parent in asked.depends_on]
    members = [(job_id, asked.batch) for job_id, asked in found if asked.batch is not None]
    await db.execute(
        REMOVE,
        tenant_no,
        [job_id for job_id, asked in found if asked.unique is not None],
        [child for child, _ in parents],
        [parent for _, parent in parents],
        [member for member, _ in members],
        [batch for _, batch in members],
    )


async def push(db: Connection, tenant_no: int, jobs: Iterable[Pushed]) -> None:
    """Replace or put off live jobs, in this order; running ones stay as they are."""
    found = [job for job in jobs if job.asked.unique is not None and job.asked.unique.mode]
    if not found:
        return
    uniques = [job.asked.unique for job in found if job.asked.unique is not None]
    await db.execute(
        PUSH,
        tenant_no,
        [job.holder for job in found],
        [int(unique.mode) for unique in uniques],
        [None if unique.debounce_max is None else to_ms(unique.debounce_max) for unique in uniques],
        [job.run_at for job in found],
        [job.delay_ms for job in found],
        [job.payload for job in found],
        [job.priority for job in found],
        [job.call_id for job in found],
    )


async def unblock_ready(db: Connection, *, limit: int = 1_000) -> tuple[list[tuple[int, int, UUID]], bool]:
    """Decide up to `limit` noted checks; what is claimable now (tenant, topic, id), and whether there are more."""
    check_integer(limit, field="limit", low=1, high=100_000)
    with translating(writing=True):
        rows = await fetch_into_days(db, UNBLOCK, limit)
    return [(row[0], row[1], row[2]) for row in rows if not row[3]], any(row[3] for row in rows)


Place: TypeAlias = tuple[int, UUID, int, UUID]
"""A dependency in the order in which they are looked through: tenant, child, met, parent."""
BEGINNING: Final[Place] = (0, UUID(int=0), 0, UUID(int=0))


async def mend_waits(db: Connection, after: Place = BEGINNING, *, limit: int = 5_000) -> tuple[Place, list[str]]:
    """Look at up to `limit` unmet dependencies; where to go on, and which waits that were over had to be mended."""
    check_integer(limit, field="limit", low=1, high=100_000)
    with translating(writing=True):
        ((*place, mended),) = await db.fetch(MEND, *after, limit)
    tenant_no, child_id, met, parent_id = place
    return (tenant_no, child_id, met, parent_id), mended


async def holder_of(db: Connection, tenant_no: int, job_id: UUID) -> UUID | None:
    """The other live job with this finished job's unique key, if there is one."""
    with translating(writing=False):
        holder: UUID | None = await db.fetchval(HOLDER, tenant_no, job_id)
    return holder


async def relations(db: Connection, tenant_no: int, job_id: UUID) -> DependencyView:
    """What hangs on a job: its unique key, batch, parents and children."""
    with translating(writing=False):
        rows = await db.fetch(RELATIONS, tenant_no, job_id, _COUNTED_MAX)
    key, batch = "", None
    found: dict[str, list[Relation]] = {"parent": [], "child": []}
    counts = {"parent": 0, "child": 0}
    for kind, other, needs, met, text, count in rows:
        if kind == "unique":
            key = text
        elif kind == "batch":
            batch = other
        else:
            found[kind].append(Relation(job_id=other, needs=Needs(needs), met=met))
            counts[kind] = count
    return DependencyView(
        unique_key=key,
        parents=tuple(found["parent"]),
        parent_count=counts["parent"],
        children=tuple(found["child"]),
        child_count=counts["child"],
        batch_id=batch,
    )


class UnblockCalls(Database):
    """Fits dispatch's port for the unblocker."""

    _waits_place = BEGINNING

    async def unblock_ready(self) -> tuple[list[tuple[int, int, UUID]], bool]:
        async with self.lane("unblock").use("unblock") as db:
            return await unblock_ready(db)

    async def mend_waits(self, *, limit: int) -> list[str]:
        """Look at the next `limit` unmet dependencies, and from the beginning after the last; what was mended."""
        async with self.lane("unblock").use() as db:
            self._waits_place, mended = await mend_waits(db, self._waits_place, limit=limit)
        return mended
