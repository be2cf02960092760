"""Instances that move only when the test calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.dispatch_waits import ManualClock
from tests.support.dispatching import Instance
from tests.support.queue import Clock


@pytest.fixture
async def stepped(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """An instance that moves only when the test calls it; leases are of a minute."""
    async with Instance(database, running=False, now=seconds) as instance:
        yield instance


@pytest.fixture
async def other(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """Another one, on the same database."""
    async with Instance(database, name="two", running=False, now=seconds) as instance:
        yield instance
