"""The thread and event loop for all of the SDK's network traffic.

One for the process, not one for each client: grpc.aio has a single poller that wakes every loop it ever saw, and two
loops take each other's events (grpc#42357). It also makes the rest simple: a user's handler may block its own loop for
a minute, and beats and acknowledgements go on; clients may be used from any thread and any number of loops.
The thread is a daemon and ends with the process.

A client may be made before a fork and used after it, in every child (a preloading web server, a prefork worker):
nothing is opened before the first use. If the *parent* has used one before the fork, no client works in the child, old
or new: gRPC's own threads are missing there, and a first call would hang forever (its fork support does not cover
grpc.aio). A call there raises `ForkedProcess` at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from headgate.sdk.background_calls import BackgroundCalls
from headgate.sdk.errors import ForkedProcess


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where there is one.

    It is faster, and its wake-up from another thread does not give up the GIL: handlers that finish in a row are sent
    as one frame.
    """
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Thread(threading.Thread):
    log_lines: BackgroundCalls


class IoThread:
    """A running event loop in a thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_loop()
        self.loop.set_exception_handler(_on_exception)
        self.log_lines = BackgroundCalls("headgate-log")
        """Writes what this thread logs; see `io_log`."""
        self._thread = _Thread(target=self._run, name="headgate-io", daemon=True)
        self._thread.log_lines = self.log_lines
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def check_pid(self) -> None:
        """Refuse to work in a forked child, where this thread does not exist and a call would wait forever."""
        if self.pid != os.getpid():
            raise ForkedProcess(
                f"process {self.pid} has used a Headgate client, then forked, and gRPC does not work in its fork "
                f"{os.getpid()}; first use a client after the fork (making one before is fine)"
            )


_lock = threading.Lock()
_shared: IoThread | None = None  # module state, because grpc.aio's poller is: see above


def io_thread() -> IoThread:
    """The process's I/O thread, started at the first call; raises ForkedProcess where there can be none."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = IoThread()
        _shared.check_pid()
        return _shared


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Another user of grpc.aio in this process (a server in a test, another library) shares the poller's socket; the
    # loop that loses the race for an event reads nothing. The event itself is handled by the winner.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
