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

    def __contains__(self, key: Hashable) -> bool:
        return key in self._numbers

    def set(self, key: Hashable, due: float, call: Callable[..., None], *args: object) -> None:
        """Have `advance` call `call(*args, now)` once `due` is reached."""
        self.cancel(key)
        self._count += 1
        self._numbers[key] = self._count
        self._calls[self._count] = key, call, args
        heappush(self._heap, (due, self._count))

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
        """The earliest time at which something is due; None if nothing is."""
        heap, calls = self._heap, self._calls
        while heap and heap[0][1] not in calls:
            heappop(heap)
        return heap[0][0] if heap else None

    def advance(self, now: float) -> None:
        """Make the calls that are due, earliest first, and those that they make due."""
        while (due := self.next_due) is not None and due <= now:
            key, call, args = self._calls.pop(heappop(self._heap)[1])
            del self._numbers[key]
            call(*args, now)
