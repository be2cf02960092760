"""A queue, and the clock of the database."""

from __future__ import annotations

import pytest

from headgate.store.connect import Connection
from tests.integration.retention.finishing import START
from tests.support.queue import Clock, Queue


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


@pytest.fixture
async def clock(db: Connection) -> Clock:
    return await Clock.install(db, START)
