"""SDK workers as processes of their own, for tests that kill them; each notes every handler it starts in a file.

    with WorkerProcess(server.address, folder=tmp_path, concurrency=8) as worker:   # connected when this returns
        ...
        worker.kill()
        worker.starts()        # up to its last microsecond: a line is written before the handler continues

As a program (`python -m tests.support.workers`) this module is the worker itself. Its topics:

    fast    ends at once
    slow    takes as many milliseconds as its payload says
    flaky   fails at its first attempt, and then succeeds
    held    runs until the file named by its payload exists
    deaf    the same in a thread, which nothing can cancel

What a handler returns is its epoch, so that a stored result tells which run it came from.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from headgate import Headgate, Job
from headgate.sdk import WorkerOptions
from tests.support.server import LoggedProcess, clean_environ
from tests.support.waiting import TIME_LIMIT

ROOT = Path(__file__).parents[2]
CONNECTED = r" connected server=(?P<address>\S+) instance="
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One handler that began; `at` is the machine's monotonic clock in seconds, the same for all processes."""

    job_id: UUID
    epoch: int
    attempt: int
    pid: int
    at: float
    topic: str


class WorkerProcess(LoggedProcess):
    """A process with `workers` SDK workers; each has `concurrency` slots and asks for `prefetch` jobs beyond them."""

    def __init__(
        self,
        servers: str | Iterable[str],
        *,
        folder: Path,
        name: str = "worker",
        workers: int = 1,
        concurrency: int = 8,
        prefetch: int = 0,
        topics: Sequence[str] = (),
        lease: int = 0,
        grace: float = 30,
        wait: bool = True,
    ) -> None:
        urls = servers if isinstance(servers, str) else ",".join(servers)
        numbers = {
            "workers": workers,
            "concurrency": concurrency,
            "prefetch": prefetch,
            "lease": lease,
            "grace": grace,
        }
        self.started = folder / f"{name}.starts"
        self.workers = workers
        super().__init__(
            name,
            [
                *(sys.executable, "-m", "tests.support.workers", urls, self.started),
                *(part for key, value in numbers.items() for part in (f"--{key}", str(value))),
                *("--topics", ",".join(topics)),
            ],
            folder=folder,
            environ={**clean_environ(), "PYTHONPATH": str(ROOT)},
            fork="worker",
        )
        if wait:
            try:
                self.is_connected()
            except BaseException:
                self.kill()
                raise

    def is_connected(self, *, times: int = 1, within: timedelta = TIME_LIMIT) -> None:
        """Wait until its workers have connected so many times each, on average."""
        self.saw(CONNECTED, times=times * self.workers, within=within)

    @property
    def connections(self) -> list[str]:
        """The addresses it has connected to, in order."""
        return [match["address"] for match in self.seen(CONNECTED)]

    def starts(self) -> list[Start]:
        """The handlers that have begun so far. A line cut short by a kill is left out: its handler had not begun."""
        try:
            text = self.started.read_text()
        except FileNotFoundError:
            return []
        found: list[Start] = []
        for line in text[: text.rfind("\n") + 1].splitlines():
            job_id, epoch, attempt, pid, at, topic = line.split()
            found.append(
                Start(
                    job_id=UUID(job_id),
                    epoch=int(epoch),
                    attempt=int(attempt),
                    pid=int(pid),
                    at=int(at) / 1e9,
                    topic=topic,
                )
            )
        return found

    def count(self) -> int:
        """How many handlers have begun so far."""
        try:
            return self.started.read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


def all_starts(workers: Iterable[WorkerProcess]) -> list[Start]:
    """What several processes have begun, oldest first."""
    return sorted((start for worker in workers for start in worker.starts()), key=lambda start: start.at)


def repeated(starts: Iterable[Start]) -> list[tuple[UUID, int]]:
    """Every (job, epoch) that began more than once: there must be none, whatever was killed."""
    counts = Counter((start.job_id, start.epoch) for start in starts)
    return [run for run, count in counts.items() if count > 1]


# ---------------------------------------------------------------------- the program


def handlers(hg: Headgate, notebook: int) -> None:
    """Register the topics; `notebook` is the file to append to."""
    pid = os.getpid()

    def note(job: Job) -> None:
        line = f"{job.id} {job.epoch} {job.attempt} {pid} {time.monotonic_ns()} {job.topic}\n"
        os.write(notebook, line.encode())  # not buffered: it must survive a SIGKILL

    @hg.job("fast")
    async def fast(job: Job) -> int:
        note(job)
        return job.epoch

    @hg.job("slow")
    async def slow(job: Job) -> int:
        note(job)
        await asyncio.sleep(int(job.payload) / 1000)
        return job.epoch

    @hg.job("flaky")
    async def flaky(job: Job) -> int:
        note(job)
        if job.attempt == 1:
            raise RuntimeError("the first attempt fails")
        return job.epoch

    @hg.job("held")
    async def held(job: Job) -> int:
        note(job)
        while not os.path.exists(job.payload):
            await asyncio.sleep(_LOOK_SECONDS)
        return job.epoch

    @hg.job("deaf")
    def deaf(job: Job) -> int:
        note(job)
        while not os.path.exists(job.payload):
            time.sleep(_LOOK_SECONDS)
        return job.epoch


async def work(hg: Headgate, options: WorkerOptions, *, workers: int) -> None:
    """Run the workers until a signal asks them all to stop."""
    if workers == 1:
        await hg.worker(**options).run(signals=True)
        return
    all_workers = [hg.worker(**options) for _ in range(workers)]

    def stop(*_: object) -> None:
        for worker in all_workers:
            worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    await asyncio.gather(*(worker.run() for worker in all_workers))


def main() -> None:
    """Parse the command line and work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prefetch", type=int, default=0)
    parser.add_argument("--lease", type=int, default=0)
    parser.add_argument("--grace", type=float, default=30)
    parser.add_argument("--topics", default="")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    hg = Headgate(chosen.servers)
    handlers(hg, os.open(chosen.notebook, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
    options: WorkerOptions = {
        "concurrency": chosen.concurrency,
        "prefetch": chosen.prefetch,
        "grace": chosen.grace,
    }
    if chosen.topics:
        options["topics"] = chosen.topics.split(",")
    if chosen.lease:
        options["lease"] = chosen.lease
    asyncio.run(work(hg, options, workers=chosen.workers))


if __name__ == "__main__":
    main()
