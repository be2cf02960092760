"""A lane: one connection for one kind of work, opened again when it breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from types import TracebackType
from typing import Final

import asyncpg

from headgate.domain import failpoints
from headgate.domain.errors import OutcomeUnknown, ReadOnly, StoreUnavailable
from headgate.domain.histogram import STATEMENT_SECONDS, Histogram
from headgate.store.connect import LOCK_TIMEOUT, STATEMENT_TIMEOUT, Connection, connect
from headgate.store.errors import DRIVER_ERRORS, translating

_UNUSABLE_AFTER = (OutcomeUnknown, StoreUnavailable, ReadOnly)
"""Broken: PostgreSQL reports the end of a session a moment before it closes the connection, which still seems open in
between. Or the session may not write, as PostgreSQL said at its start: a new one may, here or on another host."""

_AFTER_COMMIT: Final[ContextVar[list[Callable[[], None]] | None]] = ContextVar("after_commit", default=None)
"""What the transaction that this task has open does once it is committed."""


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
        self.on_open: Callable[[Connection], Awaitable[None]] = as_it_is  # raises if it may not be used
        self.on_begin: Callable[[Connection], Awaitable[None]] = as_it_is  # of each transaction, behind a pooler
        self.on_read_only: Callable[[str], object] = str  # no connection can write, and why
        self.only_reads: Callable[[], bool] = bool  # whether a connection that cannot write will do, for now
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self._began = 0.0  # the use that is under way
        self.seconds = Histogram(STATEMENT_SECONDS)  # how long each use took, its commit included
        self.waits = self.connects = 0  # uses that waited for the one before; connections opened

    def use(self, call: str = "") -> AbstractAsyncContextManager[Connection]:
        """The connection, opened if need be; closed when it broke. `call` names the failpoints before and after it."""
        if self.pooler or failpoints.armed:
            return self._use_with_more(call)
        return self

    async def __aenter__(self) -> Connection:
        if self._lock.locked():
            self.waits += 1
        await self._lock.acquire()
        self._began = time.monotonic()
        connection = self._connection
        if connection is not None and not connection.is_closed():
            return connection
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
        self.seconds.observe(time.monotonic() - self._began)
        self._lock.release()

    @property
    def is_open(self) -> bool:
        """Whether it has a connection."""
        return self._connection is not None and not self._connection.is_closed()

    @property
    def in_use(self) -> bool:
        """Whether a caller uses it at this moment."""
        return self._lock.locked()

    def _leave(self, connection: Connection) -> None:
        """Part with it in the middle of a statement: its answer must not reach the next caller.

        Only closed, PostgreSQL would not notice before the statement has the lock it waits for: callers that give up
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
        try:
            return await self._opened()
        except ReadOnly as error:
            self.on_read_only(str(error))
            raise
        except StoreUnavailable as error:
            if not error.no_primary:
                raise
            self.on_read_only(str(error))
            refused = ReadOnly(str(error))
            refused.may_pass = True
            raise refused from error

    async def _opened(self) -> Connection:
        self.connects += 1
        opened = await connect(
            self._dsn,
            application_name=f"headgate {self._name}",
            pooler=self.pooler,
            statement_timeout=self._statement_timeout,
            lock_timeout=self._lock_timeout,
            only_reads=self.only_reads(),
        )
        try:
            await self.prepare(opened)
        except BaseException:
            opened.terminate()
            raise
        self._connection = opened
        return opened

    async def prepare(self, opened: Connection) -> None:
        """Make a new connection ready. Raises if it may not be used."""
        await self.on_open(opened)

    def drop(self) -> None:
        """Close it at once: the next use opens another one. A call under way fails as if the connection had broken."""
        if self._connection is not None:
            self._connection.terminate()

    async def close(self) -> None:
        """Close it; a later use opens it again."""
        if self._connection is not None:
            await _closed(self._connection)
        if self._leaving:
            await asyncio.wait(self._leaving)


async def as_it_is(connection: Connection) -> None:
    """Change nothing of a connection."""
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
    """An explicit transaction whose beginning and end can fail in our own words only; a savepoint within another."""
    outer = _AFTER_COMMIT.get() if connection.is_in_transaction() else None
    transaction = connection.transaction()
    with translating(writing=False):
        await transaction.start()
    calls: list[Callable[[], None]] = []
    token = _AFTER_COMMIT.set(calls)
    try:
        yield
    except BaseException:
        with suppress(*DRIVER_ERRORS):  # the first error is the one for the caller
            await transaction.rollback()
        raise
    finally:
        _AFTER_COMMIT.reset(token)
    if failpoints.armed:
        await failpoints.armed.reach("transaction.before_commit")
    with translating(writing=True):
        await transaction.commit()
    if outer is not None:
        outer.extend(calls)
    else:
        for call in calls:
            call()
    if failpoints.armed:
        await failpoints.armed.reach("transaction.after_commit")


def after_commit(call: Callable[[], None]) -> None:
    """Call it when the transaction of this task is committed, and never if it is rolled back; without one, now."""
    calls = _AFTER_COMMIT.get()
    if calls is None:
        call()
    else:
        calls.append(call)
