"""Ends a worker's process although a handler does not."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger("headgate.worker")

LEAVING_SECONDS: Final = 6.0
"""How long a worker's process has to end once all its jobs are settled or abandoned."""
LOOK_SECONDS: Final = 1.0
SAY_SECONDS: Final = 1.0
"""How long the last log line may take: its output may be what blocks."""


@contextmanager
def forced_exit_after(
    ended: threading.Event, *, overdue: Callable[[], bool], more_seconds: float = 0.0
) -> Iterator[None]:
    """End this process with code 1 if the block is not left a while after `ended`; `more_seconds` are for hooks.

    It is also ended if the worker is `overdue`: it was asked to stop, and `ended` is never set.

    A handler that blocks the event loop, ignores its cancellation, or waits for a thread that never returns would
    otherwise keep a drained worker from ending until it is killed. Its job has been abandoned by then.
    """
    left = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_SECONDS) and not overdue():
            pass
        if not left.wait(LEAVING_SECONDS + more_seconds):
            saying = threading.Thread(target=say, daemon=True)
            saying.start()
            saying.join(SAY_SECONDS)
            os._exit(1)

    def say() -> None:
        log.error(
            'did_not_stop seconds=%g effect="the process exits although a handler still runs"',
            LEAVING_SECONDS + more_seconds,
        )
        logging.shutdown()

    threading.Thread(target=watch, name="headgate-forced-exit", daemon=True).start()
    try:
        yield
    finally:
        left.set()
        ended.set()
