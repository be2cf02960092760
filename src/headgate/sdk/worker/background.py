"""Calls that must not delay the I/O thread: log lines, whose output can block, and hooks of the application."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeAlias, TypeVarTuple

log = logging.getLogger("headgate.worker")

WAITING_MAX: Final = 10_000
"""Calls that wait; what comes beyond that is dropped and counted, since heartbeats must not wait for a terminal."""
_Call: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]
Ts = TypeVarTuple("Ts")


class BackgroundCalls:
    """Makes calls one after the other, in a daemon thread that the first of them starts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()  # bounded by WAITING_MAX
        self._thread: threading.Thread | None = None
        self._dropped = 0

    def put(self, call: Callable[[*Ts], object], *args: *Ts) -> None:
        """Have a call made; from one thread only. The call must not raise."""
        if self._waiting.qsize() >= WAITING_MAX:
            self._dropped += 1
            return
        if self._dropped:
            self._waiting.put((self._log_dropped, (self._dropped,)))
            self._dropped = 0
        self._waiting.put((call, args))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self, seconds: float) -> int:
        """Wait until all calls are made; gives the number of those that were not made within `seconds`."""
        if self._thread is None:
            return 0
        if self._dropped:
            self._waiting.put((self._log_dropped, (self._dropped,)))
        self._waiting.put(None)
        deadline = time.monotonic() + seconds
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self._waiting.qsize() if self._thread.is_alive() else 0

    def _run(self) -> None:
        while (found := self._waiting.get()) is not None:
            call, args = found
            call(*args)
            del found, call, args  # the next call may be far away

    def _log_dropped(self, count: int) -> None:
        log.warning('calls_dropped thread=%s count=%d effect="no log line, no hook"', self._name, count)
