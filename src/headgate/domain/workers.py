"""Workers: what a job's row says of the one that has it, and a connected one as others may see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2s
from typing import Final, Protocol
from uuid import UUID

from headgate.domain.limits import REPORTED_WORKERS_MAX

MORE_WORKERS: Final = (
    f"other servers have more workers than are listed: each reports {REPORTED_WORKERS_MAX} of them by name"
)
INCARNATION_MARK: Final = "\x1f"
"""Between a worker's id, which has no control characters, and what tells its process from others. Who reads a row cuts
there (chr(31))."""


def stored_worker(worker_id: str, incarnation: int, credential: str) -> str:
    """What a claim writes on the row: it tells processes apart that go by the same worker id.

    It depends on the name of the credential as well: a client that knows another worker's id and incarnation cannot
    give back what was sent to it, on any instance.
    """
    if not incarnation:
        return worker_id
    mark = blake2s(f"{incarnation:x}{INCARNATION_MARK}{credential}".encode(), digest_size=4).hexdigest()
    return f"{worker_id}{INCARNATION_MARK}{mark}"


def worker_id_of(stored: object) -> object:
    """The worker's id in what a row or a claim names; anything but text is left for the check to refuse."""
    return stored.partition(INCARNATION_MARK)[0] if isinstance(stored, str) else stored


class WorkerState(StrEnum):
    """Whether a connected worker can get jobs, and if not, why."""

    SILENT = "silent"  # two heartbeats are missing
    STOPPING = "stopping"  # an operator asked it to stop
    QUIET = "quiet"  # an operator stopped deliveries to it
    STANDBY = "stand-by"  # as many workers as permitted receive the jobs of its topics
    BUSY = "busy"  # it holds jobs
    IDLE = "idle"  # it waits for jobs
    NOT_ASKING = "not asking"  # it is connected, holds nothing and wants nothing


class _Shown(Protocol):
    @property
    def silent(self) -> bool: ...
    @property
    def stop(self) -> object | None: ...
    @property
    def quiet(self) -> bool: ...
    @property
    def pull(self) -> bool: ...
    @property
    def holding(self) -> int: ...
    @property
    def credit(self) -> int: ...
    @property
    def topics(self) -> Sequence[str]: ...
    @property
    def standby(self) -> Sequence[str]: ...


def worker_state(worker: _Shown) -> WorkerState:
    """One word for a worker. An open stream alone does not make it idle: it must have asked for jobs."""
    if worker.silent:
        return WorkerState.SILENT
    if worker.stop is not None:
        return WorkerState.STOPPING
    if worker.quiet:
        return WorkerState.QUIET
    if worker.topics and set(worker.topics) <= set(worker.standby):
        return WorkerState.STANDBY
    if worker.holding:
        return WorkerState.BUSY
    return WorkerState.IDLE if worker.credit or worker.pull else WorkerState.NOT_ASKING


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs. `instance` is the server that claimed it; the worker may be connected to another."""

    id: UUID
    topic: str
    attempt: int
    since: datetime
    worker: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStop:
    """An operator has asked a worker to stop: its processes that were connected at `since`, no later ones."""

    who: str
    since: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A connected worker. `credit` is how many more jobs it would take; a quiet one gets none of them.

    Its connection, its last sign of life and its last assignment are apart: a worker can have an open stream and get
    nothing. Of workers of other instances, `seen_at` is known only while they are silent.
    """

    worker: str
    incarnation: int = 0  # of its process; 0: it has not said
    instance: str = ""
    topics: Sequence[str] = ()
    holding: int = 0
    credit: int = 0
    quiet: bool = False
    standby: Sequence[str] = ()  # of the topics: those of which it waits for a place, and gets no jobs
    running: Sequence[RunningJob] = ()
    client: str = ""  # its program and version, as it reports them
    pull: bool = False  # it has no stream: it makes calls
    connected_at: datetime | None = None
    seen_at: datetime | None = None  # when anything last came from it
    assigned_at: datetime | None = None  # when it was last given a job
    silent: bool = False  # two heartbeats are missing
    skew: timedelta | None = None  # by how much its clock was ahead of the database's when it connected
    takes_stop: bool = False  # it has a Work stream, on which it can be asked to stop
    stop: WorkerStop | None = None  # it was asked to stop, and is still connected


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """A worker that disconnected without stopping. `holding`: jobs that it had then."""

    worker: str
    instance: str = ""
    at: datetime | None = None
    reason: str = ""  # the code of the error that ended its session, or lease_expired
    holding: int = 0
    topics: Sequence[str] = ()
    pull: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerList:
    """The connected workers, and those that were lost. `more_running`: other jobs run that are not listed.

    `more_workers`: other instances have workers that are not listed (MORE_WORKERS).
    """

    workers: Sequence[WorkerView]
    lost: Sequence[LostWorker] = ()
    more_running: bool = False
    more_workers: bool = False


def with_running(workers: Sequence[WorkerView], running: Sequence[RunningJob]) -> list[WorkerView]:
    """The workers with the jobs they run. Of several with the same id, the one on the instance that claimed a job."""
    by_worker: dict[str, list[int]] = {}
    for index, one in enumerate(workers):
        by_worker.setdefault(one.worker, []).append(index)
    found: list[list[RunningJob]] = [[] for _ in workers]
    for job in running:
        if at := by_worker.get(job.worker):
            found[next((index for index in at if workers[index].instance == job.instance), at[0])].append(job)
    return [replace(one, running=jobs) for one, jobs in zip(workers, found, strict=True)]
