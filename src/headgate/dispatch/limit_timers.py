"""Topics that limits hold back: timers for the moment when the next job may start, instead of asking again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from headgate.dispatch.demands import Demands
from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.ports import LimitStore
from headgate.dispatch.tick_times import TICKS_APART
from headgate.dispatch.wakes import Wakes
from headgate.domain.errors import HeadgateError
from headgate.domain.wakes import LimitOpened

log = logging.getLogger("headgate.dispatch")


class LimitTimers:
    """At most one timer per topic: the earliest that is known."""

    def __init__(self, on_open: Callable[[LimitOpened], None]) -> None:
        self._on_open = on_open
        # By topic, when it fires and its handle. The moment is kept here: for "now" uvloop gives a plain Handle, which
        # has no `when`.
        self._timers: dict[int, tuple[float, asyncio.Handle]] = {}

    def set(self, waits: Iterable[tuple[int, float | None]]) -> None:
        """Topics, and in how many seconds they may have more; None: when something ends, which wakes them by itself."""
        loop = asyncio.get_running_loop()
        for topic_no, seconds in waits:
            if seconds is None:
                continue
            at = loop.time() + max(0.0, seconds)
            known = self._timers.get(topic_no)
            if known is not None:
                if known[0] <= at:
                    continue
                known[1].cancel()
            opened = LimitOpened(topic_no, waited=seconds > 0)
            self._timers[topic_no] = (at, loop.call_at(at, self._fire, opened))

    def stop(self) -> None:
        """Forget all."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _fire(self, opened: LimitOpened) -> None:
        self._timers.pop(opened.topic_no, None)
        self._on_open(opened)


class LimitAdmitter:
    """Lets in jobs whose key has its next token, when it has it. The tick finds what this misses."""

    def __init__(self, store: LimitStore, demands: Demands, wakes: Wakes) -> None:
        self._store, self._demands, self._wakes = store, demands, wakes
        self.timers = LimitTimers(self._opened)
        self._due = asyncio.Event()
        self._stopped = asyncio.Event()

    def _opened(self, opened: LimitOpened) -> None:
        self._demands.wake(opened.topic_no)
        if opened.waited and self._demands.names.is_keyed(opened.topic_no):
            self._due.set()

    def limits_changed(self, topic_no: int) -> None:
        """A topic has other limits now: what waited may start."""
        self._wakes.topics_ready([topic_no])
        self._due.set()

    async def run_once(self) -> int:
        """Let in what may start now; returns how many topics have some of it."""
        waits = await self._store.admit_due()
        now = {topic_no for topic_no, seconds in waits if seconds <= 0}
        if now:
            self._wakes.topics_ready(now)
            self._due.set()  # there may be more than one call lets in
        self.timers.set(wait for wait in waits if wait[1] > 0)
        return len(now)

    async def run(self) -> None:
        """Let in until `stop`."""
        while not self._stopped.is_set():
            await self._due.wait()
            self._due.clear()
            if self._stopped.is_set():
                return
            try:
                await self.run_once()
            except HeadgateError as error:
                log.debug("admit_due_failed error=%s", error)
            await wait_at_most(self._stopped, TICKS_APART)

    def stop(self) -> None:
        """Let in no more."""
        self._stopped.set()
        self._due.set()
        self.timers.stop()
