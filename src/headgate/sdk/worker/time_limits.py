"""What becomes of handlers that do not end: time limits, deadlines, stuck slots. On the I/O loop.

A time limit counts from the moment the handler began, not from its delivery: a job waits for its process, or behind a
handler that blocks the loop, at nobody's cost. When it is over the handler is stopped as by a cancellation; one that is
still there a moment later is not waited for. Its attempt fails, its lease ends, and its slot stays taken. A job's
deadline ends its handler in the same way; it counts from the claim, by how far off it was then, so that this machine's
clock does not matter.

A worker that owns its process ends it in any case: see `leaving_at_last`.

All slots taken, for long, is said once: a worker that beats and takes nothing looks healthy from everywhere else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from headgate.sdk.job import FINISHED, STARTED, WAITING, Job
from headgate.sdk.tasks import Task
from headgate.sdk.worker.execution import over_time, past_deadline
from headgate.sdk.worker.inbound import Stops
from headgate.sdk.worker.stream import WorkerStream

log = logging.getLogger("headgate.worker")

UNWIND_SECONDS: Final = 2.0
"""What a handler gets to end by itself once its time is over."""
LOOK_SECONDS: Final = 5.0
STUCK_SECONDS: Final = 300.0
"""All slots taken and none freed for so long: said once. Long jobs may well be meant, so it is a warning."""
DOOMED_SECONDS: Final = 10.0
"""The same when every one of them was asked to stop."""
LEAVING_SECONDS: Final = 6.0
"""What a worker's process gets to end once all its jobs are settled or handed back."""


class TimeLimits:
    """Stops handlers whose time is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: WorkerStream, slots: Stops) -> None:
        self._loop, self._stream, self._slots = loop, stream, slots

    def watch(self, jobs: list[Job]) -> None:
        """Handed to their slots just now."""
        for job in jobs:
            limit = cast("Task[Any, Any]", job.handler).time_limit
            if limit is not None:
                self._call(job, "limit", limit, self._look, limit)

    def watch_deadline(self, job: Job, seconds: float) -> None:
        """Delivered just now, and its deadline is so far off."""
        self._call(job, "deadline", seconds, self._at_deadline)

    def _call(self, job: Job, kind: str, seconds: float, look: Callable[..., None], *args: float) -> None:
        timers = self._stream.ledger.timers.setdefault(job, {})
        timers[kind] = self._loop.call_later(seconds, look, job, *args)

    def _at_deadline(self, job: Job) -> None:
        if job.stage == WAITING:
            self._stream.ledger.end_unbegun(job, past_deadline(job))
            self._stream.wake()
        elif job.stage != FINISHED and not job.over_time:
            job.past_deadline = True
            self._stop(job, "deadline")

    def _look(self, job: Job, limit: float) -> None:
        if job.stage == FINISHED or job.over_time:
            return
        left = job.begun_at + limit - time.monotonic() if job.begun_at else limit
        if left > 0:
            self._call(job, "limit", left, self._look, limit)
            return
        self._stop(job, f"time limit of {limit:g} s")

    def _stop(self, job: Job, why: str) -> None:
        job.over_time = True
        job.ask_to_stop()
        self._slots.stop([job])
        self._loop.call_later(UNWIND_SECONDS, self._give_up, job, why)

    def _give_up(self, job: Job, why: str) -> None:
        if job.stage == FINISHED:
            return
        if job.begun_at:  # else it still waits inside its slot, which will not begin it any more
            log.error(
                "did_not_stop: the handler of job %s (%s) still runs after its %s; "
                "the attempt counts as failed, and its slot is lost until the handler returns",
                *(job.id, job.topic, why),
            )
        self._stream.ledger._settle(job, over_time(job))
        self._stream.wake()


class StuckSlots:
    """Says, once each time, that this worker can take nothing because no handler ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: WorkerStream, *, slots: int) -> None:
        self._loop, self._stream, self._slots = loop, stream, slots
        self._since: dict[Job, float] = {}
        """When each running handler was first seen; those of lost jobs too, which are no longer held."""
        self._said = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._loop.call_later(LOOK_SECONDS, self._tick)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.look(time.monotonic())
        self._timer = self._loop.call_later(LOOK_SECONDS, self._tick)

    def look(self, now: float) -> None:
        """See which handlers run, and since when."""
        for job in self._stream.ledger.running():
            if job.begun_at:  # others have been handed to the slots, and wait there
                self._since.setdefault(job, now)
        self._since = {job: since for job, since in self._since.items() if job.stage == STARTED}
        if len(self._since) < self._slots:
            self._said = False
            return
        doomed = all(job.cancel_requested for job in self._since)
        quiet = now - max(self._since.values())
        if self._said or quiet < (DOOMED_SECONDS if doomed else STUCK_SECONDS):
            return
        self._said = True
        oldest = min(self._since, key=self._since.__getitem__)
        log.warning(
            "all_slots_stuck: none of %d slots has become free for %.0f s (all were asked to stop: %s); the oldest "
            "runs %s, job %s, for %.0f s. "
            "Beats go on and leases are kept, but no job is taken until a handler ends",
            *(self._slots, quiet, "yes" if doomed else "no"),
            *(oldest.topic, oldest.id, now - (oldest.begun_at or self._since[oldest])),
        )


@contextmanager
def leaving_at_last(ended: threading.Event) -> Iterator[None]:
    """End this process with code 1 if the block is not left a while after `ended`.

    A handler that blocks the event loop, ignores its cancellation, or waits for a thread that never returns would
    otherwise keep a drained worker from ending until somebody kills it. Its job has been handed back by then.
    """
    left = threading.Event()

    def watch() -> None:
        ended.wait()
        if not left.wait(LEAVING_SECONDS):
            log.error(
                "did_not_stop: a handler keeps this process from ending %g s after all jobs were settled or "
                "handed back; leaving by force",
                LEAVING_SECONDS,
            )
            logging.shutdown()
            os._exit(1)

    threading.Thread(target=watch, name="headgate-last-resort", daemon=True).start()
    try:
        yield
    finally:
        left.set()
        ended.set()
