"""`make bench`: all lanes on an embedded PostgreSQL, one table, one JSON file. Run nothing else meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from bench import (
    compared,
    lane_calls,
    lane_cycle,
    lane_dashboard,
    lane_held_snapshot,
    lane_idle,
    lane_loaded,
    lane_pickup,
    lane_promises,
    lane_scale,
    lane_store,
    lane_transactions,
    lane_varied,
)
from bench.figures import median
from bench.machine import describe
from bench.stack import stack
from bench.table import Report, show, verdicts

LATEST = Path("bench/latest.json")
ENOUGH_SECONDS = 640.0
"""The backlog of a million, measured last, is not begun once more after this: 12 minutes are the most for all lanes."""


async def store(report: Report, *, quick: bool) -> Report:
    """The statements by themselves, and what a claim reads under a held snapshot."""
    del report
    async with stack("store", servers=0) as made:
        found = await lane_store.run(made.dsn, quick=quick)
        return found | await lane_held_snapshot.run(made.dsn, quick=quick)


async def cycle(report: Report, *, quick: bool) -> Report:
    """The lanes that are held against the yardstick, and right after them, what depends on their rate."""
    del report
    return await lane_cycle.run(quick=quick)


async def backlog(report: Report, *, quick: bool) -> Report:
    """The longest lane, and the one that ends early if the others took too long."""
    return await lane_scale.backlog(quick=quick, until=median(report["began"]) + ENOUGH_SECONDS)


# In this order: what is quiet before what leaves the machine busy, and the paced runs close to the rate they go by.
LANES: dict[str, Callable[..., Awaitable[Report]]] = {
    "idle": lambda _, *, quick: lane_idle.run(quick=quick),
    "pickup": lambda _, *, quick: lane_pickup.run(quick=quick),
    "transactions": lambda _, *, quick: lane_transactions.run(quick=quick),
    "promises": lambda _, *, quick: lane_promises.run(quick=quick),
    "calls": lambda _, *, quick: lane_calls.run(quick=quick),
    "cycle": cycle,
    "dashboard": lambda _, *, quick: lane_dashboard.run(quick=quick),
    "loaded": lane_loaded.run,
    "varied": lambda _, *, quick: lane_varied.run(quick=quick),
    "reference": lambda _, *, quick: lane_scale.reference(quick=quick),
    "sweep": lambda _, *, quick: lane_scale.sweep(quick=quick),
    "instances": lambda _, *, quick: lane_scale.instances(quick=quick),
    "store": store,
    "backlog": backlog,
}
# What readers of the file may count on; there is more in it.
KEYS = frozenset(
    [
        "sql_ceiling",
        "cycle",
        "cycle_default_sdk",
        "drain",
        "submit_stream",
        "submit_single",
        "submit_unary",
        "echo_unary",
        "stream_claim_us",
        "unary_claim_us",
        "pickup_p50_ms",
        "pickup_p99_ms",
        "pickup_in_transaction_p50_ms",
        "loaded_p99_ms",
        "commits_per_job",
        "wal_bytes_per_job",
        "cpu_us_per_job",
        "idle_queries_per_s",
        "idle_sessions_rss_mb",
        "claim_pages",
        "reference_run",
        "sweep",
        "instances",
        "backlog_1m_drain",
        "refill_ms",
        "schedules_due_s",
        "limit_used_least",
        "token_revoked_s",
        "interrupt_s",
        "dashboard_slowdown",
    ]
)
SETTINGS: Report = {
    "cycle_jobs": lane_cycle.JOBS,
    "rounds": lane_cycle.ROUNDS,
    "payload_bytes": 100,
    "worker": {"concurrency": lane_cycle.CONCURRENCY, "prefetch": lane_cycle.PREFETCH},
    "tasks": {"cycle_default_sdk": lane_cycle.TASKS, "submit_single": lane_cycle.SINGLE_TASKS},
    "yardstick_jobs": compared.YARDSTICK_JOBS,
    "loaded": {"shares": list(lane_loaded.SHARES), "seconds": lane_loaded.SECONDS},
    "pickup": {"submits": lane_pickup.SUBMITS},
    "idle_sessions": lane_idle.SESSIONS,
    "sweep_session": dict(zip(("concurrency", "prefetch"), lane_scale.SESSION, strict=True)),
}


async def measure(*, quick: bool, only: Sequence[str]) -> Report:
    """Run the lanes in turn; each starts what it needs itself."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that servers and workers end too
    report: Report = {
        "began": time.monotonic(),
        "quick": quick,
        "settings": SETTINGS,
        "cores": {},
        "seconds_by_lane": {},
    }
    async with stack("machine", servers=0) as made, made.database() as db:
        report["machine"] = await describe(db)
    for name, lane in LANES.items():
        if name in only:
            started = time.monotonic()
            found = await lane(report, quick=quick)
            for part, value in (("cores", found.pop("cores", {})), ("seconds_by_lane", {name: _since(started)})):
                known = report[part]
                assert isinstance(known, dict)
                assert isinstance(value, dict)
                known |= value
            report |= found
            print(f"{name}: {_since(started)} s", file=sys.stderr, flush=True)
    return report


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


def main() -> int:
    """Measure, print, write the file; a broken bound is exit code 1."""
    arguments = argparse.ArgumentParser(prog="make bench", description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="a tenth of the jobs: does it run, not how fast")
    arguments.add_argument("--only", nargs="+", choices=LANES, default=list(LANES), help="these lanes; writes no file")
    chosen = arguments.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a shell without job control. A lane interrupts processes, which would ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    report = uvloop.run(measure(quick=chosen.quick, only=chosen.only))
    del report["began"]
    report["seconds"] = _since(started)
    report["verdicts"] = verdicts(report)
    if chosen.only == list(LANES):
        assert report.keys() >= KEYS, f"no lane has measured {KEYS - report.keys()}"
    if chosen.only == list(LANES) and not chosen.quick:
        LATEST.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return 0 if show(report, Console(width=150), all_lanes=chosen.only == list(LANES)) else 1


if __name__ == "__main__":
    sys.exit(main())
