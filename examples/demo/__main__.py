"""Runs the demo: a steady load, three kills, and a count in the database at the end. The exit code is the verdict."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from rich.console import Console

from examples.demo.figures import Snapshot, Verdict, read_snapshot, read_verdict
from examples.demo.stage import GRACE_SECONDS, Stage
from examples.demo.view import View
from headgate.domain.errors import HeadgateError
from headgate.store.connect import Connection, connect
from headgate.store.errors import DRIVER_ERRORS

if TYPE_CHECKING:
    from headgate import JobHandle

LOAD_SECONDS: Final = 2.5
"""Of submits that are acknowledged, before each kill and after the last."""
RECOVERY_SECONDS: Final = 30.0
END_SECONDS: Final = 60.0
SUBMITTERS: Final = 16
PAUSE_SECONDS: Final = 0.025
ACCOUNTS, REPORTS, CARDS = 60, 4, 2
# Of 0.4 s each: reports run while all three processes are killed.
PAGES_PER_SECOND: Final = 12


@dataclass
class Load:
    """The producer's own record: a job counts from the moment its submit was acknowledged."""

    acknowledged: list[UUID] = field(default_factory=list)
    reports: list[UUID] = field(default_factory=list)
    seconds: float = LOAD_SECONDS
    over: bool = False
    """Set to end the submits."""

    async def submit(self) -> None:
        """A few jobs of each kind, then short ones until `over`, from several tasks."""
        from examples.demo import jobs  # its Headgate() reads HEADGATE_URL when it is made

        async with asyncio.TaskGroup() as tasks:
            for month in range(1, REPORTS + 1):
                handle = await jobs.report.submit(
                    f"month {month}", pages=max(2, round(PAGES_PER_SECOND * self.seconds))
                )
                self.reports.append(handle.id)
                self._note([handle])
            self._note([await jobs.card.submit(str(number)) for number in range(CARDS)])
            self._note(await jobs.account.submit_many([{"number": number} for number in range(ACCOUNTS)]))
            for first in range(SUBMITTERS):
                tasks.create_task(self._orders(first), name=f"submitter {first}")

    async def close(self) -> None:
        """Close the producer's connection."""
        from examples.demo import jobs

        await jobs.hg.close()

    async def flow(self) -> None:
        """Return once a submit that was sent after this call is acknowledged, and the load has run on for a while."""
        # What the producer sent before may be acknowledged now: each submitter has at most one such submit.
        after = len(self.acknowledged) + SUBMITTERS
        until = time.monotonic() + RECOVERY_SECONDS
        while len(self.acknowledged) <= after:
            if time.monotonic() > until:
                raise SystemExit(f"no new submit was acknowledged within {RECOVERY_SECONDS:.0f} s")
            await asyncio.sleep(0.02)
        await asyncio.sleep(self.seconds)

    async def _orders(self, number: int) -> None:
        from examples.demo import jobs

        while not self.over:
            self._note([await jobs.order.submit(number)])
            number += SUBMITTERS
            await asyncio.sleep(PAUSE_SECONDS)

    def _note(self, handles: Sequence[JobHandle[Any]]) -> None:
        self.acknowledged += [handle.id for handle in handles]


class Reader:
    """One connection for the view; it is opened again when PostgreSQL is back."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._db: Connection | None = None

    async def snapshot(self, reports: list[UUID]) -> Snapshot | None:
        """Where the jobs are; None while the database cannot be read."""
        try:
            if self._db is None:
                self._db = await connect(self._dsn, application_name="headgate demo")
            return await read_snapshot(self._db, reports)
        except (HeadgateError, *DRIVER_ERRORS):
            await self.close()
            return None

    async def close(self) -> None:
        """Without waiting: PostgreSQL may be down."""
        if self._db is not None:
            self._db.terminate()
            self._db = None

    async def verdict(self, acknowledged: list[UUID]) -> Verdict:
        """The outcome."""
        db = await connect(self._dsn, application_name="headgate demo")
        try:
            return await read_verdict(db, acknowledged)
        finally:
            await db.close()


async def play(stage: Stage, view: View, load: Load) -> Verdict | None:
    """Submit, kill, wait for the end; None if jobs were still live when the time was over."""
    reader = Reader(stage.dsn)
    sending = asyncio.create_task(load.submit(), name="submit")
    killing = asyncio.create_task(kill_all(stage, view, load), name="kill")
    give_up: float | None = None
    try:
        while give_up is None or time.monotonic() < give_up:
            # Before the snapshot: one that was taken before the last submit does not show its job.
            over = sending.done() and killing.done()
            snapshot = await reader.snapshot(load.reports)
            view.show(snapshot, len(load.acknowledged))
            for task in (sending, killing):
                if task.done():
                    task.result()  # an error in it ends the demo
            if killing.done() and give_up is None:
                give_up = time.monotonic() + END_SECONDS
            if over and snapshot is not None and not snapshot.total(final=False):
                return await reader.verdict(load.acknowledged)
            await asyncio.sleep(0.15)
        return None
    finally:
        sending.cancel()
        killing.cancel()
        await asyncio.gather(sending, killing, return_exceptions=True)
        await reader.close()
        await load.close()


async def kill_all(stage: Stage, view: View, load: Load) -> None:
    """Kill a worker, the server and PostgreSQL, and start each again; each kill hits a load that flows.

    Ends the load when submits were acknowledged after the last recovery.
    """

    def killed(pid: int, what: str, effect: str) -> None:
        view.say(f"kill -9 {pid}: {what}, {len(load.acknowledged):,} acknowledged. {effect}", style="bold red")
        view.say_bars()

    await load.flow()
    pid = await asyncio.to_thread(stage.kill_worker, 1)
    killed(pid, "worker 1", f"Its jobs run again if it does not reconnect within {GRACE_SECONDS} s")
    pid = await asyncio.to_thread(stage.start_worker, 3)
    view.say(f"worker 3 started (pid {pid})", style="green")

    await load.flow()
    pid = await asyncio.to_thread(stage.kill_server)
    killed(pid, "the server", "Workers keep running their jobs, and submits wait")
    pid = await asyncio.to_thread(stage.start_server)
    view.say(f"server ready again (pid {pid}); workers and producer reconnect", style="green")

    await load.flow()
    pid = await asyncio.to_thread(stage.kill_postgres)
    killed(pid, "PostgreSQL", "Nothing can be acknowledged until it is back")
    await asyncio.to_thread(stage.restart_postgres)
    view.say(f"PostgreSQL has recovered (pid {stage.cluster.pid})", style="green")

    await load.flow()
    load.over = True
    view.say(f"the producer ends, {len(load.acknowledged):,} acknowledged; what it submitted runs to its end")


def set_up(stage: Stage, say: Callable[..., None]) -> None:
    """Start everything."""
    say("Headgate demo: PostgreSQL, a server, two workers and a producer, each in its own process", style="bold")
    say(f"  PostgreSQL {stage.start_postgres()} is ready, with fsync on, in {stage.folder}")
    asyncio.run(stage.prepare())
    pid = stage.start_server()
    say(f"  server ready on {stage.address} (pid {pid})")
    say(f"  dashboard on {stage.dashboard} while this runs", style="bold")
    for number in (1, 2):
        say(f"  worker {number} started (pid {stage.start_worker(number)})")
    say(
        f"  a lost worker has {GRACE_SECONDS} s to reconnect, so that you see its jobs run again; the default is 10 s\n"
    )


def stay_open(stage: Stage, say: Callable[..., None]) -> None:
    """Leave the server and its dashboard running until Ctrl-C, or SIGTERM."""
    say(f"\nThe dashboard stays open on {stage.dashboard}, and the server on {stage.address}. Ctrl-C ends both.")
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has started this in the background
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def summary(say: Callable[..., None], verdict: Verdict | None, *, next_steps: bool = True) -> int:
    """Print the verdict; returns the exit code."""
    if verdict is None:
        say(f"\njobs were still live {END_SECONDS:.0f} s after the last submit", style="bold red")
        return 1
    holds = verdict.holds(cards=CARDS)
    say(
        f"\n{verdict.failed} attempts failed and {verdict.expired} ended with their worker; all were tried again. "
        f"The {CARDS} cards that are always declined are dead letters."
    )
    say("Counted in the database, from the rows of Headgate and of the handlers:")
    say(str(verdict), style="bold green" if holds else "bold red")
    if next_steps:
        say(
            "\nNext: `make demo KEEP=1` to look around in the dashboard, `make dev` for a server of your own, "
            "README.md for your first handler."
        )
    return 0 if holds else 1


def main() -> int:
    """Set up, play, clean up. The exit code is 0 if nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=LOAD_SECONDS, help="of load before each kill")
    parser.add_argument("--keep", action="store_true", help="leave the server and its dashboard open until Ctrl-C")
    given = parser.parse_args()
    console = Console()
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    stage = Stage()
    try:
        set_up(stage, say)
        os.environ["HEADGATE_URL"] = stage.address
        with View(console) as view:
            verdict = asyncio.run(play(stage, view, Load(seconds=given.seconds)))
        code = summary(say, verdict, next_steps=not given.keep)
        if given.keep:
            stay_open(stage, say)
        return code
    except KeyboardInterrupt:
        return 130
    finally:
        stage.close()


if __name__ == "__main__":
    sys.exit(main())
