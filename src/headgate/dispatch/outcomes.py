"""The outcome writer: outcomes of many links in one flush, receipts after commit.

Outcomes are idempotent by job and epoch, so a flush whose fate is unknown is simply sent again; it is retried for as
long as the database is away, because a worker's finished work must not be lost to an outage. Workers wait for their
receipts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import uniform
from uuid import UUID

from headgate.dispatch.links import Delivery, Link
from headgate.dispatch.ports import OutcomeStore, SettledOutcome
from headgate.dispatch.writer import GroupWriter
from headgate.domain.errors import HeadgateError, OutcomeUnknown, ReadOnly, StorageFull, StoreBusy, StoreUnavailable
from headgate.domain.outcomes import Abandon, Outcome
from headgate.domain.states import Receipt, State

log = logging.getLogger("headgate.dispatch")
RETRIED = (StoreUnavailable, OutcomeUnknown, StoreBusy, StorageFull, ReadOnly)

Done = Callable[[Mapping[int, SettledOutcome]], None]


@dataclass(slots=True)
class OutcomeParcel:
    """One frame's outcomes: completions as parallel lists, then the others. Places count in that order."""

    tenant_no: int
    ids: Sequence[UUID]
    epochs: Sequence[int]
    results: Sequence[bytes]
    others: Sequence[tuple[UUID, int, Outcome]]
    done: Done
    failed: Callable[[HeadgateError], None]
    link: Link | None = None
    size: int = 0

    @property
    def rows(self) -> int:
        return len(self.ids) + len(self.others)

    def fail(self, error: HeadgateError) -> None:
        self.failed(error)


class OutcomeWriter:
    """Settles, tells the senders, and tells who waits for results."""

    def __init__(
        self,
        store: OutcomeStore,
        *,
        on_back: Callable[[int, UUID], None],
        on_final: Callable[[int, UUID], None],
        awaited: Callable[[], bool],
        on_room: Callable[[set[int]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._on_back = on_back  # (tenant, job): a job is claimable again, maybe below the watermark
        self._on_final = on_final  # (tenant, job): a job has ended
        self._on_room = on_room  # topics in which a limit lets others start now
        self._awaited = awaited  # whether anybody here waits for a result at all
        self.writer: GroupWriter[OutcomeParcel] = GroupWriter("outcomes", self._write)

    def put(self, parcel: OutcomeParcel) -> None:
        """Queue one frame's outcomes. Raises Overloaded."""
        self.writer.put(parcel)

    def hand_back(self, delivery: Delivery) -> None:
        """Abandon jobs that never reached a worker: at once, at no cost. If this fails, the lease brings them back."""
        parcel = OutcomeParcel(
            delivery.tenant_no,
            (),
            (),
            (),
            [(job_id, epoch, Abandon()) for job_id, epoch in zip(delivery.ids, delivery.epochs, strict=True)],
            done=lambda _: None,
            failed=lambda error: log.warning("hand_back_failed jobs=%d error=%s", len(delivery), error),
        )
        try:
            self.writer.put(parcel)
        except HeadgateError as error:
            parcel.fail(error)

    async def _write(self, parcels: list[OutcomeParcel]) -> None:
        answers = await self._settle(parcels)
        for parcel, answer in zip(parcels, answers, strict=True):
            self._settled(parcel, answer)

    async def _settle(self, parcels: Sequence[OutcomeParcel]) -> list[Mapping[int, SettledOutcome]]:
        wait = 0.05
        while True:
            rows = self._store.new_outcomes()
            starts: list[tuple[range, list[int]]] = []
            for parcel in parcels:
                done = rows.add_completed(parcel.tenant_no, parcel.ids, parcel.epochs, parcel.results)
                starts.append((done, [rows.add(parcel.tenant_no, *other) for other in parcel.others]))
            try:
                odd = await self._store.settle(rows)
            except RETRIED as error:
                log.warning("outcomes_delayed rows=%d error=%s", sum(parcel.rows for parcel in parcels), error)
                await asyncio.sleep(wait * uniform(0.5, 1.0))  # noqa: S311 - jitter
                wait = min(2.0, wait * 2)
                continue
            if rows.freed:
                self._on_room(rows.freed)
            if not odd:
                return [{}] * len(parcels)
            return [
                {place: odd[row] for place, row in enumerate((*done, *others)) if row in odd} for done, others in starts
            ]

    def _settled(self, parcel: OutcomeParcel, answer: Mapping[int, SettledOutcome]) -> None:
        link = parcel.link
        if link is not None:
            link.settled(parcel.ids, parcel.epochs)
            link.settled((job_id for job_id, _, _ in parcel.others), (epoch for _, epoch, _ in parcel.others))
        for place, (job_id, _, _) in enumerate(parcel.others, len(parcel.ids)):
            told = answer.get(place)
            if told is not None and told.receipt is Receipt.APPLIED:
                if told.state is State.PENDING:
                    self._on_back(parcel.tenant_no, job_id)
                elif told.state is not None and told.state.is_final:
                    self._on_final(parcel.tenant_no, job_id)
        if self._awaited():
            for place, job_id in enumerate(parcel.ids):
                if place not in answer:
                    self._on_final(parcel.tenant_no, job_id)
        parcel.done(answer)
