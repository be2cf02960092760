"""Hints from NOTIFY: every user of the database can send them, so they cost a bounded amount of work.

A hint says where to look sooner, never what is there: the rows are the truth (ADR 12). So a false one costs a claim
that finds nothing, and a missing one the time to the next tick. The first hint after a quiet time is followed at once;
those that come within 20 ms of it are followed together. However many are sent, an instance looks 50 times a second at
most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

APART_SECONDS: Final = 0.02
"""As far apart as the hints that one instance sends."""
TOPICS: Final = 4_096
"""That many topics are remembered until their turn. With more, all are looked at."""


class Hints:
    """Follows hints, at most one round in 20 ms."""

    def __init__(self, follow: Callable[[Iterable[int]], None], follow_all: Callable[[], None]) -> None:
        """`follow` takes numbers of topics, as the coordinator's `on_notify`; `follow_all` is for too many of them."""
        self._follow, self._follow_all = follow, follow_all
        self._waiting: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0

    def on_notify(self, numbers: Iterable[int]) -> None:
        """Some hints came."""
        if len(self._waiting) <= TOPICS:
            self._waiting.update(numbers)
        if self._timer is not None or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        wait = self._next - loop.time()
        if wait <= 0:
            self._round()
        else:
            self._timer = loop.call_later(wait, self._round)

    def _round(self) -> None:
        self._timer = None
        self._next = asyncio.get_running_loop().time() + APART_SECONDS
        numbers, self._waiting = self._waiting, set()
        if len(numbers) > TOPICS:
            self._follow_all()
        else:
            self._follow(numbers)
