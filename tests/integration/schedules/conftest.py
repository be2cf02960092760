"""A bench for schedules."""

from __future__ import annotations

import pytest

from headgate.store.connect import Connection
from tests.integration.schedules.bench import NOON, Bench
from tests.support.queue import Clock


@pytest.fixture
async def bench(db: Connection) -> Bench:
    return Bench(db, await Clock.install(db, NOON))
