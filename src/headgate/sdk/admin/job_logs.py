"""What handlers logged while they ran a job, as `hg.admin.jobs.logs` gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from headgate.domain.ids import parse_job_id
from headgate.domain.job_logs import PAGE_MAX, LogLevel
from headgate.domain.limits import MAX_ATTEMPTS_LIMIT
from headgate.domain.validation import check_integer
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.sdk.times import time_of
from headgate.wire import admin_pb2 as pb

LIST_LOGS: Final = Method("AdminService/ListJobLogs", pb.ListJobLogsRequest, pb.ListJobLogsResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of the log of a job; `at` is by the clock of its worker. `attempt` 0: not known.

    `left_out`: how many lines of the attempt right before this one are not kept.
    """

    at: datetime
    attempt: int
    level: str
    logger: str
    text: str
    left_out: int
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogs:
    """Lines of a job, oldest first. `cursor`: give it as `after` for those beyond; `more`: there are some already."""

    lines: list[LogLine]
    cursor: str
    more: bool


async def job_logs(
    connection: Connection, job_id: UUID | str, *, attempt: int, after: str, limit: int, newest: bool
) -> JobLogs:
    """Read lines of a job."""
    known = parse_job_id(job_id)
    request = pb.ListJobLogsRequest(
        id=known.bytes,
        attempt=check_integer(attempt, field="attempt", low=0, high=MAX_ATTEMPTS_LIMIT),
        after=utf8_text(after, field="after"),
        limit=check_integer(limit, field="limit", low=1, high=PAGE_MAX),
        newest=newest,
    )
    found = await connection.call(LIST_LOGS, request, about=("job", str(known)))
    return JobLogs(lines=[_line(one) for one in found.lines], cursor=found.cursor, more=found.more)


def _line(one: pb.StoredLogLine) -> LogLine:
    level = LogLevel(max(1, min(one.line.level, len(LogLevel)))).label
    return record(LogLine, one, one.line, level=level, at=time_of(one.line.at_us))
