"""The shape of a background service: `run_once` does one round, `run` continues until `stop`."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from random import uniform

from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.dispatch")


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; says whether it came in time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Periodic(ABC):
    """A service that does a round periodically. A round that fails is logged, and the next one tries again."""

    def __init__(
        self, failed: str, seconds: float, *, jitter: tuple[float, float] = (0.8, 1.2), level: int = logging.WARNING
    ) -> None:
        """`failed`: the log event of a round that failed, with its error."""
        self._failed, self._seconds, self._jitter, self._level = failed, seconds, jitter, level
        self._stopped = asyncio.Event()

    @abstractmethod
    async def run_once(self) -> object:
        """One round."""

    def pause(self) -> float:
        """Seconds to the next round. Jittered: many instances must not do it in step."""
        return self._seconds * uniform(*self._jitter)  # noqa: S311 - not a secret

    async def run(self) -> None:
        """Round after round, until `stop` or cancelled: every step commits by itself."""
        while not await wait_at_most(self._stopped, self.pause()):
            await self.try_once()

    async def try_once(self) -> None:
        """One round, whose error is logged."""
        try:
            await self.run_once()
        except HeadgateError as error:
            log.log(self._level, self._failed, error)

    def stop(self) -> None:
        """End after the round that is under way."""
        self._stopped.set()
