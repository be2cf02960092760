"""More links, more instances, a deeper backlog: what changes when Headgate grows."""

from __future__ import annotations

import asyncio
import statistics

from bench.lane_cycle import CONCURRENCY, PREFETCH, check_archive
from bench.stack import Stack, stack

PROCESSES = 4
LINKS = (1, 4, 16, 64)
INSTANCES = (1, 2, 3)
JOBS = 100_000
BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)


async def run(*, quick: bool = False) -> dict[str, object]:
    """Jobs a second by links, by instances and by backlog."""
    scale = 10 if quick else 1
    report: dict[str, object] = {}
    async with stack("sweep") as made:
        sweep = {links: await by_links(made, JOBS // scale, links) for links in LINKS}
        report["sweep"] = {str(links): rate for links, rate in sweep.items()}
        report["sweep_worst"] = round(
            min(sweep[links] / max(sweep[few] for few in LINKS if few <= links) for links in LINKS), 3
        )
        backlogs = {}
        for backlog in BACKLOGS[: 3 if quick else 4]:
            runs = [await preloaded(made, backlog) for _ in range(1 if backlog > 200_000 else 3)]
            backlogs[str(backlog)] = round(statistics.median(runs))
        report["backlog"] = backlogs
        deepest, before = sorted(backlogs, key=int)[-1], sorted(backlogs, key=int)[-2]
        report["backlog_1m_drain"] = backlogs[deepest]
        report["backlog_ratio"] = round(backlogs[deepest] / backlogs[before], 3)
    rates = {}
    for instances in INSTANCES:
        async with stack("instances", servers=instances) as made:
            rates[str(instances)] = await by_links(made, JOBS // scale, 2 * instances)
    report["instances"] = rates
    return report


async def by_links(made: Stack, jobs: int, links: int) -> int:
    """A preloaded queue worked off by `links` links in up to four processes, which share the same number of slots."""
    processes = min(PROCESSES, links)
    each = links // processes
    return round(await _drain(made, jobs, processes, each, CONCURRENCY // links or 1, PREFETCH // links))


async def preloaded(made: Stack, jobs: int) -> float:
    """The rate of working off a backlog by one link."""
    return await _drain(made, jobs, 1, 1, CONCURRENCY, PREFETCH)


async def _drain(made: Stack, jobs: int, processes: int, links: int, concurrency: int, prefetch: int) -> float:
    await made.clean()
    await made.pause()
    with made.roles(("produce_many", str(jobs))) as (producer,):
        producer.go()
        await asyncio.to_thread(producer.report)
    crew = [("work", "0", str(concurrency), str(prefetch), str(links))] * processes
    with made.roles(*crew) as workers:
        for worker in workers:
            worker.go()
        await made.resume()
        await made.all_ended()
        for worker in workers:
            worker.stop()
        reports = [await asyncio.to_thread(worker.report) for worker in workers]
    await check_archive(made, jobs)
    return jobs / (max(one["ended"] for one in reports) - await made.first_claim())
