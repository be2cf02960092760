"""Instances for tests of dispatch and of the operator's verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.store.connect import Connection
from tests.support.dispatch_waits import ManualClock, soon
from tests.support.dispatching import Instance
from tests.support.queue import Clock


@pytest.fixture
async def one(database: str) -> AsyncIterator[Instance]:
    """A running instance; only wakes find work, for its tick is an hour away."""
    async with Instance(database) as instance:
        await soon(lambda: instance.ticker.ticks, "the first tick is over")
        yield instance


@pytest.fixture
async def stepped(database: str) -> AsyncIterator[Instance]:
    """An instance whose services move only when the test calls them."""
    async with Instance(database, running=False) as instance:
        yield instance


@pytest.fixture
def seconds() -> ManualClock:
    """The server's own clock."""
    return ManualClock()


@pytest.fixture
async def clock(db: Connection) -> Clock:
    """The database's clock."""
    return await Clock.install(db)
