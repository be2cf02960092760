"""Submits whose row another open transaction holds: they wait here, so that no other submit does.

A shared flush waits for a lock for some milliseconds only. What it could not write is tried again here, over and over,
on a connection of its own: never waiting for one lock while others are free. After GIVE_UP_SECONDS the caller gets
an error: nothing of it was stored, send it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate.dispatch.ports import SubmitRows, SubmitStore
from headgate.domain.errors import HeadgateError, OutcomeUnknown, RowLocked
from headgate.domain.jobs import SubmitAnswer

log = logging.getLogger("headgate.submit")
GIVE_UP_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.05
MOST_ROWS, MOST_BYTES = 1_000, 8_000_000
"""What may wait; what does not fit is answered as locked at once. A round tries each, for some milliseconds."""


@dataclass(slots=True)
class LockedWrite:
    """The rows of one caller's write that are not written yet, and the answers it has so far."""

    rows: SubmitRows
    indexes: list[int]  # of these rows in the write
    total: int  # rows of the write
    answers: dict[int, SubmitAnswer]  # of the whole write
    done: Callable[[Mapping[int, SubmitAnswer]], None]
    failed: Callable[[HeadgateError], None]
    size: int = field(init=False)
    deadline: float = 0.0
    unknown: bool = False  # there was a try whose end is not known

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.rows.payloads))

    def take(self, found: Mapping[int, SubmitAnswer]) -> None:
        """The answers to one more try; what is still locked stays."""
        left = [at for at in range(len(self.indexes)) if at in found and isinstance(found[at].error, RowLocked)]
        for at, index in enumerate(self.indexes):
            if at not in found:
                self.answers.pop(index, None)
            else:
                self.answers[index] = found[at]
        self.rows, self.indexes = self.rows.pick(left), [self.indexes[at] for at in left]


class LockedRows:
    """All submits that wait for another transaction to end."""

    def __init__(
        self,
        store: SubmitStore,
        *,
        on_submitted: Callable[[SubmitRows, Mapping[int, SubmitAnswer]], None],
        on_tried: Callable[[SubmitRows, Mapping[int, SubmitAnswer]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._on_submitted, self._on_tried, self._now = store, on_submitted, on_tried, now
        self._writes: deque[LockedWrite] = deque()  # bounded by `put`
        self._rows = self._bytes = 0
        self._wake = asyncio.Event()
        self._closing = False

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._rows

    def put(self, write: LockedWrite) -> None:
        """Try these again until they are written; if too many wait, their caller is answered at once."""
        rows, size = len(write.rows), write.size
        if self._closing or self._rows + rows > MOST_ROWS or self._bytes + size > MOST_BYTES:
            _answer(write)
            return
        write.deadline = self._now() + GIVE_UP_SECONDS
        self._writes.append(write)
        self._rows += rows
        self._bytes += size
        self._wake.set()

    async def run_once(self) -> int:
        """Try each once, in the order in which they came; how many writes are left."""
        for _ in range(len(self._writes)):
            write = self._writes.popleft()
            rows, size = len(write.rows), write.size
            try:
                await self._try(write)
            finally:
                self._rows -= rows
                self._bytes -= size
                if write.indexes and not self._closing and self._now() < write.deadline:
                    self._writes.append(write)
                    write.size = sum(map(len, write.rows.payloads))
                    self._rows += len(write.rows)
                    self._bytes += write.size
                else:
                    _answer(write)
        return len(self._writes)

    async def _try(self, write: LockedWrite) -> None:
        before = write.rows
        try:
            answers = await self._store.submit_locked(write.rows)
        except HeadgateError as error:
            if isinstance(error, OutcomeUnknown):
                write.unknown = True
                write.rows.mark_resent()
            log.warning("locked_submits_delayed rows=%d error=%s", len(write.rows), error)
            return
        except BaseException:  # cancelled during the call: it may have been committed
            write.unknown = True
            write.rows.mark_resent()
            raise
        write.take(answers)  # first: what was committed must not be sent again as new, whatever happens below
        self._on_tried(before, answers)
        if len(write.rows) < len(before):
            self._on_submitted(before, answers)

    async def run(self) -> None:
        """Until `stop`; then every caller has an answer. After a bug it is started again, with all that wait."""
        try:
            while not self._closing:
                if not self._writes:
                    self._wake.clear()
                    await self._wake.wait()
                elif await self.run_once():
                    await asyncio.sleep(PAUSE_SECONDS)
        except asyncio.CancelledError:
            self._closing = True
            raise
        finally:
            while self._closing and self._writes:
                _answer(self._writes.popleft())
            if self._closing:
                self._rows = self._bytes = 0

    def stop(self) -> None:
        """Take no more, and answer all that wait."""
        self._closing = True
        self._wake.set()


def _answer(write: LockedWrite) -> None:
    """What is still locked fails the whole write: a caller that sends it again, as the client does, loses nothing."""
    error = next((write.answers[index].error for index in write.indexes if index in write.answers), None)
    if error is None:
        write.done(write.answers)
    elif write.unknown:
        write.failed(OutcomeUnknown(f"{error}; an earlier try may have been committed: send it again"))
    elif len(write.indexes) < write.total:
        write.failed(OutcomeUnknown(f"{error}; the others of this call were committed: send all of it again"))
    else:
        write.failed(error)
