"""Whole cycles: producer, server, worker and PostgreSQL at once, beside the yardstick on the same PostgreSQL.

Counted from the first submit to the last acknowledged completion. Afterwards the archive must hold exactly that many
completed rows, each of one attempt: a run that lost or doubled a job is no figure but an error.
"""

from __future__ import annotations

import asyncio

from bench.compared import Compared
from bench.figures import medians, spread
from bench.stack import TOPIC, Role, Stack, stack

JOBS = 200_000
ROUNDS = 3
CONCURRENCY, PREFETCH = 1_000, 3_000
TASKS, SINGLE_TASKS = 1_000, 64

__all__ = ["CONCURRENCY", "PREFETCH", "both", "check_archive", "cycle", "run", "spread"]


async def run(*, quick: bool = False) -> dict[str, object]:
    """Jobs a second of each lane, and what a job of `cycle` costs."""
    jobs, rounds = (JOBS // 10, 1) if quick else (JOBS, ROUNDS)
    costs: list[dict[str, float]] = []
    async with stack("cycle") as made:
        compared = Compared(made, quick=quick)

        async def whole() -> dict[str, float]:
            rate, cost = await cycle(made, jobs)
            costs.append(cost)
            return {"cycle": rate}

        async def as_new_users_write_it() -> dict[str, float]:
            return {"cycle_default_sdk": await cycle_default_sdk(made, jobs)}

        async def preloaded() -> dict[str, float]:
            submitted, drained = await drain(made, jobs)
            return {"submit_stream": submitted, "drain": drained}

        async def one_by_one() -> dict[str, float]:
            return {"submit_single": await submit_single(made, jobs // 8)}

        for _ in range(rounds):
            for lane in (whole, preloaded, one_by_one, as_new_users_write_it):
                await compared.run(lane)
        report = compared.report()
        report["cores"] = made.busy()
    cost = medians(costs, 4)
    report["commits_per_job"] = spread([one["commits"] for one in costs], 4)
    report["wal_bytes_per_job"] = spread([one["wal"] for one in costs])
    report["cpu_us_per_job"] = {name: round(cost[name], 1) for name in ("server", "producer", "worker", "postgres")}
    return report


async def cycle(made: Stack, jobs: int) -> tuple[float, dict[str, float]]:
    """One producer and one worker at once; also what each party spent on a job."""
    await made.clean()
    with made.roles(
        ("work", str(jobs), str(CONCURRENCY), str(PREFETCH)),
        ("produce_many", str(jobs)),
    ) as (worker, producer):
        before = await _counters(made)
        meter = made.meter()
        worked, produced = await both(worker, producer)
        spent = meter.stop(producer=produced["cpu"], worker=worked["cpu"])
        await asyncio.sleep(1.2)  # PostgreSQL's own counters are up to a second late
        after = await _counters(made)
    await check_archive(made, jobs)
    check_handled(worked, jobs)
    cost = {name: seconds / jobs * 1e6 for name, seconds in spent.items()}
    delta = {name: (after[name] - before[name]) / jobs for name in after}
    # A session hands its commits in up to ten seconds late; transactions that wrote are counted at once.
    cost |= {"commits": max(delta["commits"], delta["writes"]), "wal": delta["wal"]}
    seconds = worked["ended"] - produced["started"]
    meter.note("cycle", seconds)
    return jobs / seconds, cost


async def cycle_default_sdk(made: Stack, jobs: int) -> float:
    """As many jobs, as a new user writes it: a typed `async def`, default settings, `await submit()` from 1,000 tasks.

    The producer runs on asyncio's own event loop, as `asyncio.run` gives it. The worker runs on the one that
    `hg.run_worker()` chooses.
    """
    await made.clean()
    with made.roles(("work_default", str(jobs)), ("produce_default", str(jobs), str(TASKS))) as (worker, producer):
        meter = made.meter()
        worked, produced = await both(worker, producer)
        meter.stop(producer=produced["cpu"], worker=worked["cpu"])
    await check_archive(made, jobs)
    check_handled(worked, jobs)
    seconds = worked["ended"] - produced["started"]
    meter.note("cycle_default_sdk", seconds)
    return jobs / seconds


async def drain(made: Stack, jobs: int) -> tuple[float, float]:
    """Everything submitted while dispatch is paused, then worked off: two rates."""
    await made.clean()
    await made.pause()
    with made.roles(("produce_many", str(jobs)), ("work", str(jobs), str(CONCURRENCY), str(PREFETCH))) as roles:
        producer, worker = roles
        submitting = made.meter()
        producer.go()
        produced = await asyncio.to_thread(producer.report)
        submitting.stop(producer=produced["cpu"])
        worker.go()
        draining = made.meter()
        await made.resume()
        worked = await asyncio.to_thread(worker.report)
        draining.stop(worker=worked["cpu"])
    await check_archive(made, jobs)
    check_handled(worked, jobs)
    submitted, drained = produced["ended"] - produced["started"], worked["ended"] - await made.first_claim()
    submitting.note("submit_stream", submitted)
    draining.note("drain", drained)
    return jobs / submitted, jobs / drained


async def submit_single(made: Stack, jobs: int) -> float:
    """`await submit()` from 64 tasks, no one working."""
    await made.clean()
    with made.roles(("produce_tasks", str(jobs), str(SINGLE_TASKS))) as (producer,):
        meter = made.meter()
        producer.go()
        produced = await asyncio.to_thread(producer.report)
        meter.stop(producer=produced["cpu"])
    seconds = produced["ended"] - produced["started"]
    meter.note("submit_single", seconds)
    return jobs / seconds


async def both(worker: Role, producer: Role) -> tuple[dict[str, float], dict[str, float]]:
    """Let them begin together; their reports."""
    worker.go()
    producer.go()
    produced = await asyncio.to_thread(producer.report)
    return await asyncio.to_thread(worker.report), produced


async def check_archive(made: Stack, jobs: int, *, retried: int = 0) -> None:
    """Every job completed, all but `retried` at their first attempt and those at their second; else it is an error."""
    async with made.database() as db:
        row = await db.fetchrow(
            "SELECT count(*), count(*) FILTER (WHERE a.state <> 5 OR a.epoch & 1023 <> 1)"
            "  FROM headgate.archive a JOIN headgate.topics t ON t.topic_no = a.topic_no WHERE starts_with(t.name, $1)",
            TOPIC,
        )
        twice = await db.fetchval(
            "SELECT count(*) FROM headgate.archive WHERE state = 5 AND epoch & 1023 = 2 AND attempt = 2"
        )
    assert row is not None
    assert (*row, twice) == (jobs, retried, retried), (
        f"of {jobs} jobs, completed and not completed at once: {tuple(row)}"
    )


def check_handled(worked: dict[str, float], runs: int) -> None:
    """The handlers ran so often, and no more."""
    assert worked["handled"] == runs, f"{runs} runs were due, and there were {worked['handled']}"


async def _counters(made: Stack) -> dict[str, float]:
    async with made.database() as db:
        row = await db.fetchrow(
            "SELECT xact_commit::float8 AS commits, pg_snapshot_xmax(pg_current_snapshot())::text::float8 AS writes, "
            "       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 AS wal "
            "  FROM pg_stat_database WHERE datname = current_database()"
        )
    assert row is not None
    return dict(row)
