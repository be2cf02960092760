"""`make soak MINUTES=30`: mixed load at 60 % of the maximum, small faults now and then, and nothing may grow or drift.

Two servers and two workers; the first of each lives on, so that a leak has the time to show. Faults, one every 20 to 60
seconds in turn: the second worker is restarted, a backend of PostgreSQL is killed, the second server is restarted. It
ends with a drain and a check that every acknowledged job was completed, once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from bench.load import Loaded, LoadProcess, clock, loaded, per_second
from bench.machine import describe
from bench.verdicts import LEAST, MOST, Row, show
from bench.watching import Sample, Watch, column, drift, growth, thirds

LATEST = Path("bench/latest-soak.json")
TENANT = "soak"
SHARE = 0.6
TIMES_DRIFT = 1.2
FAULTS = ("worker", "backend", "server")
EXPECTED = re.compile(r" ERROR .*(?:terminating connection|connection was closed)")
"""Error lines that a killed backend may leave; there should be none even so."""


class Load:
    """Two producers, and two workers of which one can be restarted."""

    def __init__(self, made: Loaded, **mix: int) -> None:
        self._made = made
        self.producers = [made.begin("mixed", TENANT, **mix) for _ in range(2)]
        self.workers = [self._worker() for _ in range(2)]
        self.past: list[LoadProcess] = []

    def _worker(self) -> LoadProcess:
        return self._made.begin("work", TENANT, concurrency=400, prefetch=1_000)

    def offer(self, rate: float) -> None:
        for producer in self.producers:
            producer.rate(rate / len(self.producers))

    async def restart_worker(self) -> None:
        old = self.workers.pop()
        self.workers.append(await asyncio.to_thread(self._worker))
        await asyncio.to_thread(old.stop, seconds=60)
        self.past.append(old)

    def acked(self) -> float:
        return sum(line.get("acked", 0) for one in self.producers for line in tuple(one.lines))


async def maximum(load: Load) -> float:
    """The most completed a second: more and more is offered until completions do not follow."""
    best, rate, worse = 0.0, 6_000.0, 0
    while worse < 2:
        load.offer(rate)
        began = clock()
        await asyncio.sleep(7)
        done = per_second(load.workers, "acked", began + 2, clock())
        print(f"offered {rate:,.0f} jobs/s, completed {done:,.0f}", flush=True)
        worse = worse + 1 if done < best * 1.05 else 0
        best = max(best, done)
        rate *= 1.4
    load.offer(0)
    return best


async def run(minutes: float, *, rate: float | None = None, faults: bool = True) -> dict[str, object]:
    """All of it; a given rate is taken as it is."""
    async with loaded("soak", tenants=(TENANT,), servers=2, options=("--lease", "20", "--grace", "15")) as made:
        async with made.database() as db:
            machine = await describe(db)
        load = Load(made)
        found: dict[str, object] = {"machine": machine, "minutes": minutes}
        if rate is None:
            most = await maximum(load)
            found["maximum"] = round(most)
            rate = SHARE * most
            await emptied(made, seconds=120)
        found["rate"] = round(rate)
        load.offer(rate)
        stop = asyncio.Event()
        watch = Watch(made, load.producers, lambda: load.workers)
        watching = asyncio.create_task(watch.run(stop))
        done = await disturb(made, load, minutes * 60, faults=faults)
        stop.set()
        await watching
        found |= {"faults": done} | await drained(made, load)
        found |= told(watch.samples, made, warm_up=min(180.0, minutes * 60 / 5))
        found["samples"] = watch.samples
    return found


async def disturb(made: Loaded, load: Load, seconds: float, *, faults: bool) -> dict[str, int]:
    """A fault every 20 to 60 seconds, each kind in turn."""
    done = dict.fromkeys(FAULTS, 0)
    chance = random.Random(4)  # noqa: S311 - the same faults in every run
    ends = clock() + seconds
    turn = 0
    while (left := ends - clock()) > 0:
        wait = chance.uniform(20, 60)
        if not faults or left < wait + 20:
            await asyncio.sleep(left)
            break
        await asyncio.sleep(wait)
        kind = FAULTS[turn % len(FAULTS)]
        turn += 1
        if kind == "worker":
            await load.restart_worker()
        elif kind == "server":
            await asyncio.to_thread(made.servers[1].stop)
            await asyncio.to_thread(made.servers[1].start)
        else:
            async with made.database() as db:
                await db.execute(
                    "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
                    "WHERE application_name IN ('headgate claim', 'headgate settle', 'headgate submit') "
                    "ORDER BY random() LIMIT 1) one"
                )
        done[kind] += 1
        print(f"{seconds - (ends - clock()):5.0f} s: {kind}", flush=True)
    return done


async def emptied(made: Loaded, *, seconds: float) -> float:
    """Wait until no job is left; how long that took."""
    began = clock()
    async with made.database() as db:
        while clock() < began + seconds:
            if not await db.fetchval("SELECT EXISTS (SELECT FROM headgate.jobs)"):
                break
            await asyncio.sleep(0.2)
    return clock() - began


async def drained(made: Loaded, load: Load) -> dict[str, object]:
    """End the load, wait for its end, and compare what was acknowledged with what was completed."""
    ends = [await asyncio.to_thread(one.stop, seconds=200) for one in load.producers]
    drain = await emptied(made, seconds=120)
    for worker in load.workers:
        await asyncio.to_thread(worker.stop, seconds=60)
    async with made.database() as db:
        row = await db.fetchrow(
            "SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE state <> 5), "
            "       coalesce(sum(('x' || replace(right(id::text, 17), '-', ''))::bit(64)::bigint::numeric "
            "         + 18446744073709551616), 0)::text FROM headgate.archive"
        )
        left = await db.fetchval("SELECT count(*) FROM headgate.jobs")
    assert row is not None
    errors: dict[str, int] = {}
    for end in ends:
        told_errors = end["errors"]
        assert isinstance(told_errors, dict)
        for code, number in told_errors.items():
            if number:
                errors[code] = errors.get(code, 0) + number
    acked = sum(int(str(end.get("acked", 0))) for end in ends)
    return {
        "drain_s": round(drain, 1),
        "errors": errors,
        "conserved": {
            "acked": acked,
            "completed": row[0] - row[2],
            "twice": row[0] - row[1],
            "other_end": row[2],
            "same_ids": sum(int(str(end["id_sum"])) for end in ends) == int(row[3]),
            "left": left,
        },
    }


def told(samples: Sequence[Sample], made: Loaded, *, warm_up: float) -> dict[str, object]:
    """Medians of the thirds of everything that must not grow, and what the log has to say."""
    names = sorted({name for sample in samples for name in sample} - {"at", "unseen"})
    log = "".join(server.log.read_text(errors="replace") for server in made.servers)
    lines = [line for line in log.splitlines() if " ERROR " in line or " CRITICAL " in line or "Traceback" in line]
    span = samples[-1]["at"] - samples[0]["at"] if len(samples) > 1 else 1.0
    return {
        "thirds": {name: thirds(samples, name, warm_up=warm_up) for name in names},
        "calm_thirds": {name: thirds(samples, name, warm_up=warm_up, calm=True) for name in names},
        "log_mb_per_min": round(len(log) / 1e6 / (span / 60), 3),
        "error_lines": len(lines),
        "unexpected": [line[:200] for line in lines if not EXPECTED.search(line)][:10],
        "dead_most": {name: max(column(samples, name), default=0) for name in names if name.startswith("dead_")},
    }


def verdicts(found: dict[str, object]) -> list[Row]:
    """A row for each bound."""
    medians, kept, unexpected = found["thirds"], found["conserved"], found["unexpected"]
    calm = found["calm_thirds"]
    assert isinstance(medians, dict)
    assert isinstance(calm, dict)
    assert isinstance(kept, dict)
    assert isinstance(unexpected, list)
    samples = found["samples"]
    assert isinstance(samples, list)
    lost = abs(kept["acked"] - kept["completed"]) + kept["twice"] + kept["left"] + kept["other_end"]
    rate = float(str(found["rate"]))
    rows = [
        Row("acknowledged and not completed once", lost + (not kept["same_ids"]), MOST, 0),
        Row("unexpected ERROR lines", len(unexpected), MOST, 0),
        Row("log, MB a minute", float(str(found["log_mb_per_min"])), MOST, 1.0),
        Row(
            "completed / offered, median", round(statistics.median(column(samples, "completed")) / rate, 3), LEAST, 0.9
        ),
    ]
    for names, stated, bound in (
        (("server_rss", "worker_rss", "producer_rss"), growth, 1.03),
        (("server_fds", "server_threads", "worker_fds", "worker_threads"), growth, 1.1),
        (("claim_us_per_job", "e2e_p99", "submit_p99", "dead_jobs"), drift, TIMES_DRIFT),
    ):
        how = "highest later third / first" if stated is drift else "last third / first"
        judged = calm if bound == TIMES_DRIFT else medians
        rows += [Row(f"{name}: {how}", stated(judged.get(name, [])), MOST, bound) for name in names]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write the file; a broken bound is exit code 1."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, help="jobs a second; left out: 60 %% of what is measured first")
    chosen = parser.parse_args(arguments)
    found = uvloop.run(run(chosen.minutes, rate=chosen.rate))
    LATEST.write_text(json.dumps(found, indent=1) + "\n")
    shown = {name: value for name, value in found.items() if name != "samples"}
    return 0 if show("soak", shown, verdicts(found), Console(width=120)) else 1


if __name__ == "__main__":
    sys.exit(main())
