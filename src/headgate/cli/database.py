"""The database of a command: the given one, or the embedded PostgreSQL, started for the duration of the command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate import embedded
from headgate.domain.errors import InvalidInput, InvalidSetting
from headgate.ops.configuration import Configuration
from headgate.store.connect import Connection, connect, describe
from headgate.store.roles import OWNER, RUNTIME, prepare_embedded


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database address, and the embedded server behind it, if any."""

    url: str
    """For servers: in the embedded PostgreSQL, a role with the rights of a server only."""
    owner_url: str
    """For commands that change the schema."""
    cluster: embedded.Cluster | None

    @property
    def title(self) -> str:
        """The address without user and password."""
        return describe(self.url) if self.cluster is None else f"embedded PostgreSQL in {self.cluster.data}"


def require_choice(config: Configuration, url: str | None) -> None:
    """Refuse to select the embedded PostgreSQL silently: an operator who forgot the URL would see a success.

    HEADGATE_DATA, which names its folder, is a choice as well.
    """
    embedded = config.switch("embedded")
    if embedded and url is not None:
        raise InvalidInput("--embedded", "and the URL of a database are both given", hint="pass only one of them")
    if url is None and not embedded and config.data is None:
        raise InvalidSetting(
            "HEADGATE_DATABASE_URL",
            "is not set",
            hint="set it, or pass --database-url, or write url in [database] of headgate.toml; --embedded uses the "
            "embedded PostgreSQL",
        )


@asynccontextmanager
async def chosen_database(url: str | None, *, data: Path | None) -> AsyncIterator[Database]:
    """Yield the database at `url`, else the embedded PostgreSQL in `data`, which is released at the end."""
    if url is not None:
        yield Database(url=url, owner_url=url, cluster=None)
        return
    # In threads: start and stop block on a process.
    cluster = await asyncio.to_thread(embedded.start, data)
    try:
        await prepare_embedded(cluster.dsn())
        yield Database(url=cluster.dsn(role=RUNTIME), owner_url=cluster.dsn(role=OWNER), cluster=cluster)
    finally:
        await asyncio.to_thread(cluster.stop)


@asynccontextmanager
async def connected(database: Database, *, command: str) -> AsyncIterator[Connection]:
    """Yield one connection for a command, as the owner of the schema."""
    connection = await connect(database.owner_url, application_name=f"headgate {command}")
    try:
        yield connection
    finally:
        # Not close(): it would block, and could fail, on a broken connection.
        connection.terminate()
