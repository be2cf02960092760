"""The benchmark's harness itself: its lanes run, and count what really happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.database import temporary_folder
from tests.support.server import clean_environ

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from bench import lane_calls, lane_cycle, lane_loaded, lane_pickup, lane_transactions, lane_varied, stack

stack.FOLDER = Path(sys.argv[1])  # not build/bench: a benchmark may be running in this tree

async def main():
    calls = await lane_calls.run(quick=True)
    async with stack.stack("cycle") as made:
        rate, cost = await lane_cycle.cycle(made, 2_000)
        try:
            await lane_cycle.check_archive(made, 2_001)
        except AssertionError as error:
            refused = str(error)
        paced = await lane_loaded.paced(made, 200, 1_500, name="paced")
        failing = await lane_varied.failing(made, 500)
        default = await lane_cycle.cycle_default_sdk(made, 500)
        pickup = await lane_pickup.measure(made, 10, name="pickup")
        in_transaction = await lane_pickup.measure(made, 10, name="pickup", producer="produce_in_transactions")
        transactions = await lane_transactions.commits(made, 4, seconds=0.1)
    print(json.dumps({
        "calls": calls, "rate": rate, "cost": cost, "refused": refused, "paced": paced, "failing": failing,
        "default": default, "pickup": pickup, "in_transaction": in_transaction, "cores": made.busy(),
        "transactions": transactions,
    }))

asyncio.run(main())
"""


def test_the_lane_of_calls_measures_claims_by_stream_and_by_call_and_a_cycle_counts_real_completions() -> None:
    """That both are measured, by the very lane of the benchmark and in its own unit. Which is the faster, and by how
    much, is not asserted: speed is for `make bench`, on a machine that does nothing else."""
    folder = temporary_folder()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=ROOT,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its servers and workers can be ended with it
    )
    try:
        out, errors = process.communicate(timeout=150)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        shutil.rmtree(folder, ignore_errors=True)
    assert process.returncode == 0, errors
    told = json.loads(out.splitlines()[-1])
    calls = told["calls"]
    rates = {"submit_unary", "echo_unary", "echo_unprotected", "stream_claim_us", "unary_claim_us"}
    assert set(calls) == rates | {"submit_unary_to_echo", "stream_claim_to_unary", "overload_protection"}
    for name, figure in calls.items():
        assert 0 < figure["min"] <= figure["median"] <= figure["max"], name
    # It raises unless the archive holds exactly so many jobs completed at their first attempt; and it would.
    assert told["rate"] > 0
    assert min(told["cost"].values()) >= 0
    assert told["cost"]["commits"] > 0
    # 300 jobs by a timetable, of which those of the first second are not counted.
    assert told["paced"]["per_s"] == 200
    assert 0 < told["paced"]["p50_ms"] <= told["paced"]["p99_ms"] <= told["paced"]["max_ms"]
    assert told["failing"] > 0  # it raises unless three in ten were tried twice, and all others once
    assert told["default"] > 0  # its producer ends with an error on any loop but asyncio's own
    # Of each of the 30 jobs one wait is noted, in the worker's process; the first 20 are not counted.
    assert told["pickup"]["handled"] == 30
    assert 0 < told["pickup"]["p50_ms"] <= told["pickup"]["p99_ms"]
    assert told["in_transaction"]["handled"] == 30
    assert 0 < told["in_transaction"]["p50_ms"] <= told["in_transaction"]["p99_ms"]
    assert told["transactions"] > 0
    assert told["cores"].keys() == {"cycle", "paced", "failing", "cycle_default_sdk", "pickup"}
    assert told["cores"]["cycle"].keys() == {"server", "postgres", "producer", "worker", "others"}
    assert told["refused"] == "of 2001 jobs, completed and not completed at once: (2000, 0)"
