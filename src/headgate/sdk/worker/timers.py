"""Due times without a clock: the caller says what time it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final

_STALE_MIN: Final = 64


class Timers:
    """Calls by key, each with the time it is due. A key has one timer: setting it again replaces it."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._calls: dict[int, tuple[Hashable, Callable[..., None], tuple[object, ...]]] = {}
        # Numbers only: a cancelled timer stays in the heap for a while, and must not keep its job in memory.
        self._heap: list[tuple[float, int]] = []
        self._count = 0
        self.changed = False
        """Set with every timer: `next_due` may be earlier than it was."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._numbers

    def set(self, key: Hashable, due: float, call: Callable[..., None], *args: object) -> None:
        """Have `advance` call `call(*args, now)` once `due` is reached."""
        self.cancel(key)
        self._count += 1
        self._numbers[key] = self._count
        self._calls[self._count] = key, call, args
        heappush(self._heap, (due, self._count))
        self.changed = True

    def cancel(self, key: Hashable) -> None:
        """Forget the timer of this key, if there is one."""
        number = self._numbers.pop(key, None)
        if number is None:
            return
        del self._calls[number]
        if len(self._heap) > 2 * len(self._calls) + _STALE_MIN:
            # Far deadlines of jobs that end at once would pile up otherwise.
            self._heap = [entry for entry in self._heap if entry[1] in self._calls]
            heapify(self._heap)

    @property
    def next_due(self) -> float | None:
        """When to call `advance` at the latest; None if nothing is set. Too early if that timer was cancelled."""
        return self._heap[0][0] if self._heap else None

    def advance(self, now: float) -> None:
        """Make the calls that are due, earliest first, and those that they make due."""
        while self._heap and self._heap[0][0] <= now:
            found = self._calls.pop(heappop(self._heap)[1], None)
            if found is not None:  # else cancelled
                key, call, args = found
                del self._numbers[key]
                call(*args, now)
