"""Long computations on an event loop: they let other tasks run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import coroutine
from typing import Final

SLICE_SECONDS: Final = 0.005
"""How long a computation may keep the event loop, which also dispatches jobs."""


class Pace:
    """Makes a loop over many rows yield to other tasks, by elapsed time and not by the number of rows.

    The cost of one row depends on what its author has written into it.
    """

    __slots__ = ("_clock", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._since = clock, clock()

    async def rest(self) -> None:
        """Await this once per row: other tasks run when this loop has run for a slice."""
        if self._clock() - self._since >= SLICE_SECONDS:
            await _yield()
            self._since = self._clock()


@coroutine
def _yield() -> Generator[None, None, None]:
    yield  # to the event loop, which resumes the task after all others that are ready
