"""Chancy with its asyncio executor."""

from __future__ import annotations

import logging
import sys

import kit
from chancy import Chancy, Job, Queue, Worker

CONCURRENCY = kit.setting("CONCURRENCY")


class Producer(kit.Producer):
    async def prepare(self) -> None:
        async with Chancy(self.url) as chancy:
            await chancy.migrate()
            await chancy.declare(
                Queue(
                    kit.QUEUE,
                    concurrency=CONCURRENCY,
                    executor=Chancy.Executor.Async,
                    polling_interval=1,
                    eager_polling=True,
                )
            )

    async def open(self) -> None:
        self._chancy = await Chancy(self.url, max_connection_pool_size=kit.setting("POOL")).__aenter__()
        self._job = Job(func="chancy_program.nothing", queue=kit.QUEUE)

    async def push_many(self, bodies: list[str]) -> None:
        async for _ in self._chancy.push_many([self._job.with_kwargs(body=body) for body in bodies]):
            pass

    async def push(self, body: str) -> None:
        await self._chancy.push(self._job.with_kwargs(body=body))


async def nothing(*, body: str) -> None:
    program.tally.began(body)


async def work(program: kit.Program) -> None:
    log = logging.getLogger("chancy")
    log.setLevel(logging.ERROR)
    async with Chancy(program.url, log=log) as chancy:
        worker = Worker(chancy)
        worker.send_outgoing_interval = 0.05  # finished jobs are written this often, one second by default
        async with worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    sys.modules["chancy_program"] = sys.modules["__main__"]  # the worker imports the job's function by its name
    program = kit.Program(Producer)
    program.produce()
    kit.run(work(program))
