"""One round of upkeep, on the lane of reads: it may wait, and nobody waits for it."""

from __future__ import annotations

from headgate.store.batches import expire_batches
from headgate.store.partitions import ensure_partitions
from headgate.store.quiet import forget_quiet
from headgate.store.service import Store
from headgate.store.upkeep import fold_flows, forget_arrivals, mend_limits, vacuum_hot_tables, warn_of_held_snapshots


class UpkeepRounds:
    """Remembers how far the check of limits has come."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mended = (0, "")

    async def tidy(self, *, thorough: bool) -> None:
        """Fold counters and forget arrivals; `thorough`: also what is due every minute."""
        async with self._store.lane("read").use() as db:
            await fold_flows(db)
            await forget_arrivals(db)
            if thorough:
                await forget_quiet(db)
                await expire_batches(db)
                self._mended = await mend_limits(db, self._mended)
                await ensure_partitions(db)
                await warn_of_held_snapshots(db)

    async def vacuum(self) -> None:
        """Vacuum the tables that change most."""
        async with self._store.lane("read") as db:  # in no transaction, behind a pooler too
            await vacuum_hot_tables(db)
