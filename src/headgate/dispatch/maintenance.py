"""Maintenance: what all instances do periodically. The first that tries does it; there is no leader."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from headgate.dispatch.periodic import Periodic

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


class Upkeep(Periodic):
    """Folds counters, forgets what is over, makes partitions, vacuums."""

    def __init__(self, store: UpkeepStore) -> None:
        super().__init__("upkeep_failed error=%s", UPKEEP_SECONDS)
        self._store = store
        self._rounds = 0

    async def run_once(self) -> None:
        """One round."""
        self._rounds += 1
        await self._store.tidy(thorough=self._rounds % _RARELY == 0)
        if self._rounds % _RARELY == _RARELY // 2:
            await self._store.vacuum()


class DurabilityCheck(Periodic):
    """Once a minute, besides every new connection: settings can be changed, and another host be promoted."""

    def __init__(self, store: DurabilityStore) -> None:
        super().__init__("durability_check_failed error=%s", DURABILITY_SECONDS, jitter=(0.8, 1.0), level=logging.ERROR)
        self._store = store
        self._known = ""

    async def run_once(self) -> None:
        """Check; warn of defaults by which jobs that are submitted from SQL can be lost, once."""
        defaults = await self._store.check_durability()
        if defaults and defaults != self._known:
            log.warning('defaults_not_durable effect="jobs submitted from SQL can be lost" reason=%s', defaults)
        self._known = defaults
