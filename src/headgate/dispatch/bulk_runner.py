"""Carries operations on, chunk by chunk, on every instance; the store sees to it that no two do the same chunk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import uniform
from typing import Final, Protocol
from uuid import UUID

from headgate.dispatch.periodic import wait_at_most
from headgate.domain.bulk import Chunk
from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.bulk")
POLL_SECONDS: Final = 30.0
"""Between looks without a wake. The tick wakes, if it sees operations that are not over, and so does their start."""
BUSY_SECONDS: Final = 0.25
"""The operations there are have an instance each that works on them: look again for when one of them dies."""
_BACKOFF_MOST: Final = 5.0


class Chunks(Protocol):
    """What the runner asks of the store."""

    async def run_chunk(self) -> Chunk | None: ...
    async def next_chunk_in(self) -> float | None: ...


class BulkRunner:
    """One per instance."""

    def __init__(
        self,
        chunks: Chunks,
        *,
        on_requeued: Callable[[Sequence[tuple[int, UUID]]], None],
        poll: float = POLL_SECONDS,
    ) -> None:
        """`on_requeued` hears of (topic number, job) pairs that may be claimed at a new place."""
        self._chunks, self._on_requeued, self._poll = chunks, on_requeued, poll
        self._wake = asyncio.Event()
        self._stopped = False

    def wake(self) -> None:
        """An operation was started here, or the tick saw one that is not over."""
        self._wake.set()

    async def run_once(self) -> bool:
        """One chunk of one operation; says whether there was any."""
        done = await self._chunks.run_chunk()
        if done is None:
            return False
        if done.requeued:
            self._on_requeued(done.requeued)
        if done.error:
            log.warning("operation_error operation=%s error=%s", done.operation_id, done.error)
        if done.over:
            log.info("operation_ended operation=%s tenant=%d", done.operation_id, done.tenant_no)
        return True

    async def run(self) -> None:
        """Work until `stop`; returns between two chunks."""
        backoff = 0.0
        while not self._stopped:
            self._wake.clear()
            try:
                if await self.run_once():
                    backoff = 0.0
                    await asyncio.sleep(0)  # others on this loop, and their turn on the lane
                    continue
                waits = await self._chunks.next_chunk_in()
                if waits is not None and waits <= 0:
                    waits = BUSY_SECONDS
            except HeadgateError as error:
                backoff = min(_BACKOFF_MOST, max(0.1, backoff * 2))
                log.warning("bulk_chunk_failed error=%s retry_in=%.2fs", error, backoff)
                waits = backoff
            # Jittered: the instances of a system must not look in step. A rate-limited operation names its own time.
            idle = self._poll * uniform(0.8, 1.2)  # noqa: S311
            await wait_at_most(self._wake, idle if waits is None else min(idle, max(0.005, waits)))

    def stop(self) -> None:
        """End after the chunk that is under way."""
        self._stopped = True
        self._wake.set()
