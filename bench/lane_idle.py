"""A thousand sessions that wait: what they cost the database and the server while nothing happens."""

from __future__ import annotations

import asyncio

from bench.figures import spread
from bench.stack import Stack, memory_mb, stack

SESSIONS = 1_000
WINDOWS, WINDOW_SECONDS = 3, 7.0
SETTLING_SECONDS = 11.0


async def run(*, quick: bool = False) -> dict[str, object]:
    """Transactions a second (a call of the server is one), and megabytes of the server."""
    sessions, windows, seconds = (50, 1, 3.0) if quick else (SESSIONS, WINDOWS, WINDOW_SECONDS)
    async with stack("idle") as made:
        with made.roles(("idle", str(sessions))) as (idle,):
            idle.go()
            # A session hands in what it did up to ten seconds late: what connecting cost is not to be counted.
            await asyncio.sleep(1.0 if quick else SETTLING_SECONDS)
            rates = [await transactions_per_second(made, seconds) for _ in range(windows)]
            memory = memory_mb(made.servers[0])
            idle.stop()
            told = await asyncio.to_thread(idle.report)
    assert told["sessions"] == sessions, f"of {sessions} sessions {told['sessions']} stayed"
    return {
        "idle_sessions": sessions,
        "idle_queries_per_s": spread(rates, 2),
        "idle_sessions_rss_mb": round(memory, 1),
    }


async def transactions_per_second(made: Stack, seconds: float) -> float:
    """As PostgreSQL counts them in the servers' database."""
    before, since = await _transactions(made)
    await asyncio.sleep(seconds)
    after, until = await _transactions(made)
    return max(0.0, after - before) / (until - since)


async def _transactions(made: Stack) -> tuple[int, float]:
    """From another database, so that looking is not counted."""
    async with made.database(made.aside) as db:
        row = await db.fetchrow(
            "SELECT xact_commit + xact_rollback, extract(epoch FROM clock_timestamp())::float8 FROM pg_stat_database "
            "WHERE datname = 'postgres'"
        )
    assert row is not None
    return row[0], row[1]
