"""oban-py on psycopg's pool."""

from __future__ import annotations

import asyncio
import logging

import kit
from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

LIMIT = kit.setting("CONCURRENCY")
tally: kit.Tally


@worker(queue=kit.QUEUE)
class Nothing:
    async def process(self, job: object) -> None:
        tally.began(job.args["body"])  # type: ignore[attr-defined]


async def pool(url: str, *, size: int = 16) -> AsyncConnectionPool:
    made = AsyncConnectionPool(url, min_size=size, max_size=size, open=False)
    await made.open()
    return made


class Producer(kit.Producer):
    async def prepare(self) -> None:
        async with await pool(self.url) as connections:
            await install(connections)

    async def open(self) -> None:
        self._oban = Oban(pool=await pool(self.url, size=kit.setting("POOL")))

    async def push_many(self, bodies: list[str]) -> None:
        await self._oban.enqueue_many([Nothing.new({"body": body}) for body in bodies])

    async def push(self, body: str) -> None:
        await self._oban.enqueue(Nothing.new({"body": body}))


async def work(program: kit.Program) -> None:
    logging.getLogger("oban").setLevel(logging.ERROR)
    async with Oban(pool=await pool(program.url), queues={kit.QUEUE: LIMIT}):
        await asyncio.Event().wait()


if __name__ == "__main__":
    program = kit.Program(Producer)
    tally = program.tally
    program.produce()
    kit.run(work(program))
