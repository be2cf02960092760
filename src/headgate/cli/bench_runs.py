"""What `headgate bench` measures, by the SDK alone: one topic of a running server, one process for both ends."""

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
APART_SECONDS: Final = 0.03
WARM_UP: Final = 20
CONNECT_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.002
CONCURRENCY: Final = 1_000


class Topic:
    """A topic that is ours while we measure: its handler, and the ids of all that was submitted to it.

    `until`, on the monotonic clock, ends every run: what is not acknowledged by then is an error.
    """

    def __init__(self, hg: Headgate, name: str, *, until: float) -> None:
        self._hg, self.name, self._until = hg, name, until
        self.submitted: list[UUID] = []
        self._began: dict[bytes, float] = {}
        hg.register(name, self._handle)

    async def _handle(self, job: Job) -> None:
        self._began[job.payload] = time.perf_counter()

    async def submit(self, payload: bytes, jobs: int, *, seconds: float = math.inf) -> tuple[int, float]:
        """Up to `jobs` of them, for at most `seconds`; how many, and how long it took."""
        started = time.perf_counter()
        enough = min(self._until, time.monotonic() + seconds)
        count = 0
        while count < jobs and time.monotonic() < enough:
            size = min(CHUNK, jobs - count)
            # Several frames on their way at once: the next chunk is not held up by the answer to this one.
            chunks = [[payload] * CHUNK] * min(4, (jobs - count) // CHUNK) or [[payload] * size]
            for handles in await asyncio.gather(*(self._hg.submit_many(self.name, chunk) for chunk in chunks)):
                self.submitted += [handle.id for handle in handles]
                count += len(handles)
        return count, time.perf_counter() - started

    @asynccontextmanager
    async def worker(self, **options: Unpack[WorkerOptions]) -> AsyncIterator[Worker]:
        """A connected worker; it has finished what it began when this ends."""
        worker = self._hg.worker(**options)
        running = asyncio.create_task(worker.run(), name="bench worker")
        try:
            patience = time.monotonic() + CONNECT_SECONDS
            while not worker.connected:
                if running.done():
                    await running  # it says why
                if time.monotonic() > patience:
                    raise Refused(
                        f"no worker could connect within {CONNECT_SECONDS:g} s; try again when the server is up"
                    )
                await asyncio.sleep(LOOK_SECONDS)
            yield worker
        finally:
            worker.stop()
            await running

    async def completed(self, worker: Worker, count: int) -> None:
        """Wait until `count` completions of this worker are acknowledged. Raises Refused at the end of the time."""
        while (applied := worker.receipts.get("applied", 0)) < count:
            if time.monotonic() > self._until:
                raise Refused(
                    f'of {count:,} jobs on topic "{self.name}" this worker completed {applied:,} in the time given; '
                    "give more --seconds, and make sure that no other worker listens to this topic"
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def pickup(self, count: int, *, apart: float = APART_SECONDS) -> list[float]:
        """Milliseconds from before a submit to the start of its handler, for single jobs that find everything idle."""
        sent: dict[bytes, float] = {}
        async with self.worker() as worker:
            for number in range(-WARM_UP, count):  # the first ones warm everything up, and are not counted
                if time.monotonic() > self._until:
                    break
                payload = b"%d" % number
                sent[payload] = time.perf_counter()
                self.submitted.append((await self._hg.submit(self.name, payload)).id)
                await asyncio.sleep(apart)
            await self.completed(worker, len(sent))
        return [(self._began[payload] - at) * 1000 for payload, at in list(sent.items())[WARM_UP:]]

    async def cycle(self, payload: bytes, jobs: int, *, seconds: float = math.inf) -> tuple[int, float]:
        """Submit while a worker works, from the first submit to the last acknowledged completion."""
        async with self.worker(concurrency=CONCURRENCY) as worker:
            started = time.perf_counter()
            count, _ = await self.submit(payload, jobs, seconds=seconds)
            await self.completed(worker, count)
            return count, time.perf_counter() - started

    async def work_off(self, count: int) -> float:
        """How long a worker takes for `count` jobs that wait."""
        started = time.perf_counter()
        async with self.worker(concurrency=CONCURRENCY) as worker:
            await self.completed(worker, count)
            return time.perf_counter() - started

    async def take_back(self) -> int:
        """Cancel and remove what did not end; how many those were. Completed jobs stay."""
        removed = 0
        jobs = self._hg.admin.jobs
        for first in range(0, len(self.submitted), CHUNK):
            part = self.submitted[first : first + CHUNK]
            cancelled = [one.id for one in await jobs.cancel(part, reason="headgate bench ended early") if one.changed]
            if cancelled:
                removed += sum(one.changed for one in await jobs.discard(cancelled, reason="headgate bench"))
        return removed


async def pickup(hg: Headgate, topic: str, count: int) -> list[float]:
    """Idle pickup on a topic of a server, in milliseconds."""
    return await Topic(hg, topic, until=time.monotonic() + 60 + count).pickup(count)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
