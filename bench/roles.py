"""The producers and workers of a lane, each a process: `python -m bench.roles ROLE ADDRESSES …`, see stack.Role."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence

import uvloop

from bench.stack import TOPIC, process_seconds
from headgate import Headgate, Job, Worker

PLAIN_LOOP = frozenset({"produce_default"})
"""Roles of an application that calls `asyncio.run`; the others run on uvloop."""


def wait_for_go() -> float:
    """Say ready, wait for the word; processor time used so far."""
    print("ready", flush=True)
    sys.stdin.readline()
    return process_seconds(os.getpid())


def tell(cpu_before: float, **found: float) -> None:
    """The last words."""
    print(json.dumps(found | {"cpu": process_seconds(os.getpid()) - cpu_before}), flush=True)


async def work(addresses: str, count: int, concurrency: int, prefetch: int, sessions: int = 1) -> None:
    """Handle jobs that do nothing until `count` completions are acknowledged; `prefetch` -1: as the SDK finds it."""
    hg = Headgate(addresses)
    handled = 0

    @hg.job(TOPIC)
    async def nothing(job: Job) -> None:
        nonlocal handled
        del job
        handled += 1

    def worker() -> Worker:
        return (
            hg.worker(concurrency=concurrency, prefetch=prefetch)
            if prefetch >= 0
            else hg.worker(concurrency=concurrency)
        )

    workers = [worker() for _ in range(sessions)]
    await work_until([hg], workers, count, found=lambda: {"handled": handled}, handled=lambda: handled)


async def work_default(addresses: str, count: int) -> None:
    """As a new user writes it: typed arguments, default settings."""
    hg = Headgate(addresses)
    handled = 0

    @hg.job(TOPIC)
    async def add(left: int, right: int) -> int:
        nonlocal handled
        handled += 1
        return left + right

    await work_until([hg], [hg.worker()], count, found=lambda: {"handled": handled})


async def work_until(
    clients: Sequence[Headgate],
    workers: Sequence[Worker],
    count: int,
    *,
    found: Callable[[], dict[str, float]],
    handled: Callable[[], int] | None = None,
) -> None:
    """Until `count` outcomes are acknowledged, or (0) until asked to stop: then the time of the last one counts."""
    running = [asyncio.create_task(worker.run()) for worker in workers]
    while not all(worker.connected for worker in workers):
        await asyncio.sleep(0.01)
    cpu = wait_for_go()
    started = ended = time.monotonic()
    stop = asyncio.Event()
    if not count:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    applied, seen = 0, -1
    while not stop.is_set() and not any(task.done() for task in running):
        # Looking is work, too, and more of it the more workers there are: where `handled` tells how many handlers have
        # ended, receipts are summed up only when none has since the last look. Every 10 ms it was a seventh of the
        # time of a process of 16 workers.
        so_far = -1 if count or handled is None else handled()
        if so_far == seen:
            now = sum(worker.receipts.get("applied", 0) for worker in workers)
            if now > applied:
                applied, ended = now, time.monotonic()
            if count and applied >= count:
                break
        seen = so_far
        await asyncio.sleep(0.002 if count else 0.01)
    tell(cpu, started=started, ended=ended, applied=applied, **found())
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    for hg in clients:
        await hg.close()


async def produce_many(addresses: str, count: int, size: int = 100) -> None:
    """One call for all of them."""
    hg = Headgate(addresses)
    await hg.submit("warm-up", b"")
    body = b"x" * size if size <= 100 else os.urandom(size)  # PostgreSQL would compress a long row of one letter
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


async def produce_default(addresses: str, count: int, tasks: int) -> None:
    """`produce_tasks` without uvloop."""
    loop = type(asyncio.get_running_loop()).__module__
    assert not loop.startswith("uvloop"), f"the default SDK is measured on asyncio's own loop, not on {loop}"
    await produce_tasks(addresses, count, tasks)


def main(role: str, addresses: str, *numbers: str) -> None:
    """Play one role to its end."""
    from bench import roles_idle, roles_paced, roles_pickup, roles_varied

    logging.disable(logging.ERROR)  # a lane of failing jobs is not about log lines
    for module in (sys.modules[__name__], roles_paced, roles_varied, roles_idle, roles_pickup):
        if play := getattr(module, role, None):
            run = asyncio.run if role in PLAIN_LOOP else uvloop.run
            run(play(addresses, *map(int, numbers)))
            return
    raise SystemExit(f"there is no role {role}")


if __name__ == "__main__":
    main(*sys.argv[1:])
