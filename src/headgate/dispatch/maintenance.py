"""Maintenance: what every instance does now and then, whichever comes first; none leads."""

from __future__ import annotations

import asyncio
import logging
from random import uniform
from typing import Final, Protocol

from headgate.domain.errors import HeadgateError

log = logging.getLogger("headgate.server")
UPKEEP_SECONDS, DURABILITY_SECONDS = 5.0, 60.0
_RARELY: Final = 12
"""Of so many rounds of upkeep, one is thorough, and another one vacuums."""


class UpkeepStore(Protocol):
    """The database's side of upkeep."""

    async def tidy(self, *, thorough: bool) -> None: ...
    async def vacuum(self) -> None: ...


class DurabilityStore(Protocol):
    """Raises if a commit may be lost; returns what is wrong with the database's defaults."""

    async def check_durability(self) -> str: ...


class Upkeep:
    """Folds counters, forgets what is over, makes partitions, vacuums."""

    def __init__(self, store: UpkeepStore) -> None:
        self._store = store
        self._rounds = 0

    async def run_once(self) -> None:
        """One round."""
        self._rounds += 1
        await self._store.tidy(thorough=self._rounds % _RARELY == 0)
        if self._rounds % _RARELY == _RARELY // 2:
            await self._store.vacuum()

    async def run(self) -> None:
        """Round after round, until cancelled: every step commits by itself."""
        while True:
            # Jittered: many instances must not do it in step.
            await asyncio.sleep(UPKEEP_SECONDS * uniform(0.8, 1.2))  # noqa: S311
            try:
                await self.run_once()
            except HeadgateError as error:
                log.warning("upkeep_failed error=%s", error)


class DurabilityCheck:
    """Once a minute, besides every new connection: settings can be changed, and another host be promoted."""

    def __init__(self, store: DurabilityStore) -> None:
        self._store = store
        self._known = ""

    async def run_once(self) -> None:
        """Check; warn of defaults by which jobs that are submitted from SQL can be lost, once."""
        defaults = await self._store.check_durability()
        if defaults and defaults != self._known:
            log.warning('defaults_not_durable effect="jobs submitted from SQL can be lost" reason=%s', defaults)
        self._known = defaults

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(DURABILITY_SECONDS * uniform(0.8, 1.0))  # noqa: S311 - jitter
            try:
                await self.run_once()
            except HeadgateError as error:
                log.error("durability_check_failed error=%s", error)
