"""Figures over time: throughput, depth and latencies of a tenant or a topic, and what fails now. Reading needs `read`.

All of it comes from rollups (ADR 46): counts are folded every few seconds, latencies are written every ten.
"""

from __future__ import annotations

from typing import Final

from headgate.control.ports import StatsStore
from headgate.domain.identity import Identity, Scope
from headgate.domain.stats import FAILING_WITHIN, Failing, Series, window_of
from headgate.domain.validation import check_integer, check_topic

FAILING_DEFAULT: Final = 20
FAILING_MAX: Final = 100


class Stats:
    """Reads figures of the caller's tenant; a token for some topics gets those of its topics only."""

    def __init__(self, store: StatsStore) -> None:
        self._store = store

    async def series(self, caller: Identity, *, since: str = "", topic: str = "") -> Series:
        """Throughput, depth and latencies in the intervals of a window, of a topic or of all.

        Raises InvalidInput for an unknown window, NotFound for an unknown topic.
        """
        caller.require(Scope.READ)
        window = window_of(since)
        return await self._store.series(caller.tenant, window=window, topic=_topic(caller, topic), topics=caller.topics)

    async def failing(self, caller: Identity, *, topic: str = "", limit: int = FAILING_DEFAULT) -> Failing:
        """The errors of the last hour by topic and kind of error; of a bounded number of events, the newest ones."""
        caller.require(Scope.READ)
        check_integer(limit, field="limit", low=1, high=FAILING_MAX)
        return await self._store.failing(
            caller.tenant, within=FAILING_WITHIN, topic=_topic(caller, topic), topics=caller.topics, limit=limit
        )


def _topic(caller: Identity, topic: str) -> str:
    if topic:
        caller.allowed([check_topic(topic)])
    return topic
