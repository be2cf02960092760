"""One port served by one process or by several: what it takes in and works off, and how the kernel shares sessions.

python -m bench.lane_processes [PROCESSES …]
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter

from bench.lane_cycle import CONCURRENCY, PREFETCH, check_archive, spread
from bench.stack import Stack, stack
from headgate import Headgate

JOBS = 60_000
ROUNDS = 3
WORKER_PROCESSES = 4
"""Worker processes, with two sessions each, and as many producers."""
SESSIONS = 64
PICKUPS, PRODUCERS = 20, 8


async def run(numbers: tuple[int, ...] = (1, 2)) -> dict[str, object]:
    """Figures by the number of processes."""
    report: dict[str, object] = {}
    for number in numbers:
        async with stack("processes", options=("--processes", str(number), "--name", "bench")) as made:
            runs = [await cycle(made) for _ in range(ROUNDS)]
            rates = [rate for rate, _ in runs]
            report[str(number)] = {
                "cycles_per_s": spread(rates),
                "server_cpu_us_per_job": round(statistics.median(cpu for _, cpu in runs), 1),
                "sessions": await dealt(made),
                "pickup_ms": await pickup(made),
            }
    return report


async def cycle(made: Stack) -> tuple[float, float]:
    """Producers and workers at once, from the first submit to the last acknowledged completion; server µs a job."""
    await made.clean()
    each = JOBS // WORKER_PROCESSES
    worker_processes = [
        ("work", "0", str(CONCURRENCY // WORKER_PROCESSES // 2), str(PREFETCH // WORKER_PROCESSES // 2), "2")
    ] * WORKER_PROCESSES
    with made.roles(*worker_processes, *[("produce_many", str(each))] * WORKER_PROCESSES) as roles:
        cpu = made.cpu_seconds()["server"]
        for role in roles:
            role.go()
        produced = [await asyncio.to_thread(role.report) for role in roles[WORKER_PROCESSES:]]
        await made.all_ended()
        spent = made.cpu_seconds()["server"] - cpu
        for role in roles[:WORKER_PROCESSES]:
            role.stop()
        worked = [await asyncio.to_thread(role.report) for role in roles[:WORKER_PROCESSES]]
    await check_archive(made, each * WORKER_PROCESSES)
    seconds = max(one["ended"] for one in worked) - min(one["started"] for one in produced)
    return each * WORKER_PROCESSES / seconds, spent / JOBS * 1e6


async def dealt(made: Stack) -> list[int]:
    """How many of many sessions each process got."""
    with made.roles(("work", "0", "1", "0", str(SESSIONS))) as (worker,):
        async with Headgate(made.addresses[0]) as hg:
            async with asyncio.timeout(30):
                while len(found := await hg.admin.workers.list()) < SESSIONS:  # others tell theirs every few seconds
                    await asyncio.sleep(0.5)
        worker.go()
        worker.stop()
        await asyncio.to_thread(worker.report)
    return sorted(Counter(one.instance for one in found).values())


async def pickup(made: Stack) -> dict[str, float]:
    """Submit to result, one job at a time on an idle server, for producers who may sit on another process."""
    await made.clean()
    took: list[float] = []
    with made.roles(("work", "0", "8", "0")) as (worker,):
        worker.go()
        for _ in range(PRODUCERS):
            async with Headgate(made.addresses[0]) as hg:
                await hg.submit("warm-up", b"")
                for _ in range(PICKUPS):
                    await hg.submit("bench", b"x")
                    await asyncio.sleep(0.03)
        async with made.database() as db:
            rows = await db.fetch(
                "SELECT extract(epoch FROM a.claimed_at - a.created_at)::float8 * 1000 AS ms FROM headgate.archive a "
                "JOIN headgate.topics t USING (topic_no) WHERE t.name = 'bench'"
            )
            took = sorted(row["ms"] for row in rows)
        worker.stop()
        await asyncio.to_thread(worker.report)
    return {"p50": round(took[len(took) // 2], 1), "p99": round(took[int(len(took) * 0.99)], 1), "n": len(took)}


if __name__ == "__main__":
    began = time.monotonic()
    found = asyncio.run(run(tuple(map(int, sys.argv[1:])) or (1, 2)))
    print(json.dumps(found | {"took_s": round(time.monotonic() - began)}, indent=1))
