"""What handlers logged while they ran a job: read by job, and sent by workers with their heartbeats."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from litestar.params import FromQuery, QueryParameter

from headgate.api.http.codec import Input, Output, answers
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import PathId, get
from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.job_logs import LINES_MAX, PAGE_MAX, AttemptLines, LogLevel, LogLine, log_line

TAG = ["jobs"]
LevelName = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: Final = {level.label: level for level in LogLevel}


class LogLineIn(Input, kw_only=True):
    """A line that the handler of a job logged, for people. Its values never cost the lease: what is too long is cut."""

    seq: Annotated[
        int,
        msgspec.Meta(
            description="Counts the lines of an attempt from 1. It orders them; a gap is shown as lines left out. A "
            "line without a number from 1 to 2147483647 is left out."
        ),
    ]
    text: Annotated[str, msgspec.Meta(description="Longer lines than 4 KiB are cut.")]
    level: Annotated[
        str, msgspec.Meta(description="`debug`, `info`, `warning`, `error` or `critical`; others count as `info`.")
    ] = "info"
    logger: Annotated[str, msgspec.Meta(description="Longer names than 200 characters are cut.")] = ""
    at_us: Annotated[int, msgspec.Meta(description="By the clock of the worker; left out: now.")] = 0


LogLinesIn = Annotated[
    list[LogLineIn],
    msgspec.Meta(
        description="What the handler has logged since the last heartbeat. Of one job the newest 200 lines are taken, "
        "and 10,000 of all jobs together. Of an attempt the first 50 lines and the newest 150 are kept, up to 64 KiB.",
    ),
]


class LogLineOut(Output, kw_only=True):
    """A line of the log of a job."""

    attempt: Annotated[int, msgspec.Meta(description="Left out: not known.")] = 0
    epoch: int
    seq: int
    at_us: Annotated[int, msgspec.Meta(description="By the clock of the worker.")]
    level: LevelName
    logger: str = ""
    text: str
    left_out: Annotated[
        int, msgspec.Meta(description="Lines of the attempt right before this one that are not kept.")
    ] = 0


class JobLogs(Output, kw_only=True):
    """Lines of a job, oldest first."""

    lines: list[LogLineOut]
    cursor: Annotated[
        str, msgspec.Meta(description="Names the last line, for `after`; left out if there are none.")
    ] = ""
    more: Annotated[bool, msgspec.Meta(description="Further lines follow; with `newest`: there are older ones.")] = (
        False
    )


@get("/v1/jobs/{job_id:str}/logs", uses="AdminService/ListJobLogs", tags=TAG)
async def get_logs(
    request: ApiRequest,
    job_id: PathId,
    attempt: Annotated[
        int, QueryParameter(ge=0, le=limits.MAX_ATTEMPTS_LIMIT, description="Only lines of this attempt; 0: of all.")
    ] = 0,
    after: Annotated[str, QueryParameter(description="Cursor of an earlier answer: only lines beyond it.")] = "",
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE_MAX)] = LINES_MAX,
    newest: FromQuery[bool] = False,
) -> JobLogs:
    """Read what handlers logged while they ran a job, oldest line first.

    Lines can be read about two seconds after they were logged. To follow a running job, ask again with `after`.
    """
    page = await request.cases.jobs.logs(
        request.caller, job_id, attempt=attempt, after=after, limit=limit, newest=newest
    )
    return answers.of(JobLogs, page, lines=[answers.of(LogLineOut, one) for one in page.lines])


def attempts_of(given: Iterable[tuple[UUID, int, Sequence[LogLineIn]]]) -> Iterator[AttemptLines]:
    """Lines by job and epoch as they are stored: no more of all than one message may have."""
    now_us = time.time_ns() // 1000
    left = limits.LOGS_MAX_LINES
    for job_id, epoch, lines in given:
        newest = lines[max(0, len(lines) - min(left, LINES_MAX)) :]
        left -= len(newest)
        if newest:
            yield AttemptLines(job_id, epoch, 0, list(_valid(newest, now_us)))


def _valid(lines: Iterable[LogLineIn], now_us: int) -> Iterator[LogLine]:
    for one in lines:
        level = LEVELS.get(one.level, LogLevel.INFO)
        try:
            yield log_line(one.seq, one.at_us, level, one.logger, one.text, now_us=now_us)
        except InvalidInput:
            continue  # the others are stored, and the gap is shown
