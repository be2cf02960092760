"""What must hold when the faults are over: every job submitted ended once, and everything agrees with everything."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

import asyncpg

from headgate import Headgate
from headgate.domain.states import State
from headgate.store.connect import connect
from headgate.store.upkeep import fold_flows
from tests.support.server import ServerProcess
from tests.support.stalls import Stalls
from tests.support.waiting import TIME_LIMIT, until_async
from tests.support.workers import Start, WorkerProcess, all_starts, repeated

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
TESTER = "headgate test"
"""How a test's own sessions call themselves, so that it does not end them with the others."""


AHEAD = 300
PAUSE_SECONDS = 0.025
LEFT = """
SELECT t.name, j.state, j.attempt, j.epoch, j.worker, j.owner, max(j.lease_until - clock_timestamp()) AS lease,
       max(j.run_at - clock_timestamp()) AS due, count(*)
  FROM headgate.jobs j JOIN headgate.topics t USING (topic_no) GROUP BY 1, 2, 3, 4, 5, 6 LIMIT 20"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job at its end."""

    id: UUID
    state: State
    attempt: int
    epoch: int


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """A session of the test's own."""
    db = await connect(dsn, application_name=TESTER)
    try:
        yield db
    finally:
        await db.close()


def client(servers: Sequence[ServerProcess]) -> Headgate:
    """A producer that knows all these servers."""
    return Headgate([server.address for server in servers])


async def submit(hg: Headgate, topic: str, payloads: Iterable[object]) -> list[UUID]:
    """Submit, and return the ids of what was acknowledged: all, or this raises."""
    return [handle.id for handle in await hg.submit_many(topic, payloads)]


async def begun(workers: Sequence[WorkerProcess], number: int, *, within: timedelta = TIME_LIMIT) -> None:
    """Wait until so many handlers have begun."""

    async def enough() -> bool:
        return sum(worker.count() for worker in workers) >= number

    await until_async(enough, f"{number} handlers have begun", within=within)


@asynccontextmanager
async def steady_load(hg: Headgate, ids: list[UUID], workers: Sequence[WorkerProcess]) -> AsyncIterator[None]:
    """Submit a little, wait for the answer, submit more: until the block ends. `ids` gets what was acknowledged.

    Hundreds of jobs a second, not as many as there could be: faults are met at every moment either way, and tests that
    run beside get a processor. Never more than a few hundred jobs ahead of the workers: a backlog would only take time
    afterwards.
    """
    done = asyncio.Event()

    async def produce(topic: str, payload: bytes, number: int) -> None:
        while not done.is_set():
            ids.extend(await submit(hg, topic, [payload] * number))
            await asyncio.sleep(PAUSE_SECONDS)
            while not done.is_set() and sum(worker.count() for worker in workers) < len(ids) - AHEAD:
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce("slow", b"10", 10))
        tasks.create_task(produce("fast", b"", 10))
        try:
            yield
        finally:
            done.set()


async def begun_anew(workers: Sequence[WorkerProcess], number: int) -> None:
    """Wait until so many more handlers have begun."""
    await begun(workers, sum(worker.count() for worker in workers) + number)


async def all_ended(dsn: str, *, within: timedelta = TIME_LIMIT) -> None:
    """Wait until no job is alive."""
    async with connected(dsn) as db:

        async def none_alive() -> bool:
            return not await db.fetchval("SELECT EXISTS (SELECT FROM headgate.jobs)")

        try:
            await until_async(none_alive, "no job is alive", within=within)
        except AssertionError as error:
            left = await db.fetch(LEFT)
            error.add_note("\n".join(map(str, left)))
            raise


async def check(dsn: str, ids: Sequence[UUID], workers: Sequence[WorkerProcess]) -> tuple[list[Ended], list[Start]]:
    """Every job submitted, and no other, has completed, once; returns how each ended and all handlers that began.

    Nothing is alive. No (job, epoch) was handled twice. The stored result is that of the job's last epoch, and that
    epoch was handled. The counts for people equal the rows.
    """
    starts = all_starts(workers)
    async with connected(dsn) as db:
        assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 0
        rows = await db.fetch("SELECT id, state, attempt, epoch, result FROM headgate.archive")
        counts = await _counts(db)
        topics = await db.fetch("SELECT topic_no, state, count(*) AS n FROM headgate.archive GROUP BY 1, 2")
    assert len(ids) == len(set(ids))
    assert len(rows) == len(ids), "lost or doubled"
    assert {row["id"] for row in rows} == set(ids)
    assert {row["state"] for row in rows} == {State.COMPLETED}
    assert repeated(starts) == []
    handled = {(start.job_id, start.epoch) for start in starts}
    wrong = [row for row in rows if row["result"] != str(row["epoch"]).encode()]
    assert not wrong, f"results of another run: {wrong[:5]}"
    assert not [row for row in rows if (row["id"], row["epoch"]) not in handled]
    assert counts == {(row["topic_no"], row["state"]): row["n"] for row in topics}
    ended = [Ended(id=row["id"], state=State(row["state"]), attempt=row["attempt"], epoch=row["epoch"]) for row in rows]
    return ended, starts


def attempts(ended: Iterable[Ended]) -> dict[int, int]:
    """How many jobs took how many paid attempts."""
    return dict(Counter(job.attempt for job in ended))


def assert_no_link_dropped(workers: Sequence[WorkerProcess], servers: Sequence[ServerProcess], stalls: Stalls) -> None:
    """Each worker has had one connection. A machine that stalled for most of the second after which a worker hangs
    up has proved nothing."""
    if stalls.longest > 0.7:
        print(f"the machine stood still for {stalls.longest:.1f} s: links may have dropped")  # noqa: T201
        return
    assert [len(worker.connections) for worker in workers] == [1] * len(workers)
    assert not [server for server in servers if server.seen("session_ended")]


async def _counts(db: Connection) -> dict[tuple[int, int], int]:
    async def folded() -> bool:
        # A delta that an instance is folding is seen here until that is committed.
        await fold_flows(db)
        return not await db.fetchval("SELECT EXISTS (SELECT FROM headgate.flow_deltas)")

    await until_async(folded, "all counts are folded")
    rows = await db.fetch("SELECT topic_no, state, sum(n)::bigint AS n FROM headgate.state_counts GROUP BY 1, 2")
    return {(row["topic_no"], row["state"]): row["n"] for row in rows if row["n"]}
