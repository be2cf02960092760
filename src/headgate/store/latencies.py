"""Writes how long jobs waited and ran: the counts of one instance, added to those of all (record_latencies_v1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from headgate.domain.histogram import WAITS_US
from headgate.domain.stats import TopicLatencies
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.series import ALL_TOPICS, added

RECORD: Final = "SELECT headgate.record_latencies_v1($1, $2, $3, $4, $5)"


async def record(db: Connection, rows: Sequence[tuple[int, TopicLatencies]]) -> None:
    """Add counts of topics, each with the number of its tenant, and their sum for each tenant."""
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for tenant_no, one in rows:
        for key in ((tenant_no, one.topic_no), (tenant_no, ALL_TOPICS)):
            pickup, run = found.get(key, ([0] * (len(WAITS_US) + 1),) * 2)
            found[key] = added(pickup, one.pickup), added(run, one.run)
    keys = sorted(found)
    with translating(writing=True):
        await db.execute(
            RECORD,
            [tenant_no for tenant_no, _ in keys],
            [topic_no for _, topic_no in keys],
            len(WAITS_US) + 1,
            list(chain.from_iterable(found[key][0] for key in keys)),
            list(chain.from_iterable(found[key][1] for key in keys)),
        )


class LatencyStore:
    """Fits the port of `dispatch/latencies.py`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, counts: Sequence[TopicLatencies]) -> None:
        names = self._database.names
        async with self._database.lane("upkeep").use() as db:
            await record(db, [(names.topics_by_no[one.topic_no].tenant_no, one) for one in counts])
