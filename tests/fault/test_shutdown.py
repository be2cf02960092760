"""Stopping under load costs nothing: a worker, a server, all servers in turn; and what a second signal does."""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.fault.conftest import Servers, Workers
from tests.fault.history import all_ended, attempts, begun, begun_anew, check, client, connected, steady_load, submit
from tests.support.epochs import claims
from tests.support.waiting import until_async

WAITS = """
SELECT EXISTS (SELECT FROM pg_stat_activity
                WHERE datname = current_database() AND query LIKE 'SELECT id FROM headgate.archive%')"""
AT_ONCE = timedelta(seconds=30)
"""A start of a process on a busy machine, but far less than the lease of a minute that these tests run with."""
GRACE = 30.0
"""Seconds that a server and a worker wait for what runs, unless set otherwise."""


@pytest.mark.req("T35", "F5", "O19")
async def test_a_worker_stopped_under_load_uses_up_no_attempt(
    database: str, servers: Servers, workers: Workers
) -> None:
    instances = await asyncio.to_thread(servers, 1)
    leaving, staying = await asyncio.to_thread(workers, 2, instances, concurrency=8, prefetch=32)
    async with client(instances) as hg:
        ids = await submit(hg, "slow", [b"50"] * 400)
        ids += await submit(hg, "fast", [b""] * 1_000)
        await begun([leaving], 40)
        asked_at = time.monotonic()
        assert await asyncio.to_thread(leaving.terminate) == 0
        assert time.monotonic() - asked_at < GRACE / 2
        last = leaving.count()
        await all_ended(database, within=AT_ONCE)
    ended, starts = await check(database, ids, [leaving, staying])
    assert attempts(ended) == {1: len(ids)}
    assert len(starts) == len(ids)
    assert leaving.count() == last < len(ids)
    # What it had not begun went back and was claimed again.
    assert {claims(job.epoch) for job in ended} == {1, 2}


@pytest.mark.req("T35", "K9")
async def test_what_a_stopping_worker_has_not_begun_runs_elsewhere_while_it_still_drains(
    database: str, servers: Servers, workers: Workers, tmp_path: Path
) -> None:
    instances = await asyncio.to_thread(servers, 1)
    (leaving,) = await asyncio.to_thread(workers, 1, instances, concurrency=1, prefetch=10)
    release = tmp_path / "release"
    async with client(instances) as hg, connected(database) as db:
        held = await submit(hg, "held", [str(release).encode()])
        await begun([leaving], 1)
        waiting = await submit(hg, "fast", [b""] * 10)

        async def all_delivered() -> bool:
            return bool(await db.fetchval("SELECT count(*) = 11 FROM headgate.jobs WHERE state = 1"))

        await until_async(all_delivered, "the worker has all eleven")
        (other,) = await asyncio.to_thread(workers, 1, instances)
        leaving.signal(signal.SIGTERM)
        await begun([other], 10, within=AT_ONCE)
        assert leaving.exit_code is None  # it waits for the one that runs
        release.touch()
        assert await asyncio.to_thread(leaving.wait) == 0
        await all_ended(database, within=AT_ONCE)
    ended, starts = await check(database, [*held, *waiting], [leaving, other])
    assert attempts(ended) == {1: 11}
    assert {claims(job.epoch) for job in ended if job.id in set(held)} == {1}
    assert len(starts) == 11


@pytest.mark.req("T35", "F11")
async def test_servers_restarted_in_turn_under_load_cost_no_attempt_and_no_submit(
    database: str, servers: Servers, workers: Workers
) -> None:
    instances = await asyncio.to_thread(servers, 2, "--grace", "40")
    worker_processes = await asyncio.to_thread(workers, 3, instances, concurrency=8, prefetch=8)
    ids: list[UUID] = []
    async with client(instances) as hg:
        async with steady_load(hg, ids, worker_processes):
            for server in instances:
                await begun_anew(worker_processes, 100)
                asked_at = time.monotonic()
                assert await asyncio.to_thread(server.terminate) == 0
                assert time.monotonic() - asked_at < 20  # nothing that ran took so long: the grace was not needed
                await asyncio.to_thread(servers, 1, "--grace", "40", port=server.port)
            await begun_anew(worker_processes, 100)
        await all_ended(database, within=AT_ONCE)
    ended, starts = await check(database, ids, worker_processes)
    assert attempts(ended) == {1: len(ids)}
    assert len(starts) == len(ids)
    assert not [worker for worker in worker_processes if worker.seen("ERROR")]


@pytest.mark.req("T35")
async def test_a_handler_that_outlasts_the_grace_of_its_server_continues_and_is_not_run_again(
    database: str, servers: Servers, workers: Workers, tmp_path: Path
) -> None:
    (first,) = await asyncio.to_thread(servers, 1, "--grace", "1")
    (worker,) = await asyncio.to_thread(workers, 1, [first], concurrency=4)
    release = tmp_path / "release"
    async with client([first]) as hg:
        ids = await submit(hg, "held", [str(release).encode()] * 4)
        await begun([worker], 4)
        assert await asyncio.to_thread(first.terminate, within=timedelta(seconds=GRACE / 2)) == 0
        await asyncio.to_thread(servers, 1, port=first.port)
        await asyncio.to_thread(worker.is_connected, times=2)
        release.touch()
        await all_ended(database, within=AT_ONCE)
    ended, starts = await check(database, ids, [worker])
    assert {(job.attempt, claims(job.epoch)) for job in ended} == {(1, 1)}
    assert len(starts) == 4


@pytest.mark.req("T35")
async def test_who_has_nothing_to_submit_or_waits_for_a_result_does_not_delay_a_stop(
    database: str, servers: Servers, workers: Workers, tmp_path: Path
) -> None:
    (first,) = await asyncio.to_thread(servers, 1)  # with a grace of half a minute
    release = tmp_path / "release"
    async with client([first]) as hg:
        handle = await hg.submit("held", str(release).encode())  # over a stream that is kept open
        result = asyncio.create_task(handle.result(timeout=60))
        async with connected(database) as db:

            async def asked() -> bool:
                return bool(await db.fetchval(WAITS))

            await until_async(asked, "the server looks for the result")
        asked_at = time.monotonic()
        assert await asyncio.to_thread(first.terminate) == 0
        assert time.monotonic() - asked_at < GRACE / 2
        again = await asyncio.to_thread(servers, 1, port=first.port)
        worker_processes = await asyncio.to_thread(workers, 1, again)
        release.touch()
        assert claims(await result) == 1
        ids = [handle.id, *await submit(hg, "fast", [b""])]
        await all_ended(database, within=AT_ONCE)
    ended, starts = await check(database, ids, worker_processes)
    assert attempts(ended) == {1: 2}
    assert len(starts) == 2


# ---------------------------------------------------------------------- the second signal


@pytest.mark.req("T38")
async def test_a_second_signal_ends_a_server_at_once_and_its_jobs_go_on(
    database: str, servers: Servers, workers: Workers, tmp_path: Path
) -> None:
    first, second = await asyncio.to_thread(servers, 2)
    (worker,) = await asyncio.to_thread(workers, 1, [first], concurrency=2)
    release = tmp_path / "release"
    async with client([second]) as hg:
        ids = await submit(hg, "held", [str(release).encode()] * 2)
        await begun([worker], 2)
        first.signal(signal.SIGTERM)
        await asyncio.to_thread(worker.saw, "server_draining")
        await asyncio.to_thread(first.saw, r"draining workers=1 jobs=2 seconds_left=\d+ .*second signal exits at once")
        assert first.exit_code is None  # it waits for the handlers
        asked_at = time.monotonic()
        assert await asyncio.to_thread(first.terminate) == 1
        assert time.monotonic() - asked_at < GRACE / 2
        assert first.seen('second_signal effect="the server exits at once')
        await asyncio.to_thread(servers, 1, port=first.port)
        await asyncio.to_thread(worker.is_connected, times=2)
        release.touch()
        await all_ended(database, within=AT_ONCE)
    ended, starts = await check(database, ids, [worker])
    assert {(job.attempt, claims(job.epoch)) for job in ended} == {(1, 1)}
    assert len(starts) == 2


@pytest.mark.req("T38")
@pytest.mark.parametrize("topic", ["held", "deaf"])
async def test_a_second_signal_ends_a_worker_at_once_and_hands_its_jobs_back(
    database: str, servers: Servers, workers: Workers, tmp_path: Path, topic: str
) -> None:
    instances = await asyncio.to_thread(servers, 1)
    (leaving,) = await asyncio.to_thread(workers, 1, instances, concurrency=2)
    release = tmp_path / "release"
    async with client(instances) as hg:
        ids = await submit(hg, topic, [str(release).encode()] * 2)
        await begun([leaving], 2)
        leaving.signal(signal.SIGTERM)
        await asyncio.to_thread(leaving.saw, "stopping signal=SIGTERM")
        await asyncio.to_thread(
            leaving.saw, rf'draining jobs=2 topics="{topic}: 2" longest_seconds=\d+ seconds_left=\d+ '
        )
        asked_at = time.monotonic()
        await asyncio.to_thread(leaving.terminate)
        assert time.monotonic() - asked_at < GRACE / 2
        assert leaving.seen(rf'stopping_at_once jobs=2 topics="{topic}: 2" effect=.handlers are cancelled')
        release.touch()
        (other,) = await asyncio.to_thread(workers, 1, instances, concurrency=2)
        await all_ended(database, within=AT_ONCE)
    ended, starts = await check(database, ids, [leaving, other])
    assert {(job.attempt, claims(job.epoch)) for job in ended} == {(1, 2)}
    assert len(starts) == 4
