"""Time limits and deadlines: when a handler is stopped, and when the worker no longer waits for it.

A time limit counts from the moment the handler began, not from delivery: waiting for a process, or behind a handler
that blocks the loop, costs nothing. A job's deadline counts from the claim, by how far off it was then, so this
machine's clock does not matter. A handler out of time is stopped as by a cancellation. One that still runs a moment
later is not waited for: its attempt fails, and its slot stays taken until it returns.
"""

from __future__ import annotations

from typing import Final

from headgate.sdk.io_log import io_logger
from headgate.sdk.worker.actions import Actions
from headgate.sdk.worker.forced_outcomes import deadline_exceeded, out_of_time
from headgate.sdk.worker.held_job import FINISHED, WAITING, HeldJob
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.timers import Timers

log = io_logger("headgate.worker")

UNWIND_SECONDS: Final = 2.0
"""How long a handler has to end by itself once it is out of time."""


class TimeLimits:
    """Stops handlers that are out of time."""

    def __init__(self, ledger: Ledger, timers: Timers, actions: Actions) -> None:
        self._ledger, self._timers, self._actions = ledger, timers, actions

    def delivered(self, jobs: list[tuple[HeldJob, float]], now: float) -> None:
        """These jobs have deadlines, so many seconds off."""
        for job, seconds in jobs:
            if job.stage != FINISHED:
                self._ledger.timed.add(job)
                self._timers.set((job, "deadline"), now + seconds, self._at_deadline, job)

    def started(self, jobs: list[HeldJob], now: float) -> None:
        """These jobs were given to their slots."""
        for job in jobs:
            limit = self._ledger.time_limit(job)
            if limit is not None:
                self._ledger.timed.add(job)
                self._timers.set((job, "limit"), now + limit, self._at_limit, job, limit)

    def _at_deadline(self, job: HeldJob, now: float) -> None:
        if job.stage == WAITING:
            self._ledger.end_unbegun(job, deadline_exceeded(job))
        elif job.stage != FINISHED and not job.timed_out:
            job.past_deadline = True
            self._stop(job, "deadline", now)

    def _at_limit(self, job: HeldJob, limit: float, now: float) -> None:
        if job.stage == FINISHED or job.timed_out:
            return
        left = job.began_at + limit - now if job.began_at else limit
        if left > 0:
            self._timers.set((job, "limit"), now + left, self._at_limit, job, limit)
        else:
            job.time_limit = limit
            self._stop(job, f"time limit of {limit:g} s", now)

    def _stop(self, job: HeldJob, why: str, now: float) -> None:
        job.timed_out = True
        job.request_cancel()
        self._actions.stop.append(job)
        self._timers.set((job, "unwind"), now + UNWIND_SECONDS, self._give_up, job, why)

    def _give_up(self, job: HeldJob, why: str, _now: float) -> None:
        if job.stage == FINISHED:
            return
        if job.began_at:  # else it still waits in its slot, which will not begin it any more
            log.error(
                "did_not_stop job_id=%s topic=%s after=%s "
                'effect="the attempt has failed, and its slot is lost until the handler returns"',
                *(job.id, job.topic, why),
            )
        self._ledger.settle(job, out_of_time(job))
