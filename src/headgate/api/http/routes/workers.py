"""Connected workers: list them, stop deliveries to one, resume, ask one to stop."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import JSONBody, PathParameter, QueryParameter

from headgate.api.http.codec import Milliseconds, Output, answers, at_us, span
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.job_verbs import WithReason
from headgate.api.http.routes.pauses import Resumed
from headgate.api.http.routing import get, post
from headgate.control.admin import QUIET_DEFAULT
from headgate.domain import limits
from headgate.domain.validation import MILLISECOND
from headgate.domain.workers import WorkerView

TAG = ["workers"]
WorkerId = Annotated[
    str, PathParameter(max_length=limits.WORKER_ID_MAX_CHARS, description="Id of the worker; a slash is written %2F.")
]


class QuietIn(WithReason, kw_only=True):
    """For how long."""

    for_ms: Annotated[Milliseconds | None, msgspec.Meta(description="Default: an hour.")] = None


class RunningJobOut(Output, kw_only=True):
    """A job that a worker runs."""

    id: str
    topic: str
    attempt: int = 0
    since_us: int = 0


class WorkerStopOut(Output, kw_only=True):
    """That a worker was asked to stop."""

    by: Annotated[str, msgspec.Meta(description="Who asked.")] = ""
    since_us: int = 0
    reason: str = ""


class WorkerInfo(Output, kw_only=True):
    """A connected worker."""

    worker: str
    instance: str
    topics: list[str] = []
    holding: int = 0
    credit: int = 0
    quiet: bool = False
    standby: list[str] = []
    running: list[RunningJobOut] = []
    client: Annotated[str, msgspec.Meta(description="Its program and version, as it says.")] = ""
    pull: Annotated[bool, msgspec.Meta(description="It has no stream, but makes calls.")] = False
    connected_us: int = 0
    seen_us: Annotated[
        int,
        msgspec.Meta(description="When anything last came from it; of other servers known only while it is silent."),
    ] = 0
    assigned_us: Annotated[int, msgspec.Meta(description="When it was last given a job; 0: never.")] = 0
    silent: Annotated[bool, msgspec.Meta(description="Two heartbeats are missing.")] = False
    skew_ms: Annotated[
        int | None, msgspec.Meta(description="By how much its clock was ahead of the database's when it connected.")
    ] = None
    stop: Annotated[WorkerStopOut | None, msgspec.Meta(description="It was asked to stop, and is still connected.")] = (
        None
    )


class LostWorker(Output, kw_only=True):
    """A worker that disconnected without stopping."""

    worker: str
    instance: Annotated[str, msgspec.Meta(description="That had its connection.")]
    at_us: int = 0
    reason: Annotated[
        str, msgspec.Meta(description="connection_lost, session_silent, lease_expired, or another code.")
    ] = ""
    holding: Annotated[int, msgspec.Meta(description="Jobs that it had.")] = 0
    topics: list[str] = []
    pull: bool = False


class Workers(Output, kw_only=True):
    """All workers: of this instance as they are, of others as reported some seconds ago."""

    workers: list[WorkerInfo]
    lost: Annotated[
        list[LostWorker],
        msgspec.Meta(description="Gone in the last hour without having stopped, and not back; newest first."),
    ] = []
    more_running: Annotated[bool, msgspec.Meta(description="Further jobs run that are not listed.")] = False
    more_workers: Annotated[
        bool, msgspec.Meta(description="Other servers have workers that are not listed: each of them reports 200.")
    ] = False


class QuietOut(msgspec.Struct, kw_only=True):
    """Since and until when a worker gets no jobs."""

    since_us: int
    until_us: int


class StopOut(msgspec.Struct, kw_only=True):
    """What was asked of a worker."""

    since_us: Annotated[int, msgspec.Meta(description="Processes that connected before are stopped.")]
    sessions: Annotated[
        int, msgspec.Meta(description="Of them, as far as known; those of other servers are a few seconds old.")
    ]


@get("/v1/workers", uses="AdminService/ListWorkers", tags=TAG)
async def list_workers(
    request: ApiRequest,
    running: Annotated[bool, QueryParameter(description="With the jobs that each worker runs.")] = False,
) -> Workers:
    """List the connected workers."""
    found = await request.cases.admin.workers(request.caller, running=running)
    return answers.of(
        Workers,
        found,
        workers=[_worker(one) for one in found.workers],
        lost=[answers.of(LostWorker, one) for one in found.lost],
    )


@post("/v1/workers/{worker:str}/quiet", uses="AdminService/QuietWorker", tags=TAG)
async def quiet_worker(request: ApiRequest, worker: WorkerId, data: JSONBody[QuietIn | None] = None) -> QuietOut:
    """Stop deliveries to a worker; it finishes what it holds."""
    given = data or QuietIn()
    quiet_for = span(given.for_ms) or QUIET_DEFAULT
    quiet = await request.cases.admin.quiet(request.caller, worker, reason=given.reason, span=quiet_for)
    return QuietOut(since_us=at_us(quiet.since), until_us=at_us(quiet.until))


@post("/v1/workers/{worker:str}/resume", uses="AdminService/ResumeWorker", tags=TAG)
async def resume_worker(request: ApiRequest, worker: WorkerId, data: JSONBody[WithReason | None] = None) -> Resumed:
    """Resume deliveries to a worker."""
    reason = "" if data is None else data.reason
    return Resumed(changed=await request.cases.admin.resume_worker(request.caller, worker, reason=reason))


@post("/v1/workers/{worker:str}/stop", uses="AdminService/StopWorker", tags=TAG)
async def stop_worker(request: ApiRequest, worker: WorkerId, data: JSONBody[WithReason | None] = None) -> StopOut:
    """Ask the connected processes of a worker to stop, as SIGTERM would.

    They finish what they run within their own grace, and end. A process that connects later with the same id is not
    stopped. A worker over HTTP or StreamJobs has no stream on which it could be asked, and is refused.
    """
    asked = await request.cases.admin.stop_worker(request.caller, worker, reason="" if data is None else data.reason)
    return StopOut(since_us=at_us(asked.since), sessions=asked.sessions)


def _worker(one: WorkerView) -> WorkerInfo:
    stop = one.stop
    return answers.of(
        WorkerInfo,
        one,
        running=[answers.of(RunningJobOut, job) for job in one.running],
        skew_ms=None if one.skew is None else one.skew // MILLISECOND,
        stop=None if stop is None else answers.of(WorkerStopOut, stop, by=stop.who),
    )
