"""The bound on submits that a client keeps until they are answered, and the queue of callers that wait for capacity."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLong
from typing import Final

from headgate.sdk.errors import OutboxFull

JOBS: Final = 200_000
BYTES: Final = 256_000_000


class SubmitCapacity:
    """A number of jobs and bytes. Any thread may take and give back; callers that wait are served in order."""

    def __init__(self, jobs: int = JOBS, size: int = BYTES) -> None:
        self._most = jobs
        self._jobs, self._size = jobs, size
        self._lock = threading.Lock()
        self._queue: deque[tuple[int, int, Future[None]]] = deque()  # one entry for each waiting task or thread

    def take(self, jobs: int, size: int) -> bool:
        """True if there was capacity, and no earlier caller waits for it."""
        with self._lock:
            if self._queue or jobs > self._jobs or self._size <= 0:  # as in `_took`
                return False
            self._jobs -= jobs
            self._size -= size
            return True

    def give(self, jobs: int, size: int) -> None:
        """Give back what an answered or expired submit took."""
        with self._lock:
            self._jobs += jobs
            self._size += size
            if self._queue:
                self._serve()

    async def wait(self, jobs: int, size: int, *, seconds: float) -> None:
        """Take in the order of the calls. Raises OutboxFull after `seconds`."""
        turn = self._enqueue(jobs, size)
        try:
            async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
                await asyncio.wrap_future(turn)
        except BaseException as error:
            self._leave(turn, jobs, size)
            if isinstance(error, TimeoutError):
                raise full(seconds) from None
            raise

    def wait_blocking(self, jobs: int, size: int, *, seconds: float) -> None:
        """As `wait`, in a thread."""
        turn = self._enqueue(jobs, size)
        try:
            turn.result(seconds)
        except BaseException as error:
            self._leave(turn, jobs, size)
            if isinstance(error, TooLong):
                raise full(seconds) from None
            raise

    def _took(self, jobs: int, size: int) -> bool:
        # A payload larger than what is left passes while there is any capacity at all: it is bounded by itself.
        if jobs > self._jobs or self._size <= 0:
            return False
        self._jobs -= jobs
        self._size -= size
        return True

    def _enqueue(self, jobs: int, size: int) -> Future[None]:
        if jobs > self._most:
            raise full()
        turn: Future[None] = Future()
        with self._lock:
            self._queue.append((jobs, size, turn))
            self._serve()
        return turn

    def _serve(self) -> None:
        while self._queue:
            jobs, size, turn = self._queue[0]
            if turn.cancelled():
                self._queue.popleft()
            elif self._took(jobs, size):
                self._queue.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                else:  # cancelled just now
                    self._jobs += jobs
                    self._size += size
            else:
                return

    def _leave(self, turn: Future[None], jobs: int, size: int) -> None:
        if turn.cancel():
            with self._lock:
                self._serve()  # the next caller may fit
        else:  # it was granted, and will not be used
            self.give(jobs, size)


def full(seconds: float = 0.0) -> OutboxFull:
    """The error for a submit that found no capacity."""
    waited = f", also after {seconds:g} s" if seconds else ""
    return OutboxFull(
        f"too many submits of this client wait for their answers{waited}: the server takes jobs more slowly than they "
        "are submitted; submit less at once, or allow more time (timeout=...)"
    )
