"""PgQueuer on asyncpg."""

from __future__ import annotations

import logging
from datetime import timedelta

import asyncpg
import kit
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, Job, PgQueuer, Queries

BATCH = kit.setting("BATCH")


class Producer(kit.Producer):
    async def prepare(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()  # durability "durable", its default
        await connection.close()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=kit.setting("POOL"), max_size=kit.setting("POOL"))
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def push_many(self, bodies: list[str]) -> None:
        count = len(bodies)
        await self._queries.enqueue([kit.QUEUE] * count, [body.encode() for body in bodies], [0] * count)

    async def push(self, body: str) -> None:
        await self._queries.enqueue(kit.QUEUE, body.encode())


async def work(program: kit.Program) -> None:
    logging.getLogger("pgqueuer").setLevel(logging.ERROR)
    connection = await asyncpg.connect(program.url)
    manager = PgQueuer(AsyncpgDriver(connection))

    @manager.entrypoint(kit.QUEUE)
    async def nothing(job: Job) -> None:
        program.tally.began((job.payload or b"x").decode())

    await manager.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=5))


if __name__ == "__main__":
    program = kit.Program(Producer)
    program.produce()
    kit.run(work(program))
