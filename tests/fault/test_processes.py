"""Processes behind one port, killed under load: nothing is lost, and the others take over."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from uuid import UUID

import pytest

from tests.e2e.test_processes import pids
from tests.fault.conftest import Servers, Workers
from tests.fault.history import all_ended, begun_anew, check, client, steady_load

SEED = 16


@pytest.mark.req("F10", "F11")
async def test_processes_killed_and_ended_in_turn_under_load_lose_nothing(
    database: str, servers: Servers, workers: Workers
) -> None:
    (server,) = await asyncio.to_thread(servers, 1, "--processes", "2", "--lease", "2", "--grace", "5")
    worker_processes = await asyncio.to_thread(workers, 2, [server], workers=3, concurrency=4, prefetch=4)
    chance = random.Random(SEED)
    ids: list[UUID] = []
    ends = {1: 0, 2: 0}
    async with client([server]) as hg:
        async with steady_load(hg, ids, worker_processes):
            for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
                await begun_anew(worker_processes, 50)
                victim = chance.choice([1, 2])
                ends[victim] += 1
                os.kill(pids(server)[victim], how)
                await begun_anew(worker_processes, 50)  # the other one serves
                await asyncio.to_thread(server.saw, rf"process_ended process={victim} ", times=ends[victim])
                await asyncio.to_thread(server.saw, rf"\[{victim}\] ready instance=", times=ends[victim] + 1)
            await begun_anew(worker_processes, 100)
        await all_ended(database)
    await check(database, ids, worker_processes)
    assert await asyncio.to_thread(server.terminate) == 0
    assert not [worker for worker in worker_processes if worker.exit_code is not None]
