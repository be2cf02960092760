"""Day partitions of archive and events: made a week ahead, dropped whole when their time is over.

Dropping a partition frees finished jobs without a single dead row. It is detached first, without blocking anyone: from
then on nobody can redrive its jobs. Then what hangs on them elsewhere (large payloads, tags, lineage) is deleted in
bounded chunks, and the table is dropped. Every step can be repeated, so a run that was cut off is simply done again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain.validation import check_integer, check_span, to_ms
from headgate.store.connect import Connection
from headgate.store.errors import translating

DAYS_AHEAD: Final = 7
CHUNK: Final = 1_000
_RETENTION_MIN, _RETENTION_MAX = timedelta(days=1), timedelta(days=3650)

# What ends one step and is no error: a reader holds the table; another instance is at it, or was quicker (the table is
# no partition any more, or gone); a neighbour is still being detached.
_IN_THE_WAY: Final = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ObjectInUseError,
    asyncpg.UndefinedTableError,
    asyncpg.ObjectNotInPrerequisiteStateError,
)

# Partitions of days before $1 (as in their names), oldest first, each with the statement that detaches it (the server
# quotes the names). A detach that was interrupted is finished instead of begun again, and first of all: until then no
# other partition of that table can be detached.
OVERDUE: Final = """
SELECT format('ALTER TABLE headgate.%I DETACH PARTITION headgate.%I ', p.relname, c.relname)
         || CASE WHEN i.inhdetachpending THEN 'FINALIZE' ELSE 'CONCURRENTLY' END
  FROM pg_catalog.pg_inherits i
  JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
  JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
 WHERE p.oid IN ('headgate.archive'::regclass, 'headgate.job_events'::regclass)
   AND c.relname ~ '^(archive|job_events)_[0-9]{8}$' AND right(c.relname, 8) < $1
 ORDER BY i.inhdetachpending DESC, c.relname"""
DETACHED: Final = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'headgate' AND c.relkind = 'r' AND NOT c.relispartition
   AND c.relname ~ '^(archive|job_events)_[0-9]{8}$' AND right(c.relname, 8) < $1
 ORDER BY c.relname"""


async def ensure_partitions(db: Connection, *, days_ahead: int = DAYS_AHEAD) -> list[str]:
    """Make the partitions from yesterday to `days_ahead` days from now; returns the names of the new ones."""
    check_integer(days_ahead, field="days_ahead", low=0, high=366)
    with translating(writing=True):
        rows = await db.fetch("SELECT name FROM headgate.ensure_partitions_v1($1) AS name", days_ahead)
    return [row[0] for row in rows]


async def fetch_into_days(db: Connection, statement: str, *arguments: object) -> list[asyncpg.Record]:
    """Run a statement that writes to archive or events; makes missing partitions and tries once more.

    They are made a week ahead, so one is missing only when nobody served for a week or the clock has jumped: no outcome
    must be lost for that. Not for use inside a transaction, which the first error would have ended.
    """
    try:
        return await db.fetch(statement, *arguments)
    except asyncpg.CheckViolationError as error:
        # A broken CHECK names its constraint, a missing partition names none; the text is in the server's language.
        if error.constraint_name is not None:
            raise
        await ensure_partitions(db)
        return await db.fetch(statement, *arguments)


async def drop_expired(db: Connection, *, keep: timedelta, lock_wait: timedelta = timedelta(seconds=2)) -> list[str]:
    """Drop the days that ended more than `keep` ago; returns the names dropped.

    Needs a connection that is in no transaction. Never waits for a lock longer than `lock_wait`: what could not be
    dropped now is left for the next run.
    """
    check_span(keep, field="keep", low=_RETENTION_MIN, high=_RETENTION_MAX)
    # Not 0: to PostgreSQL that means to wait for ever.
    check_span(lock_wait, field="lock_wait", low=timedelta(milliseconds=1), high=timedelta(minutes=10))
    dropped: list[str] = []
    with translating(writing=True):
        now: datetime = await db.fetchval("SELECT headgate.clock_v1()")
        oldest = f"{now.astimezone(UTC) - keep:%Y%m%d}"
        before = await db.fetchval("SELECT current_setting('lock_timeout')")
        await _set_lock_timeout(db, f"{to_ms(lock_wait)}ms")
        try:
            for (detach,) in await db.fetch(OVERDUE, oldest):
                try:
                    await db.execute(detach)
                except _IN_THE_WAY:
                    continue
            for (name,) in await db.fetch(DETACHED, oldest):
                if await _retire(db, name):
                    dropped.append(name)
        finally:
            await _set_lock_timeout(db, before)
    return dropped


async def _retire(db: Connection, name: str) -> bool:
    try:
        if name.startswith("archive"):
            tenant_no, job_id = 0, UUID(int=0)
            while last := await db.fetchrow(
                "SELECT tenant_no, id FROM headgate.retire_chunk_v1($1, $2, $3, $4)", name, tenant_no, job_id, CHUNK
            ):
                tenant_no, job_id = last
        await db.execute("SELECT headgate.retire_day_v1($1)", name)
    except _IN_THE_WAY:
        return False
    return True


async def _set_lock_timeout(db: Connection, value: str) -> None:
    await db.execute("SELECT set_config('lock_timeout', $1, false)", value)
