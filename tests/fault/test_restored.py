"""A server that outlives its database ends, and says why; started again, it works."""

from __future__ import annotations

import asyncio

import pytest

from headgate.store.restore_fence import fence_restore
from tests.fault.conftest import Servers
from tests.fault.history import connected


@pytest.mark.req("F47")
async def test_a_server_that_was_left_running_over_a_restore_ends_and_says_why(database: str, servers: Servers) -> None:
    (old,) = await asyncio.to_thread(servers, 1)
    async with connected(database) as db:
        done = await fence_restore(db, actor="a test")
    assert done.instances == 1
    assert await asyncio.to_thread(old.wait) != 0
    assert old.seen("was restored, or has lost its end.*start it again")
    assert not old.seen("Traceback")
    (new,) = await asyncio.to_thread(servers, 1)
    assert await asyncio.to_thread(new.terminate) == 0
