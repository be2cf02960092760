"""Listens to the wakes of other instances, and follows them at a bounded rate.

Every user of the database can send notifications, so they cost a bounded amount of work. A wake says where to look
sooner, never what is there: the rows decide (ADR 12). So a false one costs a claim that finds nothing, and a
missing one the time to the next tick. The first wake after a quiet time is followed at once; those that come within
20 ms of it are followed together. However many are sent, an instance looks 70 times a second at most.

Of transactions of applications that commit at the same time, one sends a wake (functions/wake_arrivals_v1.sql). So such
a wake is followed a second time, when the others have committed as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import uniform
from typing import Final, Protocol

from headgate.domain.errors import HeadgateError
from headgate.domain.wakes import JobsDue, TopicReady, TopicSubmitted, Wake

log = logging.getLogger("headgate.dispatch")
APART_SECONDS: Final = 0.02
"""As far apart as the wakes that one instance sends."""
AGAIN_SECONDS: Final = 0.05
"""After a wake of an application, and before twice this time, it is followed once more. A commit that takes longer, on
a slow disk or a distant standby, is found by the tick."""
WAKES_MAX: Final = 4_096
"""That many wakes are remembered until their turn. With more, all topics are looked at."""
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 5.0


class ListenStore(Protocol):
    """Where the wakes of other instances come from; returns when the connection is lost."""

    async def listen(self, on_notify: Callable[[Iterable[Wake]], None]) -> None: ...


class PacedWakes:
    """Follows wakes, at most one round in 20 ms."""

    def __init__(self, follow: Callable[[Iterable[Wake]], None], follow_all: Callable[[], None]) -> None:
        """`follow_all` is for too many of them."""
        self._follow, self._follow_all = follow, follow_all
        self._waiting: set[Wake] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._again: set[Wake] = set()  # to be followed a second time when the timer ends, and in the turn after that
        self._again_later: set[Wake] = set()
        self._again_timer: asyncio.TimerHandle | None = None

    def on_notify(self, wakes: Iterable[Wake]) -> None:
        """Some wakes came."""
        if len(self._waiting) <= WAKES_MAX:
            self._waiting.update(wakes)
        if self._timer is not None or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        wait = self._next - loop.time()
        if wait <= 0:
            self._round()
        else:
            self._timer = loop.call_later(wait, self._round)

    def _round(self) -> None:
        self._timer = None
        self._next = asyncio.get_running_loop().time() + APART_SECONDS
        wakes, self._waiting = self._waiting, set()
        if len(wakes) > WAKES_MAX:
            self._follow_all()
        else:
            self._follow(wakes)
            for wake in wakes:
                if isinstance(wake, TopicSubmitted):
                    self._again_later.add(TopicReady(wake.topic_no))
                elif isinstance(wake, JobsDue):
                    self._again_later.add(wake)
            if self._again_later and self._again_timer is None:
                self._look_again()

    def _look_again(self) -> None:
        wakes, self._again, self._again_later = self._again, self._again_later, set()
        wait = bool(self._again)
        self._again_timer = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._look_again) if wait else None
        if wakes:  # not as a round, which would delay the next wake
            self._follow(wakes)


class Listener:
    """Keeps listening. While the connection is lost, the ticks find everything."""

    def __init__(
        self, store: ListenStore, *, follow: Callable[[Iterable[Wake]], None], follow_all: Callable[[], None]
    ) -> None:
        self._store, self._paced, self._follow_all = store, PacedWakes(follow, follow_all), follow_all
        self._stopped = asyncio.Event()

    async def run_once(self) -> None:
        """Listen until the connection is lost; then everything is looked at once, for what was missed."""
        await self._store.listen(self._paced.on_notify)
        self._follow_all()

    async def run(self) -> None:
        """Listen until `stop`."""
        wait = _BACKOFF_FIRST
        while not self._stopped.is_set():
            try:
                await self.run_once()
                log.warning('listen_lost effect="new jobs are found by polling"')
                wait = _BACKOFF_FIRST
            except HeadgateError as error:
                log.warning("listen_failed error=%s", error)
            await asyncio.sleep(wait * uniform(0.5, 1.0))  # noqa: S311 - jitter
            wait = min(_BACKOFF_MOST, wait * 2)

    def stop(self) -> None:
        """Do not connect again."""
        self._stopped.set()
