"""How far claims look below their watermarks.

Looking below the marks costs next to nothing while dead rows are vacuumed. While an old snapshot is held it is a walk
over everything that has ended since. So a claim that takes much longer by its sweep sweeps half as far the next time.
See ADR 24.
"""

from __future__ import annotations

from typing import Final

SWEEP_AT_LEAST_US: Final = 1_000_000
SWEEP_MOST_US: Final = 3_600_000_000
_SWEEP_SLOW_SECONDS: Final = 0.005


class SweepPace:
    """How far the next sweep of a claim goes."""

    def __init__(self) -> None:
        self._most_us = SWEEP_MOST_US  # how far the next sweep may go: twice as far as the last that was not slow
        self._swept_us = SWEEP_AT_LEAST_US  # how far the last one went
        self._claim_seconds = 0.0  # what a claim takes that does not sweep, lately

    def stretch_us(self, span_us: int) -> int:
        """How far to sweep below marks with so much below them: a round takes a second or two, unless it is slow."""
        self._swept_us = max(SWEEP_AT_LEAST_US, min(span_us // 2, self._most_us))
        return self._swept_us

    def claimed(self, seconds: float, *, swept: bool) -> None:
        """A claim took so long."""
        if not swept:
            self._claim_seconds += 0.1 * (seconds - self._claim_seconds)
            return
        slow = seconds - self._claim_seconds > _SWEEP_SLOW_SECONDS
        # Half of what it went, not of what it might have gone: that may be far more than there was to look at.
        wanted = self._swept_us // 2 if slow else self._most_us * 2
        self._most_us = max(SWEEP_AT_LEAST_US, min(SWEEP_MOST_US, wanted))
