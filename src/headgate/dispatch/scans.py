"""Scans look for jobs that lie below where claims and ticks begin to look.

Ticks scan whole topics, and periodically below their floors, while that is quick. With an old snapshot held elsewhere
a scan reads all rows that have ended since, and due jobs and pauses would wait for the tick. So after a slow scan the
next ones are calls of their own, on another connection and for a share of the time, until one is quick (ADR 24).
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

from headgate.dispatch.demands import Demands
from headgate.dispatch.ports import ScanStore
from headgate.dispatch.tick_times import TickTimes
from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.dispatch")
SLOW_SECONDS: Final = 0.02
_WIDE_US: Final = 30_000_000
"""A stretch below the marks in which there may be enough dead rows to make a scan of topics slow."""


class ScanPace:
    """When one kind of scan is due, and whether by a tick."""

    def __init__(self, *, every: float, share: float, longest: float = math.inf) -> None:
        """`every` so many seconds; if slow, for this share of the time only, but never later than after `longest`."""
        self._every, self._share, self._longest = every, share, longest
        self._next = 0.0  # by the loop's clock
        self.apart = False  # not by ticks

    def is_due(self, now: float, *, apart: bool) -> bool:
        """Whether one is due now by a call of its own (`apart`), or by a tick."""
        return now >= self._next and apart is self.apart

    def scanned(self, *, began: float, now: float, dead_rows: bool = True) -> None:
        """One took from then to now, in a tick or apart. `dead_rows`: if it was slow, they may be the reason."""
        seconds = now - began
        self.apart = seconds > SLOW_SECONDS
        rest = min(self._longest, seconds / self._share) if self.apart and dead_rows else 0.0
        self._next = max(began + self._every, now + rest)


class Scanner:
    """Scans of one instance that ticks do not do. Idle unless woken."""

    def __init__(self, store: ScanStore, demands: Demands, times: TickTimes) -> None:
        self._store, self._demands, self._times = store, demands, times
        self.topics = ScanPace(every=0.0, share=0.02, longest=30.0)
        self.floors = ScanPace(every=30.0, share=0.01)
        self._woken = asyncio.Event()
        self._stopped = False

    def wake(self) -> None:
        """Scan what is due; called by every tick of a second."""
        now = asyncio.get_running_loop().time()
        if self.topics.is_due(now, apart=True) or self.floors.is_due(now, apart=True):
            self._woken.set()

    def topics_scanned(self, began: float) -> None:
        """Whole topics were looked at, in a tick or apart, from then to now."""
        span_us = max((demand.marks.span_us for demand in self._demands), default=-1)
        self.topics.scanned(began=began, now=asyncio.get_running_loop().time(), dead_rows=span_us > _WIDE_US)

    def floors_scanned(self, began: float) -> None:
        """Everything below the floors was looked at, in a tick or apart, from then to now."""
        self.floors.scanned(began=began, now=asyncio.get_running_loop().time())

    async def run_once(self) -> None:
        """Do the scans that are due apart from ticks."""
        now = asyncio.get_running_loop().time
        if self.topics.is_due(now(), apart=True) and (wanted := self._demands.topics_with_credit()):
            began = now()
            try:
                self._demands.pending_seen(await self._store.scan_topics(wanted), whole=True)
            finally:
                self.topics_scanned(began)
        if self.floors.is_due(now(), apart=True):
            began = now()
            try:
                if await self._store.scan_below_floors():
                    self._times.soon()
            finally:
                self.floors_scanned(began)

    async def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopped:
            await self._woken.wait()
            self._woken.clear()
            if not self._stopped:
                try:
                    await self.run_once()
                except HeadgateError as error:
                    log.warning("scan_failed error=%s", error)

    def stop(self) -> None:
        """End after the scan that is under way."""
        self._stopped = True
        self._woken.set()
