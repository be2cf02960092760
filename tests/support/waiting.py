"""Wait for a condition, with a deadline and a name: for what no event announces, such as a process going away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")

_PAUSE, _PAUSE_MAX, _PAUSE_GROWTH = 0.005, 0.05, 1.2
"""Short at first, then longer: most waits end soon, and in a long one the looks keep a processor busy that what is
awaited needs."""
TIME_LIMIT = timedelta(seconds=60)
"""A guard against waiting forever, and no measure of speed: nothing comes near it at a third of a machine's speed."""


def until(check: Callable[[], T], what: str, *, within: timedelta = TIME_LIMIT) -> T:
    """Return the first truthy answer of `check`; fail, naming `what` was awaited, when none came in time."""
    deadline, pause = time.monotonic() + within.total_seconds(), _PAUSE
    while not (answer := check()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {within} in vain until {what}")
        time.sleep(pause)
        pause = min(pause * _PAUSE_GROWTH, _PAUSE_MAX)
    return answer


async def until_async(check: Callable[[], Awaitable[T]], what: str, *, within: timedelta = TIME_LIMIT) -> T:
    """As `until`, for a check that is awaited and lets other tasks run meanwhile."""
    deadline, pause = time.monotonic() + within.total_seconds(), _PAUSE
    while not (answer := await check()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {within} in vain until {what}")
        await asyncio.sleep(pause)
        pause = min(pause * _PAUSE_GROWTH, _PAUSE_MAX)
    return answer
