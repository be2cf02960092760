"""arq on Redis."""

from __future__ import annotations

import asyncio
import logging

import kit
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

MAX_JOBS = kit.setting("CONCURRENCY")
AT_ONCE = 64


def settings(url: str) -> RedisSettings:
    made = RedisSettings.from_dsn(url)
    made.max_connections = 2 * MAX_JOBS + AT_ONCE
    return made


class Producer(kit.Producer):
    """arq has no call for many jobs: many `enqueue_job` at once."""

    async def open(self) -> None:
        self._pool = await create_pool(settings(self.url), default_queue_name=kit.QUEUE)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def push_many(self, bodies: list[str]) -> None:
        await asyncio.gather(*map(self.push, bodies))

    async def push(self, body: str) -> None:
        async with self._turns:
            await self._pool.enqueue_job("nothing", body)

    async def close(self) -> None:
        await self._pool.aclose()


async def work(program: kit.Program) -> None:
    async def nothing(ctx: object, body: str) -> None:
        program.tally.began(body)

    logging.getLogger("arq").setLevel(logging.ERROR)
    worker = Worker(
        [func(nothing, name="nothing", keep_result=0)],
        queue_name=kit.QUEUE,
        redis_settings=settings(program.url),
        max_jobs=MAX_JOBS,
        poll_delay=0.005,
        queue_read_limit=5 * MAX_JOBS,
        log_results=False,
    )
    await worker.async_run()


if __name__ == "__main__":
    program = kit.Program(Producer)
    program.produce()
    kit.run(work(program))
