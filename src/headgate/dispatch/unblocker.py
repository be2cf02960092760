"""Freeing jobs that waited for others: after the flush that ended the last of them, in a transaction of its own.

A flush only notes which jobs may be free; deciding there would make two flushes wait for each other, or miss each
other's half. This service is woken by such a flush, and by the tick of whichever instance finds notes lying about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import uniform
from typing import Final
from uuid import UUID

from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.ports import UnblockStore
from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.dispatch")

MEND_SECONDS: Final = 5.0
MEND_AT_ONCE: Final = 5_000
OnUnblocked = Callable[[Sequence[tuple[int, UUID]]], None]


class Unblocker:
    """One per instance; idle unless woken."""

    def __init__(self, store: UnblockStore, *, on_unblocked: OnUnblocked) -> None:
        self._store, self._on_unblocked = store, on_unblocked  # called with (topic, job) that are claimable now
        self._woken = asyncio.Event()
        self._stopped = False

    def wake(self) -> None:
        """There are, or may be, notes."""
        self._woken.set()

    async def run_once(self) -> int:
        """Decide all that is noted; returns how many jobs became claimable."""
        count, more = 0, True
        while more:
            unblocked, more = await self._store.unblock_ready()
            if unblocked:
                self._on_unblocked([(topic_no, job_id) for _, topic_no, job_id in unblocked])
            count += len(unblocked)
        return count

    async def mend(self) -> list[str]:
        """Look for jobs that wait for what is over; returns the dependencies that had to be mended."""
        mended = await self._store.mend_waits(limit=MEND_AT_ONCE)
        if mended:
            log.error('unblocked_late number=%d jobs=%s hint="please report this bug"', len(mended), mended[:10])
            self._woken.set()
        return mended

    async def run(self) -> None:
        """Serve until `stop`. After an error the next tick wakes it again."""
        now = asyncio.get_running_loop().time
        mend_at = now() + MEND_SECONDS
        while not self._stopped:
            await wait_at_most(self._woken, max(0.0, mend_at - now()))
            try:
                if self._woken.is_set():
                    self._woken.clear()
                    await self.run_once()
                if now() >= mend_at:
                    # Jittered: many instances must not do it in step.
                    mend_at = now() + MEND_SECONDS * uniform(0.8, 1.2)  # noqa: S311 - not a secret
                    await self.mend()
            except HeadgateError as error:
                log.warning("unblocking_failed error=%s", error)

    def stop(self) -> None:
        """End after what is under way."""
        self._stopped = True
        self._woken.set()
