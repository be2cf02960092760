"""Idle pickup: from before `submit` to the start of the handler, on an idle machine, one job at a time.

Server, producer and worker are processes of their own; all read the machine's monotonic clock. Also once poll-only: on
one instance notifications must not matter. And once in transactions of the producer's own, from before the submit, so
with the commit: there, only the notification tells the server.
"""

from __future__ import annotations

from bench.figures import spread
from bench.lane_cycle import both, check_archive, check_handled
from bench.roles_pickup import WARM_UP
from bench.stack import Stack, stack

SUBMITS = 500
ROUNDS = 3


async def run(*, quick: bool = False) -> dict[str, object]:
    """Milliseconds, p50 and p99."""
    count, rounds = (SUBMITS // 10, 1) if quick else (SUBMITS, ROUNDS)
    cores: dict[str, dict[str, float]] = {}
    report: dict[str, object] = {"cores": cores}
    for name, options, each, producer in (
        ("pickup", (), count, "produce_apart"),
        ("pickup_poll_only", ("--poll-only",), count // 3, "produce_apart"),
        ("pickup_in_transaction", (), count // 3, "produce_in_transactions"),
    ):
        async with stack(name, options=options) as made:
            runs = [await measure(made, each, name=name, producer=producer) for _ in range(rounds)]
            cores |= made.busy()
        for share in ("p50_ms", "p99_ms"):
            report[f"{name}_{share}"] = spread([found[share] for found in runs], 2)
    return report


async def measure(made: Stack, count: int, *, name: str, producer: str = "produce_apart") -> dict[str, float]:
    """One run of `count` jobs."""
    await made.clean()
    with made.roles(("work_apart", str(count)), (producer, str(count))) as (worker, submits):
        meter = made.meter()
        worked, produced = await both(worker, submits)
        meter.stop(producer=produced["cpu"], worker=worked["cpu"])
    await check_archive(made, WARM_UP + count)
    check_handled(worked, WARM_UP + count)
    meter.note(name, worked["ended"] - produced["started"])
    return worked
