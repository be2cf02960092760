"""`make failover`: Patroni, etcd, PgBouncer and backups, under load, with a verdict. Exit code 0 if all is as promised.

python -m tests.failover                    # everything
python -m tests.failover rounds control     # parts of it; --times 2 runs the rounds twice
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence

from tests.failover.cluster import ASYNCHRONOUS, SYNCHRONOUS, running
from tests.failover.packages import MissingPackages, Programs, programs
from tests.failover.pooler import through_poolers
from tests.failover.restore import restore
from tests.failover.rounds import FAULTS, Report, fail_over, lose, stack_on
from tests.failover.standby import standby_lost

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


async def standby(found: Programs, faults: Sequence[str]) -> list[Report]:
    """Two nodes, and one of them is lost: commits wait."""
    with running(found, SYNCHRONOUS, nodes=2) as cluster:
        async with stack_on(cluster, servers=2) as stack:
            report = await standby_lost(cluster, stack)
            say(str(report))
    return [report]


async def backup(found: Programs, faults: Sequence[str]) -> list[Report]:
    """The database comes back as an older one."""
    with running(found, ASYNCHRONOUS, nodes=1) as cluster:
        async with stack_on(cluster, servers=2) as stack:
            report = await restore(cluster, stack)
            say(str(report))
    return [report]


async def pooler(found: Programs, faults: Sequence[str]) -> list[Report]:
    """PgBouncer beside each of two nodes."""
    with running(found, SYNCHRONOUS, nodes=2) as cluster:
        reports = await through_poolers(cluster)
    for report in reports:
        say(str(report))
    return reports


PARTS: dict[str, Part] = {
    "rounds": rounds,
    "control": control,
    "standby": standby,
    "backup": backup,
    "pooler": pooler,
}


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
    version = ".".join(map(str, found.patroni_version))
    api = "etcd (v2 API)" if found.etcd_by_version_2 else "etcd (v3 API)"
    say(f"Patroni {version}, {api}, PostgreSQL in {found.postgres_bin}")
    reports: list[Report] = []
    for name in chosen.parts or PARTS:
        began = time.monotonic()
        try:
            reports += asyncio.run(PARTS[name](found, (chosen.fault or list(FAULTS)) * chosen.times))
        except Exception as error:  # noqa: BLE001 - one part that breaks must not hide the verdict on the others
            traceback.print_exception(error)
            reports.append(Report(name=name, good=False, text=f"broke off: {error!r}"))
        say(f"{name}: {time.monotonic() - began:.0f} s")
    bad = [report for report in reports if not report.good]
    say(f"{len(reports)} checks, {len(bad)} failed" + "".join(f"\n  {report}" for report in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
