"""`make bench-long`: minutes instead of seconds.

(a) A snapshot held by another connection while 5,000 jobs a second of three priorities pass, a tenth of them with a
    retry: what a claim costs in the first minute and in the last, and the same without it.
(b) The soak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
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
MINUTES = 3.0
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
    """The medians of each minute."""
    minutes: dict[int, list[Sample]] = {}
    for sample in samples:
        minutes.setdefault(int((sample["at"] - began) // 60), []).append(sample)
    return [
        {name: round(statistics.median(column(part, name) or [0.0]), 2) for name in SHOWN}
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
        first, last = part["minutes"][0], part["minutes"][-1]
        kept = part["conserved"]
        lost = abs(kept["acked"] - kept["completed"]) + kept["twice"] + kept["left"] + kept["other_end"]
        rows += [
            Row(
                f"{name}: claim index pages a job, last minute / first",
                _ratio(first, last, "claim_index_pages_per_job"),
                MOST,
                1.5,
            ),
            Row(f"{name}: claim µs a job, last minute / first", _ratio(first, last, "claim_us_per_job"), MOST, 1.5),
            Row(f"{name}: completed a second, last minute / first", _ratio(first, last, "completed"), LEAST, 0.9),
            Row(f"{name}: acknowledged and not completed once", lost + (not kept["same_ids"]), MOST, 0),
        ]
    return rows


def _ratio(first: dict[str, float], last: dict[str, float], name: str) -> float:
    return round(last[name] / first[name], 3) if first[name] else 1.0


async def run(parts: Sequence[str], minutes: float, soak_minutes: float) -> dict[str, object]:
    """The parts in turn."""
    found: dict[str, object] = {}
    for part in parts:
        found[part] = await (soak.run(soak_minutes) if part == "soak" else passing(minutes, held=part == "held"))
    return found


def main() -> int:
    """Measure, print, write the file; a broken bound is exit code 1."""
    parser = argparse.ArgumentParser(prog="make bench-long", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of each half of (a)")
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
