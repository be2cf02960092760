"""A queue."""

from __future__ import annotations

import pytest

from headgate.store.connect import Connection
from tests.support.queue import Queue


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)
