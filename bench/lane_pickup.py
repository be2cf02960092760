"""Idle pickup: from before `submit` to the start of the handler, on an idle machine, one job at a time.

A real server process; producer and worker share this process, so that both ends read one clock. Also once poll-only: on
one instance notifications must not matter.
"""

from __future__ import annotations

import os
import time

from bench.figures import percentile, spread
from bench.stack import process_seconds, stack
from headgate import Headgate
from headgate.cli.bench_runs import pickup

SUBMITS = 500
ROUNDS = 3


async def run(*, quick: bool = False) -> dict[str, object]:
    """Milliseconds, p50 and p99."""
    count, rounds = (SUBMITS // 10, 1) if quick else (SUBMITS, ROUNDS)
    cores: dict[str, dict[str, float]] = {}
    report: dict[str, object] = {"cores": cores}
    for name, options, each in (("pickup", (), count), ("pickup_poll_only", ("--poll-only",), count // 3)):
        async with stack(name, options=options) as made:
            meter, own, began = made.meter(), process_seconds(os.getpid()), time.monotonic()
            runs = [await measure(made.addresses[0], each) for _ in range(rounds)]
            meter.stop(client=process_seconds(os.getpid()) - own)
            meter.note(name, time.monotonic() - began)
            cores |= made.busy()
        for share in (50, 99):
            report[f"{name}_p{share}_ms"] = spread([percentile(waits, share / 100) for waits in runs], 2)
    return report


async def measure(address: str, count: int) -> list[float]:
    """Milliseconds of each of `count` jobs."""
    async with Headgate(address) as hg:
        return await pickup(hg, "pickup", count)
