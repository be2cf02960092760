"""`make bench`: all lanes on an embedded PostgreSQL, one table, one JSON file. Run nothing else meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import lane_held_snapshot, lane_pickup, lane_store
from bench.machine import describe
from headgate import embedded
from headgate.store.connect import connect
from headgate.store.migrate import migrate

FOLDER = Path("build/bench")
LATEST = Path("bench/latest.json")
# figure, where it is found, the bound, and whether it must be at most that
BOUNDS = (
    ("store / yardstick at 500", ("store_to_yardstick", "median"), 1.5),
    ("held snapshot: claim pages after / before", ("held_snapshot", "ratio"), 1.5),
    ("idle pickup p50, ms", ("pickup_p50_ms", None), 3.0),
    ("idle pickup p99, ms", ("pickup_p99_ms", None), 8.0),
    ("idle pickup p50, ms, no notifications", ("pickup_poll_only_p50_ms", None), 3.0),
    ("idle pickup p99, ms, no notifications", ("pickup_poll_only_p99_ms", None), 8.0),
)


async def measure(dsn: str, *, quick: bool) -> dict[str, object]:
    """Run all lanes in turn."""
    db = await connect(dsn, application_name="headgate bench")
    try:
        await migrate(db)
        report: dict[str, object] = {"machine": await describe(db), "quick": quick}
    finally:
        await db.close()
    for lane in (lane_store, lane_held_snapshot, lane_pickup):
        report |= await lane.run(dsn, quick=quick)
    return report


def show(report: dict[str, object], console: Console) -> bool:
    """Print the table; True when every bound holds."""
    machine = report["machine"]
    assert isinstance(machine, dict)
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, load {machine['load_at_start']}; "
        f"Python {machine['python']}, asyncpg {machine['asyncpg']}, PostgreSQL "
        + ", ".join(f"{name}={value}" for name, value in machine["postgres"].items())
    )
    yardstick, steps = report["yardstick_us"], report["store_us_per_job"]
    assert isinstance(yardstick, dict)
    assert isinstance(steps, dict)
    table = Table(title="µs per job, one connection, 100-byte payloads (medians of 3)")
    for heading in ("flush", "submit", "claim", "settle", "sum", "renew"):
        table.add_column(heading, justify="right")
    inserted, claimed, settled = yardstick["insert_us"], yardstick["claim_us"], yardstick["settle_us"]
    table.add_row(
        "yardstick, 500", f"{inserted}", f"{claimed}", f"{settled}", f"{inserted + claimed + settled:.2f}", ""
    )
    for flush, row in steps.items():
        total = row["submit"] + row["claim"] + row["settle"]
        table.add_row(
            flush, f"{row['submit']}", f"{row['claim']}", f"{row['settle']}", f"{total:.2f}", f"{row['renew']}"
        )
    console.print(table)
    verdicts = Table(title="bounds")
    for heading in ("figure", "measured", "at most", "verdict"):
        verdicts.add_column(heading)
    good = True
    for name, (group, key), bound in BOUNDS:
        found = report[group]
        value = found[key] if isinstance(found, dict) else found
        assert isinstance(value, int | float)
        good &= value <= bound
        verdicts.add_row(name, f"{value}", f"{bound}", "holds" if value <= bound else "BROKEN")
    console.print(verdicts)
    console.print(f"held snapshot: {json.dumps(report['held_snapshot'])}")
    return good


def main() -> int:
    """Measure, print, write the file; a broken bound is exit code 1."""
    arguments = argparse.ArgumentParser(prog="make bench", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="a tenth of the jobs: does it run, not how fast")
    quick = arguments.parse_args().quick
    started = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    try:
        with embedded.start(FOLDER / "postgres") as cluster:
            report = asyncio.run(measure(cluster.dsn(), quick=quick))
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    report["seconds"] = round(time.monotonic() - started, 1)
    LATEST.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if show(report, Console(width=110)) else 1


if __name__ == "__main__":
    sys.exit(main())
