"""Steady work for two or three servers while the database fails over, and the ledger of what was acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid4

from headgate import Headgate
from headgate.sdk.errors import NotAcknowledged
from tests.fault.history import connected
from tests.support.server import ServerProcess
from tests.support.workers import Start, WorkerProcess, all_starts, repeated

LEASE = ("--lease", "10")
AHEAD = 300
"""Jobs that producers may be ahead of the workers: a backlog would only take time afterwards."""
LIMIT_SECONDS = 120.0
KEY_LIMIT_SECONDS = 8.0


@dataclass(slots=True)
class Ledger:
    """What producers were notified."""

    acknowledged: list[UUID] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each answer came, by the monotonic clock."""
    keys: dict[str, UUID] = field(default_factory=dict)
    unknown: int = 0
    """Answers that did not come in time; each was followed by the same submit again."""
    surprises: list[str] = field(default_factory=list)

    def note(self, ids: Sequence[UUID]) -> None:
        """These are stored, by the answers."""
        self.acknowledged.extend(ids)
        self.times.append(time.monotonic())

    def note_key(self, key: str, job_id: UUID) -> None:
        """A keyed submit was answered; every answer for a key must name the same job."""
        if self.keys.setdefault(key, job_id) != job_id:
            self.surprises.append(f"key {key} was answered with {self.keys[key]} and with {job_id}")
        self.note([job_id])


@dataclass(slots=True)
class Stack:
    """Servers, workers and the producers' client, over one database URL."""

    dsn: str
    servers: list[ServerProcess]
    worker_processes: list[WorkerProcess]
    hg: Headgate
    ledger: Ledger = field(default_factory=Ledger)

    def begun(self) -> int:
        """How many handlers have begun."""
        return sum(worker.count() for worker in self.worker_processes)

    async def begins_anew(self, number: int, *, within: timedelta = timedelta(seconds=90)) -> None:
        """Wait until so many more handlers have begun."""
        wanted, deadline = self.begun() + number, time.monotonic() + within.total_seconds()
        while self.begun() < wanted:
            assert time.monotonic() < deadline, f"no work for {within}: {wanted - self.begun()} handlers short"
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        """Submit steadily while the block lasts; every submit is answered before the next one of its producer."""
        done = asyncio.Event()

        async def has_room() -> None:
            while not done.is_set() and self.begun() < len(self.ledger.acknowledged) - AHEAD:
                await asyncio.sleep(0.01)

        async def pages(topic: str, payload: bytes) -> None:
            while not done.is_set():
                handles = await self.hg.submit_many(topic, [payload] * 10, timeout=LIMIT_SECONDS)
                self.ledger.note([handle.id for handle in handles])
                await has_room()

        async def keyed() -> None:
            prefix, number = uuid4(), 0
            while not done.is_set():
                number += 1
                await self.submit_keyed(f"{prefix}-{number}")
                await asyncio.sleep(0.02)
                await has_room()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pages("slow", b"10"))
            tasks.create_task(pages("fast", b""))
            tasks.create_task(keyed())
            try:
                yield
            finally:
                done.set()

    async def submit_keyed(self, key: str) -> UUID:
        """Submit by key, and again as long as the answer is: unknown."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            try:
                handle = await self.hg.submit("fast", b"", key=key, timeout=KEY_LIMIT_SECONDS)
            except NotAcknowledged:
                self.ledger.unknown += 1
                if time.monotonic() > deadline:
                    raise
                continue
            self.ledger.note_key(key, handle.id)
            return handle.id

    def standstill(self, since: float) -> tuple[float, float]:
        """The longest time without an answer to a submit, and without a handler that begins, since then."""
        return gap(self.ledger.times, since), gap([start.at for start in all_starts(self.worker_processes)], since)


def gap(moments: Sequence[float], since: float) -> float:
    """The longest pause between two of them, from `since` on."""
    later = sorted([since, *(moment for moment in moments if moment >= since)])
    return max((after - before for before, after in pairwise(later)), default=float("inf"))


@asynccontextmanager
async def working(
    dsn: str,
    folder: Path,
    *,
    servers: int = 3,
    workers: int = 2,
    args: Sequence[str] = (),
    environs: Sequence[Mapping[str, str]] = ({},),
) -> AsyncIterator[Stack]:
    """A stack over a migrated database; all of it ends with the block. `environs` are distributed to servers."""
    with ExitStack() as processes:

        def start() -> tuple[list[ServerProcess], list[WorkerProcess]]:
            instances = []
            for number in range(servers):
                place = folder / f"server-{number}"
                place.mkdir()
                environ = environs[number % len(environs)]
                server = ServerProcess(dsn, folder=place, args=(*LEASE, *args), environ=environ)
                instances.append(processes.enter_context(server))
            addresses = [server.address for server in instances]
            worker_processes = [
                processes.enter_context(WorkerProcess(addresses, folder=folder, name=f"worker-{number}", concurrency=8))
                for number in range(workers)
            ]
            return instances, worker_processes

        instances, worker_processes = await asyncio.to_thread(start)
        async with Headgate([server.address for server in instances]) as hg:
            yield Stack(dsn=dsn, servers=instances, worker_processes=worker_processes, hg=hg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a look at the database and the workers' notes says about a ledger."""

    acknowledged: int
    lost: list[UUID]  # acknowledged, and not there
    strange: list[UUID]  # there, and no one was notified
    unfinished: int
    repeated: list[tuple[UUID, int]]  # (job, epoch) that began more than once
    wrong_results: int
    run_again: int  # jobs with more than one run
    attempts: dict[int, int]
    surprises: list[str]

    @property
    def clean(self) -> bool:
        """Nothing is wrong."""
        return not (
            self.lost or self.strange or self.unfinished or self.repeated or self.wrong_results or self.surprises
        )

    def __str__(self) -> str:
        wrong = {
            "LOST": len(self.lost),
            "strange": len(self.strange),
            "unfinished": self.unfinished,
            "(job, epoch) begun twice": len(self.repeated),
            "results of another run": self.wrong_results,
        }
        said = (
            ", ".join(f"{number} {name}" for name, number in wrong.items() if number) or "nothing lost, nothing double"
        )
        words = [f"{self.acknowledged} acknowledged", said, f"{self.run_again} run again", f"attempts {self.attempts}"]
        return "; ".join([*words, *self.surprises])


async def judge(stack: Stack) -> Findings:
    """Compare the ledger, the rows and the workers' notes, now that nothing moves any more."""
    starts: list[Start] = all_starts(stack.worker_processes)
    async with connected(stack.dsn) as db:
        rows = await db.fetch("SELECT id, epoch, attempt, result FROM headgate.archive WHERE state = 5")
        alive = await db.fetch("SELECT id FROM headgate.jobs")
    ended = {row["id"] for row in rows}
    told = set(stack.ledger.acknowledged)
    attempts: dict[int, int] = {}
    for row in rows:
        attempts[row["attempt"]] = attempts.get(row["attempt"], 0) + 1
    runs: dict[UUID, int] = {}
    for start in starts:
        runs[start.job_id] = runs.get(start.job_id, 0) + 1
    return Findings(
        acknowledged=len(told),
        lost=sorted(told - ended - {row["id"] for row in alive}),
        strange=sorted((ended | {row["id"] for row in alive}) - told),
        unfinished=len(alive),
        repeated=repeated(starts),
        wrong_results=sum(row["result"] != str(row["epoch"]).encode() for row in rows) + len(rows) - len(ended),
        run_again=sum(number > 1 for number in runs.values()),
        attempts=dict(sorted(attempts.items())),
        surprises=stack.ledger.surprises,
    )
