"""Traps known in advance, each a test: interleavings that an innocent-looking statement gets wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.store.connect import Connection, connect
from tests.integration.traps.rivals import Rivals
from tests.support.queue import Clock, Queue


@pytest.fixture
async def queue(db: Connection) -> Queue:
    queue = Queue(db)
    await queue.topic()  # made now: a name made inside a test's open transaction would block the others
    return queue


@pytest.fixture
async def rivals(database: str, queue: Queue) -> AsyncIterator[Rivals]:
    watcher = await connect(database, application_name="headgate watcher")
    rivals = Rivals(database, queue, watcher)
    yield rivals
    await rivals.close()
    await watcher.close()


@pytest.fixture
async def clock(queue: Queue) -> Clock:
    return await Clock.install(queue.db)
