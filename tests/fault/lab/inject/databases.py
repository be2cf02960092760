"""What others do to a database that one shares with them: leak sessions, hold locks, pin old rows, make it read-only.

Each holds a session of its own to a given URL. Everything is awaited: these belong to the event loop of their caller.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

import asyncpg

LAB = "headgate lab"
Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class Sessions:
    """Sessions that are open until `heal`."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._sessions: list[Session] = []

    async def open(self) -> Session:
        """One more."""
        session = await asyncpg.connect(self._dsn, server_settings={"application_name": LAB}, timeout=10)
        self._sessions.append(session)
        return session

    async def heal(self) -> None:
        """End them all; what they held is free."""
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                await session.close(timeout=2)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.heal()


class LeakedConnections(Sessions):
    """Takes connections until the server has none left, or so many."""

    async def leak(self, most: int = 1_000) -> int:
        """Gives how many it got."""
        for number in range(most):
            try:
                await self.open()
            except asyncpg.TooManyConnectionsError:
                return number
        return most


class HostileLock(Sessions):
    """Holds a table, or rows, that others need."""

    async def table(self, name: str, mode: str = "ACCESS EXCLUSIVE") -> None:
        """Lock a whole table; waits for its turn like anybody."""
        session = await self.open()
        await session.execute("BEGIN")
        await session.execute(f"LOCK TABLE {name} IN {mode} MODE")

    async def rows(self, query: str, *arguments: object) -> int:
        """Lock what a SELECT finds; gives how many rows."""
        session = await self.open()
        await session.execute("BEGIN")
        return len(await session.fetch(f"{query} FOR UPDATE", *arguments))


class PinnedXmin(Sessions):
    """A transaction that stays open: nothing that died since it began can be cleaned up."""

    async def pin(self) -> int:
        """Gives the oldest transaction that is kept visible."""
        session = await self.open()
        await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await session.execute("SELECT 1")
        number: int = await session.fetchval(
            "SELECT backend_xmin::text::bigint FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        )
        return number


class ReadOnlyDatabase(Sessions):
    """Every transaction of every session of this database is read-only by default, also of those that are open."""

    async def set(self) -> None:
        """Open sessions are ended: a default that was set at their start would stay."""
        session = await self.open()
        name = await session.fetchval("SELECT quote_ident(current_database())")
        await session.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await self._end_others(session)

    async def heal(self) -> None:
        if self._sessions:
            session = self._sessions[0]
            name = await session.fetchval("SELECT quote_ident(current_database())")
            await session.execute("SET default_transaction_read_only = off")
            await session.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
            await self._end_others(session)
        await super().heal()

    async def _end_others(self, session: Session) -> None:
        await session.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'headgate %'
                  AND application_name <> $1""",
            LAB,
        )
