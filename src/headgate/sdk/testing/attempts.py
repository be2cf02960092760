"""One attempt at a job of a box: its handler runs here, by the code and under the rules of a worker.

Async handlers run in a task of the drain's loop. Plain ones run in the thread of the drain, also those declared with
`run_in="process"`, so that what a test has set up for its thread (a database session, a patch) is there.
Time limits and what is left until a deadline count in real time, as a handler's own waits do.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from headgate.domain.timestamps import unix_us
from headgate.sdk.hooks import Middleware
from headgate.sdk.job import Job
from headgate.sdk.job_context import current_job
from headgate.sdk.job_log_capture import LEVELS
from headgate.sdk.outcomes import Outcome
from headgate.sdk.tasks import Task
from headgate.sdk.testing.messages import TENANT
from headgate.sdk.testing.store import StoredJob
from headgate.sdk.worker.execution import attempt_async, attempt_sync
from headgate.sdk.worker.forced_outcomes import deadline_exceeded, out_of_time
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.middleware import chain, plain_only
from headgate.sdk.worker.time_limits import UNWIND_SECONDS
from headgate.sdk.worker.worker import CANCEL_GRACE_SECONDS

_PASSED_ON: Final = (Exception, asyncio.CancelledError, SystemExit, GeneratorExit)
"""What a handler may raise to fail its attempt. Others, a KeyboardInterrupt or pytest's own, end the drain."""

current: contextvars.ContextVar[Attempt | None] = contextvars.ContextVar("headgate_box_attempt", default=None)
"""The attempt whose handler runs in this context."""


class Ended(Protocol):
    """Called once, when an attempt has ended."""

    def __call__(self, attempt: Attempt, outcome: Outcome, /) -> None: ...


class Attempt:
    """One run of a handler. `waits`: how many results it waits for; `outcome` is set once it has ended."""

    def __init__(
        self, stored: StoredJob, task: Task[Any, Any], middleware: Sequence[Middleware], *, now: datetime
    ) -> None:
        self.stored, self.task, self.at = stored, task, now
        self.outcome: Outcome | None = None
        self.waits = 0
        self.thread = threading.get_ident()
        self._middleware = plain_only(chain(middleware)) if self.is_plain else chain(middleware)
        self._running: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        record = stored.record
        self.job = HeldJob(
            stored.id.bytes,
            record.epoch,
            stored.topic,
            stored.payload,
            record.attempt,
            record.max_attempts,
            record.priority,
            unix_us(stored.created_at),
            0 if record.lease_until is None else unix_us(record.lease_until),
            TENANT,
            self,
            self.task,
        )
        if task.time_limit is not None:
            self.job.time_limit = task.time_limit
        deadline_us = 0 if stored.deadline is None else unix_us(stored.deadline)
        self.job.set_extras(stored.headers, deadline_us=deadline_us)

    # --- what the handler reports ------------------------------------------------------------------------------------

    def progressed(self, job: Job, done: int, total: int, message: str) -> None:
        """See `Reports`."""
        self.stored.progress = (done, total, message)

    def extended(self, job: Job, lease_seconds: int) -> None:
        """See `Reports`; a lease never ends in a box."""

    log_level = LEVELS["OFF"]  # pytest shows what handlers log

    def logged(self, job: Job, level: int, logger: str, at_us: int, text: str) -> None:
        """See `Reports`."""

    # --- running -----------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True while its handler runs, and does not wait for the result of another job."""
        return self.outcome is None and not self.waits

    @property
    def is_plain(self) -> bool:
        """True for a handler that blocks the thread of the drain."""
        return self.task.run_in != "loop"

    @property
    def fatal(self) -> BaseException | None:
        """What the handler raised, if that ends the drain."""
        error = self.job.error
        return error if error is not None and not isinstance(error, _PASSED_ON) else None

    def start(self, ended: Ended) -> None:
        """Begin. `ended` is called once with the outcome set: before this returns, for a plain handler."""
        if self._is_late():
            self._end(deadline_exceeded(self.job), ended)
            return
        self.job.began_at = time.monotonic()
        if self.is_plain:
            self._end(self._run_plain(), ended)
        else:
            self._start_async(ended)

    def request_cancel(self) -> None:
        """The job is to be cancelled: a handler that takes its Job has a moment to end by itself."""
        self.job.request_cancel()
        if self._loop is not None:
            grace = 0.0 if self.task.arguments.job_name is None else CANCEL_GRACE_SECONDS
            self._loop.call_soon_threadsafe(self._loop.call_later, grace, self._cancel)

    def _is_late(self) -> bool:
        return self.stored.deadline is not None and self.stored.deadline <= self.at

    def _start_async(self, ended: Ended) -> None:
        loop = self._loop = asyncio.get_running_loop()
        timers = [loop.call_later(seconds, self._out_of_time, why, ended) for seconds, why in self._limits()]

        async def run() -> None:
            current.set(self)
            current_job.set(self.job)
            outcome = await attempt_async(self.task, self.job, asyncio.current_task(), self._middleware)
            for timer in timers:
                timer.cancel()
            self._end(outcome, ended)

        self._running = loop.create_task(run(), name=f"headgate box {self.job.topic}")

    def _run_plain(self) -> Outcome:
        timers = [threading.Timer(seconds, self._flag, (why,)) for seconds, why in self._limits()]
        for timer in timers:
            timer.daemon = True
            timer.start()
        context = contextvars.copy_context()
        context.run(current.set, self)
        context.run(current_job.set, self.job)
        outcome = context.run(attempt_sync, self.task, self.job, self._middleware)
        for timer in timers:
            timer.cancel()
        limits = [seconds for seconds, _ in self._limits()]
        # A worker does not wait any longer either: the attempt has failed while the function still runs.
        late = bool(limits) and time.monotonic() - self.job.began_at > min(limits) + UNWIND_SECONDS
        return out_of_time(self.job) if late else outcome

    def _limits(self) -> list[tuple[float, str]]:
        """Seconds after which the handler is stopped, and why."""
        limits = [] if self.task.time_limit is None else [(self.task.time_limit, "limit")]
        if self.stored.deadline is not None:
            limits.append(((self.stored.deadline - self.at).total_seconds(), "deadline"))
        return limits

    def _flag(self, why: str) -> None:
        self.job.timed_out, self.job.past_deadline = True, why == "deadline"
        self.job.request_cancel()

    def _out_of_time(self, why: str, ended: Ended) -> None:
        if self.outcome is None and not self.job.timed_out and self._loop is not None:
            self._flag(why)
            self._cancel()
            self._loop.call_later(UNWIND_SECONDS, lambda: self._end(out_of_time(self.job), ended))

    def _cancel(self) -> None:
        if self._running is not None and self.outcome is None:
            self._running.cancel()

    def _end(self, outcome: Outcome, ended: Ended) -> None:
        if self.outcome is None:  # else it was given up, and returned later
            self.outcome = outcome
            self.job.run_seconds = time.monotonic() - self.job.began_at if self.job.began_at else 0.0
            ended(self, outcome)

    async def abandon(self) -> None:
        """The drain itself is being cancelled: stop the handler."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait((self._running,), timeout=UNWIND_SECONDS)
