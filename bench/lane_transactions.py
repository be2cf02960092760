"""What the notification costs: transactions of an application that submit a job each, on many connections at once.

PostgreSQL commits transactions with a notification one after the other; of several at the same time, one notifies (ADR
33). Measured in turns with notifications and without (`headgate.wake = off`), with a server that listens and no worker.
"""

from __future__ import annotations

import asyncio
import time

import asyncpg

from bench.figures import spread
from bench.stack import TOPIC, Stack, stack

CONNECTIONS = 16
SECONDS = 5.0
ROUNDS = 3
_ORDER = "INSERT INTO public.bench_orders DEFAULT VALUES RETURNING id"
_SUBMIT = "SELECT headgate.submit($1, 'x'::bytea)"


async def run(*, quick: bool = False) -> dict[str, object]:
    """Commits per second, with and without a notification in each."""
    seconds, rounds = (SECONDS / 10, 1) if quick else (SECONDS, ROUNDS)
    found: dict[str, list[float]] = {"on": [], "off": []}
    async with stack("transactions") as made:
        for _ in range(rounds):
            for wake, rates in found.items():
                await made.clean()
                rates.append(await commits(made, CONNECTIONS, seconds=seconds, wake=wake))
        cores = made.busy()
    return {
        "cores": cores,
        "transactions_per_s": spread(found["on"]),
        "transactions_without_wake_per_s": spread(found["off"]),
    }


async def commits(made: Stack, connections: int, *, seconds: float, wake: str = "on") -> float:
    """Commits per second of so many connections."""
    async with made.database() as db:
        await db.execute("CREATE TABLE IF NOT EXISTS public.bench_orders (id bigint GENERATED ALWAYS AS IDENTITY)")
    links = [await asyncpg.connect(made.dsn, server_settings={"headgate.wake": wake}) for _ in range(connections)]

    async def commit(link: asyncpg.Connection[asyncpg.Record], until: float) -> int:
        count = 0
        while time.monotonic() < until:
            async with link.transaction():
                await link.fetchval(_ORDER)
                await link.fetchval(_SUBMIT, TOPIC)
            count += 1
        return count

    try:
        began = time.monotonic()
        counts = await asyncio.gather(*(commit(link, began + seconds) for link in links))
        return sum(counts) / (time.monotonic() - began)
    finally:
        for link in links:
            await link.close()
