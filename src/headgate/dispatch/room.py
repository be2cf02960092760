"""Timers for topics that limits hold back: aimed at the moment when the next job may start, instead of asking again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class RoomTimers:
    """At most one timer per topic, the earliest that was heard of."""

    def __init__(self, wake: Callable[[int, bool], None]) -> None:
        self._wake = wake  # (topic, whether it had to wait)
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def hear(self, waits: Iterable[tuple[int, float | None]]) -> None:
        """Topics, and in how many seconds they may have more; None: when something ends, which wakes them by itself."""
        loop = asyncio.get_running_loop()
        for topic_no, seconds in waits:
            if seconds is None:
                continue
            at = loop.time() + max(0.0, seconds)
            known = self._timers.get(topic_no)
            if known is not None:
                if known.when() <= at:
                    continue
                known.cancel()
            self._timers[topic_no] = loop.call_at(at, self._fire, topic_no, seconds > 0)

    def stop(self) -> None:
        """Forget all."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _fire(self, topic_no: int, timed: bool) -> None:  # noqa: FBT001 - call_at passes it by place
        self._timers.pop(topic_no, None)
        self._wake(topic_no, timed)
