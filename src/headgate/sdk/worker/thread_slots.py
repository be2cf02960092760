"""Slots for plain functions: threads of our own, started as they are needed, fed by the I/O thread directly.

They need the user's loop for nothing: a loop blocked by a bad handler does not stop them. They are daemons, so that a
handler that never returns cannot keep the process from ending.
Python cannot end a thread from outside. A handler that looks at neither its token nor its flag therefore costs its slot
until it returns: the job is settled without it (by its time limit, or abandoned by a stopping worker), and the worker
takes one job less at a time, and reports it.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any, cast

from headgate.sdk.hooks import Middleware
from headgate.sdk.job_context import current_job
from headgate.sdk.outcomes import Outcome
from headgate.sdk.tasks import Task
from headgate.sdk.worker.execution import attempt_sync
from headgate.sdk.worker.forced_outcomes import unbegun
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.loop_slots import Report


class ThreadSlots:
    """Runs plain handlers, at most `size` at a time."""

    def __init__(self, report: Report, *, size: int, middleware: Sequence[Middleware] = ()) -> None:
        self._report, self._size, self._middleware = report, size, middleware
        self._inbox: SimpleQueue[HeldJob | None] = SimpleQueue()  # bounded by the ledger: no more than the slots
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._context = contextvars.copy_context()

    def feed(self, jobs: list[HeldJob]) -> None:
        """Queue jobs. From the I/O thread."""
        for job in jobs:
            self._inbox.put(job)
            if len(self._threads) < self._size and not self._idle.acquire(blocking=False):
                name = f"headgate-handler-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def take_back(self) -> list[HeldJob]:
        """Take back what no thread has begun. From the I/O thread."""
        taken: list[HeldJob] = []
        while True:
            try:
                job = self._inbox.get_nowait()
            except Empty:
                return taken
            if job is not None:
                taken.append(job)

    def close(self) -> None:
        """Let idle threads end; a busy one ends after its job."""
        for _ in self._threads:
            self._inbox.put(None)

    def _serve(self) -> None:
        while (job := self._inbox.get()) is not None:
            if job.lost or job.abandoned:
                self._report(job, None)
            elif job.past_deadline:
                self._report(job, unbegun(job))
            else:
                job.began_at = time.monotonic()
                # A context of its own for each job: what one handler sets, the next one must not see.
                outcome = self._context.copy().run(self._attempt, job)
                job.run_seconds = time.monotonic() - job.began_at
                self._report(job, outcome)
            del job  # the payload may be large, and the next job far away
            if len(self._threads) >= self._size:
                continue
            self._idle.release()

    def _attempt(self, job: HeldJob) -> Outcome:
        current_job.set(job)
        return attempt_sync(cast("Task[Any, Any]", job.handler), job, self._middleware)
