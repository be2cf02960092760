"""Group writing: many callers' rows, one statement, one commit, no added delay.

One flush is in flight; what arrives meanwhile is the next one. So an idle writer sends a single row at once, and a
busy one makes its flushes as large as the database is slow. Callers hand in parcels (a frame's rows) and are called
back after the commit; there is no future, task or await per row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from headgate.domain.errors import HeadgateError, OutcomeUnknown


class Overloaded(HeadgateError):
    """The queue in front of the database is full: the caller must wait and send again."""

    code = "overloaded"
    retry_after_ms = 500


class ShuttingDown(HeadgateError):
    """This instance takes no more work; another one does."""

    code = "shutting_down"


class Parcel(Protocol):
    """Rows that belong together. `fail` is called instead of whatever the writer calls on success."""

    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    def fail(self, error: HeadgateError) -> None: ...


P = TypeVar("P", bound=Parcel)


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
    ) -> None:
        self._name = name
        self._write = write
        self._max_rows, self._max_bytes = max_rows, max_bytes
        # Full: `put` refuses. Links stop reading their stream while their own frame waits, so this is reached only by
        # very many callers at once.
        self._queue_rows, self._queue_bytes = queue_rows, queue_bytes
        self._queue: deque[P] = deque()
        self._rows = self._bytes = 0
        self._wake = asyncio.Event()
        self._closing = False
        self.flushes = self.rows_written = 0

    @property
    def waiting_rows(self) -> int:
        """Rows that are queued, without those in flight."""
        return self._rows

    def put(self, parcel: P) -> None:
        """Queue a parcel. Raises Overloaded when the queue is full."""
        if self._closing:
            raise ShuttingDown("this instance is shutting down; send it to another one")
        if self._rows + parcel.rows > self._queue_rows or self._bytes + parcel.size > self._queue_bytes:
            raise Overloaded(
                f"{self._name}: {self._rows} rows wait for the database, the limit is {self._queue_rows}; "
                f"send again in {Overloaded.retry_after_ms} ms"
            )
        self._queue.append(parcel)
        self._rows += parcel.rows
        self._bytes += parcel.size
        self._wake.set()

    async def run(self) -> None:
        """Write until `close`, and then what is left."""
        while True:
            if not self._queue:
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            parcels = self._take()
            try:
                await self._write(parcels)
            except HeadgateError as error:
                for parcel in parcels:
                    parcel.fail(error)
            except BaseException:  # cancelled, or a fault of ours that ends the instance: nobody may wait for ever
                self.close()
                for parcel in (*parcels, *self._queue):
                    parcel.fail(OutcomeUnknown(f"{self._name}: this instance ended during the write; send it again"))
                raise
            self.flushes += 1
            self.rows_written += sum(parcel.rows for parcel in parcels)

    def close(self) -> None:
        """Take no more; `run` returns when everything queued is written."""
        self._closing = True
        self._wake.set()

    def _take(self) -> list[P]:
        parcels: list[P] = []
        rows = size = 0
        queue = self._queue
        while queue and (
            not parcels or (rows + queue[0].rows <= self._max_rows and size + queue[0].size <= self._max_bytes)
        ):
            parcel = queue.popleft()
            parcels.append(parcel)
            rows += parcel.rows
            size += parcel.size
        self._rows -= rows
        self._bytes -= size
        return parcels
