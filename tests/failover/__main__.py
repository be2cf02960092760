"""`make failover`: Patroni, etcd, PgBouncer and backups, under load, with a verdict. Exit code 0 if all is as promised.

python -m tests.failover                    # everything
python -m tests.failover rounds control     # parts of it; --times 2 runs the rounds twice
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence

from tests.failover.cluster import ASYNCHRONOUS, SYNCHRONOUS, running
from tests.failover.cost import pickup, throughput
from tests.failover.packages import MissingPackages, Programs, programs
from tests.failover.pooler import through_poolers
from tests.failover.report import Report, table, verdict
from tests.failover.restore import restore
from tests.failover.rounds import FAULTS, fail_over, lose, stack_on
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
            report = await lose(cluster, stack)
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
    """PgBouncer beside each of three nodes."""
    with running(found, SYNCHRONOUS, nodes=3) as cluster:
        return await through_poolers(cluster, say)


async def cost(found: Programs, faults: Sequence[str]) -> list[Report]:
    """What PgBouncer takes away of the jobs a second."""
    reports = await throughput(found.pgbouncer, say)
    for report in reports:
        say(str(report))
    return reports


async def idle(found: Programs, faults: Sequence[str]) -> list[Report]:
    """How long a single job waits on an idle machine, past PgBouncer and through it."""
    reports = await pickup(found.pgbouncer, say)
    for report in reports:
        say(str(report))
    return reports


PARTS: dict[str, Part] = {
    "rounds": rounds,
    "control": control,
    "standby": standby,
    "backup": backup,
    "pooler": pooler,
    "cost": cost,
    "pickup": idle,
}


def main() -> int:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all of them, if none is named")
    parser.add_argument("--times", type=int, default=1, help="how often every fault comes")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only this one, in the rounds")
    chosen = parser.parse_args()
    # Whoever ends this run ends all it has started: SIGTERM is a Ctrl-C, also where a shell has turned that one off.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        found = programs()
    except MissingPackages as problem:
        say(f"cannot run: {problem}")
        return 2
    version = ".".join(map(str, found.patroni_version))
    api = "etcd (v2 API)" if found.etcd_by_version_2 else "etcd (v3 API)"
    say(f"Patroni {version}, {api}, PostgreSQL in {found.postgres_bin}")
    reports: dict[str, list[Report]] = {}
    seconds: dict[str, float] = {}
    for name in chosen.parts or PARTS:
        began = time.monotonic()
        try:
            reports[name] = asyncio.run(PARTS[name](found, (chosen.fault or list(FAULTS)) * chosen.times))
        except Exception as error:  # noqa: BLE001 - one part that breaks must not hide the verdict on the others
            traceback.print_exception(error)
            text = f"broke off: {error!r}"
            reports[name] = [Report(name=f"broke off: {type(error).__name__}", good=False, text=text)]
        seconds[name] = time.monotonic() - began
        say(f"{name}: {verdict(reports[name])}, {seconds[name]:.0f} s")
    bad = [report for part in reports.values() for report in part if not report.good]
    say(f"{sum(map(len, reports.values()))} checks, {len(bad)} failed\n{table(reports, seconds)}")
    for report in bad:
        say(str(report))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
