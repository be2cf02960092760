"""Headgate itself, by the same roles as every other program; the URL is the server's address."""

from __future__ import annotations

import time
from collections.abc import Iterator

import kit

from headgate import Headgate, Job


class Producer(kit.Producer):
    async def open(self) -> None:
        self._hg = Headgate(self.url)
        await self._hg.submit("warm-up", b"")
        self._body = kit.BODY.encode()

    async def bulk(self, count: int, deadline: float) -> int:
        """One call of `submit_many`: the SDK cuts it into frames."""
        sent = 0

        def bodies() -> Iterator[bytes]:
            nonlocal sent
            while sent < count and time.monotonic() < deadline:
                sent += 1
                yield self._body

        await self._hg.submit_many(kit.QUEUE, bodies())
        return sent

    async def push(self, body: str) -> None:
        await self._hg.submit(kit.QUEUE, body.encode())

    async def close(self) -> None:
        await self._hg.close()


async def work(program: kit.Program) -> None:
    hg = Headgate(program.url)

    @hg.job(kit.QUEUE)
    async def nothing(job: Job) -> None:
        program.tally.began(bytes(job.payload).decode())

    await hg.worker(concurrency=kit.setting("CONCURRENCY"), prefetch=kit.setting("PREFETCH")).run()


if __name__ == "__main__":
    program = kit.Program(Producer)
    program.produce()
    kit.run(work(program))
