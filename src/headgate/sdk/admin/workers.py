"""`hg.admin.workers`: list, quiet and resume workers."""

from __future__ import annotations

from builtins import list as list_of
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from headgate.domain.ids import JobId
from headgate.domain.validation import check_worker_id
from headgate.domain.workers import WorkerState, worker_state
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.sdk.times import time_of
from headgate.wire import admin_pb2 as pb

LIST: Final = Method("AdminService/ListWorkers", pb.ListWorkersRequest, pb.ListWorkersResponse)
QUIET: Final = Method("AdminService/QuietWorker", pb.QuietWorkerRequest, pb.QuietWorkerResponse)
STOP: Final = Method("AdminService/StopWorker", pb.StopWorkerRequest, pb.StopWorkerResponse)
RESUME: Final = Method("AdminService/ResumeWorker", pb.ResumeWorkerRequest, pb.ResumeWorkerResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs, and since when."""

    id: JobId
    topic: str
    attempt: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStop:
    """A worker was asked to stop: by whom, when and why."""

    by: str
    since: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """What `stop` did: processes that connected before `since` are stopped, `sessions` of them are known."""

    since: datetime
    sessions: int


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
    standby: tuple[str, ...] = ()  # of the topics: those it gets no jobs of, since their max_consumers is reached
    running: tuple[RunningJob, ...] = ()
    client: str = ""  # its program and version, as it reports them
    pull: bool = False  # it has no stream, but makes calls
    connected_at: datetime | None = None
    seen_at: datetime | None = None  # when anything last came from it; of other servers only while it is silent
    assigned_at: datetime | None = None  # when it was last given a job
    silent: bool = False  # two heartbeats are missing
    skew: timedelta | None = None  # by how much its clock was ahead of the database's when it connected
    stop: WorkerStop | None = None  # it was asked to stop, and is still connected

    @property
    def state(self) -> WorkerState:
        """Whether it can get jobs, and if not, why."""
        return worker_state(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """A worker that disconnected without stopping. `holding`: jobs that it had; they run again elsewhere."""

    worker: str
    instance: str
    at: datetime | None
    reason: str  # connection_lost, session_silent, lease_expired, or another code
    holding: int
    topics: tuple[str, ...] = ()
    pull: bool = False


class WorkerList(list_of[WorkerInfo]):
    """Workers; `more_running`: further jobs run that are not in `running` of any of them.

    `more_workers`: other servers have workers that are not listed; each of them reports 200. `lost`: gone in the last
    hour without having stopped, and not back; newest first.
    """

    more_running: bool = False
    more_workers: bool = False
    lost: Sequence[LostWorker] = ()


class Workers:
    """The workers of your tenant."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self, *, running: bool = False) -> WorkerList:
        """All connected workers, by instance and name; those of other instances are a few seconds old.

        With `running`, also the jobs that each of them runs; `more_running` of the list says whether some are left out.
        """
        answer = await self._connection.call(LIST, pb.ListWorkersRequest(running=running))
        found = WorkerList(_worker(one) for one in answer.workers)
        found.more_running, found.more_workers = answer.more_running, answer.more_workers
        found.lost = [record(LostWorker, one) for one in answer.lost]
        return found

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

    async def stop(self, worker: str, *, reason: str = "") -> StopAsked:
        """Ask the connected processes of a worker to stop, as SIGTERM would, on any server.

        They finish what they run within their own grace, give back the rest, and end with exit code 0. A process that
        connects later with the same id is not stopped. Raises NotFound if none is connected, Refused for a worker
        without a Work stream (HTTP, StreamJobs).
        """
        request = pb.StopWorkerRequest(worker=check_worker_id(worker), reason=utf8_text(reason, field="reason"))
        answer = await self._connection.call(STOP, request, about=("connected worker", worker))
        return record(StopAsked, answer)


def _worker(one: pb.WorkerInfo) -> WorkerInfo:
    return record(
        WorkerInfo,
        one,
        running=tuple(record(RunningJob, job) for job in one.running),
        stop=record(WorkerStop, one.stop) if one.HasField("stop") else None,
    )
