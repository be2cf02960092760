"""Freeing jobs that waited for others: after the flush that ended the last of them, in a transaction of its own.

A flush only notes which jobs may be free; deciding there would make two flushes wait for each other, or miss each
other's half. This service is woken by such a flush, and by the tick of whichever instance finds notes lying about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from headgate.dispatch.ports import FreeStore
from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.dispatch")

OnFree = Callable[[Sequence[tuple[int, UUID]]], None]


class Freer:
    """One per instance; idle unless woken."""

    def __init__(self, store: FreeStore, *, on_free: OnFree) -> None:
        self._store, self._on_free = store, on_free  # told of (topic, job) that are claimable now
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There are, or may be, notes."""
        self._woken.set()

    async def run_once(self) -> int:
        """Decide all that is noted; returns how many jobs became claimable."""
        count, more = 0, True
        while more:
            freed, more = await self._store.free_ready()
            if freed:
                self._on_free([(topic_no, job_id) for _, topic_no, job_id in freed])
            count += len(freed)
        return count

    async def run(self) -> None:
        """Serve until cancelled. After an error the next tick wakes it again."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self.run_once()
            except HeadgateError as error:
                log.warning("freeing_failed error=%s", error)
