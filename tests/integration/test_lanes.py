"""A lane of the store: one session, whatever its callers do."""

from __future__ import annotations

import asyncio

import pytest

from headgate.store.connect import connect
from headgate.store.lane import Lane
from tests.support.waiting import until_async

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1"
WAITING = f"{SESSIONS} AND wait_event_type = 'Lock'"
NAME = "headgate impatient"


@pytest.mark.parametrize("pooler", [False, True])
async def test_cancelled_callers_leave_no_session_that_waits_for_a_lock(database: str, *, pooler: bool) -> None:
    """Hung up on, PostgreSQL would go on waiting until its lock_timeout, ten seconds, once for every such caller."""
    lane = Lane(database, "impatient", pooler=pooler)
    db = await connect(database, application_name="headgate test")
    hostile = await connect(database, application_name="headgate test")
    await db.execute("CREATE TABLE public.held (n int)")

    async def ask() -> None:
        async with lane.use() as link:
            await link.fetch("SELECT n FROM public.held")

    async def waits() -> bool:
        return await db.fetchval(WAITING, NAME) == 1

    async def nobody_is_left() -> bool:
        return await db.fetchval(SESSIONS, NAME) == 0

    try:
        async with hostile.transaction():
            await hostile.execute("LOCK TABLE public.held IN ACCESS EXCLUSIVE MODE")
            for _ in range(5):
                asked = asyncio.create_task(ask())
                await until_async(waits, "it waits for the lock, and no other one does")
                asked.cancel()
                await asyncio.wait((asked,))
                assert asked.cancelled()
            await until_async(nobody_is_left, "PostgreSQL knows that nobody waits")
        await asyncio.wait_for(ask(), 10)  # a session of its own
        assert await db.fetchval(SESSIONS, NAME) == 1
    finally:
        await lane.close()
        await hostile.close()
        await db.close()
