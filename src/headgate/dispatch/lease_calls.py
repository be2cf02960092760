"""Lease work beside renewals: unary heartbeats, what a worker declares when it connects, progress, lost workers.

None of it is on the connection over which the leases of streams are renewed: however many such calls there are,
renewals do not wait for them. The calls share another connection, tenants in turn (ADR 27).

A token that is restricted to topics reaches jobs of these only. Any other job is answered as one that does not exist:
lost. Tokens without a restriction cost no look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from headgate.dispatch.ports import LeaseStore
from headgate.dispatch.turns import Turns
from headgate.domain.dispatching import LostLeases, Renewal
from headgate.domain.topic_sets import TopicSet

ROWS_AT_ONCE: Final = 2_000


_LOST: Final = Renewal(lost=True, cancel=False)


class LeaseCalls:
    """The lease verbs for callers, each in its tenant's turn. All of them raise Overloaded when too many wait."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self.turns = Turns("heartbeats")

    async def topics_of(self, tenant_no: int, ids: Sequence[UUID]) -> dict[UUID, str]:
        """The topics of jobs; without those that do not exist."""
        found: dict[UUID, str] = {}
        for start in range(0, len(ids), ROWS_AT_ONCE):
            some = ids[start : start + ROWS_AT_ONCE]
            async with self.turns.turn(tenant_no, len(some)):
                found |= await self._store.topics_of(tenant_no, some)
        return found

    async def renew(
        self,
        tenant_no: int,
        lease_ms: int,
        ids: Sequence[UUID],
        epochs: Sequence[int],
        *,
        topics: TopicSet | None,
        declared: bool = False,
    ) -> dict[tuple[int, UUID, int], Renewal]:
        """Push leases forward, in one statement for each two thousand; what is out of the ordinary, by job and epoch.

        `topics`: those that the caller's token permits; None: all. `declared`: this instance becomes the owner.
        """
        answers: dict[tuple[int, UUID, int], Renewal] = {}
        for start in range(0, len(ids), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            some, their_epochs = ids[part], epochs[part]
            async with self.turns.turn(tenant_no, len(some)):
                if topics is not None:
                    known = await self._store.topics_of(tenant_no, some)
                    pairs = list(zip(some, their_epochs, strict=True))
                    answers |= {(tenant_no, *pair): _LOST for pair in pairs if known.get(pair[0]) not in topics}
                    pairs = [pair for pair in pairs if known.get(pair[0]) in topics]
                    some, their_epochs = [job_id for job_id, _ in pairs], [epoch for _, epoch in pairs]
                if some:
                    held = {(tenant_no, lease_ms): (some, their_epochs)}
                    answers |= await self._store.renew(held, for_call=True, declared=declared)
        return answers

    async def expire_lost(
        self,
        tenant_no: int,
        held: Sequence[tuple[UUID, int]],
        *,
        lost_ms: Callable[[], int],
        is_lost: Callable[[], bool],
        end: bool,
    ) -> LostLeases:
        """End the leases of a lost worker, or only look; stops ending them when it is found on another instance.

        `is_lost` and `lost_ms` are asked in the turn. If the first says no, the worker is connecting, and what it
        declares must not be ended after it was renewed: its renewals take their turns after this one.
        """
        found = LostLeases()
        for start in range(0, len(held), ROWS_AT_ONCE):
            some = held[start : start + ROWS_AT_ONCE]
            async with self.turns.turn(tenant_no, len(some)):
                if not is_lost():
                    break
                ids, epochs = [job_id for job_id, _ in some], [epoch for _, epoch in some]
                part = await self._store.expire_lost(tenant_no, ids, epochs, lost_ms=lost_ms(), end=end)
            found.lost += part.lost
            found.locked |= part.locked
            found.moved |= part.moved
            if end and part.moved:
                break
        return found

    async def abandon_undeclared(self, tenant_no: int, worker: str, held: Sequence[UUID]) -> list[UUID]:
        """What was sent to a worker that is back, and that it does not hold, goes back to its topic."""
        async with self.turns.turn(tenant_no, len(held)):
            return await self._store.abandon_undeclared(tenant_no, worker, held)

    async def progress(self, tenant_no: int, reports: Mapping[UUID, tuple[int, Mapping[str, object]]]) -> list[UUID]:
        """Note how far jobs are; returns those that are locked, and were passed over."""
        async with self.turns.turn(tenant_no, len(reports)):
            return await self._store.progress(tenant_no, reports)
