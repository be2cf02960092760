"""How many jobs to hold beyond the slots, so that short jobs need not wait for the network between them.

A worker of 32 slots whose handlers take a fraction of a millisecond would stand idle most of the time: everything it
was given is done long before the next delivery arrives. So it asks ahead for as much as it gets done in a twentieth of
a second. A job that is held ahead waits here at most about that long, while an idle worker elsewhere might have begun
it; where handlers take their time, nothing is asked for ahead.
"""

from __future__ import annotations

from typing import Final

AHEAD_SECONDS: Final = 0.05
AHEAD_MAX: Final = 2_000
SLOW_SECONDS: Final = 0.01
"""Handlers that take longer than this on average gain nothing by reading ahead: it is not the network they wait for."""
WINDOW_SECONDS: Final = 0.05


class ReadAhead:
    """Follows how many jobs this worker finishes, and how long they take, a window at a time."""

    def __init__(self, most: int = AHEAD_MAX) -> None:
        self.jobs = 0
        self._most = most
        self._finished = 0
        self._busy = 0.0
        self._began = 0.0

    def finished(self, took: float, now: float) -> None:
        """A handler has ended that took so many seconds."""
        if not self._finished and now - self._began > 2 * WINDOW_SECONDS:
            self._began = now - took  # after a quiet time: the window begins with this job
        self._finished += 1
        self._busy += took
        passed = now - self._began
        if passed < WINDOW_SECONDS:
            return
        slow = self._busy > SLOW_SECONDS * self._finished
        self.jobs = 0 if slow else min(self._most, int(self._finished / passed * AHEAD_SECONDS))
        self._finished, self._busy, self._began = 0, 0.0, now
