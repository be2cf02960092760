"""A lane: one connection for one kind of work, opened again when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType

import asyncpg

from headgate.domain import failpoints
from headgate.domain.errors import OutcomeUnknown, ReadOnly, StoreUnavailable
from headgate.store.connect import Connection, connect
from headgate.store.errors import DRIVER_ERRORS, translating

_UNUSABLE_AFTER = (asyncio.CancelledError, OutcomeUnknown, StoreUnavailable, ReadOnly)


class Lane:
    """One connection for one kind of work, used by one caller at a time: `async with lane.use("submit") as db`."""

    def __init__(self, dsn: str, name: str, *, pooler: bool = False) -> None:
        self._dsn, self._name, self._pooler = dsn, name, pooler
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._lock = asyncio.Lock()

    def use(self, call: str = "") -> AbstractAsyncContextManager[Connection]:
        """The connection, opened if need be; closed when it broke. `call` names the failpoints before and after it."""
        if self._pooler or failpoints.armed:
            return self._use_with_more(call)
        return self

    async def __aenter__(self) -> Connection:
        await self._lock.acquire()
        try:
            return await self._open()
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # In the middle of a statement: its answer must not reach the next caller. Or broken: PostgreSQL says farewell a
        # moment before it hangs up, and in between the connection still seems to be open. Or this session may not
        # write, as it was told at its start: a new one may, here or on another host.
        if isinstance(error, _UNUSABLE_AFTER) and self._connection is not None:
            self._connection.terminate()
        self._lock.release()

    @asynccontextmanager
    async def _use_with_more(self, call: str) -> AsyncIterator[Connection]:
        async with self as connection:
            if failpoints.armed and call:
                await failpoints.armed.reach(f"{call}.before_commit")
            if self._pooler:
                async with transaction(connection):
                    yield connection
            else:
                yield connection
        if failpoints.armed and call:
            await failpoints.armed.reach(f"{call}.after_commit")

    async def _open(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._dsn, application_name=f"headgate {self._name}", pooler=self._pooler)
        return self._connection

    async def close(self) -> None:
        """Close it; a later use opens it again."""
        if self._connection is not None and not self._connection.is_closed():
            try:
                await asyncio.wait_for(self._connection.close(), 2)
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._connection.terminate()


@asynccontextmanager
async def transaction(connection: Connection) -> AsyncIterator[None]:
    """An explicit transaction whose beginning and end can fail in our own words only."""
    transaction = connection.transaction()
    with translating(writing=False):
        await transaction.start()
    try:
        yield
    except BaseException:
        with suppress(*DRIVER_ERRORS):  # what went wrong first is what the caller must hear
            await transaction.rollback()
        raise
    if failpoints.armed:
        await failpoints.armed.reach("transaction.before_commit")
    with translating(writing=True):
        await transaction.commit()
    if failpoints.armed:
        await failpoints.armed.reach("transaction.after_commit")
