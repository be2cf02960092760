"""Roles of lanes whose jobs are not all alike: tenants, topics, priorities, failures, limit keys."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from bench.roles import tell, wait_for_go, work_until
from bench.stack import TOPIC
from headgate import Headgate, Job, RetryPolicy

TENANTS, TOPICS, PRIORITIES = 5, 10, (0, 10, -10)
KEYS = 100
CHUNK, IN_FLIGHT = 200, 8
RETRY = RetryPolicy.fixed(timedelta(milliseconds=100))
FAILS, SUCCEEDS = b"f" * 100, b"s" * 100


def token_of(tenant: int) -> str:
    """What the server of the mixed lane knows a tenant by."""
    return f"benchmark-of-tenant-{tenant}"


async def produce_mixed(addresses: str, count: int) -> None:
    """Five tenants at once; each goes round its topics and priorities, a chunk at a time."""
    clients = [Headgate(addresses, token=token_of(tenant)) for tenant in range(TENANTS)]
    for hg in clients:
        await hg.submit("warm-up", b"")

    async def produce(hg: Headgate) -> None:
        left, turn = count // TENANTS, 0
        while left:
            size = min(CHUNK, left)
            topic, priority = f"{TOPIC}-{turn % TOPICS}", PRIORITIES[turn % len(PRIORITIES)]
            await hg.submit_many(topic, [b"x" * 100] * size, priority=priority)
            left, turn = left - size, turn + 1

    cpu = wait_for_go()
    started = time.monotonic()
    await asyncio.gather(*(produce(hg) for hg in clients))
    tell(cpu, started=started, ended=time.monotonic())
    for hg in clients:
        await hg.close()


async def work_mixed(addresses: str, count: int, concurrency: int, prefetch: int) -> None:
    """A session for each tenant, all topics on each."""
    handled = 0

    async def nothing(job: Job) -> None:
        nonlocal handled
        del job
        handled += 1

    clients = [Headgate(addresses, token=token_of(tenant)) for tenant in range(TENANTS)]
    for hg in clients:
        for number in range(TOPICS):
            hg.register(f"{TOPIC}-{number}", nothing)
    workers = [hg.worker(concurrency=concurrency // TENANTS, prefetch=prefetch // TENANTS) for hg in clients]
    await work_until(clients, workers, count, found=lambda: {"handled": handled})


async def produce_failing(addresses: str, count: int, percent: int) -> None:
    """So many of a hundred say that their first attempt is to fail."""
    hg = Headgate(addresses)
    await hg.submit("warm-up", b"")
    cpu = wait_for_go()
    started = time.monotonic()
    # 37 and 100 have no common divisor: the failing ones are spread evenly over every hundred.
    bodies = (FAILS if number * 37 % 100 < percent else SUCCEEDS for number in range(count))
    await hg.submit_many(TOPIC, bodies, retry=RETRY)
    tell(cpu, started=started, ended=time.monotonic())
    await hg.close()


async def work_failing(addresses: str, count: int, concurrency: int, prefetch: int) -> None:
    """Fail when the payload says so, once; `count` outcomes, failures among them."""
    hg = Headgate(addresses)
    handled = 0

    @hg.job(TOPIC)
    async def sometimes(job: Job) -> None:
        nonlocal handled
        handled += 1
        if job.attempt == 1 and job.payload == FAILS:
            raise RuntimeError("as the payload asked for")

    workers = [hg.worker(concurrency=concurrency, prefetch=prefetch)]
    await work_until([hg], workers, count, found=lambda: {"handled": handled})


async def produce_keyed(addresses: str, count: int) -> None:
    """Jobs of a hundred limit keys, a chunk of one key after a chunk of another."""
    hg = Headgate(addresses)
    await hg.submit("warm-up", b"")
    chunks = iter(range(0, count, CHUNK))

    async def produce() -> None:
        for first in chunks:
            size = min(CHUNK, count - first)
            await hg.submit_many(TOPIC, [b"x" * 100] * size, limit_key=f"customer-{first // CHUNK % KEYS}")

    cpu = wait_for_go()
    started = time.monotonic()
    await asyncio.gather(*(produce() for _ in range(IN_FLIGHT)))
    tell(cpu, started=started, ended=time.monotonic())
    await hg.close()
