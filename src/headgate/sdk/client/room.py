"""The bound on what a client keeps until it is answered, and the line of those who wait for room."""

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


class Room:
    """Room for so many jobs and bytes. Any thread may take and give; who waits is served in turn."""

    def __init__(self, jobs: int = JOBS, size: int = BYTES) -> None:
        self._most = jobs
        self._jobs, self._size = jobs, size
        self._lock = threading.Lock()
        self._line: deque[tuple[int, int, Future[None]]] = deque()  # as long as callers wait: their own tasks, threads

    def take(self, jobs: int, size: int) -> bool:
        """True if there was room, and nobody waits for it longer."""
        with self._lock:
            return not self._line and self._took(jobs, size)

    def give(self, jobs: int, size: int) -> None:
        """Answered, or given up."""
        with self._lock:
            self._jobs += jobs
            self._size += size
            if self._line:
                self._serve()

    async def wait(self, jobs: int, size: int, *, seconds: float) -> None:
        """Take, as soon as it is one's turn. Raises OutboxFull if that does not come in time."""
        turn = self._stand(jobs, size)
        try:
            await asyncio.wait_for(asyncio.wrap_future(turn), seconds)
        except BaseException as error:
            self._leave(turn, jobs, size)
            if isinstance(error, TimeoutError):
                raise full(seconds) from None
            raise

    def wait_blocking(self, jobs: int, size: int, *, seconds: float) -> None:
        """As `wait`, in a thread."""
        turn = self._stand(jobs, size)
        try:
            turn.result(seconds)
        except BaseException as error:
            self._leave(turn, jobs, size)
            if isinstance(error, TooLong):
                raise full(seconds) from None
            raise

    def _took(self, jobs: int, size: int) -> bool:
        # A payload larger than what is left passes while there is any room at all: it is bounded by itself.
        if jobs > self._jobs or self._size <= 0:
            return False
        self._jobs -= jobs
        self._size -= size
        return True

    def _stand(self, jobs: int, size: int) -> Future[None]:
        if jobs > self._most:
            raise full()
        turn: Future[None] = Future()
        with self._lock:
            self._line.append((jobs, size, turn))
            self._serve()
        return turn

    def _serve(self) -> None:
        while self._line:
            jobs, size, turn = self._line[0]
            if turn.cancelled():
                self._line.popleft()
            elif self._took(jobs, size):
                self._line.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                else:  # it left in this very moment
                    self._jobs += jobs
                    self._size += size
            else:
                return

    def _leave(self, turn: Future[None], jobs: int, size: int) -> None:
        if turn.cancel():
            with self._lock:
                self._serve()  # whoever stood behind
        else:  # it had its turn, and will not use it
            self.give(jobs, size)


def full(seconds: float = 0.0) -> OutboxFull:
    """The error for what found no room."""
    waited = f", also after {seconds:g} s" if seconds else ""
    return OutboxFull(
        f"too many submits of this client wait for their answers{waited}: the server takes jobs more slowly than they "
        "are submitted; submit less at once, or allow more time (timeout=...)"
    )
