"""A lane: one connection for one kind of work, opened again when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from types import TracebackType

import asyncpg

from headgate.domain import failpoints
from headgate.domain.errors import OutcomeUnknown, ReadOnly, StoreUnavailable
from headgate.store.connect import LOCK_TIMEOUT, STATEMENT_TIMEOUT, Connection, connect
from headgate.store.errors import DRIVER_ERRORS, translating

_UNUSABLE_AFTER = (OutcomeUnknown, StoreUnavailable, ReadOnly)
"""Broken: PostgreSQL says farewell a moment before it hangs up, and in between the connection still seems open. Or
the session may not write, as PostgreSQL said at its start: a new one may, here or on another host."""


class Lane:
    """One connection for one kind of work, used by one caller at a time: `async with lane.use("submit") as db`."""

    def __init__(
        self,
        dsn: str,
        name: str,
        *,
        pooler: bool = False,
        lock_timeout: timedelta = LOCK_TIMEOUT,
        statement_timeout: timedelta = STATEMENT_TIMEOUT,
    ) -> None:
        self._lock_timeout = lock_timeout
        self._dsn, self._name, self.pooler, self._statement_timeout = dsn, name, pooler, statement_timeout
        self.on_open: Callable[[Connection], Awaitable[None]] = _as_it_is  # raises if it may not be used
        self.on_begin: Callable[[Connection], Awaitable[None]] = _as_it_is  # of each transaction, behind a pooler
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    def use(self, call: str = "") -> AbstractAsyncContextManager[Connection]:
        """The connection, opened if need be; closed when it broke. `call` names the failpoints before and after it."""
        if self.pooler or failpoints.armed:
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
        if error is not None and self._connection is not None:
            if isinstance(error, asyncio.CancelledError):
                self._leave(self._connection)
            elif isinstance(error, _UNUSABLE_AFTER) or isinstance(error.__cause__, TimeoutError):
                # Or it did not answer in time: the next caller would wait for the answer that this one did not get.
                self._connection.terminate()
        self._lock.release()

    def _leave(self, connection: Connection) -> None:
        """Part with it in the middle of a statement: its answer must not reach the next caller.

        Only hung up on, PostgreSQL would not notice before the statement has the lock it waits for: impatient callers
        would pile up sessions behind it. Closing lets the driver's cancel through first.
        """
        self._connection = None
        leaving = asyncio.get_running_loop().create_task(_closed(connection), name=f"leave {self._name}")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    @asynccontextmanager
    async def _use_with_more(self, call: str) -> AsyncIterator[Connection]:
        async with self as connection:
            if failpoints.armed and call:
                await failpoints.armed.reach(f"{call}.before_commit")
            if self.pooler:
                async with transaction(connection):
                    if self._lock_timeout != LOCK_TIMEOUT:
                        await set_lock_timeout(connection, self._lock_timeout)
                    await self.on_begin(connection)
                    yield connection
            else:
                yield connection
        if failpoints.armed and call:
            await failpoints.armed.reach(f"{call}.after_commit")

    async def _open(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            opened = await connect(
                self._dsn,
                application_name=f"headgate {self._name}",
                pooler=self.pooler,
                statement_timeout=self._statement_timeout,
                lock_timeout=self._lock_timeout,
            )
            try:
                await self.on_open(opened)
            except BaseException:
                opened.terminate()
                raise
            self._connection = opened
        return self._connection

    def drop(self) -> None:
        """Hang up: the next use opens another connection. A call under way fails as if the connection had broken."""
        if self._connection is not None:
            self._connection.terminate()

    async def close(self) -> None:
        """Close it; a later use opens it again."""
        if self._connection is not None:
            await _closed(self._connection)
        if self._leaving:
            await asyncio.wait(self._leaving)


async def _as_it_is(connection: Connection) -> None:
    del connection


async def _closed(connection: Connection) -> None:
    """Close it, in two seconds at the most; a statement that was cancelled is cancelled at the server first."""
    if connection.is_closed():
        return
    try:
        await asyncio.wait_for(connection.close(), 2)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
    except asyncio.CancelledError:
        connection.terminate()
        raise


async def set_lock_timeout(connection: Connection, span: timedelta) -> None:
    """For the rest of the transaction; outside of one, for the session."""
    local = connection.is_in_transaction()
    with translating(writing=False):
        await connection.execute(
            "SELECT pg_catalog.set_config('lock_timeout', $1, $2)", str(span // timedelta(milliseconds=1)), local
        )


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
