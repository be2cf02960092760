"""What scenarios have in common: jobs of their own, workers of their own, and looking at what became of them."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import asyncpg
import grpc.aio

from headgate import Headgate
from headgate.domain.states import EventKind, State
from headgate.domain.workers import INCARNATION_MARK
from headgate.sdk import rpc
from headgate.wire import worker_pb2 as pb
from tests.fault.lab.history import Event, merged
from tests.fault.lab.load import Tenant
from tests.fault.lab.process import LabWorker
from tests.fault.lab.proxy import FaultProxy
from tests.fault.lab.worker import TOPICS
from tests.fault.lab.world import WorkerSpec, World
from tests.support.waiting import until_async

ALL_BUT_HELD: Final = [topic for topic in TOPICS if topic != "held"]
"""For the load's workers, when a scenario has workers of its own for the topic `held`."""
OTHERS_LOAD: Final[dict[str, Any]] = {"worker_options": {"topics": ALL_BUT_HELD}}
RED: Final = "red"
SLOW_MACHINE: Final = 5.0
"""Seconds that a machine with other things to do may add to a time that is promised."""
_FOUND: Final = """
SELECT id, state, attempt, epoch, worker FROM headgate.jobs WHERE id = ANY ($1)
 UNION ALL
SELECT id, state, attempt, epoch, NULL FROM headgate.archive WHERE id = ANY ($1)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A job as it is now."""

    id: UUID
    state: State
    attempt: int
    epoch: int
    worker: str
    """By its id, as administrators name it."""

    def at(self, name: str) -> bool:
        """Whether a worker of that name, in whichever of its lives, has it."""
        return not name or re.match(rf"{re.escape(name)}[-.]", self.worker) is not None


async def look(world: World, jobs: Iterable[UUID]) -> list[Found]:
    """How these jobs are."""
    async with world.database() as db:
        rows = await db.fetch(_FOUND, list(jobs))
    return [
        Found(
            id=row[0],
            state=State(row[1]),
            attempt=row[2],
            epoch=row[3],
            worker=(row[4] or "").partition(INCARNATION_MARK)[0],
        )
        for row in rows
    ]


async def eventually(
    check: Callable[[], Awaitable[object]], what: str, *, within: float = 20.0, every: float = 0.05
) -> None:
    """Wait for it; AssertionError names what did not come. A database that is away answers later."""

    async def patient() -> object:
        try:
            found = await check()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            found = None
        if not found:
            await asyncio.sleep(every)
        return found

    await until_async(patient, what, within=timedelta(seconds=within))


async def all_are(world: World, jobs: Sequence[UUID], *states: State, within: float = 20.0) -> list[Found]:
    """Wait until every one of these is in one of the states."""

    async def reached() -> bool:
        found = await look(world, jobs)
        return len(found) == len(set(jobs)) and all(one.state in states for one in found)

    try:
        await eventually(reached, f"{len(jobs)} jobs are {' or '.join(state.label for state in states)}", within=within)
    except AssertionError as error:
        error.add_note("\n".join(map(str, await look(world, jobs))))
        raise
    return await look(world, jobs)


async def completed(world: World, jobs: Sequence[UUID], *, within: float = 30.0) -> list[Found]:
    """Wait until all have completed."""
    return await all_are(world, jobs, State.COMPLETED, within=within)


# ---------------------------------------------------------------------- jobs


async def submit(world: World, topic: str, number: int = 1, *, tenant: str = RED, **options: Any) -> list[UUID]:
    """Submit so many; all must be acknowledged."""
    theirs = world.load.tenant(tenant)
    jobs: list[UUID] = []
    for _ in range(number):
        job = await world.load.submit(theirs, topic, **options)
        if job is not None:
            jobs.append(job)
            with suppress(ValueError):
                theirs.jobs.remove(job)  # the load cancels, redrives and discards what it knows
    assert len(jobs) == number, f"{number - len(jobs)} of {number} jobs were not acknowledged"
    return jobs


@dataclass(slots=True)
class HeldJobs:
    """Jobs that run until they are let go."""

    world: World
    ids: list[UUID]
    gate: Path

    def let_go(self) -> None:
        """They end now."""
        self.gate.touch()

    async def run_at(self, name: str = "", *, within: float = 20.0) -> list[Found]:
        """Wait until all of them run, at the worker of that name."""

        async def all_run() -> bool:
            found = await look(self.world, self.ids)
            return len(found) == len(self.ids) and all(one.state is State.RUNNING and one.at(name) for one in found)

        await eventually(all_run, f"{len(self.ids)} held jobs run at {name or 'some worker'}", within=within)
        return await look(self.world, self.ids)

    async def end(self, *, within: float = 30.0) -> list[Found]:
        """Let them go, and wait for their completion."""
        self.let_go()
        return await completed(self.world, self.ids, within=within)


async def hold(world: World, number: int = 1, *, tenant: str = RED, **options: Any) -> HeldJobs:
    """Submit jobs of the topic `held`. They end by themselves when the scenario forgets them: `heal` opens the gate."""
    gate = world.folder / f"gate-{len(list(world.folder.glob('gate-*')))}-{world.chance.randrange(10**6)}"
    extra = {"until": str(gate), **options.pop("extra", {})}
    held = HeldJobs(world, await submit(world, "held", number, tenant=tenant, extra=extra, **options), gate)

    async def open_gate() -> None:
        gate.touch()

    world.undo_at_heal("hold jobs", open_gate)
    return held


# ---------------------------------------------------------------------- workers and links


def via(world: World, server: str = "s1", *, name: str = "via", record: bool = False) -> FaultProxy:
    """A bad link to one server for chosen workers and clients; workers name it among their servers."""
    proxy = FaultProxy("127.0.0.1", world.servers[server].port, seed=world.seed, record=record)
    world.proxies[name] = proxy
    return proxy


async def add_worker(
    world: World, name: str, *, servers: Sequence[str] = (), tenant: str = RED, wait: bool = True, **options: Any
) -> LabWorker:
    """One more worker, for the topic `held` unless set otherwise. `heal` starts it again when it has ended."""
    options.setdefault("topics", ["held"])
    world.worker_specs[name] = WorkerSpec(tenant, servers=tuple(servers), options=options)
    await world.start(name, wait=wait)
    return world.workers[name]


def client_of(world: World, address: str, *, tenant: str = RED) -> Tenant:
    """A client of its own, for `world.load.submit`; the caller closes its `hg`."""
    return Tenant(tenant, Headgate(address, token=world.tokens[tenant]), deque(maxlen=10), deque(maxlen=10))


@asynccontextmanager
async def raw_worker(world: World, name: str, server: str = "s1", *, resumed: bool = False) -> AsyncIterator[Any]:
    """A stream manually: greeted, and then whatever the caller does, or does not do."""
    async with grpc.aio.insecure_channel(world.address(server)) as channel:
        call: Any = channel.stream_stream(
            "/headgate.v1.WorkerService/Work",
            request_serializer=pb.WorkerFrame.SerializeToString,
            response_deserializer=pb.ServerFrame.FromString,
        )(metadata=rpc.bearer(world.tokens[RED]))
        hello = pb.Hello(worker_id=name, resumed=resumed, incarnation=1)
        await call.write(pb.WorkerFrame(hello=hello))
        greeted = await asyncio.wait_for(call.read(), 10)
        assert greeted.HasField("hello_ack")
        try:
            yield call
        finally:
            call.cancel()


@asynccontextmanager
async def supervised(world: World, *names: str) -> AsyncIterator[list[tuple[str, int]]]:
    """Workers that end are started again while the block lasts; gives who ended, and with what code."""
    ended: list[tuple[str, int]] = []

    async def keep() -> None:
        while True:
            for name in names:
                code = world.workers[name].exit_code
                if code is not None:
                    ended.append((name, code))
                    world.recorder.note("proc", what="exit", name=name, code=code)
                    await world.start(name, wait=False)
            await asyncio.sleep(0.1)

    keeper = asyncio.create_task(keep(), name="supervise workers")
    try:
        async with world.faulty("workers die and are started again"):
            yield ended
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper


# ---------------------------------------------------------------------- what was seen


def seen(world: World, name: str, pattern: str) -> int:
    """How often a process, in all its lives, has printed it."""
    logs = world.folder.glob(f"{name}-*.log")
    return sum(len(re.findall(pattern, log.read_text(errors="replace"), re.MULTILINE)) for log in logs)


async def printed(world: World, name: str, pattern: str, *, times: int = 1, within: float = 20.0) -> None:
    """Wait until it has."""

    async def enough() -> bool:
        return seen(world, name, pattern) >= times

    await eventually(enough, f"{name} printed {pattern!r}", within=within)


async def noted(world: World, *kinds: str, proc: str = "") -> list[Event]:
    """What was recorded so far, of these kinds."""
    events = await asyncio.to_thread(merged, world.folder)
    return [event for event in events if event.kind in kinds and event.proc.startswith(proc)]


async def count_events(world: World, kind: EventKind, jobs: Sequence[UUID] | None = None) -> int:
    """How often that happened to these jobs, or to any."""
    async with world.database() as db:
        counted: int = await db.fetchval(
            "SELECT count(*) FROM headgate.job_events WHERE kind = $1 AND ($2::uuid[] IS NULL OR job_id = ANY ($2))",
            int(kind),
            None if jobs is None else list(jobs),
        )
    return counted
