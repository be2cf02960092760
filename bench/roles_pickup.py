"""Roles of the pickup lane: a producer that submits one job at a time, and a worker that is idle in between."""

from __future__ import annotations

import asyncio
import os
import time

import asyncpg

from bench.figures import percentile
from bench.roles import tell, wait_for_go, work_until
from bench.roles_paced import MOMENT, PADDING
from bench.stack import TOPIC
from headgate import Headgate, Job

APART_SECONDS = 0.03
WARM_UP = 20
"""The first jobs are handled, and not counted."""


async def produce_apart(addresses: str, count: int) -> None:
    """Submit one job, wait for its acknowledgement and a pause, and submit the next."""
    hg = Headgate(addresses)
    await hg.submit("warm-up", b"")
    cpu = wait_for_go()
    started = time.monotonic()
    for _ in range(WARM_UP + count):
        await hg.submit(TOPIC, MOMENT.pack(time.monotonic()) + PADDING)
        await asyncio.sleep(APART_SECONDS)
    tell(cpu, started=started, ended=time.monotonic())
    await hg.close()


async def produce_in_transactions(addresses: str, count: int) -> None:
    """The same in transactions of its own."""
    hg = Headgate(addresses)
    connection = await asyncpg.connect(os.environ["HEADGATE_DATABASE_URL"])
    async with connection.transaction():
        await hg.submit_in(connection, "warm-up", b"")
    cpu = wait_for_go()
    started = time.monotonic()
    for _ in range(WARM_UP + count):
        async with connection.transaction():
            await hg.submit_in(connection, TOPIC, MOMENT.pack(time.monotonic()) + PADDING)
        await asyncio.sleep(APART_SECONDS)
    tell(cpu, started=started, ended=time.monotonic())
    await connection.close()
    await hg.close()


async def work_apart(addresses: str, count: int) -> None:
    """Note the milliseconds from before each submit to the start of its handler; default settings."""
    hg = Headgate(addresses)
    waits: list[float] = []

    @hg.job(TOPIC)
    async def note(job: Job) -> None:
        waits.append((time.monotonic() - MOMENT.unpack_from(job.payload)[0]) * 1000)

    def found() -> dict[str, float]:
        counted = waits[WARM_UP:]
        return {"handled": len(waits), "p50_ms": percentile(counted, 0.5), "p99_ms": percentile(counted, 0.99)}

    await work_until([hg], [hg.worker()], WARM_UP + count, found=found)
