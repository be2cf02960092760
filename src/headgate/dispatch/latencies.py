"""Adds what this instance has counted of waiting and running times to the figures of all instances, every ten seconds.

The counters of `domain/tallies.py` only grow, in memory. Here the difference to the last time is written, so that
figures over time outlive the process and cover all instances. Nothing happens per job, and an idle instance is silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from headgate.dispatch.periodic import Periodic
from headgate.domain.stats import TopicLatencies
from headgate.domain.tallies import Tallies

RECORD_SECONDS: Final = 10.0


class LatencyStore(Protocol):
    """Adds counts to those of the present minute."""

    async def record(self, counts: Sequence[TopicLatencies]) -> None: ...


class LatencyRecorder(Periodic):
    """Writes what was counted since it was last written."""

    def __init__(self, store: LatencyStore, tallies: Tallies) -> None:
        super().__init__("latencies_delayed error=%s", RECORD_SECONDS)
        self._store, self._tallies = store, tallies
        self._written: dict[int, tuple[list[int], list[int]]] = {}  # by topic; bounded as the tallies are

    async def run(self) -> None:
        """Until `stop`; then once more, for what was counted meanwhile."""
        await super().run()
        await self.try_once()

    async def run_once(self) -> int:
        """Write what is new; returns for how many topics. What could not be written is part of the next round."""
        counts, written = [], {}
        for topic_no, tally in self._tallies.by_topic():
            now = (tally.pickup.counts.copy(), tally.run.counts.copy())
            before = self._written.get(topic_no)
            pickup, run = now if before is None else (_less(now[0], before[0]), _less(now[1], before[1]))
            if any(pickup) or any(run):
                counts.append(TopicLatencies(topic_no=topic_no, pickup=pickup, run=run))
                written[topic_no] = now
        if counts:
            await self._store.record(counts)
            self._written |= written
        return len(counts)


def _less(now: Sequence[int], before: Sequence[int]) -> list[int]:
    return [one - other for one, other in zip(now, before, strict=True)]
