"""Long computations on the event loop: they give others their turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

SLICE_SECONDS: Final = 0.005
"""How long a computation may keep the loop, which is the dispatcher's too."""


class Pace:
    """Makes a loop over many rows stop for others, by the time it has taken and not by the number of rows.

    What one row costs depends on what strangers have written into it.
    """

    __slots__ = ("_clock", "_since")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()

    async def rest(self) -> None:
        """To be awaited once per row: lets others run when this has run for long enough."""
        if self._clock() - self._since >= SLICE_SECONDS:
            await asyncio.sleep(0)
            self._since = self._clock()
