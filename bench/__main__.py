"""`make bench`: all lanes on an embedded PostgreSQL, one table, one JSON file. Run nothing else meanwhile."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench import lane_calls, lane_cycle, lane_held_snapshot, lane_pickup, lane_scale, lane_store
from bench.machine import describe
from bench.stack import stack

LATEST = Path("bench/latest.json")
MOST, LEAST = "at most", "at least"
# figure, where it is found, the bound and which way it binds
BOUNDS = (
    ("store / yardstick at 500", ("store_to_yardstick", "median"), MOST, 1.5),
    ("held snapshot: claim pages after / before", ("held_snapshot", "ratio"), MOST, 1.5),
    ("cycle / sql_ceiling", ("to_ceiling", "cycle"), LEAST, 0.80),
    ("cycle_default_sdk / sql_ceiling", ("to_ceiling", "cycle_default_sdk"), LEAST, 0.45),
    ("drain / sql_ceiling", ("to_ceiling", "drain"), LEAST, 1.2),
    ("submit_stream / sql_ceiling", ("to_ceiling", "submit_stream"), LEAST, 2.2),
    ("submit_single / sql_ceiling", ("to_ceiling", "submit_single"), LEAST, 0.20),
    ("submit_unary / echo_unary", ("submit_unary_to_echo", None), LEAST, 0.6),
    ("commits_per_job under load", ("commits_per_job", None), MOST, 0.02),
    ("backlog of 1 M / of 100 k: drain rate", ("backlog_ratio", None), LEAST, 0.9),
    ("sweep of links: worst / best before it", ("sweep_worst", None), LEAST, 0.9),
    ("idle pickup p50, ms", ("pickup_p50_ms", None), MOST, 3.0),
    ("idle pickup p99, ms", ("pickup_p99_ms", None), MOST, 8.0),
    ("idle pickup p50, ms, no notifications", ("pickup_poll_only_p50_ms", None), MOST, 3.0),
    ("idle pickup p99, ms, no notifications", ("pickup_poll_only_p99_ms", None), MOST, 8.0),
)
LANES = ("store", "pickup", "calls", "cycle", "scale")


async def measure(*, quick: bool, only: Sequence[str]) -> dict[str, object]:
    """Run the lanes in turn; each starts what it needs itself."""
    report: dict[str, object] = {}
    async with stack("store", servers=0) as made:
        async with made.database() as db:
            report |= {"machine": await describe(db), "quick": quick}
        if "store" in only:
            report |= await lane_store.run(made.dsn, quick=quick)
            report |= await lane_held_snapshot.run(made.dsn, quick=quick)
        if "pickup" in only:
            report |= await lane_pickup.run(made.dsn, quick=quick)
    for name, lane in (("calls", lane_calls), ("cycle", lane_cycle), ("scale", lane_scale)):
        if name in only:
            report |= await lane.run(quick=quick)
    return report


def show(report: dict[str, object], console: Console) -> bool:
    """Print the tables; True when every bound that was measured holds."""
    machine = report["machine"]
    assert isinstance(machine, dict)
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, load {machine['load_at_start']}; "
        f"Python {machine['python']}, asyncpg {machine['asyncpg']}, PostgreSQL "
        + ", ".join(f"{name}={value}" for name, value in machine["postgres"].items())
    )
    if "store_us_per_job" in report:
        console.print(_store_table(report))
    figures = Table(title="figures (medians; spread in brackets)")
    figures.add_column("figure")
    figures.add_column("value", justify="right")
    for name, value in report.items():
        if name not in ("machine", "quick", "seconds", "store_us_per_job", "yardstick_us"):
            figures.add_row(name, _shown(value))
    console.print(figures)
    verdicts = Table(title="bounds")
    for heading in ("figure", "measured", "bound", "verdict"):
        verdicts.add_column(heading)
    good = True
    for name, (group, key), way, bound in BOUNDS:
        if group not in report:
            continue
        found = report[group]
        value = found[key] if isinstance(found, dict) else found
        assert isinstance(value, int | float)
        holds = value <= bound if way is MOST else value >= bound
        good &= holds
        verdicts.add_row(name, f"{value}", f"{way} {bound}", "holds" if holds else "BROKEN")
    console.print(verdicts)
    return good


def _store_table(report: dict[str, object]) -> Table:
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
    return table


def _shown(value: object) -> str:
    if isinstance(value, dict) and value.keys() == {"median", "min", "max"}:
        return f"{value['median']:,} [{value['min']:,} … {value['max']:,}]"
    if isinstance(value, dict):
        return "  ".join(f"{name} {_shown(one)}" for name, one in value.items())
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def main() -> int:
    """Measure, print, write the file; a broken bound is exit code 1."""
    arguments = argparse.ArgumentParser(prog="make bench", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="a tenth of the jobs: does it run, not how fast")
    arguments.add_argument("--only", nargs="+", choices=LANES, default=LANES, help="these lanes; writes no file")
    chosen = arguments.parse_args()
    started = time.monotonic()
    report = uvloop.run(measure(quick=chosen.quick, only=chosen.only))
    report["seconds"] = round(time.monotonic() - started, 1)
    if chosen.only == LANES and not chosen.quick:
        LATEST.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if show(report, Console(width=110)) else 1


if __name__ == "__main__":
    sys.exit(main())
