"""Long computations on the event loop yield to other tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

SLICE_SECONDS: Final = 0.005
"""How long a computation may block the loop, which also runs the dispatcher."""


class Pace:
    """Makes a loop over many rows yield after a time slice, not after a number of rows.

    The cost of a row depends on what its submitter has written into it.
    """

    __slots__ = ("_clock", "_since")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()

    async def rest(self) -> None:
        """Await once per row: yields to other tasks when the time slice is used up."""
        if self._clock() - self._since >= SLICE_SECONDS:
            await asyncio.sleep(0)
            self._since = self._clock()
