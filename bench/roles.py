"""The producers and workers of a lane, each a process: `python -m bench.roles ROLE ADDRESSES …`, see stack.Role."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop

from bench.stack import process_seconds
from headgate import Headgate, Job

PAYLOAD = b"x" * 100
TOPIC = "bench"


def wait_for_go() -> float:
    """Say ready, wait for the word; processor time used so far."""
    print("ready", flush=True)
    sys.stdin.readline()
    return process_seconds(os.getpid())


def tell(cpu_before: float, **found: float) -> None:
    """The last words."""
    print(json.dumps(found | {"cpu": process_seconds(os.getpid()) - cpu_before}), flush=True)


async def work(addresses: str, count: int, concurrency: int, prefetch: int) -> None:
    """Handle jobs that do nothing until `count` completions are acknowledged."""
    hg = Headgate(addresses)
    handled = 0

    @hg.job(TOPIC)
    async def nothing(job: Job) -> None:
        nonlocal handled
        del job
        handled += 1

    await _work(hg, count, concurrency=concurrency, prefetch=prefetch, handled=lambda: handled)


async def work_default(addresses: str, count: int) -> None:
    """As a new user writes it: typed arguments, default settings."""
    hg = Headgate(addresses)
    handled = 0

    @hg.job(TOPIC)
    async def add(left: int, right: int) -> int:
        nonlocal handled
        handled += 1
        return left + right

    await _work(hg, count, handled=lambda: handled)


async def _work(hg: Headgate, count: int, *, handled, **options: int) -> None:  # type: ignore[no-untyped-def]
    worker = hg.worker(**options)  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    while not worker.connected:
        await asyncio.sleep(0.01)
    cpu = wait_for_go()
    started = time.monotonic()
    while worker.receipts.get("applied", 0) < count and not running.done():
        await asyncio.sleep(0.002)
    ended = time.monotonic()
    tell(cpu, started=started, ended=ended, handled=handled(), applied=worker.receipts.get("applied", 0))
    worker.stop()
    await running
    await hg.close()


async def produce_many(addresses: str, count: int, size: int = 100) -> None:
    """One call for all of them."""
    hg = Headgate(addresses)
    await hg.submit("warm-up", b"")
    body = b"x" * size
    cpu = wait_for_go()
    started = time.monotonic()
    await hg.submit_many(TOPIC, (body for _ in range(count)))
    tell(cpu, started=started, ended=time.monotonic())
    await hg.close()


async def produce_tasks(addresses: str, count: int, tasks: int) -> None:
    """`await submit(...)` from many tasks at once, as a web application does."""
    hg = Headgate(addresses)
    await hg.submit("warm-up", b"")

    @hg.job(TOPIC)
    async def add(left: int, right: int) -> int:
        return left + right

    left = count

    async def submit() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await add.submit(left, 1)

    cpu = wait_for_go()
    started = time.monotonic()
    await asyncio.gather(*(submit() for _ in range(tasks)))
    tell(cpu, started=started, ended=time.monotonic())
    await hg.close()


ROLES = {"work": work, "work_default": work_default, "produce_many": produce_many, "produce_tasks": produce_tasks}


if __name__ == "__main__":
    role, where, *numbers = sys.argv[1:]
    uvloop.run(ROLES[role](where, *map(int, numbers)))  # type: ignore[operator]
