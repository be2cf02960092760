"""The clock of the database, which decides leases and due times."""

from __future__ import annotations

from datetime import datetime

from headgate.store.connect import Connection
from headgate.store.errors import translating


async def clock(db: Connection) -> datetime:
    """The database's time."""
    with translating(writing=False):
        now: datetime = await db.fetchval("SELECT headgate.clock_v1()")
    return now
