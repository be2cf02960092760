"""The database goes away and comes back, as a whole or one session at a time: nothing is lost, and no link drops."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from uuid import UUID

import grpc
import pytest
from grpc_health.v1 import health_pb2

from headgate.embedded import Cluster
from tests.fault.conftest import Servers, Workers
from tests.fault.history import (
    TESTER,
    all_ended,
    assert_no_link_dropped,
    attempts,
    begun_anew,
    check,
    client,
    connected,
    steady_load,
    submit,
)
from tests.support.epochs import claims
from tests.support.server import ServerProcess
from tests.support.stalls import Stalls
from tests.support.waiting import until, until_async

LEASE_SECONDS = 6.0
LEASE = ("--lease", "6")
"""A worker hangs up when a beat, one every two seconds, is unanswered for a second: short enough for a test, and more
than a machine with other things to do keeps a process waiting."""
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE $1 AND application_name <> $2
 ORDER BY random() LIMIT $3"""
LISTENERS = """
SELECT array_agg(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'headgate listen' AND query LIKE 'LISTEN%'"""


# ---------------------------------------------------------------------- all of it


class Readiness:
    """What a load balancer asks."""

    def __init__(self, server: ServerProcess) -> None:
        self.channel = grpc.insecure_channel(server.address)
        self._check = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

    def is_now(self) -> int:
        """SERVING or NOT_SERVING."""
        return int(self._check(health_pb2.HealthCheckRequest(), timeout=30).status)

    def turns(self, status: int) -> None:
        """Wait for it."""
        word = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
        until(lambda: self.is_now() == status, f"the server is {word}")


@contextmanager
def readiness(server: ServerProcess) -> Iterator[Readiness]:
    """Ask, and hang up."""
    asked = Readiness(server)
    try:
        yield asked
    finally:
        asked.channel.close()


@pytest.mark.req("T10", "T37", "D18", "D19", "F30")
async def test_an_outage_of_the_database_turns_readiness_off_and_drops_no_session(
    mortal: Cluster, mortal_database: str, servers: Servers, workers: Workers, stalls: Stalls, tmp_path: Path
) -> None:
    """The outage is longer than the lease: what runs continues, and is not taken from its worker afterwards."""
    instances = await asyncio.to_thread(servers, 1, *LEASE, dsn=mortal_database)
    worker_processes = await asyncio.to_thread(workers, 2, instances, concurrency=8)
    release = tmp_path / "release"
    ids: list[UUID] = []
    async with client(instances) as hg:
        held = await submit(hg, "held", [str(release).encode()] * 4)
        with readiness(instances[0]) as health:
            assert health.is_now() == SERVING
            async with steady_load(hg, ids, worker_processes):
                await begun_anew(worker_processes, 100)
                killed = mortal.pid
                assert killed is not None
                os.kill(killed, signal.SIGKILL)
                went_at = time.monotonic()
                await asyncio.to_thread(health.turns, NOT_SERVING)
                assert time.monotonic() - went_at > 2  # a short one is no one's business
                await asyncio.sleep(went_at + LEASE_SECONDS + 0.5 - time.monotonic())  # the length of the fault
                await asyncio.to_thread(mortal.restart)
                back_at = time.monotonic()
                await asyncio.to_thread(health.turns, SERVING)
                await begun_anew(worker_processes, 100)
                resumed = time.monotonic() - back_at
        # Only now: had the watchdog taken them away, they would run a second time.
        release.touch()
        await all_ended(mortal_database)
    ended, starts = await check(mortal_database, [*held, *ids], worker_processes)
    assert resumed < 5 + 10, resumed
    assert {(job.attempt, claims(job.epoch)) for job in ended if job.id in set(held)} == {(1, 1)}
    assert max(attempts(ended)) <= 2  # a claim whose answer was lost costs its attempt
    assert_no_link_dropped(worker_processes, instances, stalls)
    assert len({start.job_id for start in starts}) == len(ended)


# ---------------------------------------------------------------------- single sessions


@pytest.mark.req("F29", "T10", "D18")
async def test_sessions_killed_at_random_under_load_lose_nothing(
    database: str, servers: Servers, workers: Workers, stalls: Stalls
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201
    instances = await asyncio.to_thread(servers, 1, *LEASE)
    # As behind a transaction pooler: every call in an explicit transaction, no LISTEN.
    instances += await asyncio.to_thread(servers, 1, *LEASE, "--pooler")
    worker_processes = [(await asyncio.to_thread(workers, 1, [server], concurrency=16))[0] for server in instances]
    ids: list[UUID] = []
    kills = 0
    async with client(instances) as hg, connected(database) as db:
        ids += await submit(hg, "slow", [b"20"] * 2_000)
        async with steady_load(hg, ids, worker_processes):
            while kills < 16:
                ended_now = await db.fetch(TERMINATE, "headgate %", TESTER, 1 if chance.random() < 0.8 else 4)
                kills += len(ended_now)
                await asyncio.sleep(chance.uniform(0.2, 0.5))  # the rhythm of the faults
        await all_ended(database)
    ended, starts = await check(database, ids, worker_processes)
    assert max(attempts(ended)) <= 3  # a claim whose answer was lost costs its attempt; twice is bad luck
    assert len({start.job_id for start in starts}) == len(ended)
    assert_no_link_dropped(worker_processes, instances, stalls)
    assert not [server for server in instances if server.seen("CRITICAL|Traceback")]


@pytest.mark.req("F34", "O4")
async def test_the_listening_session_alone_dies_and_is_opened_again(
    database: str, servers: Servers, workers: Workers
) -> None:
    here, there = await asyncio.to_thread(servers, 2)
    (worker,) = await asyncio.to_thread(workers, 1, [there])
    ids: list[UUID] = []
    async with client([here]) as hg, connected(database) as db:

        async def pickup() -> float:
            """Submitted to one instance, until begun by the worker of the other."""
            asked = time.monotonic()
            (job_id,) = await submit(hg, "fast", [b""])
            ids.append(job_id)

            async def found() -> float:
                return next((start.at for start in worker.starts() if start.job_id == job_id), 0.0)

            return await until_async(found, "the job has begun") - asked

        async def listening() -> set[int]:
            return set(await db.fetchval(LISTENERS) or ())

        async def both_listen() -> set[int]:
            pids = await listening()
            return pids if len(pids) == 2 else set()

        before = await until_async(both_listen, "both instances listen")
        await db.fetch(TERMINATE, "headgate listen", TESTER, 2)
        await pickup()  # by the tick, at the latest

        async def both_listen_anew() -> bool:
            return len(await listening() - before) == 2

        await until_async(both_listen_anew, "both instances listen again")
        # By the tick alone, each would wait for the next one: the last was found by a tick, a second ago.
        waits = [await pickup() for _ in range(9)]
        assert median(waits) < 0.5, waits
        await all_ended(database)
    ended, _ = await check(database, ids, [worker])
    assert attempts(ended) == {1: len(ids)}
