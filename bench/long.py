"""`make bench-long`: minutes instead of seconds.

(a) A snapshot held by another connection for ten minutes while 5,000 jobs a second of three priorities pass, a tenth
    of them with a retry: what a claim costs and how long a job waits in the first minute and in each later one, and the
    same for three minutes without it.
(b) The soak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from bench import soak
from bench.load import clock, loaded
from bench.machine import describe
from bench.verdicts import LEAST, MOST, Row, show
from bench.watching import Sample, Watch, column

LATEST = Path("bench/latest-long.json")
RATE = 5_000.0
MINUTES = {"held": 10.0, "free": 3.0}
FLAT = 1.5
"""What any later minute may take, to the first: more is not flat."""
PARTS = ("held", "free", "soak")
SHOWN = (
    "claim_ms",
    "claim_us_per_job",
    "claim_index_pages_per_job",
    "settle_us_per_job",
    "submit_us_per_job",
    "completed",
    "dead_jobs",
    "e2e_p99",
)
WORST = "e2e_worst_second"
"""The p99 of the worst second of a minute: shown, since a median hides what is short."""


async def passing(minutes: float, *, held: bool, rate: float = RATE) -> dict[str, object]:
    """Medians of each minute, with or without a snapshot that is held all the time; and whether all was completed."""
    async with loaded("held" if held else "free", tenants=(soak.TENANT,), options=("--lease", "20")) as made:
        async with made.database() as db, made.database() as other:
            machine = await describe(db)
            load = soak.Load(made, flaky=10, slow=0, delayed=0)
            load.offer(rate)
            await asyncio.sleep(10)
            await other.execute("SET idle_in_transaction_session_timeout = 0")  # ours is a minute
            transaction = other.transaction(isolation="repeatable_read", readonly=True)
            await transaction.start()
            await other.fetchval("SELECT count(*) FROM headgate.tenants")  # the snapshot is taken here
            if not held:
                await transaction.rollback()
            stop = asyncio.Event()
            watch = Watch(made, load.producers, lambda: load.workers)
            began = clock()
            watching = asyncio.create_task(watch.run(stop))
            await asyncio.sleep(minutes * 60)
            stop.set()
            await watching
            if held:
                assert await other.fetchval("SELECT pg_backend_pid()"), "the snapshot was held to the end"
                await transaction.rollback()
        ended = await soak.drained(made, load)
    samples = watch.samples[1:]  # the first counts from the beginning of all
    return {"machine": machine, "minutes": by_minute(samples, began), "samples": samples, **ended}


def by_minute(samples: Sequence[Sample], began: float) -> list[dict[str, float]]:
    """The medians of each minute, and its worst second."""
    minutes: dict[int, list[Sample]] = {}
    for sample in samples:
        minutes.setdefault(int((sample["at"] - began) // 60), []).append(sample)
    return [
        {name: round(statistics.median(column(part, name) or [math.nan]), 2) for name in SHOWN}
        | {WORST: max(column(part, WORST), default=math.nan)}
        for part in minutes.values()
        if len(part) >= 3
    ]


def verdicts(found: dict[str, object]) -> list[Row]:
    """Last minute to first, with the snapshot and without; and the soak's own."""
    rows = []
    for name, part in found.items():
        assert isinstance(part, dict)
        if name == "soak":
            rows += soak.verdicts(part)
            continue
        minutes, kept = part["minutes"], part["conserved"]
        lost = abs(kept["acked"] - kept["completed"]) + kept["twice"] + kept["left"] + kept["other_end"]
        rows += [
            Row(f"{name}: {figure}, highest later minute / first", highest(minutes, column_), MOST, FLAT)
            for figure, column_ in (
                ("claim index pages a job", "claim_index_pages_per_job"),
                ("claim µs a job", "claim_us_per_job"),
                ("p99 from due to start", "e2e_p99"),
            )
        ]
        rows += [
            Row(f"{name}: completed a second, lowest later minute / first", lowest(minutes, "completed"), LEAST, 0.9),
            Row(f"{name}: acknowledged and not completed once", lost + (not kept["same_ids"]), MOST, 0),
        ]
    return rows


def highest(minutes: Sequence[dict[str, float]], name: str) -> float:
    """The highest of the later minutes to the first; without a figure for each of them nothing is known."""
    return _worst(minutes, name, max, math.inf)


def lowest(minutes: Sequence[dict[str, float]], name: str) -> float:
    """As `highest`, for what must not fall."""
    return _worst(minutes, name, min, 0.0)


def _worst(
    minutes: Sequence[dict[str, float]], name: str, pick: Callable[[Sequence[float]], float], unknown: float
) -> float:
    values = [minute[name] for minute in minutes]
    if len(values) < 2 or any(math.isnan(value) for value in values) or not values[0]:
        return unknown
    return round(pick(values[1:]) / values[0], 3)


async def run(parts: Sequence[str], minutes: float | None, soak_minutes: float) -> dict[str, object]:
    """The parts in turn."""
    found: dict[str, object] = {}
    for part in parts:
        if part == "soak":
            found[part] = await soak.run(soak_minutes)
        else:
            found[part] = await passing(minutes or MINUTES[part], held=part == "held")
    return found


def main() -> int:
    """Measure, print, write the file; a broken bound is exit code 1."""
    parser = argparse.ArgumentParser(prog="make bench-long", description=__doc__)
    parser.add_argument("--minutes", type=float, help="of each half of (a); left out: 10 and 3")
    parser.add_argument("--soak-minutes", type=float, default=30)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these; the file keeps the others")
    chosen = parser.parse_args()
    found = uvloop.run(run(chosen.only, chosen.minutes, chosen.soak_minutes))
    known = json.loads(LATEST.read_text()) if LATEST.exists() else {}
    LATEST.write_text(json.dumps(known | found, indent=1) + "\n")
    rows, shown = verdicts(found), dict[str, object]()
    for name, part in found.items():
        assert isinstance(part, dict)
        shown |= {f"{name}: {key}": value for key, value in part.items() if key != "samples"}
    return 0 if show("bench-long", shown, rows, Console(width=120)) else 1


if __name__ == "__main__":
    sys.exit(main())
