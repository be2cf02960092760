"""The places of topics with a maximum of consumers: who receives their jobs, and who waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from headgate.store.database import Database
from headgate.store.errors import translating

HOLD: Final = "SELECT topic_no, session, waiting FROM headgate.hold_consumers_v1($1, $2, $3, $4, $5)"


class ConsumerCalls(Database):
    """Fits dispatch/consumers.ConsumerStore."""

    async def hold_consumers(
        self, wanted: Sequence[tuple[int, UUID, str]], *, ttl: float
    ) -> Mapping[tuple[int, UUID], int]:
        """Note the sessions of this instance by topic, all of them; returns how many wait before each (0: it has a
        place, 1: it is the next)."""
        async with self.lane("tick").use() as db:
            with translating(writing=True):
                rows = await db.fetch(
                    HOLD,
                    self.instance_no,
                    [topic_no for topic_no, _, _ in wanted],
                    [session for _, session, _ in wanted],
                    [worker for _, _, worker in wanted],
                    int(ttl * 1000),
                )
        return {(topic_no, session): waiting for topic_no, session, waiting in rows}
