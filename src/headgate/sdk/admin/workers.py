"""`hg.admin.workers`: list, quiet and resume workers."""

from __future__ import annotations

from builtins import list as list_of
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headgate.domain.ids import JobId
from headgate.domain.validation import check_worker_id
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.ids import id_from_bytes
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.rpc import Method
from headgate.sdk.times import time_of
from headgate.wire import admin_pb2 as pb

LIST: Final = Method("AdminService/ListWorkers", pb.ListWorkersRequest, pb.ListWorkersResponse)
QUIET: Final = Method("AdminService/QuietWorker", pb.QuietWorkerRequest, pb.QuietWorkerResponse)
RESUME: Final = Method("AdminService/ResumeWorker", pb.ResumeWorkerRequest, pb.ResumeWorkerResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs, and since when."""

    id: JobId
    topic: str
    attempt: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A connected worker. It holds `holding` jobs and would accept `credit` more; a quiet worker gets none.

    `running` is filled on request: the longest running first, at most 1,000 for all workers.
    """

    worker: str
    instance: str
    topics: tuple[str, ...]
    holding: int
    credit: int
    quiet: bool
    running: tuple[RunningJob, ...] = ()


class Workers:
    """The workers of your tenant."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self, *, running: bool = False) -> list_of[WorkerInfo]:
        """All connected workers, by instance and name; those of other instances are a few seconds old.

        With `running`, also the jobs that each of them runs.
        """
        answer = await self._connection.call(LIST, pb.ListWorkersRequest(running=running))
        return [
            WorkerInfo(
                worker=one.worker,
                instance=one.instance,
                topics=tuple(one.topics),
                holding=one.holding,
                credit=one.credit,
                quiet=one.quiet,
                running=tuple(
                    RunningJob(
                        id=id_from_bytes(job.id), topic=job.topic, attempt=job.attempt, since=time_of(job.since_us)
                    )
                    for job in one.running
                ),
            )
            for one in answer.workers
        ]

    async def quiet(self, worker: str, *, reason: str = "", duration: Seconds = 3600) -> datetime:
        """Send a worker no more jobs, on any server; it finishes what it holds. Returns when the quiet time ends."""
        request = pb.QuietWorkerRequest(
            worker=check_worker_id(worker),
            reason=utf8_text(reason, field="reason"),
            for_ms=delay_in_ms(duration, field="duration"),
        )
        answer = await self._connection.call(QUIET, request)
        return time_of(answer.until_us)

    async def resume(self, worker: str, *, reason: str = "") -> bool:
        """Let a worker have jobs again; says whether it was quiet."""
        request = pb.ResumeWorkerRequest(worker=check_worker_id(worker), reason=utf8_text(reason, field="reason"))
        return (await self._connection.call(RESUME, request)).changed
