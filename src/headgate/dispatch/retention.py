"""The retention service of one instance: one bounded pass after the other. Every instance runs one; none leads.

A pass removes what is old for about a second. While more is left, the service rests three times as long as the pass
took, so that it uses a quarter of one connection at the most; when nothing is left it looks again after a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from random import uniform
from typing import Final, Protocol

from headgate.domain.errors import HeadgateError
from headgate.domain.retention import Removed

log = logging.getLogger("headgate.retention")
LOOK_SECONDS: Final = 60.0
_REST: Final = 3
_REST_LEAST: Final = 0.5


class RetentionPasses(Protocol):
    """The database's side."""

    async def run_pass(self) -> Removed: ...


class Retention:
    """Removes finished jobs whose time is over."""

    def __init__(self, store: RetentionPasses, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._store, self._look = store, look_seconds

    async def run_once(self) -> Removed:
        """One pass; logs what it removed."""
        done = await self._store.run_pass()
        if done.jobs or done.days:
            log.info("retention jobs=%d days=%d other=%d more=%s", done.jobs, done.days, done.other, done.more)
        return done

    async def run(self) -> None:
        """Pass after pass, until cancelled: every step commits by itself, so nothing is left half done."""
        # Jittered from the start: servers that begin together must not pass in step.
        wait = self._look * uniform(0.1, 0.5)  # noqa: S311 - jitter
        while True:
            await asyncio.sleep(wait)
            began = time.monotonic()
            wait = self._look * uniform(0.8, 1.2)  # noqa: S311 - jitter
            try:
                if (await self.run_once()).more:
                    wait = max(_REST_LEAST, _REST * (time.monotonic() - began))
            except HeadgateError as error:
                log.warning("retention_failed error=%s", error)
