"""How a worker stops. The order is the design:

ask for no more jobs → abandon what no handler has begun, also what still arrives → let handlers finish within the
grace → stop those that run on, and hand their jobs back → have every outcome acknowledged → close the stream.
A second request to stop (`hurry`) skips the grace, never the time to clean up and the handing back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from headgate.sdk.io_log import io_logger
from headgate.sdk.worker.actions import Actions
from headgate.sdk.worker.held_job import STARTED, HeldJob
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.timers import Timers

log = io_logger("headgate.worker")

DRAINING_SECONDS: Final = 5.0
"""Time between two log lines on what is waited for."""
FLUSH_SECONDS: Final = 10.0
HURRIED_FLUSH_SECONDS: Final = 2.0
UNWIND_SECONDS: Final = 2.0
"""How long a cancelled handler has to clean up before its job is abandoned."""

RUNNING, TAKING_BACK, FINISHING, UNWINDING, FLUSHING, REPORTING = range(6)


class StopSequence:
    """Brings one worker to its end, step by step."""

    def __init__(self, ledger: Ledger, timers: Timers, actions: Actions) -> None:
        self._ledger, self._timers, self._actions = ledger, timers, actions
        self._step = RUNNING
        self._due = 0.0
        self._began = 0.0
        self._hurried = False
        self._given_up: list[HeldJob] = []

    def begin(self, grace: float, now: float) -> None:
        """Start to stop; harmless when repeated."""
        if self._step != RUNNING:
            return
        self._step, self._began, self._due = TAKING_BACK, now, now + grace
        self._ledger.rest()
        self._ledger.hand_back_waiting()
        self._actions.take_back = True

    def hurry(self, now: float) -> None:
        """Wait for handlers no longer."""
        if not self._hurried:
            self._hurried = True
            if running := self._ledger.running():
                log.warning(
                    "stopping_at_once jobs=%d topics=%s "
                    'effect="handlers are cancelled, and their jobs return to the queue at no cost of an attempt"',
                    *(len(running), _by_topic(running)),
                )
            else:
                log.info('stopping_at_once jobs=0 effect="no handler runs; the last outcomes are reported"')
        self.begin(0.0, now)
        self.advance(now)

    def taken_back(self, now: float) -> None:
        """The slots have given back what they have not begun: the rest runs."""
        if self._step == TAKING_BACK:
            self._enter(FINISHING, self._due)
            self._log_draining(now)
            self.advance(now)

    def reported(self) -> None:
        """What was left was reported without a stream, or could not be."""
        self._ledger.outbox.clear()
        self._actions.ended = True

    def advance(self, now: float) -> None:
        """Take the steps that are possible now: called after every change, and when the time of a step is over."""
        over = not self._ledger.active or now >= self._due
        if self._step == FINISHING and (over or self._hurried):
            self._stop_running(now)
        # In a later call: a handler that was cancelled just now has had no chance to run.
        elif self._step == UNWINDING and over:
            self._hand_back(now)
        # Not before the server has confirmed that no more jobs come: each would cost an attempt if we had gone.
        if self._step == FLUSHING:
            open_ends = self._ledger.outbox.count or self._ledger.quiet_unconfirmed
            if open_ends and now < self._due:
                return
            self._timers.cancel("stop")
            if self._ledger.outbox.count:
                self._step, self._actions.report = REPORTING, True
            else:
                self._actions.ended = True

    def _log_draining(self, now: float) -> None:
        """Say which handlers are waited for, and for how long; again every few seconds."""
        running = self._ledger.running()
        if self._step != FINISHING or self._hurried or not running:
            return
        log.info(
            "draining jobs=%d topics=%s longest_seconds=%.0f seconds_left=%.0f "
            'hint="a second signal cancels them at once"',
            *(len(running), _by_topic(running), max(_age(job, now) for job in running), max(0.0, self._due - now)),
        )
        self._timers.set("draining", now + DRAINING_SECONDS, self._log_draining)

    def _enter(self, step: int, due: float) -> None:
        self._step, self._due = step, due
        self._timers.set("stop", due, self.advance)

    def _stop_running(self, now: float) -> None:
        running = self._given_up = self._ledger.running()
        if not running:
            self._flush(now)
            return
        if not self._hurried:  # else `stopping_at_once` has said it
            log.warning(
                'handlers_not_finished handlers=%d seconds=%.0f effect="their jobs are abandoned"',
                *(len(running), now - self._began),
            )
        for job in running:
            job.abandoned = True  # from here on only a success of its handler is sent: it was cut short
            job.request_cancel()
        self._actions.stop.extend(running)
        self._enter(UNWINDING, now + UNWIND_SECONDS)

    def _hand_back(self, now: float) -> None:
        if still := [job for job in self._given_up if job.stage == STARTED]:
            log.error(
                'did_not_stop handlers=%s effect="their jobs are abandoned, and can run elsewhere at once"',
                _by_topic(still),
            )
        for job in self._given_up:
            self._ledger.hand_back(job)
        self._given_up = []
        self._flush(now)

    def _flush(self, now: float) -> None:
        self._enter(FLUSHING, now + (HURRIED_FLUSH_SECONDS if self._hurried else FLUSH_SECONDS))


def _by_topic(jobs: Iterable[HeldJob]) -> str:
    return ", ".join(f"{topic}: {count}" for topic, count in Counter(job.topic for job in jobs).items())


def _age(job: HeldJob, now: float) -> float:
    return now - (job.began_at or job.started_at)
