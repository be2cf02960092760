"""Waits and a clock for tests of dispatch; every wait has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from tests.support.waiting import TIME_LIMIT, until_async

T = TypeVar("T")


SOON = TIME_LIMIT


async def soon(check: Callable[[], T], what: str, *, within: timedelta = SOON) -> T:
    """The first truthy answer of `check`; others run meanwhile."""

    async def asked() -> T:
        return check()

    return await until_async(asked, what, within=within)


async def settle_down(turns: int = 20) -> None:
    """Let everything that is ready run: for showing that nothing more happens."""
    for _ in range(turns):
        await asyncio.sleep(0)


class ManualClock:
    """A monotonic clock in a test's hands."""

    def __init__(self, at: float = 1_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds
