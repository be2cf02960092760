"""More sessions, more instances, a deeper backlog: what changes when Headgate grows. Jobs a second of working off."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence

from bench.figures import median, spread
from bench.lane_cycle import CONCURRENCY, PREFETCH, check_archive
from bench.stack import Stack, stack

PROCESSES = 4
SESSIONS = (1, 4, 16, 64)
SESSION = (100, 400)
"""Slots and read-ahead of each session where every worker brings its own: reported, not judged. All 64 hold less than
waits."""
INSTANCES = (1, 2, 3)
ROUNDS = 3
SWEEP_JOBS = 800_000
"""About ten seconds: a worker needs some tenths of a second to know how far it may read ahead."""
CHOSEN_BY_SDK = -1
INSTANCE_JOBS = 60_000
BACKLOGS = (1_000, 10_000)
REFERENCE_JOBS, REFERENCE_WORKERS, REFERENCE_SLOTS = 2_000, 8, 16
"""The published run of the predecessor: 1,223 jobs a second, no rollback, about 1.6 transactions per job."""
SETTLING_SECONDS = 11.0
"""A session of PostgreSQL hands in what it has counted up to ten seconds late."""
DRAIN, MILLION = 200_000, 1_000_000


async def sweep(*, quick: bool = False) -> dict[str, object]:
    """1 to 64 sessions in up to four processes that share the slots of the one session of `drain`, in turns.

    What a session reads ahead is chosen by the SDK, as in any worker without a setting. Not judged: 64 sessions that
    also share the read-ahead of that one session, so that no frame holds more than 62 jobs, and 64 with slots of their
    own.
    """
    jobs, rounds = (SWEEP_JOBS // 10, 1) if quick else (SWEEP_JOBS, ROUNDS)
    rates: dict[int, list[float]] = {sessions: [] for sessions in SESSIONS}
    own: list[float] = []
    shared: list[float] = []
    async with stack("sweep") as made:
        for _ in range(rounds):
            for sessions in SESSIONS:
                slots = CONCURRENCY // sessions
                rates[sessions].append(await by_sessions(made, jobs, sessions, slots, CHOSEN_BY_SDK))
            most = SESSIONS[-1]
            shared.append(await by_sessions(made, jobs // 4, most, *_shared(most), name="sweep, shared read-ahead"))
            own.append(await by_sessions(made, jobs // 4, SESSIONS[-1], *SESSION, name="sweep, own slots"))
    return {
        "sweep": {str(sessions): spread(runs) for sessions, runs in rates.items()},
        "sweep_own_slots": {str(SESSIONS[-1]): spread(own)},
        "sweep_shared_ahead": {str(SESSIONS[-1]): spread(shared)},
        "sweep_worst": spread(
            [worst_fall([rates[sessions][turn] for sessions in SESSIONS]) for turn in range(rounds)], 3
        ),
        "cores": made.busy(),
    }


def worst_fall(rates: Sequence[float]) -> float:
    """The lowest share of a rate in the best one before it."""
    return min(rate / max(rates[: place + 1]) for place, rate in enumerate(rates))


async def reference(*, quick: bool = False) -> dict[str, object]:
    """The predecessor's run, submitted and worked off at once by one server, some times: what a job costs is of all."""
    rounds = 1 if quick else ROUNDS
    async with stack("reference") as made:
        await asyncio.sleep(SETTLING_SECONDS)
        before = await _transactions(made)
        rates = [await reference_run(made) for _ in range(rounds)]
        await asyncio.sleep(SETTLING_SECONDS)
        after = await _transactions(made)
    committed, rolled_back = (now - then for now, then in zip(after, before, strict=True))
    return {
        "reference_run": spread(rates),
        "reference_rollbacks": rolled_back,
        # Also those of the server's clockwork meanwhile, and those of the lane itself: a few a second.
        "reference_transactions_per_job": round((committed + rolled_back) / (rounds * REFERENCE_JOBS), 4),
        "cores": made.busy(),
    }


async def reference_run(made: Stack) -> float:
    """Jobs a second, from the submit of the first to the acknowledged outcome of the last."""
    sessions = REFERENCE_WORKERS // PROCESSES
    await made.clean()
    worker = ("work", "0", str(REFERENCE_SLOTS), str(CHOSEN_BY_SDK), str(sessions))
    with made.roles(("produce_many", str(REFERENCE_JOBS)), *[worker] * PROCESSES) as (producer, *workers):
        meter = made.meter()
        for one in (*workers, producer):
            one.go()
        produced = await asyncio.to_thread(producer.report)
        await made.all_ended()
        for one in workers:
            one.stop()
        reports = [await asyncio.to_thread(one.report) for one in workers]
        meter.stop(producer=produced["cpu"], worker=sum(one["cpu"] for one in reports))
    await check_archive(made, REFERENCE_JOBS)
    seconds = max(one["ended"] for one in reports) - produced["started"]
    meter.note("reference run", seconds)
    return REFERENCE_JOBS / seconds


async def _transactions(made: Stack) -> tuple[int, int]:
    """Committed and rolled back, as PostgreSQL counts them in the servers' database; looked at from another one."""
    async with made.database(made.aside) as db:
        row = await db.fetchrow("SELECT xact_commit, xact_rollback FROM pg_stat_database WHERE datname = 'postgres'")
    assert row is not None
    return row[0], row[1]


async def backlog(*, quick: bool = False, until: float = math.inf) -> dict[str, object]:
    """1 k to 1 M jobs waiting, worked off by one session; each run of a million follows one of the `drain` lane's size.

    No round is begun after `until`, on the monotonic clock, but the first.
    """
    few, many = (10_000, 50_000) if quick else (DRAIN, MILLION)
    rates: dict[int, list[float]] = {}
    ratios: list[float] = []
    async with stack("backlog") as made:
        for _ in range(1 if quick else ROUNDS):
            for jobs in BACKLOGS[: 1 if quick else None]:
                rates.setdefault(jobs, []).append(await preloaded(made, jobs))
            if ratios and time.monotonic() > until:
                continue
            usual = await preloaded(made, few)
            deep = await preloaded(made, many, name="backlog_1m_drain")
            rates.setdefault(few, []).append(usual)
            rates.setdefault(many, []).append(deep)
            ratios.append(deep / usual)
    return {
        "backlog": {str(jobs): spread(runs) for jobs, runs in sorted(rates.items())},
        "backlog_1m_drain": spread(rates[many]),
        "backlog_ratio": spread(ratios, 3),
        # Rounds of a million may have been left out when time was short: as many pairs as there are.
        "backlog_1m_to_10k": spread([deep / ten for deep, ten in zip(rates[many], rates[10_000], strict=False)], 3),
        "cores": made.busy(),
    }


async def instances(*, quick: bool = False) -> dict[str, object]:
    """1 to 3 servers on one PostgreSQL and two sessions for each, in turns."""
    jobs, rounds = (INSTANCE_JOBS // 10, 1) if quick else (INSTANCE_JOBS, ROUNDS)
    rates: dict[int, list[float]] = {count: [] for count in INSTANCES}
    async with stack("instances", servers=0) as made:
        for _ in range(rounds):
            for count in INSTANCES:
                made.start_server()
                rates[count].append(await by_sessions(made, jobs, 2 * count, *_shared(2 * count)))
            for _ in INSTANCES:
                made.stop_server()
    found: Mapping[str, object] = {str(count): spread(runs) for count, runs in rates.items()}
    best = max(median(rate) for rate in found.values())
    return {"instances": found, "instances_3_to_best": round(median(found["3"]) / best, 3)}


async def by_sessions(
    made: Stack, jobs: int, sessions: int, concurrency: int, prefetch: int, *, name: str | None = None
) -> float:
    """A preloaded queue worked off by `sessions` sessions in up to four processes."""
    processes = min(PROCESSES, sessions)
    return await _drain(
        made, jobs, processes, sessions // processes, concurrency, prefetch, name or f"sweep of {sessions}"
    )


def _shared(sessions: int) -> tuple[int, int]:
    """Slots and read-ahead of each of several sessions that have in all what the one session of `drain` has."""
    return CONCURRENCY // sessions or 1, PREFETCH // sessions


async def preloaded(made: Stack, jobs: int, *, name: str = "backlog") -> float:
    """The rate of working off a backlog by one session."""
    return await _drain(made, jobs, 1, 1, CONCURRENCY, PREFETCH, name)


async def _drain(
    made: Stack, jobs: int, processes: int, sessions: int, concurrency: int, prefetch: int, name: str
) -> float:
    await made.clean()
    await made.pause()
    with made.roles(("produce_many", str(jobs))) as (producer,):
        producer.go()
        await asyncio.to_thread(producer.report)
    worker_processes = [("work", "0", str(concurrency), str(prefetch), str(sessions))] * processes
    with made.roles(*worker_processes) as workers:
        for worker in workers:
            worker.go()
        meter = made.meter()
        await made.resume()
        await made.all_ended()
        for worker in workers:
            worker.stop()
        reports = [await asyncio.to_thread(worker.report) for worker in workers]
        meter.stop(worker=sum(one["cpu"] for one in reports))
    await check_archive(made, jobs)
    seconds = max(one["ended"] for one in reports) - await made.first_claim()
    meter.note(name, seconds)
    return jobs / seconds
