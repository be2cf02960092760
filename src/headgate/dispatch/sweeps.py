"""How far claims look below their watermarks, and how often ticks look at whole topics.

Looking below the marks costs next to nothing while dead rows are vacuumed. While an old snapshot is held it is a walk
over everything that has ended since. So a claim that takes much longer by its sweep sweeps half as far the next time.
Ticks that are slow look at whole topics for a small share of the time only, once the marks have moved far enough for
that to be the reason; from the marks on, they always look. See ADR 24.
"""

from __future__ import annotations

from typing import Final

SWEEP_AT_LEAST_US: Final = 1_000_000
SWEEP_MOST_US: Final = 3_600_000_000
_SWEEP_SLOW_SECONDS: Final = 0.005
_WHOLE_SLOW_SECONDS, _WHOLE_SHARE, _WHOLE_MOST_SECONDS = 0.02, 0.02, 30.0
_WHOLE_ALWAYS_US: Final = 30_000_000


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


class WholeLooks:
    """When ticks may look at whole topics, and not only from the marks on."""

    def __init__(self) -> None:
        self._next = 0.0  # by the loop's clock

    def is_due(self, now: float) -> bool:
        """Whether the tick that begins now may."""
        return now >= self._next

    def looked(self, *, now: float, seconds: float, span_us: int) -> None:
        """A tick that did took so long; `span_us` is the widest stretch below any mark."""
        if span_us > _WHOLE_ALWAYS_US and seconds > _WHOLE_SLOW_SECONDS:
            self._next = now + min(_WHOLE_MOST_SECONDS, seconds / _WHOLE_SHARE)
