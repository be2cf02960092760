"""Workers that were asked to stop: their processes that were connected when it was asked, on whatever instance."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from headgate.domain.errors import TooLarge
from headgate.domain.validation import check_reason, check_text, check_worker_id
from headgate.domain.workers import WorkerStop
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating

MOST: Final = 1_000
"""Per tenant: every instance keeps them all in memory, and its tick hashes them."""
FORGET: Final = """
DELETE FROM headgate.worker_stops WHERE ($1::int IS NULL OR tenant_no = $1) AND until <= headgate.clock_v1()"""
COUNT: Final = "SELECT count(*) FROM headgate.worker_stops WHERE tenant_no = $1 AND worker <> $2"
STOP: Final = """
INSERT INTO headgate.worker_stops AS s (tenant_no, worker, reason, asked_by, since, until)
-- A process that is cut off for longer than an hour misses it: its leases are over by then.
SELECT $1, $2, $3, $4, c.now, c.now + interval '1 hour' FROM (SELECT headgate.clock_v1() AS now) AS c
ON CONFLICT (tenant_no, worker) DO UPDATE
   SET reason = excluded.reason, asked_by = excluded.asked_by, since = excluded.since, until = excluded.until
RETURNING s.since"""
STOPS: Final = """
SELECT tenant_no, worker, asked_by, since, reason FROM headgate.worker_stops WHERE until > headgate.clock_v1()"""


async def stop(db: Connection, tenant_no: int, worker: str, *, reason: str = "", who: str = "") -> datetime:
    """Ask a worker to stop; returns since when. Asked again, it is also for the processes that came between."""
    check_tenant_no(tenant_no)
    check_worker_id(worker)
    check_reason(reason)
    check_text(who, field="who", low=0, high=200)
    with translating(writing=True):
        await db.execute(FORGET, tenant_no)
        others = await db.fetchval(COUNT, tenant_no, worker)
        if others >= MOST:
            raise TooLarge("worker", size=others + 1, limit=MOST, unit="stops in an hour", hint="send SIGTERM instead")
        since: datetime = await db.fetchval(STOP, tenant_no, worker, reason, who)
    return since


async def forget_stops(db: Connection) -> None:
    """Drop the rows whose time is over and that have no effect any more."""
    with translating(writing=True):
        await db.execute(FORGET, None)


async def all_stops(db: Connection) -> dict[tuple[int, str], WorkerStop]:
    """What every worker of all tenants was asked, by (tenant_no, worker)."""
    with translating(writing=False):
        rows = await db.fetch(STOPS)
    return {(no, worker): WorkerStop(who=who, since=since, reason=reason) for no, worker, who, since, reason in rows}
