"""Log lines of jobs: stored many at once, read by job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain.job_logs import AttemptLines, LogLevel, LogPage, StoredLine, cursor_of, with_gaps
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating

LOOKED_AT_ONCE: Final = 200
"""Jobs with lines, of which upkeep looks whether they are there still."""
ADD: Final = "SELECT headgate.add_log_lines_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
FORGET: Final = "SELECT tenant, job, forgotten FROM headgate.forget_log_lines_v1($1, $2, $3)"
BEGINNING: Final = (0, UUID(int=0))
# index: job_logs_pkey. stored_at: a job with the same id may have been there before, and be removed only now.
READ: Final = """
SELECT attempt, epoch, seq, at, level, logger, line FROM headgate.job_logs
 WHERE tenant_no = $1 AND job_id = $2 AND stored_at >= $3 AND ($4::int IS NULL OR attempt = $4)
   AND (epoch, seq) > ($5, $6)
 ORDER BY epoch, seq LIMIT $7"""
READ_NEWEST: Final = """
SELECT attempt, epoch, seq, at, level, logger, line FROM headgate.job_logs
 WHERE tenant_no = $1 AND job_id = $2 AND stored_at >= $3 AND ($4::int IS NULL OR attempt = $4)
 ORDER BY epoch DESC, seq DESC LIMIT $5"""


async def add_log_lines(db: Connection, tenant_no: int, attempts: Sequence[AttemptLines]) -> int:
    """Store lines of a tenant's attempts in one statement; returns how many are new."""
    lines = [(owner, line) for owner, one in enumerate(attempts, start=1) for line in one.lines]
    with translating(writing=True, names=("tenant_no", "ids", "epochs")):
        return int(
            await db.fetchval(
                ADD,
                tenant_no,
                [one.job_id for one in attempts],
                [one.epoch for one in attempts],
                [one.attempt for one in attempts],
                [owner for owner, _ in lines],
                [line.seq for _, line in lines],
                [line.at_us for _, line in lines],
                [line.level for _, line in lines],
                [line.logger for _, line in lines],
                [line.text for _, line in lines],
            )
        )


async def forget_log_lines(
    db: Connection, after: tuple[int, UUID] = BEGINNING, *, limit: int = LOOKED_AT_ONCE
) -> tuple[int, tuple[int, UUID]]:
    """Of the next `limit` jobs with lines, forget those of removed jobs: how many, and where to continue."""
    with translating(writing=True):
        ((tenant_no, job_id, forgotten),) = await db.fetch(FORGET, *after, limit)
    return forgotten, BEGINNING if tenant_no is None else (tenant_no, job_id)


async def read_log_lines(
    db: Connection,
    tenant_no: int,
    job_id: UUID,
    *,
    since: datetime,
    attempt: int | None = None,
    after: tuple[int, int] = (0, 0),
    limit: int,
) -> LogPage:
    """Lines of a job that was submitted at `since`, oldest first, beyond the one that `after` names."""
    with translating(writing=False):
        rows = await db.fetch(READ, tenant_no, job_id, since, attempt, *after, limit + 1)
    return _page(list(with_gaps(map(_line, rows), after=after))[:limit], more=len(rows) > limit)


async def read_newest_lines(
    db: Connection, tenant_no: int, job_id: UUID, *, since: datetime, attempt: int | None = None, limit: int
) -> LogPage:
    """The newest lines of a job, oldest first; `more`: there are older ones."""
    with translating(writing=False):
        rows = await db.fetch(READ_NEWEST, tenant_no, job_id, since, attempt, limit + 1)
    found = [_line(row) for row in reversed(rows)]
    more = len(found) > limit
    after = (found[0].epoch, found[0].seq) if more else (0, 0)
    return _page(list(with_gaps(found[1:] if more else found, after=after)), more=more)


def _page(lines: Sequence[StoredLine], *, more: bool) -> LogPage:
    return LogPage(lines=lines, cursor=cursor_of(lines[-1]) if lines else "", more=more)


def _line(row: asyncpg.Record) -> StoredLine:
    attempt, epoch, seq, at, level, logger, text = row
    return StoredLine(attempt=attempt, epoch=epoch, seq=seq, at=at, level=LogLevel(level), logger=logger, text=text)


class LogCalls(Database):
    """Fits dispatch/ports.LogStore. On the lane of upkeep: nothing that jobs wait for is done there.

    Lines wait for a round of upkeep and for its VACUUM once a minute, within the bounds of the writer.
    """

    async def add_log_lines(self, tenant_no: int, attempts: Sequence[AttemptLines]) -> int:
        """Store lines of a tenant's attempts."""
        async with self.lane("upkeep").use() as db:
            return await add_log_lines(db, tenant_no, attempts)
