"""Whole cycles: producer, server, worker and PostgreSQL at once, beside the yardstick on the same PostgreSQL.

Counted from the first submit to the last acknowledged completion. Afterwards the archive must hold exactly that many
completed rows, each of one attempt: a run that lost or doubled a job is no figure but an error.
"""

from __future__ import annotations

import asyncio
import statistics

from bench import reference
from bench.stack import Role, Stack, stack

JOBS = 200_000
ROUNDS = 3
CONCURRENCY, PREFETCH = 1_000, 3_000


async def run(*, quick: bool = False) -> dict[str, object]:
    """Jobs a second of each lane, and what a job of `cycle` costs."""
    jobs, rounds = (JOBS // 10, 1) if quick else (JOBS, ROUNDS)
    found: dict[str, list[float]] = {}
    costs: list[dict[str, float]] = []
    async with stack("cycle") as made:
        for _ in range(rounds):
            yardstick = await reference.measure(made.dsn, jobs=10_000 if quick else 50_000, flush=500, rounds=1)
            found.setdefault("sql_ceiling", []).append(float(str(yardstick["cycles_per_s"])))
            rate, cost = await cycle(made, jobs)
            found.setdefault("cycle", []).append(rate)
            costs.append(cost)
            found.setdefault("cycle_default_sdk", []).append(await cycle_default_sdk(made, jobs // 2))
            submitted, drained = await drain(made, jobs)
            found.setdefault("submit_stream", []).append(submitted)
            found.setdefault("drain", []).append(drained)
            found.setdefault("submit_single", []).append(await submit_single(made, jobs // 10))
    ceiling = statistics.median(found["sql_ceiling"])
    report: dict[str, object] = {name: spread(values) for name, values in found.items()}
    report["to_ceiling"] = {
        name: round(statistics.median(values) / ceiling, 3) for name, values in found.items() if name != "sql_ceiling"
    }
    middle = {name: round(statistics.median(cost[name] for cost in costs), 4) for name in costs[0]}
    report["commits_per_job"] = middle.pop("commits")
    report["wal_bytes_per_job"] = round(middle.pop("wal"))
    report["cpu_us_per_job"] = {name: round(value, 1) for name, value in middle.items()}
    return report


async def cycle(made: Stack, jobs: int) -> tuple[float, dict[str, float]]:
    """One producer and one worker at once; also what each party spent on a job."""
    await made.clean()
    with made.roles(
        ("work", str(jobs), str(CONCURRENCY), str(PREFETCH)),
        ("produce_many", str(jobs)),
    ) as (worker, producer):
        before = await _counters(made)
        cpu = made.cpu_seconds()
        worked, produced = await _both(worker, producer)
        spent = {name: made.cpu_seconds()[name] - cpu[name] for name in cpu}
        await asyncio.sleep(1.2)  # PostgreSQL's own counters are up to a second late
        after = await _counters(made)
    await check_archive(made, jobs)
    spent |= {"producer": produced["cpu"], "worker": worked["cpu"]}
    cost = {name: seconds / jobs * 1e6 for name, seconds in spent.items()}
    cost |= {name: (after[name] - before[name]) / jobs for name in after}
    return jobs / (worked["ended"] - produced["started"]), cost


async def cycle_default_sdk(made: Stack, jobs: int) -> float:
    """The same as a new user writes it: a typed `async def`, default settings, `await submit()` from 1,000 tasks."""
    await made.clean()
    with made.roles(("work_default", str(jobs)), ("produce_tasks", str(jobs), "1000")) as (worker, producer):
        worked, produced = await _both(worker, producer)
    await check_archive(made, jobs)
    return jobs / (worked["ended"] - produced["started"])


async def drain(made: Stack, jobs: int) -> tuple[float, float]:
    """Everything submitted while dispatch is paused, then worked off: two rates."""
    await made.clean()
    await made.pause()
    with made.roles(("produce_many", str(jobs)), ("work", str(jobs), str(CONCURRENCY), str(PREFETCH))) as roles:
        producer, worker = roles
        producer.go()
        produced = await asyncio.to_thread(producer.report)
        worker.go()
        await made.resume()
        worked = await asyncio.to_thread(worker.report)
    await check_archive(made, jobs)
    return jobs / (produced["ended"] - produced["started"]), jobs / (worked["ended"] - await made.first_claim())


async def submit_single(made: Stack, jobs: int) -> float:
    """`await submit()` from 64 tasks, nobody working."""
    await made.clean()
    with made.roles(("produce_tasks", str(jobs), "64")) as (producer,):
        producer.go()
        produced = await asyncio.to_thread(producer.report)
    return jobs / (produced["ended"] - produced["started"])


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": round(statistics.median(values)), "min": round(min(values)), "max": round(max(values))}


async def _both(worker: Role, producer: Role) -> tuple[dict[str, float], dict[str, float]]:
    worker.go()
    producer.go()
    produced = await asyncio.to_thread(producer.report)
    return await asyncio.to_thread(worker.report), produced


async def check_archive(made: Stack, jobs: int) -> None:
    """Every job completed, at its first attempt; else the run is an error."""
    async with made.database() as db:
        row = await db.fetchrow(
            "SELECT count(*) FILTER (WHERE t.name = 'bench'), "
            "       count(*) FILTER (WHERE t.name = 'bench' AND (a.state <> 5 OR a.epoch <> 1)) "
            "  FROM headgate.archive a JOIN headgate.topics t ON t.topic_no = a.topic_no"
        )
    assert row is not None
    assert tuple(row) == (jobs, 0), f"of {jobs} jobs, completed and not completed at once: {tuple(row)}"


async def _counters(made: Stack) -> dict[str, float]:
    async with made.database() as db:
        commits, wal = await db.fetchrow(  # type: ignore[misc]  # one row always
            "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 FROM pg_stat_database "
            "WHERE datname = current_database()"
        )
    return {"commits": float(commits), "wal": float(wal)}
