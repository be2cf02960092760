"""Run one handler directly, on a job made for the test."""

from __future__ import annotations

import contextvars
from datetime import UTC, datetime
from typing import Any, Final, ParamSpec, TypeVar, cast

from headgate.domain.ids import JobId
from headgate.domain.timestamps import unix_us
from headgate.sdk.ids import new_id_maker
from headgate.sdk.job import Job
from headgate.sdk.job_log_capture import LEVELS
from headgate.sdk.tasks import Task
from headgate.sdk.worker.held_job import HeldJob

P = ParamSpec("P")
R = TypeVar("R")

_ids: Final = new_id_maker()


class ReportRecorder:
    """Keeps what a handler reports: its progress, and the lease extensions it asks for."""

    def __init__(self) -> None:
        self.progress: list[tuple[int, int, str]] = []
        self.extensions: list[int] = []

    def progressed(self, job: Job, done: int, total: int, message: str) -> None:
        """See `Reports`."""
        self.progress.append((done, total, message))

    def extended(self, job: Job, lease_seconds: int) -> None:
        """See `Reports`."""
        self.extensions.append(lease_seconds)

    log_level = LEVELS["OFF"]  # pytest shows what handlers log

    def logged(self, job: Job, level: int, logger: str, at_us: int, text: str) -> None:
        """See `Reports`."""


def fake_job(
    payload: bytes = b"",
    *,
    topic: str = "test",
    attempt: int = 1,
    max_attempts: int = 20,
    priority: int = 0,
    headers: dict[str, str] | None = None,
    schedule: str = "",
    occurrence: datetime | None = None,
    deadline: datetime | None = None,
    job_id: JobId | None = None,
    recorder: ReportRecorder | None = None,
) -> Job:
    """A Job as a handler gets it; see `request_cancel`."""
    raw = (job_id or _ids.next_id()).bytes
    job = HeldJob(raw, 1, topic, payload, attempt, max_attempts, priority, 0, 0, "test", recorder or ReportRecorder())
    at = occurrence or datetime(1970, 1, 1, tzinfo=UTC)
    job.set_extras(headers or {}, (schedule, unix_us(at)), unix_us(deadline) if deadline else 0)
    return job


def request_cancel(job: Job) -> None:
    """Do to a job of `fake_job` what a request to cancel does to a running one."""
    cast("HeldJob", job).request_cancel()


async def run_inline(task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a task's function here, its arguments encoded and decoded as for a worker.

    What it raises comes out, `Nack` and the like included. For a Job of your own use `run_job`.
    """
    payload = task.arguments.payload_of_call(args, kwargs)
    value: R = await run_job(task, fake_job(payload, topic=task.topic))
    return value


async def run_job(task: Task[Any, R], job: Job) -> R:
    """Run a task's function on this job, in this thread and a copy of its context."""
    if task.run_in == "loop":
        value: R = await task.arguments.call(task.function, job)
        return value
    plain: R = contextvars.copy_context().run(task.arguments.call, task.function, job)
    return plain
