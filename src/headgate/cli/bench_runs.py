"""The measurements of `headgate bench`: one topic of a running server, producer and worker in one process."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Unpack
from uuid import UUID

from headgate.domain.errors import Refused
from headgate.sdk import Headgate, Job, Worker, WorkerOptions

CHUNK: Final = 1_000
INTERVAL_SECONDS: Final = 0.03
WARM_UP: Final = 20
CONNECT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.002
CONCURRENCY: Final = 1_000


class Topic:
    """The topic under measurement: its handler, and the ids of all jobs submitted to it.

    Every run ends at `until` (monotonic clock): a job not acknowledged by then is an error.
    """

    def __init__(self, hg: Headgate, name: str, *, until: float) -> None:
        self._hg, self.name, self._until = hg, name, until
        self.submitted: list[UUID] = []
        self._began: dict[bytes, float] = {}
        hg.register(name, self._handle)

    async def _handle(self, job: Job) -> None:
        self._began[job.payload] = time.perf_counter()

    async def submit(self, payload: bytes, jobs: int, *, seconds: float = math.inf) -> tuple[int, float]:
        """Submit up to `jobs` jobs for at most `seconds`; return the number and the time taken."""
        started = time.perf_counter()
        until = min(self._until, time.monotonic() + seconds)
        count = 0
        while count < jobs and time.monotonic() < until:
            size = min(CHUNK, jobs - count)
            # Several frames in flight: the next chunk does not wait for the answer to this one.
            chunks = [[payload] * CHUNK] * min(4, (jobs - count) // CHUNK) or [[payload] * size]
            for handles in await asyncio.gather(*(self._hg.submit_many(self.name, chunk) for chunk in chunks)):
                self.submitted += [handle.id for handle in handles]
                count += len(handles)
        return count, time.perf_counter() - started

    @asynccontextmanager
    async def worker(self, **options: Unpack[WorkerOptions]) -> AsyncIterator[Worker]:
        """Yield a connected worker; it finishes its jobs before the context ends."""
        worker = self._hg.worker(**options)
        running = asyncio.create_task(worker.run(), name="bench worker")
        try:
            give_up_at = time.monotonic() + CONNECT_SECONDS
            while not worker.connected:
                if running.done():
                    await running  # raises the reason
                if time.monotonic() > give_up_at:
                    raise Refused(
                        f"no worker could connect within {CONNECT_SECONDS:g} s; try again when the server is up"
                    )
                await asyncio.sleep(POLL_SECONDS)
            yield worker
        finally:
            worker.stop()
            await running

    async def completed(self, worker: Worker, count: int) -> None:
        """Wait until `count` completions of this worker are acknowledged; raises Refused when the time is over."""
        while (applied := worker.receipts.get("applied", 0)) < count:
            if time.monotonic() > self._until:
                raise Refused(
                    f'of {count:,} jobs on topic "{self.name}" this worker completed {applied:,} in the time given; '
                    "pass more --seconds, and make sure that no other worker serves this topic"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def pickup(self, count: int, *, interval: float = INTERVAL_SECONDS) -> list[float]:
        """Return the milliseconds from submit to the start of the handler, for single jobs on an idle system."""
        sent: dict[bytes, float] = {}
        async with self.worker() as worker:
            for number in range(-WARM_UP, count):  # the first jobs are for warm-up and are not counted
                if time.monotonic() > self._until:
                    break
                payload = b"%d" % number
                sent[payload] = time.perf_counter()
                self.submitted.append((await self._hg.submit(self.name, payload)).id)
                await asyncio.sleep(interval)
            await self.completed(worker, len(sent))
        return [(self._began[payload] - at) * 1000 for payload, at in list(sent.items())[WARM_UP:]]

    async def cycle(self, payload: bytes, jobs: int, *, seconds: float = math.inf) -> tuple[int, float]:
        """Submit while a worker works; return the number, and the time from first submit to last completion."""
        async with self.worker(concurrency=CONCURRENCY) as worker:
            started = time.perf_counter()
            count, _ = await self.submit(payload, jobs, seconds=seconds)
            await self.completed(worker, count)
            return count, time.perf_counter() - started

    async def drain(self, count: int) -> float:
        """Return the time a worker takes for `count` waiting jobs."""
        started = time.perf_counter()
        async with self.worker(concurrency=CONCURRENCY) as worker:
            await self.completed(worker, count)
            return time.perf_counter() - started

    async def remove_unfinished(self) -> int:
        """Cancel and discard the jobs that have not ended, and return their number. Completed jobs stay."""
        removed = 0
        jobs = self._hg.admin.jobs
        for first in range(0, len(self.submitted), CHUNK):
            part = self.submitted[first : first + CHUNK]
            cancelled = [one.id for one in await jobs.cancel(part, reason="headgate bench ended early") if one.changed]
            if cancelled:
                removed += sum(one.changed for one in await jobs.discard(cancelled, reason="headgate bench"))
        return removed


async def pickup(hg: Headgate, topic: str, count: int) -> list[float]:
    """Return idle pickup times of a topic, in milliseconds."""
    return await Topic(hg, topic, until=time.monotonic() + 60 + count).pickup(count)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
