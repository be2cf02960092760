"""Log lines of code that runs on the I/O thread.

The output of a log can block: a pipe that no one reads, a terminal that is stopped. A line that the I/O thread writes
itself would stop heartbeats, and a worker that is asked to end would not. Another thread writes them (`IoThread`).
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from typing import Any


class IoLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs at once, except on the I/O thread, whose lines are passed on."""

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        """Write one line, or have it written."""
        if not self.isEnabledFor(level):
            return
        lines = getattr(threading.current_thread(), "log_lines", None)
        if lines is None:
            self.logger.log(level, msg, *args, **more)
            return
        if more.get("exc_info"):
            more["exc_info"] = sys.exc_info()  # the other thread has none
        lines.put(functools.partial(self.logger.log, level, msg, *args, **more))


def io_logger(name: str) -> IoLogger:
    """The logger of this name, for code that runs on the I/O thread."""
    return IoLogger(logging.getLogger(name), {})
