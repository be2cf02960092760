"""What an instance does periodically so that the store stays small and quick. Every step is bounded, safe to repeat and
safe to run on several instances at once."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from headgate.domain.validation import check_integer
from headgate.store.batches import expire_batches
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.events import forget_completions
from headgate.store.job_logs import BEGINNING, forget_log_lines
from headgate.store.lane import transaction
from headgate.store.partitions import ensure_partitions
from headgate.store.quiet import forget_quiet
from headgate.store.web_sessions import expire_sessions
from headgate.store.worker_stops import forget_stops

log = logging.getLogger("headgate.store")
HOT_TABLES: Final = (
    "jobs",
    "flow_deltas",
    "state_counts",
    "resent_ids",
    "idempotency_keys",
    "limit_usage",
    "dependency_checks",
    "limit_line",
    "arrivals",
)
MEASURED_PAGES: Final = 1_000
"""Of each table, to know what tenants store: 8 MB. Larger tables are sampled."""
AGES_AT_ONCE: Final = 500
"""Topics whose oldest due job is looked up in one round: 6,000 in a minute."""
AGES_SHARE: Final = 0.05
"""Of the time, for these looks. While an old snapshot is held, each is a walk over all that was claimed since."""
MEASURED_DAYS: Final = 2
"""Older days of the archive, in each pass."""
DEAD_ROWS: Final = """
SELECT c.relname, coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0),
       -- TRUNCATE off: giving pages back takes an exclusive lock that stops every claim.
       format('VACUUM (TRUNCATE false, SKIP_LOCKED true) headgate.%I', c.relname)
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
 WHERE n.nspname = 'headgate' AND c.relname = ANY ($1)"""
# Of other roles' sessions the times are shown only to a role with pg_read_all_stats.
HELD_SNAPSHOTS: Final = """
SELECT format('session %s (%s, user %s)', a.pid, coalesce(nullif(a.application_name, ''), 'no application name'),
              a.usename),
       now() - coalesce(a.xact_start, a.query_start)
  FROM pg_catalog.pg_stat_activity a
 WHERE a.backend_xmin IS NOT NULL AND a.backend_type = 'client backend' AND a.datname = current_database()
   AND a.pid <> pg_catalog.pg_backend_pid()
   AND now() - coalesce(a.xact_start, a.query_start) >= $1
 UNION ALL
SELECT format('prepared transaction %L', p.gid), now() - p.prepared
  FROM pg_catalog.pg_prepared_xacts p WHERE p.database = current_database() AND now() - p.prepared >= $1
 ORDER BY 2 DESC LIMIT 5"""
ARRIVALS_APART_MS: Final = 30_000
"""Arrivals are kept for once to twice this long. A demand that claims less often looks from the head."""
SNAPSHOT_IS_OLD: Final = timedelta(minutes=2)
# Oldest first, in bounded numbers, skipping what a submit is just using.
EXPIRE_KEYS: Final = """
WITH old AS (SELECT k.tenant_no, k.key, k.topic_no FROM headgate.idempotency_keys k
              WHERE k.expires_at <= headgate.clock_v1()
              ORDER BY k.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED),
     gone AS (DELETE FROM headgate.idempotency_keys k USING old o
               WHERE k.tenant_no = o.tenant_no AND k.key = o.key AND k.topic_no = o.topic_no RETURNING 1)
SELECT count(*) FROM gone"""
MEND_LIMITS: Final = "SELECT topic, key, mended FROM headgate.mend_limits_v1($1, $2, $3)"
EXPIRE_RESENT: Final = """
WITH old AS (SELECT r.tenant_no, r.id FROM headgate.resent_ids r WHERE r.expires_at <= headgate.clock_v1()
              ORDER BY r.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED),
     gone AS (DELETE FROM headgate.resent_ids r USING old o
               WHERE r.tenant_no = o.tenant_no AND r.id = o.id RETURNING 1)
SELECT count(*) FROM gone"""
EXPIRE_CALLS: Final = """
WITH old AS (SELECT c.tenant_no, c.id FROM headgate.unique_calls c WHERE c.expires_at <= headgate.clock_v1()
              ORDER BY c.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED),
     gone AS (DELETE FROM headgate.unique_calls c USING old o
               WHERE c.tenant_no = o.tenant_no AND c.id = o.id RETURNING 1)
SELECT count(*) FROM gone"""

# That a server runs, once for each interval: charts show an outage as a gap, and not as a time without jobs.
NOTE_SERVED: Final = """
INSERT INTO headgate.flow_buckets (tenant_no, topic_no, seconds, at)
SELECT 0, 0, w.seconds, date_bin(w.seconds * interval '1 second', headgate.clock_v1(), timestamptz 'epoch')
  FROM (VALUES (60), (300), (3600)) AS w(seconds)
ON CONFLICT (tenant_no, topic_no, seconds, at) DO NOTHING"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bloat:
    """How many dead and live rows a hot table had when PostgreSQL last counted."""

    table: str
    dead: int
    live: int
    vacuumed: bool


async def vacuum_hot_tables(db: Connection, *, dead_rows: int = 5_000) -> list[Bloat]:
    """Vacuum the hot tables in which dead rows have piled up: autovacuum's few workers may be busy elsewhere for hours.

    Needs a connection that is in no transaction. Skips a table that someone else is vacuuming.
    """
    check_integer(dead_rows, field="dead_rows", low=0, high=2**31 - 1)
    report: list[Bloat] = []
    async with transaction(db):  # behind a pooler a question with arguments needs one
        with translating(writing=False):
            found = await db.fetch(DEAD_ROWS, list(HOT_TABLES))
    with translating(writing=True):
        for table, dead, live, vacuum in found:
            due = dead >= dead_rows
            if due:
                await db.execute(vacuum)
            report.append(Bloat(table=table, dead=dead, live=live, vacuumed=due))
    return report


async def warn_of_held_snapshots(db: Connection, *, longer_than: timedelta = SNAPSHOT_IS_OLD) -> list[str]:
    """Say who keeps PostgreSQL from removing dead rows: claims step over them, but the tables grow until it ends."""
    with translating(writing=False):
        found = await db.fetch(HELD_SNAPSHOTS, longer_than)
    for who, age in found:
        log.warning(
            "snapshot_held seconds=%d by=%s "
            'effect="dead rows cannot be removed, and the tables grow" hint="end it, or use a replica"',
            age.total_seconds(),
            who,
        )
    return [who for who, _ in found]


async def fold_flows(db: Connection, *, limit: int = 10_000) -> int:
    """Fold at most `limit` delta rows into the counts; returns how many there were."""
    check_integer(limit, field="limit", low=1, high=1_000_000)
    with translating(writing=True):
        folded: int = await db.fetchval("SELECT headgate.fold_flows_v1($1)", limit)
    return folded


async def note_served(db: Connection) -> None:
    """Note that a server runs in the present minute; does nothing the second time."""
    with translating(writing=True):
        await db.execute(NOTE_SERVED)


async def record_ages(db: Connection, after: int = 0, *, limit: int = AGES_AT_ONCE) -> int:
    """Note how long due jobs of at most `limit` topics have waited; returns the topic to continue after, 0: the first.

    In a transaction of its own: it writes the rows that `fold_flows` of another instance writes, in the same order.
    """
    check_integer(limit, field="limit", low=1, high=100_000)
    with translating(writing=True):
        last: int = await db.fetchval("SELECT headgate.record_ages_v1($1, $2)", after, limit)
    return last


async def forget_arrivals(db: Connection, *, apart_ms: int = ARRIVALS_APART_MS) -> int:
    """Delete the arrivals that all claimers have seen, unless that was done lately; returns how many there were."""
    check_integer(apart_ms, field="apart_ms", low=0, high=86_400_000)
    with translating(writing=True):
        gone: int = await db.fetchval("SELECT headgate.forget_arrivals_v1($1)", apart_ms)
    return gone


async def mend_limits(db: Connection, after: tuple[int, str] = (0, ""), *, limit: int = 1_000) -> tuple[int, str]:
    """Put wrong counters of limits right, and forget at most `limit` unused keys; returns where to go on next time."""
    check_integer(limit, field="limit", low=1, high=100_000)
    with translating(writing=True):
        ((topic_no, key, mended),) = await db.fetch(MEND_LIMITS, *after, limit)
    if mended:
        log.error('limits_corrected counters=%d hint="please report this bug"', mended)
    return (0, "") if topic_no is None else (topic_no, key)


async def forget_expired(db: Connection, *, limit: int = 1_000) -> int:
    """Delete at most `limit` each of expired idempotency keys, remembered ids and calls; returns how many."""
    check_integer(limit, field="limit", low=1, high=100_000)
    with translating(writing=True):
        keys: int = await db.fetchval(EXPIRE_KEYS, limit)
        ids: int = await db.fetchval(EXPIRE_RESENT, limit)
        calls: int = await db.fetchval(EXPIRE_CALLS, limit)
    return keys + ids + calls


async def measure_stored(db: Connection) -> None:
    """Measure what tenants store, if one of them has a quota for it: a bounded part, of the rest a sample."""
    with translating(writing=True):
        await db.execute("SELECT headgate.measure_stored_v1($1, $2)", MEASURED_PAGES, MEASURED_DAYS)


class UpkeepRounds:
    """Remembers how far the check of limits, and the looks at topics and at log lines, have come."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mended = (0, "")
        self._aged = 0
        self._no_ages_before = 0.0
        self._lines = BEGINNING

    async def tidy(self, *, thorough: bool) -> None:
        """Fold counters, note how long jobs wait, forget arrivals; `thorough`: also what is due every minute."""
        async with self._database.lane("upkeep").use() as db:
            await fold_flows(db)
            await note_served(db)
            await forget_arrivals(db)
            if thorough:
                await forget_quiet(db)
                await forget_stops(db)
                await forget_completions(db)
                await expire_batches(db)
                await expire_sessions(db, limit=1_000)
                self._mended = await mend_limits(db, self._mended)
                await ensure_partitions(db)
                await warn_of_held_snapshots(db)
                await measure_stored(db)
        began = time.monotonic()
        if began >= self._no_ages_before:
            async with self._database.lane("upkeep").use() as db:
                self._aged = await record_ages(db, self._aged)
            self._no_ages_before = began + (time.monotonic() - began) / AGES_SHARE
        if thorough:
            async with self._database.lane("upkeep").use() as db:  # its row locks are held for no other step
                _, self._lines = await forget_log_lines(db, self._lines)

    async def vacuum(self) -> None:
        """Vacuum the tables that change most."""
        async with self._database.lane("upkeep") as db:  # in no transaction, behind a pooler too
            await vacuum_hot_tables(db)
