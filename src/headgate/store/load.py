"""Watching the database under load: statements by pg_stat_statements, and lanes by sampling what their sessions do.

Every connection of a server names its lane (`headgate submit`), so a sample of pg_stat_activity says what each lane
does or waits for. It needs no extension, costs the servers nothing, and sees all servers of the database.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Final, NamedTuple

from headgate.domain.errors import HeadgateError
from headgate.domain.load import IDLE, RUNNING, LaneLoad, LoadReport, Statement
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.upkeep import HOT_TABLES

SAMPLE_SECONDS: Final = 0.05
_NAME: Final = re.compile(r"headgate\.(\w+)")
# What sessions of other roles do is shown only to a role with pg_read_all_stats.
SAMPLE: Final = """
SELECT substr(a.application_name, 10), a.state, a.wait_event_type, a.wait_event
  FROM pg_catalog.pg_stat_activity a
 WHERE a.application_name LIKE 'headgate %' AND a.datname = current_database()
   AND a.pid <> pg_catalog.pg_backend_pid()"""
COUNTERS: Final = """
SELECT d.xact_commit, d.xact_rollback, d.blks_read, d.blks_hit, d.deadlocks,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                            ELSE pg_current_wal_insert_lsn() END, '0/0')
  FROM pg_catalog.pg_stat_database d WHERE d.datname = current_database()"""
STANDING: Final = """
SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity a WHERE a.backend_type = 'client backend'),
       current_setting('max_connections')::int,
       (SELECT coalesce(max(extract(epoch FROM now() - a.xact_start)), 0)::float8 FROM pg_catalog.pg_stat_activity a
         WHERE a.backend_xmin IS NOT NULL AND a.datname = current_database()
           AND a.pid <> pg_catalog.pg_backend_pid())"""
DEAD_ROWS: Final = """
SELECT t.relname, t.n_dead_tup FROM pg_catalog.pg_stat_all_tables t
 WHERE t.schemaname = 'headgate' AND t.relname = ANY ($1)"""
HAS_STATEMENTS: Final = "SELECT to_regclass('pg_stat_statements') IS NOT NULL"
STATEMENTS: Final = """
SELECT s.userid::bigint, s.queryid, s.query, s.calls, s.total_exec_time, s.rows
  FROM pg_stat_statements s JOIN pg_catalog.pg_database d ON d.oid = s.dbid
 WHERE d.datname = current_database() AND s.query ILIKE '%headgate.%'"""


class _Counted(NamedTuple):
    commits: int
    rollbacks: int
    blocks_read: int
    blocks_hit: int
    deadlocks: int
    wal_bytes: int


async def watch(db: Connection, *, seconds: float) -> LoadReport:
    """Watch the database for so many seconds. Needs a connection of its own."""
    loop = asyncio.get_running_loop()
    before, statements = await _counters(db), await _statements(db)
    seen: dict[str, Counter[str]] = {}
    began = loop.time()
    while (left := began + seconds - loop.time()) > 0:
        with translating(writing=False):
            rows = await db.fetch(SAMPLE)
        for lane, state, wait_type, wait in rows:
            seen.setdefault(lane, Counter())[_doing(state, wait_type, wait)] += 1
        await asyncio.sleep(min(SAMPLE_SECONDS, left))
    spent = loop.time() - began
    after, later = await _counters(db), await _statements(db)
    with translating(writing=False):
        ((connections, most, oldest),) = await db.fetch(STANDING)
        dead = await db.fetch(DEAD_ROWS, list(HOT_TABLES))
    changes = {name: end - start for name, start, end in zip(_Counted._fields, before, after, strict=True)}
    return LoadReport(
        seconds=spent,
        lanes=[LaneLoad(lane=lane, seen=counts) for lane, counts in sorted(seen.items())],
        statements=None if statements is None or later is None else _changed(statements, later),
        connections=connections,
        connections_max=most,
        oldest_transaction_seconds=oldest,
        dead_rows={row[0]: row[1] for row in dead},
        **changes,
    )


def _doing(state: str | None, wait_type: str | None, wait: str | None) -> str:
    if state in (None, "idle"):
        return IDLE
    return RUNNING if wait_type is None else f"{wait_type}:{wait}"


async def _counters(db: Connection) -> _Counted:
    with translating(writing=False):
        ((*numbers,),) = await db.fetch(COUNTERS)
    return _Counted(*map(int, numbers))


async def _statements(db: Connection) -> dict[tuple[int, int], Statement] | None:
    """By user and query; None if the extension is not there, or not loaded."""
    try:
        with translating(writing=False):
            if not await db.fetchval(HAS_STATEMENTS):
                return None
            rows = await db.fetch(STATEMENTS)
    except HeadgateError:  # installed and not loaded, or not readable by this role
        return None
    return {
        (user, query_id): Statement(name=name_of(query), calls=calls, total_ms=total_ms, rows=count)
        for user, query_id, query, calls, total_ms, count in rows
    }


def name_of(query: str) -> str:
    """The first function or table of ours that a statement names."""
    found = _NAME.search(query)
    return found[1] if found else query[:40]


def _changed(before: dict[tuple[int, int], Statement], after: dict[tuple[int, int], Statement]) -> list[Statement]:
    """What was called meanwhile, by name, the most time first."""
    found: dict[str, Statement] = {}
    for key, now in after.items():
        then = before.get(key, Statement(name=now.name, calls=0, total_ms=0, rows=0))
        if now.calls <= then.calls:
            continue
        known = found.get(now.name, Statement(name=now.name, calls=0, total_ms=0, rows=0))
        found[now.name] = Statement(
            name=now.name,
            calls=known.calls + now.calls - then.calls,
            total_ms=known.total_ms + now.total_ms - then.total_ms,
            rows=known.rows + now.rows - then.rows,
        )
    return sorted(found.values(), key=lambda one: one.total_ms, reverse=True)
