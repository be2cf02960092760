"""Makes a database read-only, as an operator does: a default for new sessions, and the end of the open ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from headgate.store.connect import Connection, connect

_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'headgate %'"""


class Switch:
    """Its own session can always write."""

    def __init__(self, db: Connection, database: str) -> None:
        self._db, self._name = db, urlsplit(database).path.lstrip("/")

    async def read_only(self) -> None:
        await self._db.execute(f'ALTER DATABASE "{self._name}" SET default_transaction_read_only = on')
        await self._db.execute(_END_OTHERS)

    async def writable(self) -> None:
        await self._db.execute(f'ALTER DATABASE "{self._name}" RESET default_transaction_read_only')


@asynccontextmanager
async def switching(database: str) -> AsyncIterator[Switch]:
    """A switch; the database is writable at the end."""
    db = await connect(database, application_name="switch")
    await db.execute("SET default_transaction_read_only = off")
    switch = Switch(db, database)
    try:
        yield switch
    finally:
        await switch.writable()
        await db.close()


async def set_read_only(database: str, *, to: bool) -> None:
    """Switch once, for tests without a loop."""
    db = await connect(database, application_name="switch")
    await db.execute("SET default_transaction_read_only = off")
    switch = Switch(db, database)
    await (switch.read_only() if to else switch.writable())
    await db.close()
