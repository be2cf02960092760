"""Gives back jobs that were read ahead and have waited here for long: handlers take longer than they did.

What is read ahead was asked for when handlers were short. If the next jobs take seconds, those behind them would wait
here while other workers are idle. They return to the queue at their old place, and at no cost of an attempt.
"""

from __future__ import annotations

from typing import Final

from headgate.sdk.io_log import io_logger
from headgate.sdk.worker.actions import Actions
from headgate.sdk.worker.ledger import Ledger
from headgate.sdk.worker.timers import Timers

log = io_logger("headgate.worker")

STALE_SECONDS: Final = 2.0
"""Four times what a read-ahead should take at most. Jobs that arrive just after a look wait up to twice as long."""
_KEY: Final = "stale jobs"


class StaleJobs:
    """Looks whether what waits here is begun in time; with a `prefetch` of the user's own it stays."""

    def __init__(self, ledger: Ledger, timers: Timers, actions: Actions, *, slots: int) -> None:
        self._ledger, self._timers, self._actions, self._slots = ledger, timers, actions, slots

    def watch(self, now: float) -> None:
        """More jobs are here than there are slots."""
        if self._ledger.reads_ahead and _KEY not in self._timers:
            self._timers.set(_KEY, now + STALE_SECONDS, self._look, self._ledger.delivered)

    def _look(self, delivered: int, now: float) -> None:
        """Whether one of the first `delivered` jobs has still not begun: they begin in the order of their delivery."""
        ledger = self._ledger
        waiting = ledger.active - self._slots
        if waiting <= 0 or ledger.resting:
            return
        if ledger.delivered - waiting >= delivered:
            self.watch(now)
            return
        log.info(
            'read_ahead_returned jobs=%d effect="handlers take longer than before; other workers can run them"', waiting
        )
        ledger.stalled(now)
        ledger.hand_back_waiting()
        self._actions.take_back = True
