"""`make failover`: Patroni, etcd, PgBouncer and backups, under load, with a verdict. Exit code 0 if all is as promised.

python -m tests.failover                    # everything
python -m tests.failover rounds control     # parts of it; --times 2 runs the rounds twice
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Sequence

from tests.failover.cluster import ASYNCHRONOUS, SYNCHRONOUS, running
from tests.failover.packages import MissingPackages, Programs, programs
from tests.failover.rounds import FAULTS, Report, fail_over, lose, stack_on

Part = Callable[[Programs, Sequence[str]], Coroutine[None, None, list[Report]]]


def say(text: str) -> None:
    """Print a line at once."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201


async def rounds(found: Programs, faults: Sequence[str]) -> list[Report]:
    """Every fault, with synchronous replication."""
    reports = []
    with running(found, SYNCHRONOUS, nodes=3) as cluster:
        async with stack_on(cluster) as stack:
            for name in faults:
                report = await fail_over(cluster, stack, name)
                say(str(report))
                reports.append(report)
    return reports


async def control(found: Programs, faults: Sequence[str]) -> list[Report]:
    """The same with asynchronous replication: loss is certain, and must be seen."""
    with running(found, ASYNCHRONOUS, nodes=2) as cluster:
        async with stack_on(cluster) as stack:
            report, _ = await lose(cluster, stack)
            say(str(report))
    return [report]


PARTS: dict[str, Part] = {"rounds": rounds, "control": control}


def main() -> int:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all of them, if none is named")
    parser.add_argument("--times", type=int, default=1, help="how often every fault comes")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only this one, in the rounds")
    chosen = parser.parse_args()
    try:
        found = programs()
    except MissingPackages as problem:
        say(f"cannot run: {problem}")
        return 2
    reports: list[Report] = []
    for name in chosen.parts or PARTS:
        began = time.monotonic()
        reports += asyncio.run(PARTS[name](found, (chosen.fault or list(FAULTS)) * chosen.times))
        say(f"{name}: {time.monotonic() - began:.0f} s")
    bad = [report for report in reports if not report.good]
    say(f"{len(reports)} checks, {len(bad)} failed" + "".join(f"\n  {report}" for report in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
