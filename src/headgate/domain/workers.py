"""Workers: what a job's row says of the one that has it, and a connected one as others may see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2s
from typing import Final
from uuid import UUID

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
class WorkerView:
    """A connected worker. `credit` is how many more jobs it would take; a quiet one gets none of them."""

    worker: str
    incarnation: int = 0  # of its process; 0: it has not said
    instance: str = ""
    topics: Sequence[str] = ()
    holding: int = 0
    credit: int = 0
    quiet: bool = False
    running: Sequence[RunningJob] = ()


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
