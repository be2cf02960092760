"""The retention service of one instance: one bounded pass after the other. Every instance runs one; none leads.

A pass removes what is old for about a second. While more is left, the service rests three times as long as the pass
took, so that it uses a quarter of one connection at the most; when nothing is left it looks again after a minute.
"""

from __future__ import annotations

import logging
import time
from random import uniform
from typing import Final, Protocol

from headgate.dispatch.periodic import Periodic
from headgate.domain.retention import Removed

log = logging.getLogger("headgate.retention")
LOOK_SECONDS: Final = 60.0
_REST: Final = 3
_REST_LEAST: Final = 0.5


class RetentionPasses(Protocol):
    """The database's side."""

    async def run_pass(self) -> Removed: ...


class Retention(Periodic):
    """Removes finished jobs whose time is over."""

    def __init__(self, store: RetentionPasses, *, look_seconds: float = LOOK_SECONDS) -> None:
        super().__init__("retention_failed error=%s", look_seconds)
        self._store = store
        # Jittered from the start: servers that begin together must not pass in step.
        self._next = look_seconds * uniform(0.1, 0.5)  # noqa: S311 - not a secret

    async def run_once(self) -> Removed:
        """One pass; logs what it removed."""
        began = time.monotonic()
        done = await self._store.run_pass()
        if done.jobs or done.days:
            log.info("retention_removed jobs=%d days=%d other=%d more=%s", done.jobs, done.days, done.other, done.more)
        if done.more:
            self._next = max(_REST_LEAST, _REST * (time.monotonic() - began))
        return done

    def pause(self) -> float:
        """While more is left, three times as long as the pass took."""
        pause, self._next = self._next, super().pause()
        return pause
