"""The promise of Pause over three loaded servers: once it has returned, nothing of its target enters `running`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from headgate import Headgate
from headgate.sdk.admin import Admin
from headgate.store.connect import connect
from tests.fault.conftest import Servers, Workers
from tests.support.waiting import until_async

# claimed_at is stamped inside the claim, before it commits: a claim that comes after a pause shows a later time.
CLAIMED_AFTER = """
SELECT count(*) FROM (SELECT claimed_at FROM headgate.jobs UNION ALL SELECT claimed_at FROM headgate.archive) AS j
 WHERE j.claimed_at > $1"""
BUSY_OWNERS = """
SELECT count(DISTINCT owner) FROM (SELECT owner, claimed_at FROM headgate.jobs
                                   UNION ALL SELECT owner, claimed_at FROM headgate.archive) AS j
 WHERE j.claimed_at > $1"""
TICKED_SINCE = "SELECT count(*) FROM headgate.instances WHERE seen_at > $1"
NOW = "SELECT clock_timestamp()"
SCOPES: dict[str, dict[str, Any]] = {
    "everything": {"everything": True},
    "tenant": {"tenant": True},
    "topic": {"topic": "slow"},
}


@asynccontextmanager
async def fed(hg: Headgate, topic: str, *, each: int, most: int) -> AsyncIterator[None]:
    """Keep a topic loaded: jobs of 5 ms, a page whenever there are fewer than so many waiting."""
    payload = b"5"

    async def feed() -> None:
        while True:
            status = await hg.admin.status()
            waiting = sum(one.counts.get("pending", 0) for one in status.topics if one.topic == topic)
            if waiting < most:
                await hg.submit_many(topic, [payload] * each)
            else:
                await asyncio.sleep(0.05)

    await hg.submit_many(topic, [payload] * each)
    feeding = asyncio.create_task(feed())
    try:
        yield
        if feeding.done():
            feeding.result()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


def asked(
    rows: asyncpg.Connection[asyncpg.Record], query: str, at: datetime, least: int
) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return bool(await rows.fetchval(query, at) >= least)

    return check


@pytest.mark.req("T21", "Z1", "Z2", "O6")
async def test_after_pause_returns_nothing_enters_running_on_any_of_three_loaded_servers(
    database: str, servers: Servers, workers: Workers
) -> None:
    three = await asyncio.to_thread(servers, 3)
    for server in three:  # one worker at each, so that all three claim
        await asyncio.to_thread(workers, 1, [server], concurrency=16, prefetch=16, topics=["slow"])
    rows = await connect(database, application_name="headgate test")
    clients = [Headgate(server.address) for server in three]
    rounds = 0
    try:
        async with fed(clients[0], "slow", each=2_000, most=6_000):
            since = await rows.fetchval(NOW)
            for number, scope in enumerate([*SCOPES, *SCOPES, *SCOPES]):
                await until_async(asked(rows, BUSY_OWNERS, since, 3), "all three are claiming")
                operator: Admin = clients[number % 3].admin
                paused = await operator.pause(**SCOPES[scope], reason=f"round {number}")
                assert paused.since is not None
                assert await rows.fetchval(CLAIMED_AFTER, paused.since) == 0
                if number < 3:  # long enough for every server to have ticked since, and tried
                    later = paused.since + timedelta(seconds=1.1)
                    await until_async(asked(rows, TICKED_SINCE, later, 3), "all three have ticked")
                    assert await rows.fetchval(CLAIMED_AFTER, paused.since) == 0
                waiting = await rows.fetchval("SELECT count(*) FROM headgate.jobs WHERE state = 0")
                assert waiting > 0, "there was work to be tempted by"
                since = await rows.fetchval(NOW)
                assert await rows.fetchval(CLAIMED_AFTER, paused.since) == 0
                assert await operator.resume(**SCOPES[scope])
                rounds += 1
        assert rounds == 9
        assert all(server.exit_code is None for server in three), "no server has stopped"
    finally:
        for client in clients:
            await client.close()
        await rows.close()


@pytest.mark.req("T22")
async def test_a_paused_topic_leaves_the_throughput_of_others_unchanged(
    database: str, servers: Servers, workers: Workers
) -> None:
    (server,) = await asyncio.to_thread(servers, 1)
    # Slots of their own for each topic, and handlers that wait: what is measured is dispatch, not this machine.
    await asyncio.to_thread(workers, 1, [server], concurrency=4, prefetch=8, topics=["slow"])
    await asyncio.to_thread(workers, 1, [server], concurrency=4, prefetch=8, topics=["flaky"])
    rows = await connect(database, application_name="headgate test")
    hg = Headgate(server.address)
    done = """
        SELECT count(*) FROM headgate.archive a JOIN headgate.topics t USING (topic_no) WHERE t.name = 'slow'"""

    async def rate() -> float:
        began, before = time.monotonic(), await rows.fetchval(done)

        async def enough() -> bool:
            return bool(await rows.fetchval(done) >= before + 150)

        await until_async(enough, "150 more are done")
        return 150 / (time.monotonic() - began)

    try:
        await hg.submit_many("slow", [b"20"] * 2_000)
        await hg.submit_many("flaky", [b""] * 4_000)
        await rate()  # the workers have warmed up
        before = during = 0.0
        stopped = "SELECT count(*) FROM headgate.jobs j JOIN headgate.topics t USING (topic_no) WHERE t.name = 'flaky'"
        for _ in range(3):  # in turn, and the best of each: the machine has other things to do now and then
            before = max(before, await rate())
            await hg.admin.pause(topic="flaky")
            during = max(during, await rate())
            assert await rows.fetchval(f"{stopped} AND j.state = 1") == 0, "what ran has ended, and nothing began"
            await hg.admin.resume(topic="flaky")
        assert await rows.fetchval(stopped) > 0, "there was something to pause"
        assert during > 0.7 * before, f"{before:.0f} jobs/s before, {during:.0f} during the pause"
    finally:
        await hg.close()
        await rows.close()
