"""How often a long computation on the event loop gives others their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Turns:
    """How often other tasks have run."""

    def __init__(self) -> None:
        self.number = 0

    async def run(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Count the turns that another task gets meanwhile."""
    turns = Turns()
    other = asyncio.create_task(turns.run())
    try:
        yield turns
    finally:
        other.cancel()
        with suppress(asyncio.CancelledError):
            await other
