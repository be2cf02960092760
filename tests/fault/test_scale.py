"""Many at once: instances, workers and sessions."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median

import grpc
import pytest

from headgate.sdk import rpc
from headgate.sdk.addresses import Address
from headgate.sdk.io_thread import io_thread
from headgate.wire import worker_pb2 as pb
from tests.fault.conftest import Servers, Workers
from tests.fault.history import Connection, all_ended, attempts, check, client, connected, submit
from tests.support.database import Server
from tests.support.epochs import claims
from tests.support.server import ServerProcess
from tests.support.waiting import until_async

JOBS = int(os.environ.get("HEADGATE_FAULT_JOBS", "50000"))
SESSIONS = 1_000
IDLE_TOPICS = tuple(f"idle-{number}" for number in range(4))
WINDOW_SECONDS = 3.0
MOST_PER_SECOND = 3
TRANSACTIONS = "SELECT xact_commit + xact_rollback, clock_timestamp() FROM pg_stat_database WHERE datname = $1"
ROLLBACKS = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"


@pytest.mark.req("T8", "D2", "D4", "D15")
async def test_three_instances_and_eight_workers_handle_every_job_once(
    database: str, servers: Servers, workers: Workers
) -> None:
    instances = await asyncio.to_thread(servers, 3)
    worker_processes = await asyncio.to_thread(workers, 8, instances, concurrency=32)
    async with client(instances) as hg:
        ids = await submit(hg, "fast", [b""] * JOBS)
    await all_ended(database, within=timedelta(seconds=150))
    ended, starts = await check(database, ids, worker_processes)
    assert len(ended) == len(starts) == JOBS
    assert attempts(ended) == {1: JOBS}
    assert {claims(job.epoch) for job in ended} == {1}
    assert len({start.pid for start in starts}) == len(worker_processes)  # each had its share
    for process in (*worker_processes, *instances):
        assert await asyncio.to_thread(process.terminate) == 0
    # A session hands in its statistics when it ends. No claim was ever undone because another had been faster; only the
    # upkeep of each instance may have been cut off by its end.
    async with connected(database) as db:
        assert await db.fetchval(ROLLBACKS) <= len(instances)


# ---------------------------------------------------------------------- sessions that wait


class IdleSessions:
    """Plain Work streams, each over a connection of its own, that ask for one job and otherwise beat.

    Everything here runs on the SDK's I/O loop: grpc.aio stands one loop per process.
    """

    def __init__(self) -> None:
        self.calls: list[rpc.WorkCall] = []
        self.beats_answered = 0
        self.delivered: list[tuple[bytes, float]] = []
        self.ended: list[str] = []
        self._channels: list[grpc.aio.Channel] = []
        self._readers: list[asyncio.Task[None]] = []

    async def open(self, address: str, count: int) -> None:
        """Connect `count` sessions, fifty at a time."""
        start, stop = len(self.calls), len(self.calls) + count
        for first in range(start, stop, 50):
            async with asyncio.TaskGroup() as tasks:
                for number in range(first, min(first + 50, stop)):
                    tasks.create_task(self._open(address, number))

    async def beat(self) -> None:
        """Every session says that it is there."""
        for call in self.calls:
            await call.write(pb.WorkerFrame(beat=pb.Beat()))

    async def close(self) -> None:
        """Hang up."""
        for call in self.calls:
            call.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def _open(self, address: str, number: int) -> None:
        channel = rpc.open_channel(Address(address))
        self._channels.append(channel)
        call = rpc.open_work(channel, "")
        await call.write(pb.WorkerFrame(hello=pb.Hello(worker_id=f"idle-{number}")))
        greeted = await rpc.next_frame(call)
        assert greeted is not None
        assert greeted.HasField("hello_ack")
        await call.write(pb.WorkerFrame(ready=pb.Ready(topics=IDLE_TOPICS, count=1)))
        self.calls.append(call)
        self._readers.append(asyncio.create_task(self._read(call), name=f"idle session {number}"))

    async def _read(self, call: rpc.WorkCall) -> None:
        seq = 0
        try:
            while (frame := await rpc.next_frame(call)) is not None:
                self.beats_answered += frame.HasField("beat_ack")
                if frame.HasField("jobs"):
                    now, jobs, seq = time.monotonic(), frame.jobs, seq + 1
                    self.delivered += [(raw_id, now) for raw_id in jobs.ids]
                    results = [str(epoch).encode() for epoch in jobs.epochs]
                    outcomes = pb.Outcomes(seq=seq, ids=jobs.ids, epochs=jobs.epochs, results=results)
                    await call.write(pb.WorkerFrame(outcomes=outcomes, ready=pb.Ready(count=len(jobs.ids))))
        except grpc.aio.AioRpcError as error:
            self.ended.append(f"{error.code()}: {error.details()}")
            return
        self.ended.append("end of stream")


@pytest.mark.req("T6", "D11", "D26", "O2")
async def test_a_thousand_idle_sessions_cost_the_database_nothing(
    database: str, postgres: Server, servers: Servers
) -> None:
    """How it is counted: commits and rollbacks of the instance's database, as PostgreSQL itself adds them up, read from
    a session in another database. What an instance does now and then, with or without sessions, is among them: its
    first retention pass is a dozen transactions, its vacuum a few for each table; autovacuum looks at a new database
    once; and what a session did before may be added up to ten seconds late. Each fills a window or two. So the
    quietest window counts, of two, or of five where both had such a thing. Beats that cost a query would show in every
    one of them, as hundreds of transactions a second."""
    (server,) = await asyncio.to_thread(servers, 1)
    on_io = partial(asyncio.run_coroutine_threadsafe, loop=io_thread().loop)
    sessions = IdleSessions()
    try:
        # The first by itself: the server then knows the topics, and nothing of this is counted below.
        for number in (1, SESSIONS - 1):
            await asyncio.wrap_future(on_io(sessions.open(server.address, number)))
        async with connected(database) as db:
            name = await db.fetchval("SELECT current_database()")
        async with connected(postgres.dsn) as db:
            rates: list[float] = []
            while len(rates) < 2 or (min(rates) > MOST_PER_SECOND and len(rates) < 5):
                before, since = await transactions(db, name)
                await asyncio.wrap_future(on_io(sessions.beat()))  # beats are received, and cost no query
                await asyncio.sleep(WINDOW_SECONDS)  # the length of the measurement, not a wait for something
                after, until = await transactions(db, name)
                rates.append((after - before) / (until - since).total_seconds())
        per_second = min(rates)

        async def all_answered() -> bool:
            return sessions.beats_answered == len(rates) * SESSIONS

        await until_async(all_answered, "all beats are answered")
        assert max(rates) >= 0.5, rates  # at least its tick: else the figures were not handed in
        assert per_second <= MOST_PER_SECOND, rates
        assert not sessions.ended
        assert memory_mb(server.pid) < 300
        waits = await pickup_seconds(sessions, [server], jobs=20)
        assert median(waits) < 0.5, waits
        await all_ended(database)
        await check_delivered(database, sessions)
        print(f"\n{SESSIONS} idle sessions: {per_second:.2f} transactions/s, {memory_mb(server.pid):.0f} MB, "  # noqa: T201
              f"pickup {median(waits) * 1000:.1f} ms")  # fmt: skip
    finally:
        await asyncio.wrap_future(on_io(sessions.close()))


async def transactions(db: Connection, database: str) -> tuple[int, datetime]:
    """How many there were so far, and when."""
    row = await db.fetchrow(TRANSACTIONS, database)
    assert row is not None
    return row[0], row[1]


async def pickup_seconds(sessions: IdleSessions, servers: Sequence[ServerProcess], *, jobs: int) -> list[float]:
    """How long each of some jobs, submitted one after the other, waits until a session has it."""
    waits: list[float] = []
    async with client(servers) as hg:
        for number in range(jobs):
            asked = time.monotonic()
            (job_id,) = await submit(hg, IDLE_TOPICS[number % len(IDLE_TOPICS)], [b""])

            async def arrived(raw_id: bytes = job_id.bytes) -> float:
                return dict(sessions.delivered).get(raw_id, 0.0)

            waits.append(await until_async(arrived, "the job has reached a session") - asked)
    return waits


async def check_delivered(dsn: str, sessions: IdleSessions) -> None:
    """Each job reached one session, once, and ended there."""
    async with connected(dsn) as db:
        rows = await db.fetch("SELECT id, attempt, epoch, result FROM headgate.archive WHERE state = 5")
    assert sorted(row["id"].bytes for row in rows) == sorted(raw_id for raw_id, _ in sessions.delivered)
    # The result is the epoch that the session was given.
    assert {(row["attempt"], claims(row["epoch"]), int(row["result"]) - row["epoch"]) for row in rows} == {(1, 1, 0)}


def memory_mb(pid: int) -> float:
    """What the process has in memory, in megabytes."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
