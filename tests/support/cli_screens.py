"""The terminal screens of docs/reference/cli.md: each command of the page, run against a server with fixed answers.

`python -m tests.support.cli_screens` writes what the commands print into the page, and the screen of `headgate top`
into docs/howto/terminal.md; tests compare.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock
from uuid import UUID

from headgate.cli import main, output
from headgate.wire import admin_pb2 as admin
from headgate.wire import batches_pb2 as batches
from headgate.wire import bulk_pb2 as bulk
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import schedules_pb2 as schedules
from headgate.wire import stats_pb2 as stats
from tests.support import top_screen
from tests.support.canned_server import Answers, CannedServer

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
NOW = datetime(2026, 11, 16, 12, 4, 30, tzinfo=UTC)
_BLOCK = re.compile(r"^```console\n\$ (headgate .*)\n(?:.*\n)*?```$", re.MULTILINE)
DAY_MS = 86_400_000
TRACE = """Traceback (most recent call last):
  File "/app/shop/billing.py", line 41, in send_invoice
    await bank.transfer(order)
TimeoutError: the bank did not answer in 15 s"""


def id_(number: int) -> bytes:
    """The id of one of the jobs, batches and operations on the page."""
    return UUID(f"019a8c{number:02x}-4f1e-7a10-9c55-{number:012x}").bytes


def us(**ago: float) -> int:
    """A time so long before the screens are taken, as the wire carries it."""
    return int((NOW - timedelta(**ago)).timestamp() * 1_000_000)


def failed(attempt: int, *, minutes: float, worker: str, seconds: float) -> jobs.Event:
    """An attempt that the bank did not answer."""
    return jobs.Event(
        at_us=us(minutes=minutes),
        claimed_us=us(minutes=minutes, seconds=seconds),
        kind="failed",
        epoch=attempt,
        attempt=attempt,
        state=jobs.STATE_RETRYING,
        worker=worker,
        error_type="TimeoutError",
        error_message="the bank did not answer in 15 s",
        error_trace=TRACE,
    )


RETRYING = jobs.JobInfo(
    id=id_(0xF2),
    tenant="shop",
    topic="send_invoice",
    state=jobs.STATE_RETRYING,
    attempt=2,
    max_attempts=8,
    worker="web-2",
    created_us=us(minutes=4),
    run_at_us=us(seconds=-42),
    claimed_us=us(minutes=1, seconds=15),
    last_error="TimeoutError: the bank did not answer in 15 s",
    payload=b'{"order": 4711, "customer": {"name": "Ada", "api_key": "sk-live-1"}, "lines": [1, 2]}',
    progress=jobs.Progress(done=26, total=50, message="page 26"),
    events=[
        failed(1, minutes=3, worker="web-1", seconds=15.1),
        failed(2, minutes=1, worker="web-2", seconds=15),
    ],
)
COMPLETED = jobs.JobInfo(
    id=id_(0xF1),
    tenant="shop",
    topic="send_invoice",
    state=jobs.STATE_COMPLETED,
    attempt=2,
    max_attempts=8,
    worker="web-2",
    created_us=us(minutes=9),
    run_at_us=us(minutes=7),
    claimed_us=us(minutes=6),
    finished_us=us(minutes=5, seconds=58),
    last_error="TimeoutError: the bank did not answer in 15 s",
    payload=b'{"order": 4710}',
    result=b'{"invoice": "2026-4710", "total": 118.0}',
    events=[failed(1, minutes=8, worker="web-1", seconds=15)],
)
DEAD = jobs.JobInfo(
    id=id_(0xE0),
    tenant="shop",
    topic="resize",
    state=jobs.STATE_DEAD,
    attempt=3,
    max_attempts=3,
    worker="img-1",
    created_us=us(hours=2),
    last_error="OSError: cannot identify image file",
)
STATUS = admin.StatusResponse(
    now_us=us(),
    tenant="shop",
    pauses=[
        admin.PauseInfo(
            target=admin.Target(topic="billing"), paused=True, reason="bank outage", who="ana", since_us=us(hours=1)
        )
    ],
    topics=[
        admin.TopicStatus(topic="billing", paused=True, counts={"pending": 512}, waiting_since_us=us(hours=1)),
        admin.TopicStatus(
            topic="send_invoice",
            counts={"pending": 1204, "running": 16, "retrying": 61, "completed": 90_231, "dead": 3},
            waiting_since_us=us(seconds=2.4),
            flows=[
                admin.FlowMinute(
                    minute_us=us(seconds=90), submitted=2_520, completed=2_388, retried=12, failed=13, dead=1
                ),
                admin.FlowMinute(minute_us=us(seconds=30), submitted=1_260, completed=1_194, retried=6, failed=6),
            ],
        ),
    ],
    instances=[
        admin.InstanceInfo(
            name="box-1", version="0.1.0", started_us=us(days=3, hours=4), seen_us=us(seconds=1), workers=2
        )
    ],
    retention=admin.RetentionStatus(
        rules=admin.RetentionRules(
            completed_ms=7 * DAY_MS, dead_ms=30 * DAY_MS, cancelled_ms=7 * DAY_MS, audit_ms=365 * DAY_MS
        ),
        oldest_day="2026-10-17",
    ),
)


def interval(ago: int) -> stats.Interval:
    """A minute of the last 15: the current one has only half passed, and in one no server was running."""
    begins = us(minutes=ago, seconds=30)
    if ago == 9:
        return stats.Interval(at_us=begins)
    submitted, completed = 2_520 - 31 * (ago % 4), 2_388 - 17 * (ago % 3)
    part = 1 if ago else 2
    return stats.Interval(
        at_us=begins,
        recorded=True,
        submitted=submitted // part,
        started=completed // part,
        completed=completed // part,
        retried=12 // part,
        failed=13 // part,
        dead=ago % 2,
        depth=1_204 - 83 * ago,
        oldest_due_s=2.1 - ago / 9,
        pickup=stats.LatencyInfo(count=completed, p50_s=0.004, p99_s=2.1 - ago / 9),
        run=stats.LatencyInfo(count=completed, p50_s=0.031, p99_s=0.205 + 0.003 * (ago % 5)),
    )


STATS = stats.GetStatsResponse(
    now_us=us(),
    topic="send_invoice",
    since="15m",
    step_ms=60_000,
    intervals=[interval(ago) for ago in range(14, -1, -1)],
    pickup=stats.LatencyInfo(count=36_000, p50_s=0.004, p99_s=2.1),
    run=stats.LatencyInfo(count=36_000, p50_s=0.031, p99_s=0.214),
)
ANSWERS: Answers = {
    "ProducerService/GetJob": RETRYING,
    "BulkService/ListJobs": bulk.ListJobsResponse(jobs=[RETRYING, COMPLETED, DEAD]),
    "AdminService/FindIds": admin.FindIdsResponse(ids=[RETRYING.id]),
    "AdminService/Status": STATUS,
    "AdminService/Pause": admin.PauseResponse(
        pause=admin.PauseInfo(
            target=admin.Target(topic="billing"), paused=True, reason="bank outage", who="ana", since_us=us()
        )
    ),
    "AdminService/Resume": admin.ResumeResponse(changed=True),
    "AdminService/StopWorker": admin.StopWorkerResponse(since_us=us(), sessions=1),
    "AdminService/ListWorkers": admin.ListWorkersResponse(
        workers=[
            admin.WorkerInfo(
                worker="img-1",
                instance="box-1",
                topics=["resize"],
                holding=1,
                credit=3,
                quiet=True,
                running=[admin.RunningJob(id=id_(0xE1), topic="resize", attempt=1, since_us=us(minutes=11))],
            ),
            admin.WorkerInfo(
                worker="web-2",
                instance="box-1",
                topics=["billing", "send_invoice"],
                holding=1,
                credit=15,
                running=[admin.RunningJob(id=id_(0xF3), topic="send_invoice", attempt=2, since_us=us(seconds=2))],
            ),
        ]
    ),
    "AdminService/ListAudit": admin.ListAuditResponse(
        entries=[
            admin.AuditEntry(
                no=18, at_us=us(hours=1), actor="ana", verb="pause", target="topic billing", reason="bank outage"
            ),
            admin.AuditEntry(no=17, at_us=us(days=1, hours=2), actor="deploy bot", verb="quiet", target="worker img-1"),
        ]
    ),
    "BatchService/ListBatches": batches.ListBatchesResponse(
        batches=[
            batches.BatchInfo(id=id_(0xB2), name="import of 12:00", created_us=us(minutes=4), total=1_200),
            batches.BatchInfo(
                id=id_(0xB1),
                name="month end",
                created_us=us(days=2),
                sealed_us=us(days=2),
                total=40_000,
                callback_id=id_(0xB3),
                callback_state=jobs.STATE_COMPLETED,
            ),
        ]
    ),
    "BulkService/ListDeadGroups": bulk.ListDeadGroupsResponse(
        groups=[
            bulk.DeadGroup(
                topic="resize",
                group="5f0c2a91",
                title="OSError: cannot identify image file",
                count=3,
                sample_id=DEAD.id,
                first_us=us(hours=5),
                last_us=us(hours=2),
            )
        ],
        exact=True,
    ),
    "StatsService/GetStats": STATS,
    "StatsService/ListFailing": stats.ListFailingResponse(
        since_us=us(hours=1),
        groups=[
            bulk.DeadGroup(
                topic="send_invoice",
                group="0b6a6b17",
                title="TimeoutError: the bank did not answer in N s",
                count=288,
                sample_id=RETRYING.id,
                first_us=us(minutes=58),
                last_us=us(seconds=4),
            )
        ],
        looked_at=288,
        exact=True,
    ),
    "ScheduleService/List": schedules.ListSchedulesResponse(),
    "AdminService/ListJobLogs": admin.ListJobLogsResponse(
        lines=[
            admin.StoredLogLine(
                attempt=attempt,
                epoch=attempt,
                left_out=left_out,
                line=jobs.LogLine(seq=seq, at_us=us(**at), level=level, logger="shop.billing", text=text),
            )
            for attempt, seq, level, left_out, at, text in (
                (1, 1, jobs.LOG_LEVEL_WARNING, 0, {"minutes": 3, "seconds": 10}, "the bank is slow: 9.8 s"),
                (2, 1, jobs.LOG_LEVEL_WARNING, 0, {"minutes": 1, "seconds": 12}, "the bank is slow: 11.2 s"),
                (2, 14, jobs.LOG_LEVEL_ERROR, 12, {"minutes": 1}, "transfer of order 4711 given up"),
            )
        ],
        cursor="2.14",
    ),
}
SPECIAL: dict[str, Answers] = {
    "job get 019a8cf1": {
        "AdminService/FindIds": admin.FindIdsResponse(ids=[COMPLETED.id]),
        "ProducerService/GetJob": COMPLETED,
    },
    "job get 019a8c": {"AdminService/FindIds": admin.FindIdsResponse(ids=[DEAD.id, COMPLETED.id, RETRYING.id])},
}
"""By command: answers that differ."""


def screen(command: str) -> str:
    """What a command of the page prints, standard output and errors."""
    words = shlex.split(command)[1:]
    printed = io.StringIO()
    with (
        CannedServer({**ANSWERS, **SPECIAL.get(shlex.join(words), {})}) as server,
        mock.patch.dict(os.environ, {"HEADGATE_URL": server.address}),
        mock.patch.object(output, "now", return_value=NOW),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        main(words)
    return printed.getvalue()


def commands() -> list[str]:
    """The commands on the page."""
    return _BLOCK.findall(PAGE.read_text())


def written() -> str:
    """The page with what its commands print now."""
    return _BLOCK.sub(lambda block: f"```console\n$ {block[1]}\n{screen(block[1])}```", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
    top_screen.PAGE.write_text(top_screen.written(ANSWERS))
