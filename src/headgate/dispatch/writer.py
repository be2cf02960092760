"""Group writing: many callers' rows, one statement, one commit, no added delay.

One flush is in flight; what arrives meanwhile is the next one. So an idle writer sends a single row at once, and a
busy one makes its flushes as large as the database is slow. Callers hand in writes (a frame's rows) and are called
back after the commit; there is no future, task or await per row.

What waits is bounded, and what does not fit is refused at once with the time after which to try again (ADR 15): a queue
that only grows would answer all callers late. A caller with an account may have as much waiting as is left for others,
so one alone gets half of the queue, two a third each, and a new caller is always let in. Flushes take from the
accounts in turns, by rows: a caller that sends little is in the next flush, and does not wait behind larger ones.

Accounts of one tenant may share a `TenantAccount` (ADR 27). Then all of this holds twice: among tenants, and among the
accounts of a tenant. However many sessions a tenant has, together they never have more than half of the queue waiting,
nor more than their tenant's share of a flush. One such account alone gets a third of the queue.

A bug that a flush runs into fails only that flush's callers: it is logged with its traceback, and the next
flush is written. A bug of the loop itself fails all that wait, so that no caller waits without end, and `run`
can be called again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from headgate.domain.errors import HeadgateError, InternalError, OutcomeUnknown, Overloaded, ShuttingDown
from headgate.domain.histogram import ROWS, Histogram

log = logging.getLogger("headgate.dispatch")
SHORTEST_HINT_MS: Final = 50
LONGEST_HINT_MS: Final = 2_000


class WriteRequest(Protocol):
    """Rows that belong together. `fail` is called instead of whatever the writer calls on success."""

    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    def fail(self, error: HeadgateError) -> None: ...


P = TypeVar("P", bound=WriteRequest)


class TenantAccount(Generic[P]):
    """What all accounts of one tenant have waiting."""

    __slots__ = ("rows", "size", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Account[P]] = deque()  # those with writes, in the order of their turns
        self.rows = self.size = 0


class Account(Generic[P]):
    """What one caller has waiting: a stream, or the unary calls of one tenant. Without a `tenant` it is one itself."""

    __slots__ = ("rows", "shares", "size", "tenant", "writes")

    def __init__(self, tenant: TenantAccount[P] | None = None) -> None:
        self.writes: deque[P] = deque()  # bounded by the writer's `admit`
        self.rows = self.size = 0
        self.shares = tenant is not None  # its tenant's part of the queue with others
        self.tenant: TenantAccount[P] = TenantAccount() if tenant is None else tenant


@dataclass(slots=True, kw_only=True)
class _Flush(Generic[P]):
    """A flush being filled."""

    _rows_left: int
    _bytes_left: int
    writes: list[P] = field(default_factory=list)

    def take(self, write: P, rows: int, size: int) -> bool:
        """Take a write if it fits; the first one always does."""
        if self.writes and (rows > self._rows_left or size > self._bytes_left):
            return False
        self._rows_left -= rows
        self._bytes_left -= size
        self.writes.append(write)
        return True


class GroupWriter(Generic[P]):
    """One queue, one flush in flight."""

    def __init__(
        self,
        name: str,
        write: Callable[[list[P]], Awaitable[None]],
        *,
        max_rows: int = 2_000,
        max_bytes: int = 2_000_000,
        queue_rows: int = 50_000,
        queue_bytes: int = 64_000_000,
        rest: Callable[[int, float], float] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._write = write
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._queue_rows, self._queue_bytes = queue_rows, queue_bytes  # full: `put` refuses
        self._rest = rest  # how long to wait after a flush of so many rows that took so long, for others' sake
        self._now = now
        self._waiting: deque[TenantAccount[P]] = deque()  # those with writes, in the order of their turns
        self._everyone: Account[P] = Account()
        self._rows = self._bytes = 0
        self._wake, self._closed = asyncio.Event(), asyncio.Event()
        self._closing = False
        self._pace = 0.0  # rows a second, lately
        self._began: float | None = None  # the flush in flight
        self._in_flight: list[P] = []
        self.flushes = self.rows_written = self.rows_refused = self.faults = 0
        self.sizes = Histogram(ROWS)

    @property
    def waiting_rows(self) -> int:
        """Rows that are queued, without those in flight."""
        return self._rows

    def admit(self, rows: int, size: int, account: Account[P] | None = None) -> None:
        """Raises Overloaded if so much more has no place in the queue: cheap, for asking before anything is read."""
        if self._closing:
            raise ShuttingDown("this instance is shutting down; send it to another one")
        free_rows, free_bytes = self._queue_rows - self._rows, self._queue_bytes - self._bytes
        if rows > free_rows or size > free_bytes:
            what = f"{self._name}: {self._rows} rows wait for the database, the limit is {self._queue_rows}"
        elif account is None:
            return
        else:
            tenant = account.tenant
            if tenant.rows and (tenant.rows + rows > free_rows or tenant.size + size > free_bytes):
                whose = "tenant" if account.shares else "caller"
                waiting = tenant.rows
            elif (
                account.shares
                and account.rows
                and (account.rows + rows > free_rows - tenant.rows or account.size + size > free_bytes - tenant.size)
            ):
                whose, waiting = "caller", account.rows
            else:
                return
            what = (
                f"{self._name}: {waiting} rows of this {whose} wait for the database, the limit of its share is reached"
            )
        self.rows_refused += rows
        raise Overloaded(what, retry_after_ms=self.retry_after_ms())

    def retry_after_ms(self) -> int:
        """When half of what waits should be written: then more fits, and the queue has not run dry."""
        lately = self._rows / 2 / self._pace if self._pace else 0.0
        stuck = self._now() - self._began if self._began is not None else 0.0  # the database is away, or hangs
        return round(1000 * min(LONGEST_HINT_MS / 1000, max(SHORTEST_HINT_MS / 1000, lately, stuck)))

    def put(self, write: P, account: Account[P] | None = None, *, admitted: bool = False) -> None:
        """Queue a write. Raises Overloaded when it has no place, unless `admit` was asked just before."""
        if self._closing or not admitted:
            self.admit(write.rows, write.size, account)
        queue = self._everyone if account is None else account
        if not queue.writes:
            if not queue.tenant.waiting:
                self._waiting.append(queue.tenant)
            queue.tenant.waiting.append(queue)
        queue.writes.append(write)
        self._count(write.rows, write.size, queue)
        self._wake.set()

    @contextmanager
    def holding(self, rows: int, size: int, account: Account[P]) -> Iterator[None]:
        """Count rows that are written by another way meanwhile as if they waited here. Raises Overloaded."""
        self.admit(rows, size, account)
        self._count(rows, size, account)
        try:
            yield
        finally:
            self._count(-rows, -size, account)

    async def run(self) -> None:
        """Write until `stop`, and then what is left. After an error it may be called again; what waited was failed."""
        self._in_flight = []
        try:
            while self._waiting or not self._closing:
                if self._waiting:
                    await self.run_once()
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except Exception as error:
            self.faults += 1
            self._fail((*self._in_flight, *self._take_all()), InternalError(self._name, error))
            raise
        except BaseException:  # cancelled: no caller may be left waiting
            self.stop()
            self._fail(
                (*self._in_flight, *self._take_all()),
                OutcomeUnknown(f"{self._name}: this instance ended during the write; send it again"),
            )
            raise

    async def run_once(self) -> int:
        """Write one flush of what waits; returns its rows."""
        writes = self._in_flight = self._take()
        rows, began = sum(write.rows for write in writes), self._now()
        self._began = began
        try:
            await self._write(writes)
        except HeadgateError as error:
            self._fail(writes, error)
        except Exception as error:
            self.faults += 1
            log.exception("flush_failed writer=%s rows=%d writes=%d", self._name, rows, len(writes))
            # Some may have had their answer already: a second one is ignored.
            self._fail(writes, InternalError(self._name, error))
        self._in_flight = []  # each has its answer
        if self._rest is not None:
            seconds = self._rest(rows, self._now() - began)
            if seconds:
                await self._pause(seconds)
            else:
                await asyncio.sleep(0)  # others get their turn
        self._began = None
        pace = rows / max(self._now() - began, 1e-6)
        self._pace = 0.8 * self._pace + 0.2 * pace if self._pace else pace
        self.flushes += 1
        self.rows_written += rows
        self.sizes.observe(rows)
        return rows

    async def _pause(self, seconds: float) -> None:
        """Let others go first; a writer that closes does not wait."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        """Take no more; `run` returns when everything queued is written."""
        self._closing = True
        self._closed.set()
        self._wake.set()

    def _take_all(self) -> list[P]:
        """Everything that waits, without any order."""
        accounts = [account for tenant in self._waiting for account in tenant.waiting]
        writes = [write for account in accounts for write in account.writes]
        for account in accounts:
            # Not all of the account's rows: what `holding` counts is given back by itself.
            for write in account.writes:
                self._count(-write.rows, -write.size, account)
            account.writes.clear()
            account.tenant.waiting.clear()
        self._waiting.clear()
        return writes

    def _take(self) -> list[P]:
        """The next flush, until it is full: whose turn it is, all that have little, then the others in turns, by rows.

        By rows, since a turn of one call against one of a frame of a thousand jobs would be none. The tenant whose
        turn it is comes first, whatever it has, or a large write might never fit beside many small ones.
        """
        flush = _Flush[P](_rows_left=self._max_rows, _bytes_left=self._max_bytes)
        share = max(1, self._max_rows // len(self._waiting))
        full = self._move_turn(flush, share)
        if self._waiting and not full:
            others: deque[TenantAccount[P]] = deque()
            for tenant in self._waiting:
                if tenant.rows <= share and not full:
                    full, _ = self._move(tenant, flush, share)
                if tenant.waiting:
                    others.append(tenant)
            self._waiting = others
        while self._waiting and not full:
            full = self._move_turn(flush, share)
        return flush.writes

    def _move_turn(self, flush: _Flush[P], share: int) -> bool:
        """Whose turn it is gives its share, and goes to the end of the line; if nothing of it fits, it stays."""
        tenant = self._waiting[0]
        full, moved = self._move(tenant, flush, share)
        if moved:
            self._waiting.popleft()
            if tenant.waiting:
                self._waiting.append(tenant)
        return full

    def _move(self, tenant: TenantAccount[P], flush: _Flush[P], share: int) -> tuple[bool, int]:
        """Move writes of a tenant to a flush until it had its share, or the flush is full: returns whether it is.

        And how many rows were moved. Its accounts go in turns, each with its part of the share.
        """
        line, moved = tenant.waiting, 0
        while line and moved < share:
            account = line[0]
            writes, part, before = account.writes, max(1, (share - moved) // len(line)), moved
            while writes and moved - before < part:
                write = writes[0]
                rows, size = write.rows, write.size
                if not flush.take(write, rows, size):
                    if moved > before:
                        line.rotate(-1)
                    return True, moved
                writes.popleft()
                self._count(-rows, -size, account)
                moved += max(1, rows)
            line.popleft()
            if writes:
                line.append(account)
        return False, moved

    def _fail(self, writes: Iterable[P], error: HeadgateError) -> None:
        for write in writes:
            try:
                write.fail(error)
            except Exception:
                log.exception("caller_not_notified writer=%s error=%s", self._name, error)

    def _count(self, rows: int, size: int, account: Account[P]) -> None:
        account.rows += rows
        account.size += size
        account.tenant.rows += rows
        account.tenant.size += size
        self._rows += rows
        self._bytes += size
