"""When the next tick is due: by the second, or sooner when a job is known to fall due sooner.

Times are those of the event loop's clock. The difference to the database's clock is learnt from each tick.
"""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import Final

from headgate.dispatch.periodic import wait_at_most

TICK_SECONDS: Final = 1.0
TICKS_APART: Final = 0.002
HINTS_APART: Final = 0.05
STEP_SECONDS: Final = 1.0
"""Hints bring a tick no oftener than this, whatever workers ask for, and other instances and applications announce."""


class TickTimes:
    """The times of ticks; a job that falls due sooner pulls the next one forward."""

    def __init__(self, tick_seconds: float = TICK_SECONDS) -> None:
        self.tick_seconds = tick_seconds
        self._next = self._not_before = self._next_full = 0.0
        self._began = 0.0  # when the last tick began
        self._ahead: float | None = None  # what to add to the loop's clock to get the database's
        self._steady: float | None = None  # the same, but changed only when it is wrong by a second
        self._ahead_most = math.inf  # the most that it can be, from the time at which the database was asked
        self._control_changed = True
        self._sooner = asyncio.Event()

    def moment(self, at: float) -> datetime | None:
        """A time of the loop's clock by the database's, for people; None before the first tick.

        The same time gives the same moment as long as the two clocks agree on how fast time passes.
        """
        if self._steady is None:
            return None
        return datetime.fromtimestamp(round(at + self._steady, 3), UTC)

    def latest(self, at: float) -> datetime | None:
        """The latest that a time of the loop's clock can have been by the database's; None before the first tick.

        However long an answer of the database was on its way, and whatever kept the loop from reading it.
        """
        if math.isinf(self._ahead_most):
            return None
        return datetime.fromtimestamp(at + self._ahead_most, UTC)

    def due_at(self, moment: datetime) -> None:
        """A job falls due then, by the database's clock: the next tick comes no later."""
        if self._ahead is not None:
            self.due_in(moment.timestamp() - self._ahead - asyncio.get_running_loop().time())

    def due_in(self, seconds: float) -> None:
        """A job falls due in so many seconds: the next tick comes no later."""
        at = asyncio.get_running_loop().time() + seconds
        if at < self._next:
            self._next = at
            self._sooner.set()

    def soon(self) -> None:
        """Tick without waiting for the second to be over: what is paused, quiet or cancelled may have changed."""
        self._control_changed = True
        self.due_in(0.0)

    def full_soon(self) -> None:
        """Tick without waiting for the second to be over, as one that comes by the second: it reaps."""
        self._next_full = 0.0
        self.soon()

    def on_hint(self) -> None:
        """Tick soon: there may be due jobs, or new topics."""
        self.due_in(max(0.0, self._began + HINTS_APART - asyncio.get_running_loop().time()))

    async def wait(self) -> bool:
        """Wait until a tick is due, or until `wake`; says whether one is due."""
        self._sooner.clear()
        wait = max(self._next, self._not_before) - asyncio.get_running_loop().time()
        if wait > 0:
            await wait_at_most(self._sooner, wait)
        return wait <= 0

    def wake(self) -> None:
        """Let `wait` return: the ticker stops."""
        self._sooner.set()

    def begin(self) -> tuple[bool, bool]:
        """A tick begins; says whether it comes by the second, and whether it is to look at running jobs.

        One for a due job is about that job: neither.
        """
        now = asyncio.get_running_loop().time()
        full = now >= self._next_full
        if full:
            self._next_full = now + self.tick_seconds
        running, self._control_changed = full or self._control_changed, False
        # Set before asking: a due job that becomes known meanwhile pulls it forward.
        self._next = self._next_full
        return full, running

    def asked(self) -> float:
        """The database is being asked; returns the time."""
        self._began = asyncio.get_running_loop().time()
        return self._began

    def ended(self, began: float) -> None:
        """A tick is over. However many jobs fall due one by one, at most half of the time is spent asking."""
        now = asyncio.get_running_loop().time()
        self._not_before = now + max(TICKS_APART, now - began)

    def learn(self, database_now: datetime) -> None:
        """What the database's clock showed just now."""
        self._ahead = database_now.timestamp() - asyncio.get_running_loop().time()
        self._ahead_most = database_now.timestamp() - self._began
        if self._steady is None or abs(self._steady - self._ahead) > STEP_SECONDS:
            self._steady = self._ahead
