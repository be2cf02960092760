"""Calls that must not delay the I/O thread: log lines, whose output can block, and hooks of the application."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple

log = logging.getLogger("headgate.worker")

WAITING_MAX: Final = 10_000
"""Calls that wait; what comes beyond that is dropped and counted, since heartbeats must not wait for a terminal."""
_Call: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class BackgroundCalls:
    """Makes calls one after the other, in a daemon thread that the first of them starts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()  # bounded by WAITING_MAX
        self._thread: threading.Thread | None = None
        # Both only grow, and each is written by one thread: by the one that puts, and by the one that makes the calls.
        self._dropped = self._dropped_logged = 0
        self._error_shown = False

    def put(self, call: Callable[[*Ts], object], *args: *Ts) -> None:
        """Have a call made; from one thread only. The first error of a call is written to standard error."""
        if self._waiting.qsize() >= WAITING_MAX:
            self._dropped += 1
            return
        if self._dropped > self._dropped_logged:
            self._waiting.put((self._log_dropped, ()))
        self._waiting.put((call, args))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def submit(self, call: Callable[[*Ts], R], *args: *Ts) -> Future[R]:
        """Have a call made, and give what it returns or raises; from the thread of `put`."""
        done: Future[R] = Future()
        self.put(_complete, done, call, args)
        return done

    def flush(self, seconds: float) -> int:
        """Wait until all calls so far are made; gives the number of those that were not made within `seconds`."""
        if self._thread is None:
            return 0
        made = threading.Event()
        self._waiting.put((self._log_dropped, ()))
        self._waiting.put((made.set, ()))
        return 0 if made.wait(seconds) else self._waiting.qsize()

    def close(self, seconds: float) -> int:
        """As `flush`, and end the thread."""
        if self._thread is None:
            return 0
        self._waiting.put((self._log_dropped, ()))
        self._waiting.put(None)
        deadline = time.monotonic() + seconds
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self._waiting.qsize() if self._thread.is_alive() else 0

    def _run(self) -> None:
        while (found := self._waiting.get()) is not None:
            call, args = found
            try:
                call(*args)
            except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever a call raises, the next one is made
                self._show(error)
            del found, call, args  # the next call may be far away

    def _show(self, error: BaseException) -> None:
        """Write the first error to standard error: it may be the log itself that is broken."""
        if not self._error_shown:
            self._error_shown = True
            text = "".join(traceback.format_exception(error))
            with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
                sys.stderr.write(f"{self._name}: a call has failed; later errors are not shown\n{text}")

    def _log_dropped(self) -> None:
        count = self._dropped - self._dropped_logged
        if count:
            self._dropped_logged += count
            log.warning('calls_dropped thread=%s count=%d effect="no log line, no hook"', self._name, count)


def _complete(done: Future[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = call(*args)
    except BaseException as error:  # noqa: BLE001 -- raised where the result is waited for
        done.set_exception(error)
    else:
        done.set_result(result)
