"""What outlives a SIGKILL: of a worker, of a server, of a server between claim and send, of PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from headgate import Headgate
from headgate.embedded import Cluster
from tests.fault.conftest import Servers, Workers
from tests.fault.history import (
    Connection,
    all_ended,
    assert_no_link_dropped,
    attempts,
    begun,
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

SHORT_LEASE = ("--lease", "2")
LONGER_LEASE = ("--lease", "6")  # where exactly one attempt is right, also on a machine that stalls for a second
LEASE_SECONDS = 6.0
SWEEP_SECONDS = 1.0  # one tick
BACKOFF_SECONDS = 1.0  # after a first failed attempt, by the default policy
SLACK_SECONDS = 20.0  # for a machine that has other things to do


# ---------------------------------------------------------------------- workers


@pytest.mark.req("T26", "F1", "D23")
async def test_what_a_killed_worker_ran_is_run_elsewhere_at_the_cost_of_one_attempt(
    database: str, servers: Servers, workers: Workers, tmp_path: Path
) -> None:
    instances = await asyncio.to_thread(servers, 1, *LONGER_LEASE)
    (victim,) = await asyncio.to_thread(workers, 1, instances, concurrency=8)
    release = tmp_path / "release"
    async with client(instances) as hg:
        doomed = await submit(hg, "held", [str(release).encode()] * 8)
        await begun([victim], 8)
        (survivor,) = await asyncio.to_thread(workers, 1, instances, concurrency=16)
        others = await submit(hg, "slow", [b"20"] * 200)
        await begun([survivor], 20)  # in the middle of other work
        killed_at = time.monotonic()
        victim.kill()
        release.touch()
        await all_ended(database)
    ended, starts = await check(database, [*doomed, *others], [victim, survivor])
    assert {job.id: job.attempt for job in ended if job.id in set(doomed)} == dict.fromkeys(doomed, 2)
    assert {job.attempt for job in ended if job.id in set(others)} == {1}
    assert len(starts) == len(ended) + len(doomed)
    again = [start for start in starts if claims(start.epoch) == 2]
    assert {start.pid for start in again} == {survivor.pid}
    latest = LEASE_SECONDS + SWEEP_SECONDS + BACKOFF_SECONDS + SLACK_SECONDS
    assert max(start.at for start in again) - killed_at < latest


@pytest.mark.req("F4", "T27")
async def test_a_worker_frozen_for_longer_than_its_lease_cannot_overwrite_its_successor(
    database: str, servers: Servers, workers: Workers, tmp_path: Path
) -> None:
    instances = await asyncio.to_thread(servers, 1, *SHORT_LEASE)
    (frozen,) = await asyncio.to_thread(workers, 1, instances, concurrency=4)
    release = tmp_path / "release"
    async with client(instances) as hg:
        ids = await submit(hg, "held", [str(release).encode()] * 4)
        await begun([frozen], 4)
        frozen.signal(signal.SIGSTOP)
        (successor,) = await asyncio.to_thread(workers, 1, instances, concurrency=4)
        await begun([successor], 4)
        release.touch()  # the frozen one will find its work done as well, and say so
        await all_ended(database)
        frozen.signal(signal.SIGCONT)
        await asyncio.to_thread(frozen.is_connected, times=2)
        # It works on, with all its slots.
        more = await submit(hg, "fast", [b""] * 50)
        await all_ended(database)
    ended, starts = await check(database, [*ids, *more], [frozen, successor])
    assert {(job.attempt, claims(job.epoch)) for job in ended if job.id in set(ids)} == {(2, 2)}
    assert {job.attempt for job in ended if job.id in set(more)} == {1}
    assert len(starts) == len(ended) + len(ids)


# ---------------------------------------------------------------------- servers

HOLD_CLAIMS = """
CREATE FUNCTION public.hold_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Waits in the middle of the claim's transaction for as long as the test has this lock.
    IF current_setting('application_name') IN ('headgate claim', 'headgate submit') THEN
        PERFORM pg_advisory_xact_lock_shared(1, 1);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER hold_claim AFTER UPDATE ON headgate.jobs FOR EACH STATEMENT EXECUTE FUNCTION public.hold_claim()"""
CLAIM_WAITS = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name IN ('headgate claim', 'headgate submit')
                  AND wait_event = 'advisory' AND datname = current_database())"""


async def claim_and_freeze(db: Connection, hg: Headgate, server: ServerProcess, jobs: int) -> list[UUID]:
    """Submit jobs, and stop the server dead after their claim has committed and before it can know.

    The claim is held in its transaction by a lock of ours; then the process is frozen, and the lock released. The
    statement was sent as a whole, so PostgreSQL commits it by itself, for a server that does not read the answer.
    """
    await db.execute("SELECT pg_advisory_lock(1, 1)")
    # Claimed by a call of its own or by that of the submit, which then has no answer either.
    submitting = asyncio.create_task(submit(hg, "fast", [b""] * jobs), name="a submit")

    async def waits() -> bool:
        return bool(await db.fetchval(CLAIM_WAITS))

    await until_async(waits, "the claim waits for the test")
    server.signal(signal.SIGSTOP)
    await db.execute("SELECT pg_advisory_unlock(1, 1)")

    async def committed() -> list[UUID]:
        ids = [row["id"] for row in await db.fetch("SELECT id FROM headgate.jobs WHERE state = 1")]
        return ids if len(ids) == jobs else []

    ids = await until_async(committed, "the claim has committed")
    await hg.close(flush=0)  # it would try again for seconds
    await asyncio.gather(submitting, return_exceptions=True)
    return ids


@asynccontextmanager
async def claims_held(dsn: str) -> AsyncIterator[Connection]:
    """A session, and a trigger by which it can hold claims."""
    async with connected(dsn) as db:
        await db.execute(HOLD_CLAIMS)
        try:
            yield db
        finally:
            await db.execute("DROP TRIGGER hold_claim ON headgate.jobs")


@pytest.mark.req("T9", "D16", "D17", "D23")
async def test_what_a_server_claimed_and_never_sent_comes_back_by_its_lease(
    database: str, servers: Servers, workers: Workers
) -> None:
    first, second = await asyncio.to_thread(servers, 2, *SHORT_LEASE)
    (lost,) = await asyncio.to_thread(workers, 1, [first], concurrency=8)
    async with claims_held(database) as db, client([first]) as hg:
        ids = await claim_and_freeze(db, hg, first, 8)
        first.kill()
        lost.kill()  # no one is left who could say what it did not get
    (other,) = await asyncio.to_thread(workers, 1, [second], concurrency=8)
    await all_ended(database)
    ended, starts = await check(database, ids, [lost, other])
    assert {(job.attempt, claims(job.epoch)) for job in ended} == {(2, 2)}  # the one that was counted, and no more
    assert [(start.pid, claims(start.epoch)) for start in starts] == [(other.pid, 2)] * 8


@pytest.mark.req("T9", "F18", "O19")
async def test_a_worker_that_comes_back_gives_back_what_it_was_never_sent(
    database: str, servers: Servers, workers: Workers
) -> None:
    """The same, but the worker lives: what it does not declare is claimable at once, and costs no attempt."""
    (first,) = await asyncio.to_thread(servers, 1)  # leases of a minute: they play no part in this
    (worker,) = await asyncio.to_thread(workers, 1, [first], concurrency=8)
    async with claims_held(database) as db, client([first]) as hg:
        ids = await claim_and_freeze(db, hg, first, 8)
        first.kill()
    await asyncio.to_thread(servers, 1, port=first.port)
    await all_ended(database)
    ended, starts = await check(database, ids, [worker])
    assert {(job.attempt, claims(job.epoch)) for job in ended} == {(1, 2)}
    assert len(starts) == 8


@pytest.mark.req("F10", "I2")
async def test_a_running_handler_outlives_its_server_and_is_not_run_again(
    database: str, servers: Servers, workers: Workers, tmp_path: Path
) -> None:
    instances = await asyncio.to_thread(servers, 2, *LONGER_LEASE)
    (worker,) = await asyncio.to_thread(workers, 1, instances, concurrency=4)
    (rival,) = await asyncio.to_thread(workers, 1, instances, concurrency=4, topics=["fast"])
    release = tmp_path / "release"
    async with client(instances) as hg, connected(database) as db:
        held = await submit(hg, "held", [str(release).encode()] * 4)
        await begun([worker], 4)
        lease = await db.fetchval("SELECT max(lease_until) FROM headgate.jobs WHERE state = 1")
        (serving,) = [server for server in instances if server.address == worker.connections[0]]
        serving.kill()
        await asyncio.to_thread(worker.is_connected, times=2)

        async def kept_for_longer_than_a_lease() -> bool:
            now = await db.fetchval("SELECT min(lease_until) FROM headgate.jobs WHERE state = 1")
            return bool(now > lease + timedelta(seconds=LEASE_SECONDS))

        await until_async(kept_for_longer_than_a_lease, "the other instance keeps the leases")
        release.touch()
        more = await submit(hg, "fast", [b""] * 50)
        await all_ended(database)
    ended, starts = await check(database, [*held, *more], [worker, rival])
    assert attempts(ended) == {1: len(ended)}
    assert {claims(job.epoch) for job in ended if job.id in set(held)} == {1}
    assert len(starts) == len(ended)


@pytest.mark.req("T36")
async def test_two_hundred_workers_come_back_to_a_restarted_server_without_a_lost_or_doubled_result(
    database: str, servers: Servers, workers: Workers
) -> None:
    """Leases of a minute: what comes back in time does so because a worker said that it never got it."""
    (first,) = await asyncio.to_thread(servers, 1)
    worker_processes = await asyncio.to_thread(workers, 4, [first], workers=50, concurrency=4)
    async with client([first]) as hg:
        ids = await submit(hg, "slow", [b"40"] * 4_000)
        ids += await submit(hg, "fast", [b""] * 1_000)
        await begun(worker_processes, 1_500)
        first.kill()
        # Whoever asks for a job now gets no answer; those that run go on.
        await asyncio.to_thread(servers, 1, port=first.port)
        back_at = time.monotonic()
        for process in worker_processes:
            await asyncio.to_thread(process.is_connected, times=2)
        took = time.monotonic() - back_at
        await all_ended(database)
    ended, starts = await check(database, ids, worker_processes)
    assert len(starts) == len(ended)
    assert attempts(ended) == {1: len(ended)}
    assert took < 30  # half a lease


@pytest.mark.req("F10")
async def test_servers_killed_one_after_the_other_under_load_lose_nothing(
    database: str, servers: Servers, workers: Workers
) -> None:
    instances = await asyncio.to_thread(servers, 2, *LONGER_LEASE)
    worker_processes = await asyncio.to_thread(workers, 3, instances, concurrency=8, prefetch=8)
    ids: list[UUID] = []
    async with client(instances) as hg:
        ids += await submit(hg, "slow", [b"20"] * 500)
        async with steady_load(hg, ids, worker_processes):
            for round_ in range(3):
                await begun_anew(worker_processes, 150)
                victim = instances[round_ % 2]
                victim.kill()
                await begun_anew(worker_processes, 150)  # the other has taken over
                (instances[round_ % 2],) = await asyncio.to_thread(servers, 1, *LONGER_LEASE, port=victim.port)
        await all_ended(database)
    ended, starts = await check(database, ids, worker_processes)
    # A claim that commits after its server has died, and after the worker has come back elsewhere, costs its attempt.
    assert max(attempts(ended)) <= 2
    assert attempts(ended)[1] > 0.9 * len(ended)
    assert len(starts) == len(ended)  # and no handler ran for nothing


@pytest.mark.req("F10", "I2", "I4")
async def test_a_server_frozen_for_longer_than_its_leases_and_thawed_does_no_harm(
    database: str, servers: Servers, workers: Workers, tmp_path: Path
) -> None:
    lease = 9.0  # its workers need three seconds' beats and a second to notice, on a machine that has much to do
    frozen, other = await asyncio.to_thread(servers, 2, "--lease", "9")
    worker_processes = await asyncio.to_thread(workers, 2, [frozen, other], concurrency=12)
    (tied,) = await asyncio.to_thread(workers, 1, [frozen], concurrency=4)  # knows of no other
    release = tmp_path / "release"
    ids: list[UUID] = []
    async with client([other]) as hg:
        held = await submit(hg, "held", [str(release).encode()] * 8)
        await begun([*worker_processes, tied], 8)
        async with steady_load(hg, ids, worker_processes):
            await begun_anew(worker_processes, 100)
            frozen.signal(signal.SIGSTOP)
            frozen_at = time.monotonic()
            await begun_anew(worker_processes, 300)
            while time.monotonic() - frozen_at < 1.25 * lease:
                await begun_anew(worker_processes, 50)
            frozen.signal(signal.SIGCONT)
            await begun_anew(worker_processes, 100)
        release.touch()
        await all_ended(database)
        more = await submit(hg, "fast", [b""] * 100)
        await all_ended(database)
    ended, starts = await check(database, [*held, *ids, *more], [*worker_processes, tied])
    assert max(attempts(ended)) <= 2
    # What the two ran continues at the other instance; what the tied one ran is lost to it, and runs once more.
    theirs = {
        start.job_id for start in starts if start.topic == "held" and start.pid == tied.pid and claims(start.epoch) == 1
    }
    assert {job.id for job in ended if job.id in set(held) and job.attempt == 2} <= theirs


# ---------------------------------------------------------------------- PostgreSQL


@pytest.mark.req("T37", "F31", "D18", "D19", "T10")
async def test_a_crash_of_postgres_under_load_loses_nothing_and_drops_no_session(
    mortal: Cluster, mortal_database: str, servers: Servers, workers: Workers, stalls: Stalls
) -> None:
    # Beats of two seconds: a link must not drop because this machine is busy for one.
    instances = await asyncio.to_thread(servers, 2, "--lease", "6", dsn=mortal_database)
    worker_processes = await asyncio.to_thread(workers, 2, instances, concurrency=16)
    ids: list[UUID] = []
    async with client(instances) as hg:
        ids += await submit(hg, "slow", [b"10"] * 200)
        ids += await submit(hg, "flaky", [b""] * 40)
        async with steady_load(hg, ids, worker_processes):
            await begun(worker_processes, 300)
            killed = mortal.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            await asyncio.to_thread(until, lambda: mortal.pid is None, "the postmaster is gone")
            await asyncio.to_thread(mortal.restart)
            await begun_anew(worker_processes, 300)
        await all_ended(mortal_database)
    ended, starts = await check(mortal_database, ids, worker_processes)
    flaky = {start.job_id for start in starts if start.topic == "flaky"}
    # A claim whose answer was lost costs its attempt; nothing was claimed twice for nothing.
    assert {job.attempt for job in ended if job.id not in flaky} <= {1, 2}
    assert {job.attempt for job in ended if job.id in flaky} <= {2, 3}
    assert_no_link_dropped(worker_processes, instances, stalls)
