"""Slots for async handlers: a few long-lived tasks on the user's loop that take jobs from one inbox.

The I/O thread extends the inbox and wakes the loop once per frame; it may also take back what no slot has begun
(a deque's ends are safe to use from two threads). All else happens on the user's loop. The inbox may hold more jobs
than there are slots: a slot that had to ask the I/O thread for each next job would wait longer than a short job takes.

A task per job would cost as much as the rest of a short job. So a slot runs one job after the other, and one slot is
enough as long as handlers do not wait: only when it gives up control with jobs left are others woken. What a handler
leaves behind (context variables, a pending cancellation) must not reach the next job: such a slot ends, and a new
one replaces it.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from headgate.sdk.hooks import Middleware
from headgate.sdk.job_context import current_job
from headgate.sdk.outcomes import Outcome
from headgate.sdk.tasks import Task
from headgate.sdk.worker.execution import attempt_async
from headgate.sdk.worker.forced_outcomes import unbegun
from headgate.sdk.worker.held_job import HeldJob

Report = Callable[[HeldJob, Outcome | None], None]

TURN_SECONDS: Final = 0.005
"""How long a slot may go on without giving others on the loop their turn."""


class LoopSlots:
    """Runs async handlers on one event loop, at most `size` at a time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, report: Report, *, size: int, middleware: Sequence[Middleware] = ()
    ) -> None:
        self._loop, self._report, self._size, self._middleware = loop, report, size, middleware
        self._inbox: deque[HeldJob] = deque()  # bounded by the credit: what is delivered was asked for
        self._idle: list[asyncio.Future[None]] = []
        # Not a task group: leaving one would wait for a handler that ignores its cancellation.
        self._slots: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()
        self._waking = False
        self._closed = False

    # --- from the I/O thread -----------------------------------------------------------------------------------------

    def feed(self, jobs: list[HeldJob]) -> None:
        """Queue jobs, with one crossing to the loop for all of them."""
        self._inbox.extend(jobs)
        with suppress(RuntimeError):  # the loop was closed under us: the worker is ending, and abandons the jobs
            self._loop.call_soon_threadsafe(self._wake_more)

    def take_back(self) -> list[HeldJob]:
        """Take back what no slot has begun."""
        taken: list[HeldJob] = []
        try:
            while True:
                taken.append(self._inbox.popleft())
        except IndexError:
            return taken

    def cancel(self, jobs: list[HeldJob]) -> None:
        """Cancel the handlers of these jobs, if they still run."""
        with suppress(RuntimeError):  # as above
            self._loop.call_soon_threadsafe(self._cancel, jobs)

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _wake_more(self) -> None:
        """Set as many slots to work as there are jobs waiting; one first, which may well do them all."""
        self._waking = False
        wanted = 1 if len(self._idle) == len(self._slots) else len(self._inbox)  # 1: all are idle
        while wanted > 0 and self._inbox:
            wanted -= 1
            if self._idle:
                waiter = self._idle.pop()
                if not waiter.done():
                    waiter.set_result(None)
            elif len(self._slots) < self._size:
                self._new_slot()
            else:
                return

    def _new_slot(self) -> None:
        context = self._context.copy()
        slot = self._loop.create_task(self._serve(context.copy()), name="headgate slot", context=context)
        self._slots.add(slot)
        slot.add_done_callback(self._slots.discard)

    async def _serve(self, clean: contextvars.Context) -> None:
        me = cast("asyncio.Task[None]", asyncio.current_task())
        inbox, monotonic, middleware = self._inbox, time.monotonic, self._middleware
        turn_ends = monotonic() + TURN_SECONDS
        while not self._closed:
            try:
                job = inbox.popleft()
            except IndexError:  # empty, or taken back just now
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter
                turn_ends = monotonic() + TURN_SECONDS
                continue
            if inbox and not self._waking:
                self._waking = True
                self._loop.call_soon(self._wake_more)  # comes to run if this job waits for something
            if job.lost or job.abandoned or job.cancel_requested:
                self._report(job, unbegun(job))
                continue
            job.slot_task, job.began_at = me, monotonic()
            token = current_job.set(job)
            outcome = await attempt_async(cast("Task[Any, Any]", job.handler), job, me, middleware)
            current_job.reset(token)
            now = monotonic()
            job.slot_task, job.run_seconds = None, now - job.began_at
            self._report(job, outcome)
            if me.cancelling() or contextvars.copy_context() != clean:
                break
            if now > turn_ends:
                await asyncio.sleep(0)
                turn_ends = monotonic() + TURN_SECONDS
        if not self._closed:
            self._slots.discard(me)
            if inbox:
                self._new_slot()

    def _cancel(self, jobs: list[HeldJob]) -> None:
        for job in jobs:
            if job.slot_task is not None:
                job.slot_task.cancel()

    async def close(self, *, give_up_seconds: float) -> int:
        """End idle slots and cancel busy ones; gives how many did not end within `give_up_seconds`."""
        self._closed = True
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        slots = [slot for slot in self._slots if not slot.done()]
        if not slots:
            return 0
        _, busy = await asyncio.wait(slots, timeout=0.05)
        for slot in busy:
            slot.cancel()
        if busy:
            _, busy = await asyncio.wait(busy, timeout=give_up_seconds)
        return len(busy)
