"""For tests of code that uses Headgate: run a handler directly, see what was submitted, run that too. No server needed.

>>> assert await run_inline(send_email, "a@b.example", subject="Hi") == {"sent": True}
>>> with hg.testing() as box:
...     await sign_up("a@b.example")
...     assert [job.topic for job in box.submitted] == ["send-email"]
...     await box.drain()
"""

from __future__ import annotations

import contextvars
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, cast

import msgspec

from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId
from headgate.domain.timestamps import unix_us
from headgate.sdk.ids import id_from_bytes, new_id_maker
from headgate.sdk.job import Job
from headgate.sdk.options import JobOptions, Prepared
from headgate.sdk.tasks import Task
from headgate.sdk.worker.held_job import HeldJob

if TYPE_CHECKING:
    from headgate.sdk.app import Headgate

P = ParamSpec("P")
R = TypeVar("R")

DRAIN_MAX: Final = 10_000
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One job that was submitted to the box."""

    id: JobId
    topic: str
    payload: bytes
    options: JobOptions = field(hash=False)

    @property
    def arguments(self) -> Any:
        """The payload decoded from JSON: for a task, its arguments by name."""
        return msgspec.json.decode(self.payload)


class Submissions:
    """Replaces the server for one `Headgate` within a `with` block."""

    def __init__(self, app: Headgate) -> None:
        self._app = app
        self.submitted: list[Submitted] = []
        self._done = 0

    def __enter__(self) -> Self:
        connection = self._app._connection
        if connection.box is not None:
            raise RuntimeError("hg.testing() is in use already")
        connection.box = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._app._connection.box = None

    def take(self, topic: str, ids: list[bytes], payloads: list[bytes], options: Prepared) -> None:
        """See `Box`."""
        for raw, payload in zip(ids, payloads, strict=True):
            job = Submitted(id=id_from_bytes(raw), topic=topic, payload=payload, options=options.given)
            self.submitted.append(job)

    def of(self, task: Task[Any, Any] | str) -> list[Submitted]:
        """What was submitted to one task or topic."""
        topic = task if isinstance(task, str) else task.topic
        return [job for job in self.submitted if job.topic == topic]

    async def drain(self) -> list[object]:
        """Run what was submitted and not run yet, and what that submits, in order; gives what each returned.

        The first handler that raises ends it. Delays and priorities are not looked at.
        """
        results: list[object] = []
        tasks = self._app.tasks
        while self._done < len(self.submitted):
            if len(results) >= DRAIN_MAX:
                raise RuntimeError(
                    f"{DRAIN_MAX} jobs were run and more are waiting; check for jobs that submit each other without end"
                )
            job = self.submitted[self._done]
            self._done += 1
            task = tasks.get(job.topic)
            if task is None:
                raise InvalidInput("topic", f'"{job.topic}" has no handler here', hint="register one before drain()")
            headers = dict(job.options.get("headers", {}))
            results.append(await run_job(task, fake_job(job.payload, topic=job.topic, headers=headers, job_id=job.id)))
        return results
