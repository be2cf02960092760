"""Day partitions of archive and events: made a week ahead, dropped whole when their time is over.

Dropping a partition frees finished jobs without a single dead row. It is detached first, without blocking anyone: from
then on no one can redrive its jobs. Then what hangs on them elsewhere (large payloads, tags, lineage) is deleted in
bounded chunks, and the table is dropped. Every step can be repeated, so a run that was cut off is simply done again.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

import asyncpg

from headgate.domain.retention import KEEP_MAX, KEEP_MIN
from headgate.domain.validation import check_integer, check_span, to_ms
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import transaction

DAYS_AHEAD: Final = 7
CHUNK: Final = 1_000

# What ends one step and is no error: a reader holds the table; another instance is at it, or was quicker (the table is
# no partition any more, or gone); a neighbour is still being detached.
IN_THE_WAY: Final = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ObjectInUseError,
    asyncpg.UndefinedTableError,
    asyncpg.ObjectNotInPrerequisiteStateError,
)

# Partitions of days before $1 (as in their names), and those named in $2, oldest first, each with the statement that
# detaches it (the server quotes the names). A detach that was interrupted is finished instead of begun again, and first
# of all: until then no other partition of that table can be detached. Who does not own the tables asks a function.
OVERDUE: Final = """
SELECT CASE WHEN NOT pg_catalog.pg_has_role(p.relowner, 'USAGE')
       THEN format('SELECT headgate.detach_day_v1(%L)', c.relname)
       ELSE format('ALTER TABLE headgate.%I DETACH PARTITION headgate.%I ', p.relname, c.relname)
         || CASE WHEN i.inhdetachpending THEN 'FINALIZE' ELSE 'CONCURRENTLY' END END
  FROM pg_catalog.pg_inherits i
  JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
  JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
 WHERE p.oid IN ('headgate.archive'::regclass, 'headgate.job_events'::regclass)
   AND c.relname ~ '^(archive|job_events)_[0-9]{8}$' AND (right(c.relname, 8) < $1 OR c.relname = ANY ($2))
 ORDER BY i.inhdetachpending DESC, c.relname"""
# Committed before the detach: a submit that finds a day's jobs gone then knows that something of them is left.
LEAVING: Final = """
INSERT INTO headgate.retention_days AS r (day, leaving)
SELECT to_date(right(c.relname, 8), 'YYYYMMDD'), true
  FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'headgate.archive'::regclass AND c.relname ~ '^archive_[0-9]{8}$' AND right(c.relname, 8) < $1
 ORDER BY 1
    ON CONFLICT (day) DO UPDATE SET leaving = true WHERE NOT r.leaving"""
# With whether clearing has begun: payloads of its first jobs were removed, so it is dropped whatever the rules say now.
DETACHED: Final = """
SELECT c.relname, c.relname IN (SELECT 'archive_' || to_char(r.day, 'YYYYMMDD') FROM headgate.retention_days r
                                 WHERE r.rules = 'whole')
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
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

    They are made a week ahead, so one is missing only when no server ran for a week or the clock has jumped: no outcome
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


async def clear_and_drop(
    db: Connection, *, keep: timedelta, lock_wait: timedelta, on_session: bool, chunks: int
) -> tuple[list[str], int]:
    """Drop the days that ended more than `keep` ago, and days that retention has emptied.

    Returns the names dropped, and how many jobs of days that are to be dropped were cleared.

    Needs a connection that is in no transaction. Never waits for a lock longer than `lock_wait`: what could not be
    dropped now is left for the next run, and so is what is over `chunks` of a thousand jobs. `on_session` is False
    behind a transaction pooler, where a setting of the session would reach other clients.
    """
    check_span(keep, field="keep", low=KEEP_MIN, high=KEEP_MAX)
    # Not 0: to PostgreSQL that means to wait forever.
    check_span(lock_wait, field="lock_wait", low=timedelta(milliseconds=1), high=timedelta(minutes=10))
    check_integer(chunks, field="chunks", low=1, high=1_000_000)
    dropped: list[str] = []
    jobs = 0
    wait = f"{to_ms(lock_wait)}ms"
    now, emptied = await _looked(db)
    oldest = f"{now.astimezone(UTC) - keep:%Y%m%d}"
    # Days that end from now on are written to; yesterday's may be again, after a clock was set back.
    settled = f"{now.astimezone(UTC) - timedelta(days=1):%Y%m%d}"
    await _detach(db, oldest, emptied, wait=wait, on_session=on_session)
    async with transaction(db):
        with translating(writing=False):
            found = [(row[0], row[1]) for row in await db.fetch(DETACHED, settled)]
    for name, begun in found:
        whole = begun or name[-8:] < oldest
        if whole and name.startswith("archive"):
            used, looked, cleared = await _cleared(db, name, wait, most=chunks)
            chunks -= used
            jobs += looked
            if not cleared:
                continue
        if await _dropped(db, name, wait, whole=whole):
            dropped.append(name)
    return dropped, jobs


async def _looked(db: Connection) -> tuple[datetime, list[str]]:
    """The clock, and the names of days that are empty."""
    async with transaction(db):
        with translating(writing=False):
            now: datetime = await db.fetchval("SELECT headgate.clock_v1()")
            emptied = await db.fetch("SELECT name FROM headgate.empty_days_v1() AS name")
    return now, [row[0] for row in emptied]


async def _detach(db: Connection, oldest: str, emptied: list[str], *, wait: str, on_session: bool) -> None:
    async with transaction(db):
        with translating(writing=False):
            overdue = await db.fetch(OVERDUE, oldest, emptied)
            before = await db.fetchval("SELECT current_setting('lock_timeout')")
    if not overdue or not await _noted(db, oldest, wait):
        return
    with translating(writing=True):
        if on_session:
            await _set_lock_timeout(db, wait)
        try:
            for (detach,) in overdue:
                try:
                    await db.execute(detach)
                except IN_THE_WAY:
                    continue
        finally:
            if on_session:
                await _set_lock_timeout(db, before)


async def _noted(db: Connection, oldest: str, wait: str) -> bool:
    with translating(writing=True):
        try:
            async with db.transaction():
                await db.fetchval("SELECT set_config('lock_timeout', $1, true)", wait)
                await db.execute(LEAVING, oldest)
        except IN_THE_WAY:  # another instance removes jobs of such a day one by one: the next run finds it
            return False
    return True


async def _cleared(db: Connection, name: str, wait: str, *, most: int) -> tuple[int, int, bool]:
    """Delete what hangs on the jobs of a detached day: in how many chunks, of how many jobs, and whether it is done."""
    looked = 0
    day = date.fromisoformat(name[-8:])
    for used in range(most):
        with translating(writing=True):
            try:
                async with db.transaction():
                    await db.fetchval("SELECT set_config('lock_timeout', $1, true)", wait)
                    row = await db.fetchrow(
                        "SELECT done, looked FROM headgate.retire_chunk_v1($1, $2, true)", day, CHUNK
                    )
            except IN_THE_WAY:
                return used, looked, False
        if row is None:  # another instance is at it
            return used + 1, looked, False
        looked += row[1]
        if row[0]:
            return used + 1, looked, True
    return most, looked, False


async def _dropped(db: Connection, name: str, wait: str, *, whole: bool) -> bool:
    with translating(writing=True):
        try:
            async with db.transaction():
                await db.fetchval("SELECT set_config('lock_timeout', $1, true)", wait)
                done: bool = await db.fetchval("SELECT headgate.retire_day_v1($1, $2)", name, whole)
        except IN_THE_WAY:
            return False
    return done


async def _set_lock_timeout(db: Connection, value: str) -> None:
    await db.execute("SELECT set_config('lock_timeout', $1, false)", value)
