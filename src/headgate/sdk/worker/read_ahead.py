"""How many jobs to hold beyond the slots, so that short jobs need not wait for the network between them.

A worker of 32 slots whose handlers take a fraction of a millisecond would stand idle most of the time: everything it
was given is done long before the next delivery arrives. So it asks ahead for as much as it gets done in a twentieth of
a second.

Where it gets little done only because many workers share the jobs, it asks for more: for half a second of its rate, as
far as it could do that in a twentieth of a second by itself. A frame costs the server and the worker as much as twenty
jobs, so 64 workers of few slots would spend a third of the processors on small frames (ADR 54).

Where handlers take their time, nothing is asked for ahead. If they begin to, `StaleJobs` gives back what waits here.
"""

from __future__ import annotations

from typing import Final

AHEAD_SECONDS: Final = 0.05
SHARED_SECONDS: Final = 0.5
AHEAD_MAX: Final = 2_000
AHEAD_BYTES: Final = 1_000_000
"""Payloads of what is asked for beyond the twentieth of a second: a frame holds no more."""
JOB_SECONDS: Final = 0.00005
"""What a short job takes beside its handler: part of its time where the worker is to do a number of them."""
SLOW_SECONDS: Final = 0.01
"""Handlers that take longer than this on average gain nothing by reading ahead: it is not the network they wait for."""
WINDOW_SECONDS: Final = 0.02


class ReadAhead:
    """Follows how many jobs this worker finishes, and how long they take, a window at a time."""

    def __init__(self, most: int = AHEAD_MAX) -> None:
        self.jobs = 0
        self._before = 0
        self._most = most
        self._finished = self._bytes = 0
        self._busy = 0.0
        self._began = 0.0

    def finished(self, took: float, now: float, size: int = 0) -> None:
        """A handler has ended that took so many seconds, of a job with a payload of `size` bytes."""
        if not self._finished and now - self._began > 2 * WINDOW_SECONDS:
            self._began = now - took  # after a quiet time: the window begins with this job
        self._finished += 1
        self._bytes += size
        self._busy += took
        passed = now - self._began
        if passed < WINDOW_SECONDS:
            return
        found = self._found(passed)
        # Jobs come in bursts: a window that ends within one has few jobs, or few milliseconds, of those around it.
        self.jobs = max(found, self._before) if found else 0
        self._before = found
        self._begin(now)

    def stalled(self, now: float) -> None:
        """Jobs have waited here for long: nothing is asked for ahead until handlers have ended again."""
        self.jobs = self._before = 0
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._finished, self._bytes, self._busy, self._began = 0, 0, 0.0, now

    def _found(self, passed: float) -> int:
        finished = self._finished
        if self._busy > SLOW_SECONDS * finished:
            return 0
        rate = finished / passed
        alone = AHEAD_SECONDS * finished / (self._busy + JOB_SECONDS * finished)
        shared = min(rate * SHARED_SECONDS, alone, AHEAD_BYTES * finished / max(1, self._bytes))
        return min(self._most, int(max(rate * AHEAD_SECONDS, shared)))
