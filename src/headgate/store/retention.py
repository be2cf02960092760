"""Retention: removes finished jobs whose time is over, and other history that is no longer needed.

One pass is bounded in rows and in time, and every step of it commits by itself, so that it may be cut off anywhere and
run on every instance at once. Days that are old as a whole are dropped (partitions.py); in others rows are deleted in
chunks (functions/retire_chunk_v1.sql).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain.errors import InvalidInput
from headgate.domain.retention import Removed, RetentionRules, RetentionStatus
from headgate.domain.validation import MILLISECOND, check_integer, to_ms
from headgate.store import audit, bulk, partitions
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.partitions import IN_THE_WAY, clear_and_drop
from headgate.store.upkeep import forget_expired

CHUNK: Final = 1_000
DROP_AT_ONCE: Final = 20_000
"""Jobs of days that are dropped whole, looked at in one pass."""
LOCK_WAIT: Final = timedelta(seconds=2)
BUCKETS_KEPT: Final = {60: timedelta(days=2), 300: timedelta(days=8), 3_600: timedelta(days=30)}
"""Of counts and latencies over time, by the seconds of an interval."""
INSTANCES_KEPT: Final = timedelta(days=30)
"""Since a server was last seen."""
DELIVERIES_KEPT: Final = timedelta(days=7)
"""Of webhook deliveries and their attempts, since they ended."""
BACKLOG_MAX: Final = 100_000
"""Deliveries that may wait for a webhook endpoint that fails; one with more is disabled."""
SLOW_BACKLOG_MAX: Final = 500_000
"""The same for an endpoint that succeeds, and is too slow for its events."""
_BEGINNING: Final = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))

RULES: Final = "SELECT completed_ms, dead_ms, cancelled_ms, audit_ms FROM headgate.retention"
LOCK_RULES: Final = "SELECT completed_ms, dead_ms, cancelled_ms, audit_ms FROM headgate.retention FOR UPDATE"
SET_RULES: Final = "UPDATE headgate.retention SET completed_ms = $1, dead_ms = $2, cancelled_ms = $3, audit_ms = $4"
LONGEST: Final = "SELECT longest_ms FROM headgate.keep_bounds_v1()"
DUE: Final = "SELECT day FROM headgate.days_due_v1() WHERE due"
# Committed before a walk begins: a row made within it would delay the other instances for as long.
NOTE_DAYS: Final = """
INSERT INTO headgate.retention_days (day) SELECT d FROM unnest($1::date[]) AS d ON CONFLICT DO NOTHING"""
RETIRE: Final = "SELECT removed, done FROM headgate.retire_chunk_v1($1, $2, false)"
# Days that are detached and not dropped yet, because their clearing stopped at its bound, or another instance is at it.
HALF_DROPPED: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'headgate' AND c.relkind = 'r' AND NOT c.relispartition
                  AND c.relname ~ '^archive_[0-9]{8}$' AND right(c.relname, 8) < $1)"""
# Days as in the names of their tables: the oldest, how many wait to be cleared or dropped, and the oldest of those.
STATUS: Final = """
WITH bounds AS MATERIALIZED (
    SELECT to_char((headgate.clock_v1() - b.longest_ms * interval '1 ms') AT TIME ZONE 'UTC', 'YYYYMMDD') AS day
      FROM headgate.keep_bounds_v1() AS b),
tables AS MATERIALIZED (
    SELECT right(c.relname, 8) AS day
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = 'headgate' AND c.relkind = 'r' AND c.relname ~ '^archive_[0-9]{8}$')
SELECT (SELECT min(t.day) FROM tables t), count(*), min(w.day)
  FROM (SELECT to_char(d.day, 'YYYYMMDD') AS day FROM headgate.days_due_v1() AS d WHERE d.due
         UNION
        SELECT t.day FROM tables t, bounds b WHERE t.day < b.day) AS w"""
# The longer the interval, the longer it is kept.
# index: flow_buckets_at, latency_buckets_at
FORGET_FLOWS: Final = """
WITH gone AS (
    DELETE FROM headgate.flow_buckets b
     WHERE b.ctid = ANY (ARRAY(SELECT x.ctid FROM unnest($1::int[], $2::interval[]) AS k(seconds, kept)
                                CROSS JOIN LATERAL (
                                      SELECT f.ctid FROM headgate.flow_buckets f
                                       WHERE f.seconds = k.seconds AND f.at < headgate.clock_v1() - k.kept
                                       ORDER BY f.at LIMIT $3 FOR UPDATE SKIP LOCKED) AS x))
    RETURNING 1)
SELECT count(*) FROM gone"""
FORGET_LATENCIES: Final = """
WITH gone AS (
    DELETE FROM headgate.latency_buckets b
     WHERE b.ctid = ANY (ARRAY(SELECT x.ctid FROM unnest($1::int[], $2::interval[]) AS k(seconds, kept)
                                CROSS JOIN LATERAL (
                                      SELECT l.ctid FROM headgate.latency_buckets l
                                       WHERE l.seconds = k.seconds AND l.at < headgate.clock_v1() - k.kept
                                       ORDER BY l.at LIMIT $3 FOR UPDATE SKIP LOCKED) AS x))
    RETURNING 1)
SELECT count(*) FROM gone"""
# The oldest by number are the oldest by time, except for those that were written at the same moment.
FORGET_AUDIT: Final = """
WITH gone AS (
    DELETE FROM headgate.audit a
     WHERE a.audit_no = ANY (ARRAY(SELECT x.audit_no FROM headgate.audit x ORDER BY x.audit_no LIMIT $1))
       AND a.at < headgate.clock_v1() - (SELECT r.audit_ms FROM headgate.retention r) * interval '1 ms'
    RETURNING 1)
SELECT count(*) FROM gone"""
# A server that comes back after so long gets InstanceForgotten, and ends.
FORGET_INSTANCES: Final = """
WITH gone AS (
    DELETE FROM headgate.instances i
     WHERE i.instance_no = ANY (ARRAY(SELECT x.instance_no FROM headgate.instances x
                                       WHERE x.seen_at < headgate.clock_v1() - $1::interval LIMIT $2
                                         FOR UPDATE SKIP LOCKED))
    RETURNING 1)
SELECT count(*) FROM gone"""
FORGET_DELIVERIES: Final = "SELECT headgate.forget_deliveries_v1($1, $2, $3, $4)"
FORGET_BATCHES: Final = "SELECT forgotten, sealed, id FROM headgate.forget_batches_v1($1, $2, $3)"


async def rules(db: Connection) -> RetentionRules:
    """The rules for topics that have none of their own."""
    async with transaction(db):
        with translating(writing=False):
            return _rules(await db.fetch(RULES))


async def set_rules(db: Connection, changes: Mapping[str, timedelta], *, actor: str, reason: str) -> RetentionRules:
    """Change what is named; audited with what was before. Every instance goes by it with its next pass."""
    if not changes:
        raise InvalidInput("retention", "nothing to change is given", hint="completed, dead, cancelled or audit")
    async with transaction(db):
        with translating(writing=True):
            before = _rules(await db.fetch(LOCK_RULES))
            after = replace(before, **changes)
            await db.execute(
                SET_RULES, to_ms(after.completed), to_ms(after.dead), to_ms(after.cancelled), to_ms(after.audit)
            )
        detail = {"old": _words(before), "new": _words(after)}
        await audit.record(db, 0, actor=actor, verb="set_retention", target="everything", reason=reason, detail=detail)
    return after


async def status(db: Connection) -> RetentionStatus:
    """What is kept, and how far behind the removal is."""
    found = await rules(db)
    async with transaction(db):
        with translating(writing=False):
            ((oldest, waiting, oldest_waiting),) = await db.fetch(STATUS)
    return RetentionStatus(
        rules=found, oldest_day=_day(oldest), days_waiting=waiting, oldest_waiting=_day(oldest_waiting)
    )


async def run_pass(db: Connection, *, seconds: float = 1.0, chunk: int = CHUNK, on_session: bool = True) -> Removed:
    """Remove what is old, for about so many seconds. Needs a connection that is in no transaction."""
    check_integer(chunk, field="chunk", low=1, high=100_000)
    other, more = await _small_things(db, chunk)
    if more:
        other += await _expired(db, chunk, time.monotonic() + seconds / 2)
    async with transaction(db):
        with translating(writing=False):
            longest: int = await db.fetchval(LONGEST)
            days = [row[0] for row in await db.fetch(DUE)]
    async with transaction(db):
        with translating(writing=True):
            await db.execute(NOTE_DAYS, days)
    dropped, cleared = await clear_and_drop(
        db,
        keep=longest * MILLISECOND,
        lock_wait=LOCK_WAIT,
        on_session=on_session,
        chunks=max(1, DROP_AT_ONCE // partitions.CHUNK),
    )
    # From here: a day that a reader holds has cost its wait by now, and must not keep other days from being cleared.
    ends = time.monotonic() + seconds
    jobs = 0
    for day in days:
        while True:
            if time.monotonic() >= ends:
                return Removed(jobs=jobs, days=len(dropped), other=other, more=True)
            with translating(writing=True):
                try:
                    async with db.transaction():
                        await db.fetchval("SELECT set_config('lock_timeout', $1, true)", f"{to_ms(LOCK_WAIT)}ms")
                        row = await db.fetchrow(RETIRE, day, chunk)
                except IN_THE_WAY:  # a long lock, or the day was dropped: see the next pass
                    break
            if row is None:  # another instance is at it
                break
            jobs += row[0]
            if row[1]:
                break
    async with transaction(db):
        with translating(writing=False):
            now: datetime = await db.fetchval("SELECT headgate.clock_v1()")
            oldest = f"{now.astimezone(UTC) - longest * MILLISECOND:%Y%m%d}"
            left = await db.fetchval(HALF_DROPPED, oldest)
    blocked = left and not (more or dropped or cleared)  # all else is done: what others keep adding does not count
    return Removed(jobs=jobs, days=len(dropped), other=other, more=more or left, blocked=blocked)


async def _expired(db: Connection, chunk: int, ends: float) -> int:
    """Forget expired keys and ids, chunk by chunk until then or until there are none: how many."""
    gone, count = 0, chunk
    while count >= chunk and time.monotonic() < ends:
        async with transaction(db):
            count = await forget_expired(db, limit=chunk)
        gone += count
    return gone


async def _small_things(db: Connection, chunk: int) -> tuple[int, bool]:
    """What is not about jobs, a chunk of each: how many rows, and whether some may be left."""
    async with transaction(db):
        counts = [await forget_expired(db, limit=chunk)]
        await bulk.forget_old(db)
        with translating(writing=True):
            for statement, arguments in (
                (FORGET_FLOWS, (list(BUCKETS_KEPT), list(BUCKETS_KEPT.values()), chunk)),
                (FORGET_LATENCIES, (list(BUCKETS_KEPT), list(BUCKETS_KEPT.values()), chunk)),
                (FORGET_AUDIT, (chunk,)),
                (FORGET_INSTANCES, (INSTANCES_KEPT, chunk)),
                (FORGET_DELIVERIES, (DELIVERIES_KEPT, chunk, BACKLOG_MAX, SLOW_BACKLOG_MAX)),
            ):
                counts.append(await db.fetchval(statement, *arguments))
    return sum(counts), any(count >= chunk for count in counts)


async def forget_batches(
    db: Connection, after: tuple[datetime, UUID] = _BEGINNING, *, limit: int = CHUNK
) -> tuple[int, tuple[datetime, UUID]]:
    """Of the next `limit` sealed batches, forget those whose jobs were removed: how many, and where to continue."""
    check_integer(limit, field="limit", low=1, high=100_000)
    async with transaction(db):
        with translating(writing=True):
            ((forgotten, sealed, last),) = await db.fetch(FORGET_BATCHES, *after, limit)
    return forgotten, _BEGINNING if sealed is None else (sealed, last)


class RetentionStore:
    """Retention over a lane of its own: a detach may wait for readers, and nothing else should wait for that."""

    def __init__(self, database: Database) -> None:
        self._lane = database.lane("retention")
        self._batches = _BEGINNING

    async def run_pass(self) -> Removed:
        """One bounded pass. Two calls on one instance follow each other."""
        async with self._lane as db:  # in no transaction, behind a pooler too
            done = await run_pass(db, on_session=not self._lane.pooler)
            forgotten, self._batches = await forget_batches(db, self._batches)
        onward = self._batches != _BEGINNING
        blocked = done.blocked and not onward
        return replace(done, other=done.other + forgotten, more=done.more or onward, blocked=blocked)

    async def set_rules(self, changes: Mapping[str, timedelta], *, actor: str, reason: str) -> RetentionRules:
        async with self._lane as db:
            return await set_rules(db, changes, actor=actor, reason=reason)


def _rules(rows: Sequence[asyncpg.Record]) -> RetentionRules:
    ((completed, dead, cancelled, kept_audit),) = rows
    return RetentionRules(
        completed=completed * MILLISECOND,
        dead=dead * MILLISECOND,
        cancelled=cancelled * MILLISECOND,
        audit=kept_audit * MILLISECOND,
    )


def _day(text: str | None) -> date | None:
    # Not strptime: it imports a module when it is first used, and that fails while no file descriptor is left.
    return None if text is None else date.fromisoformat(text)


def _words(rules: RetentionRules) -> dict[str, float]:
    """In seconds, for the audit."""
    return {name: getattr(rules, name).total_seconds() for name in ("completed", "dead", "cancelled", "audit")}
