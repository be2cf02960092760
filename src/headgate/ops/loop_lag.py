"""How late the event loop is: the first sign of a server that has too much to do."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

log = logging.getLogger("headgate.server")
_EVERY_SECONDS: Final = 0.5
_WARN_FROM_MS: Final = 500


class LoopLag:
    """Measures the loop it runs on."""

    def __init__(self) -> None:
        self.ms = 0.0  # as last measured
        self._stopped = False

    async def run_once(self) -> float:
        """Measure once; returns the milliseconds by which a timer was late."""
        before = time.monotonic()
        await asyncio.sleep(_EVERY_SECONDS)
        self.ms = max(0.0, (time.monotonic() - before - _EVERY_SECONDS) * 1000)
        if self.ms > _WARN_FROM_MS:
            log.warning("loop_lag ms=%.0f", self.ms)
        return self.ms

    async def run(self) -> None:
        """Measure until `stop`."""
        while not self._stopped:
            await self.run_once()

    def stop(self) -> None:
        """End after the measurement that is under way."""
        self._stopped = True
