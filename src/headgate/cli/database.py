"""Which database a command works on: the one it is told, else the embedded one, started for as long as it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from headgate import embedded
from headgate.store.connect import connect, describe
from headgate.store.roles import OWNER, RUNTIME, prepare_embedded


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An address, and the embedded server behind it if it is ours."""

    url: str
    """For servers: in the embedded PostgreSQL as a role that may do what servers do, and no more."""
    owner_url: str
    """For commands that change the schema."""
    cluster: embedded.Cluster | None

    @property
    def title(self) -> str:
        """For people, without user and password."""
        return describe(self.url) if self.cluster is None else f"embedded PostgreSQL in {self.cluster.data}"


@asynccontextmanager
async def chosen_database(url: str | None, *, data: Path | None) -> AsyncIterator[Database]:
    """The database at `url`, or without one the embedded PostgreSQL of `data`, let go of at the end."""
    if url is not None:
        yield Database(url=url, owner_url=url, cluster=None)
        return
    # In threads: starting and stopping wait for a process.
    cluster = await asyncio.to_thread(embedded.start, data)
    try:
        await prepare_embedded(cluster.dsn())
        yield Database(url=cluster.dsn(role=RUNTIME), owner_url=cluster.dsn(role=OWNER), cluster=cluster)
    finally:
        await asyncio.to_thread(cluster.stop)


@asynccontextmanager
async def connected(database: Database, *, command: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """One connection for a command, as the owner of the schema."""
    connection = await connect(database.owner_url, application_name=f"headgate {command}")
    try:
        yield connection
    finally:
        # Not close(): it would wait, and could fail, on a connection that just broke.
        connection.terminate()
