"""Calls that a credential may not make: one log line each, at a bounded rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.calls")
LINES_PER_SECOND: Final = 5.0
"""A client with a wrong token tries again and again; its lines must not flood the log."""


class RefusalLog:
    """Logs refusals; those that are left out are counted in the next line."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lines, self._lines_at, self._unlogged = LINES_PER_SECOND, now(), 0

    def log(self, method: str, error: HeadgateError) -> None:
        """A call was refused."""
        now = self._now()
        self._lines = min(LINES_PER_SECOND, self._lines + (now - self._lines_at) * LINES_PER_SECOND)
        self._lines_at = now
        if self._lines < 1:
            self._unlogged += 1
            return
        self._lines -= 1
        log.warning("call_refused method=%s code=%s error=%s unlogged=%d", method, error.code, error, self._unlogged)
        self._unlogged = 0
