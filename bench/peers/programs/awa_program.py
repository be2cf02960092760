"""awa-pg: its Rust runtime under Python handlers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import awa
import kit

WORKERS = kit.setting("CONCURRENCY")
CLAIMERS = kit.setting("CLAIMERS")
BATCH = kit.setting("BATCH")


def with_host(url: str) -> str:
    """Its driver refuses a URL without a host, even when the socket's folder is given."""
    return url.replace("@/", "@localhost/")


@dataclass
class Nothing:
    body: str


class Producer(kit.Producer):
    async def prepare(self) -> None:
        client = awa.AsyncClient(with_host(self.url))
        await client.migrate()
        await client.install_queue_storage()  # its current engine, which COPY ingestion asks for
        await client.close()

    async def open(self) -> None:
        self._client = awa.AsyncClient(with_host(self.url), max_connections=kit.setting("POOL"))

    async def push_many(self, bodies: list[str]) -> None:
        await self._client.enqueue_many_copy([Nothing(body) for body in bodies], queue=kit.QUEUE)

    async def push(self, body: str) -> None:
        await self._client.insert(Nothing(body), queue=kit.QUEUE)


async def work(program: kit.Program) -> None:
    client = awa.AsyncClient(with_host(program.url), max_connections=20)

    @client.task(Nothing, queue=kit.QUEUE)
    async def nothing(job: awa.Job[Nothing]) -> None:
        program.tally.began(job.args.body)

    queue = {"name": kit.QUEUE, "max_workers": WORKERS, "claimers": CLAIMERS, "claim_batch_size": BATCH}
    await client.start([queue], poll_interval_ms=50)
    await asyncio.Event().wait()


if __name__ == "__main__":
    program = kit.Program(Producer)
    program.produce()
    asyncio.run(work(program))
