"""Timers for topics that limits hold back: aimed at the moment when the next job may start, instead of asking again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class LimitTimers:
    """At most one timer per topic, the earliest that was heard of."""

    def __init__(self, wake: Callable[[int, bool], None]) -> None:
        self._wake = wake  # (topic, whether it had to wait)
        # By topic, when it fires and its handle. The moment is kept here: for "now" uvloop gives a plain Handle, which
        # has no `when`.
        self._timers: dict[int, tuple[float, asyncio.Handle]] = {}

    def set(self, waits: Iterable[tuple[int, float | None]]) -> None:
        """Topics, and in how many seconds they may have more; None: when something ends, which wakes them by itself."""
        loop = asyncio.get_running_loop()
        for topic_no, seconds in waits:
            if seconds is None:
                continue
            at = loop.time() + max(0.0, seconds)
            known = self._timers.get(topic_no)
            if known is not None:
                if known[0] <= at:
                    continue
                known[1].cancel()
            self._timers[topic_no] = (at, loop.call_at(at, self._fire, topic_no, seconds > 0))

    def stop(self) -> None:
        """Forget all."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _fire(self, topic_no: int, timed: bool) -> None:  # noqa: FBT001 - call_at passes it by place
        self._timers.pop(topic_no, None)
        self._wake(topic_no, timed)
