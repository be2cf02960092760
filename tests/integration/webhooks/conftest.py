"""Endpoints and deliveries on a fresh database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.store.connect import Connection
from headgate.store.database import Database
from tests.support.webhooks import Hooks


@pytest.fixture
async def instance_database(database: str) -> AsyncIterator[Database]:
    """The connections of an instance."""
    store = Database(database, unsafe=True)
    yield store
    await store.close()


@pytest.fixture
def hooks(db: Connection, instance_database: Database) -> Hooks:
    """Endpoints of the tenant acme."""
    return Hooks(db, instance_database)
