"""`make overload`: three times what this machine can do, for two minutes. What is taken must go on being done.

First the peak: offered load is raised step by step until completions no longer follow; what is completed a second in
the best step is the peak. Then three times as much is offered, open loop, by frames, unary
calls and the SDK's `await submit`, each by a tenant of its own; a fourth, polite tenant sends 100 jobs a second all the
time and has jobs whose short leases must be kept. Afterwards every acknowledged job must be completed, once, at its
first attempt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from bench.load import Loaded, LoadProcess, clock, loaded, memory_mib, memory_most_mib, per_second, percentile
from bench.load_roles import SLOW
from bench.machine import describe
from bench.verdicts import LEAST, MOST, Row, show
from headgate import Headgate

LATEST = Path("bench/latest-overload.json")
SHARES = {"frames": 0.92, "tasks": 0.06, "calls": 0.02}
"""Of the offered jobs, by how they come. Who sends one by one spends more of the same two cores on sending than the
server does on the job, so most come by streams: else it is the producers' own cost that is measured."""
POLITE_RATE = 100
HELD_JOBS, HELD_MS, LEASE_SECONDS = 20, 15_000, 5
FACTOR = 3.0
FIRST_RATE, STEP, STEP_SECONDS = 8_000.0, 1.35, 6.0


class Producers:
    """The three that overload, and the polite one."""

    def __init__(self, made: Loaded) -> None:
        self.workers = [made.begin("work", kind, concurrency=300, prefetch=1_000) for kind in SHARES]
        self.polite_worker = made.begin("work", "polite", concurrency=50, lease=LEASE_SECONDS, slow_ms=HELD_MS)
        self.greedy = {kind: made.begin(kind, kind) for kind in SHARES}
        self.polite = made.begin("tasks", "polite")
        self.polite.rate(POLITE_RATE)

    def offer(self, rate: float) -> None:
        for kind, process in self.greedy.items():
            process.rate(rate * SHARES[kind])

    def completed(self, since: float, until: float) -> float:
        return per_second(self.workers, "acked", since, until)

    def asked(self, what: str, since: float, until: float) -> float:
        return per_second(self.greedy.values(), what, since, until)

    def waiting(self) -> float:
        """Jobs acknowledged and not completed yet."""
        return _sum(self.greedy.values(), "acked") - _sum(self.workers, "acked")

    async def drained(self, *, seconds: float) -> float:
        """Wait until all is done; how long that took."""
        began = clock()
        while self.waiting() > 0 and clock() < began + seconds:
            await asyncio.sleep(0.2)
        return clock() - began


async def run(seconds: float, *, peak: float | None = None) -> dict[str, object]:
    """All of it; a given peak is not measured."""
    async with loaded("overload", tenants=(*SHARES, "polite"), options=("--lease", "30")) as made:
        async with made.database() as db:
            machine = await describe(db)
        load = Producers(made)
        await asyncio.sleep(2)
        found: dict[str, object] = {"machine": machine, "seconds": seconds}
        if peak is None:
            steps = await find_peak(load)
            found["steps"] = steps
            peak = peak_of(steps)
        found["peak"] = round(peak)
        baseline = await measure_baseline(load, peak / 2)
        holding = asyncio.create_task(hold_jobs(made))
        found |= await overload(made, load, peak, seconds)
        found |= await recovery(load, baseline)
        print(json.dumps({name: value for name, value in found.items() if name != "machine"}), flush=True)
        found["drain_s"] = round(await load.drained(seconds=150), 1)
        found["held_results"] = await holding
        await conserve(made, load, found)
    return found


def peak_of(steps: Sequence[tuple[int, int]]) -> float:
    """The most that any step of the ramp completed a second."""
    return max(completed for _, completed in steps)


async def find_peak(load: Producers) -> list[tuple[int, int]]:
    """Offered and completed, step by step, until more offered is not more completed."""
    steps: list[tuple[int, int]] = []
    rate, best, worse = FIRST_RATE, 0.0, 0
    while worse < 2:
        done = await completed_at(load, rate, STEP_SECONDS)
        steps.append((round(rate), round(done)))
        worse = worse + 1 if done < best * 1.03 else 0
        best = max(best, done)
        rate *= STEP
    return steps


async def completed_at(load: Producers, rate: float, seconds: float) -> float:
    """What is completed a second when so much is offered."""
    load.offer(rate)
    began = clock()
    await asyncio.sleep(seconds)
    done = load.completed(began + 2, clock())
    load.offer(0)
    print(f"offered {rate:,.0f} jobs/s for {seconds:g} s, completed {done:,.0f}", flush=True)
    await load.drained(seconds=60)
    return done


async def measure_baseline(load: Producers, rate: float) -> float:
    """What the polite tenant's p99 of a submit is at half of the peak: the median of the seconds' own."""
    load.offer(rate)
    began = clock()
    await asyncio.sleep(10)
    found = statistics.median(line["p99"] for line in load.polite.since(began + 2) if "p99" in line)
    load.offer(0)
    await load.drained(seconds=60)
    return found


async def hold_jobs(made: Loaded) -> int:
    """Jobs of 15 seconds under leases of five, during the load: each must be kept by beats. How many were not."""
    async with Headgate(made.server.address, token=made.tokens["polite"]) as hg:
        handles = await hg.submit_many(SLOW, [b"x" * 8] * HELD_JOBS)
        for handle in handles:
            await handle.result(timeout=90)
        return sum([(await handle.info()).attempt != 1 for handle in handles])


async def overload(made: Loaded, load: Producers, peak: float, seconds: float) -> dict[str, object]:
    load.offer(FACTOR * peak)
    began = clock()
    memory = []
    while clock() < began + seconds:
        await asyncio.sleep(1)
        memory.append(memory_mib(made.server.pid))
    ended = clock()
    load.offer(0)
    refused = load.asked("refused", began, ended)
    thirds = [memory[len(memory) * part // 3 : len(memory) * (part + 1) // 3] for part in range(3)]
    hints = [line for process in load.greedy.values() for line in process.since(began, ended) if "hint_most" in line]
    polite = load.polite.since(began + 2, ended)
    picked_up = load.polite_worker.since(began + 2, ended)
    return {
        "offered": round(load.asked("offered", began, ended)),
        "held_back": round(load.asked("held_back", began, ended)),
        "taken": round(load.asked("acked", began, ended)),
        "refused": round(refused),
        "completed": round(load.completed(began + 2, ended)),
        "by_kind": {
            kind: {
                name: round(per_second([process], name, began, ended))
                for name in ("offered", "acked", "refused", "failed", "held_back")
            }
            | {"p99_ms": round(statistics.median([line.get("p99", 0) for line in process.since(began, ended)] or [0]))}
            for kind, process in load.greedy.items()
        },
        "hint_ms": [
            min((line["hint_least"] for line in hints), default=0),
            max((line["hint_most"] for line in hints), default=0),
        ],
        "server_rss_mib": {"most": round(memory_most_mib(made.server.pid)), "thirds": [round(max(t)) for t in thirds]},
        "polite_refused": sum(line.get("refused", 0) + line.get("failed", 0) for line in polite),
        "polite_submit_p99_ms": round(percentile([line["p99"] for line in polite if "p99" in line], 0.5), 1),
        "polite_pickup_p99_ms": round(percentile([line["p99"] for line in picked_up if "p99" in line], 0.5), 1),
        "ended": ended,
    }


async def recovery(load: Producers, baseline: float) -> dict[str, object]:
    """From the end of the load until the first of three seconds in a row whose p99 is below twice the baseline."""
    ended = clock()
    while clock() < ended + 60:
        await asyncio.sleep(0.5)
        lines = [line for line in load.polite.since(ended) if "p99" in line]
        for first, second, third in zip(lines, lines[1:], lines[2:], strict=False):
            if max(first["p99"], second["p99"], third["p99"]) < 2 * baseline:
                return {
                    "baseline_p99_ms": round(baseline, 1),
                    "recovery_s": round(first["at"] - 1 - ended, 1) if first is not lines[0] else 0.0,
                    "recovered_p99_ms": round(statistics.median((first["p99"], second["p99"], third["p99"])), 1),
                }
    return {"baseline_p99_ms": round(baseline, 1), "recovery_s": 60.0, "recovered_p99_ms": None}


async def conserve(made: Loaded, load: Producers, found: dict[str, object]) -> None:
    """What was acknowledged is what was completed: as many, with the same sum of ids, each at its first attempt."""
    ends = [process.stop() for process in (*load.greedy.values(), load.polite)]
    for worker in (*load.workers, load.polite_worker):
        worker.stop()
    async with made.database() as db:
        row = await db.fetchrow(
            "SELECT count(*), count(DISTINCT a.id), "
            "       coalesce(sum(('x' || replace(right(a.id::text, 17), '-', ''))::bit(64)::bigint::numeric "
            "         + CASE WHEN substr(a.id::text, 20, 1) >= '8' THEN 18446744073709551616 ELSE 0 END), 0)::text, "
            "       count(*) FILTER (WHERE a.state <> 5 OR a.attempt <> 1) "
            "  FROM headgate.archive a JOIN headgate.topics t USING (topic_no) WHERE t.name = 'load'"
        )
        left = await db.fetchval("SELECT count(*) FROM headgate.jobs")
    assert row is not None
    acked = sum(int(str(end.get("acked", 0))) for end in ends)
    ids = sum(int(str(end["id_sum"])) for end in ends)
    errors: dict[str, int] = {}
    for end in ends:
        told = end["errors"]
        assert isinstance(told, dict)
        for code, number in told.items():
            errors[code] = errors.get(code, 0) + number
    found["errors"] = {code: number for code, number in errors.items() if number}
    found["conserved"] = {
        "acked": acked,
        "completed": row[0],
        "twice": row[0] - row[1],
        "same_ids": ids == int(row[2]),
        "not_at_first": row[3],
        "left": left,
    }


def verdicts(found: dict[str, object]) -> list[Row]:
    """A row for each bound."""
    memory, kept, errors = found["server_rss_mib"], found["conserved"], found["errors"]
    assert isinstance(memory, dict)
    assert isinstance(kept, dict)
    assert isinstance(errors, dict)
    completed, peak = float(str(found["completed"])), float(str(found["peak"]))
    lost = kept["acked"] - kept["completed"] + kept["twice"] + kept["left"] + (not kept["same_ids"])
    hints = found["hint_ms"]
    assert isinstance(hints, list)
    return [
        Row("goodput at 3x / best step of the ramp", round(completed / peak, 3), LEAST, 0.8),
        Row("refused without code and hint", sum(errors.values()) - errors.get("overloaded", 0), MOST, 0),
        Row("smallest retry hint, ms", hints[0], LEAST, 1),
        Row("server RSS, most, MiB", memory["most"], MOST, 500),
        Row("server RSS, last third / second", round(memory["thirds"][2] / memory["thirds"][1], 3), MOST, 1.1),
        Row("polite tenant: refused", float(str(found["polite_refused"])), MOST, 0),
        Row("short leases lost", float(str(found["held_results"])), MOST, 0),
        Row("recovery of submit p99, s", float(str(found["recovery_s"])), MOST, 10),
        Row("acknowledged and not completed once", lost, MOST, 0),
        Row("not completed at the first attempt", kept["not_at_first"], MOST, 0),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the file; a broken bound is exit code 1."""
    parser = argparse.ArgumentParser(prog="make overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--peak", type=float, help="jobs a second; left out: it is measured first")
    chosen = parser.parse_args(arguments)
    found = uvloop.run(run(chosen.seconds, peak=chosen.peak))
    LATEST.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if show("overload", found, verdicts(found), Console(width=120)) else 1


def _sum(processes: Iterable[LoadProcess], what: str) -> float:
    return sum(line.get(what, 0) for process in processes for line in tuple(process.lines))


if __name__ == "__main__":
    sys.exit(main())
