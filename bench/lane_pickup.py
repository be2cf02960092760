"""Idle pickup: from before `submit` to the start of the handler, on an idle machine, one job at a time.

A real server process; producer and worker share this process, so that both ends read one clock. Once with notifications
and once poll-only: on one instance they must not matter.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time

from headgate import Headgate

SUBMITS = 500
APART_SECONDS = 0.03


async def run(dsn: str, *, quick: bool = False) -> dict[str, object]:
    """Milliseconds, p50 and p99."""
    count = SUBMITS // 10 if quick else SUBMITS
    report: dict[str, object] = {}
    for name, options in (("pickup", ()), ("pickup_poll_only", ("--poll-only",))):
        server = subprocess.Popen(
            [sys.executable, "-m", "headgate.cli", "serve", "--dev", "--port", "0", "--log-level", "WARNING", *options],
            env=os.environ | {"HEADGATE_DATABASE_URL": dsn},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().rsplit(" ", 1)[1].strip()
            waits = await measure(address, count)
        finally:
            server.terminate()
            server.wait(30)
        report[f"{name}_p50_ms"] = round(statistics.median(waits), 2)
        report[f"{name}_p99_ms"] = round(sorted(waits)[int(len(waits) * 0.99)], 2)
    return report


async def measure(address: str, count: int) -> list[float]:
    """Submit one job after the other; the handler notes when it starts."""
    hg = Headgate(address)
    started: dict[int, float] = {}

    @hg.job("pickup")
    async def pickup(number: int) -> None:
        started[number] = time.perf_counter()

    working = asyncio.create_task(hg.work(concurrency=8))
    sent: dict[int, float] = {}
    for number in range(-20, count):  # the first ones warm everything up, and are not counted
        sent[number] = time.perf_counter()
        await pickup.submit(number)
        await asyncio.sleep(APART_SECONDS)
    while len(started) < len(sent):
        await asyncio.sleep(0.01)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await hg.close()
    return [(started[number] - sent[number]) * 1000 for number in range(count)]
