"""Workers that get no more jobs for a while. A name is quiet wherever it connects, until its time is over."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from headgate.domain.errors import TooLarge
from headgate.domain.validation import check_reason, check_text, check_worker_id
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating

MOST: Final = 1_000
"""Per tenant: every instance keeps them all in memory, and its tick hashes them."""
FORGET: Final = """
DELETE FROM headgate.quiet_names WHERE ($1::int IS NULL OR tenant_no = $1) AND until <= headgate.clock_v1()"""
COUNT: Final = "SELECT count(*) FROM headgate.quiet_names WHERE tenant_no = $1 AND worker <> $2"
QUIET: Final = """
INSERT INTO headgate.quiet_names AS q (tenant_no, worker, reason, quiet_by, since, until)
SELECT $1, $2, $3, $4, c.now, c.now + $5::interval FROM (SELECT headgate.clock_v1() AS now) AS c
ON CONFLICT (tenant_no, worker) DO UPDATE
   SET reason = excluded.reason, quiet_by = excluded.quiet_by, since = excluded.since, until = excluded.until
RETURNING q.since, q.until"""
RESUME: Final = """
DELETE FROM headgate.quiet_names WHERE tenant_no = $1 AND worker = $2 RETURNING until > headgate.clock_v1()"""
NAMES: Final = "SELECT tenant_no, worker FROM headgate.quiet_names WHERE until > headgate.clock_v1()"


async def quiet(
    db: Connection, tenant_no: int, worker: str, *, reason: str = "", who: str = "", span: timedelta
) -> tuple[datetime, datetime]:
    """Make a worker quiet for `span` from now, again if it is already; returns since and until."""
    check_tenant_no(tenant_no)
    check_worker_id(worker)
    check_reason(reason)
    check_text(who, field="who", low=0, high=200)
    with translating(writing=True):
        await db.execute(FORGET, tenant_no)
        others = await db.fetchval(COUNT, tenant_no, worker)
        if others >= MOST:
            raise TooLarge("worker", size=others + 1, limit=MOST, unit="quiet workers", hint="resume some, or pause")
        (row,) = await db.fetch(QUIET, tenant_no, worker, reason, who, span)
    return row[0], row[1]


async def resume_worker(db: Connection, tenant_no: int, worker: str) -> bool:
    """Let a worker have jobs again; says whether it was quiet until now."""
    check_tenant_no(tenant_no)
    check_worker_id(worker)
    with translating(writing=True):
        return bool(await db.fetchval(RESUME, tenant_no, worker))


async def forget_quiet(db: Connection) -> None:
    """Drop the rows whose time is over and that have no effect any more."""
    with translating(writing=True):
        await db.execute(FORGET, None)


async def quiet_set(db: Connection) -> frozenset[tuple[int, str]]:
    """All quiet workers of all tenants, as (tenant_no, worker)."""
    with translating(writing=False):
        rows = await db.fetch(NAMES)
    return frozenset((row[0], row[1]) for row in rows)
