"""SAQ on Redis."""

from __future__ import annotations

import asyncio

import kit
from redis.asyncio import BlockingConnectionPool, Redis
from saq import Worker
from saq.queue.redis import RedisQueue

CONCURRENCY = kit.setting("CONCURRENCY")
AT_ONCE = 64


def queue(url: str, *, connections: int) -> RedisQueue:
    pool = BlockingConnectionPool.from_url(url, max_connections=connections, timeout=60)
    return RedisQueue(Redis(connection_pool=pool), name=kit.QUEUE, max_concurrent_ops=connections)


class Producer(kit.Producer):
    """SAQ has no call for many jobs: many `enqueue` at once is what its own benchmark does."""

    async def open(self) -> None:
        self._queue = queue(self.url, connections=AT_ONCE)
        await self._queue.connect()

    async def push_many(self, bodies: list[str]) -> None:
        await asyncio.gather(*map(self.push, bodies))

    async def push(self, body: str) -> None:
        # ttl -1 removes a finished job at once instead of keeping its result for ten minutes.
        await self._queue.enqueue("nothing", body=body, ttl=-1)

    async def close(self) -> None:
        await self._queue.disconnect()


async def work(program: kit.Program) -> None:
    async def nothing(ctx: object, *, body: str) -> None:
        program.tally.began(body)

    jobs = queue(program.url, connections=2 * CONCURRENCY + 4)
    worker = Worker(jobs, functions=[("nothing", nothing)], concurrency=CONCURRENCY)
    await worker.start()


if __name__ == "__main__":
    program = kit.Program(Producer)
    program.produce()
    kit.run(work(program))
