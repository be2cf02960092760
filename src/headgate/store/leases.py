"""Keeping and ending leases, and what workers say about jobs they hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from headgate.domain import limits
from headgate.domain.dispatching import LostLeases, Renewal
from headgate.domain.errors import RowLocked, TooLarge
from headgate.domain.states import State
from headgate.domain.validation import check_aware, check_integer
from headgate.store.arguments import check_kind, check_parallel, check_rows, check_tenant_no
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.new_ids import BEGINNING
from headgate.store.partitions import fetch_into_days
from headgate.store.stuck import Problem
from headgate.store.verbs import states

log = logging.getLogger("headgate.store")
RENEW: Final = "SELECT ord, lost, cancel, skipped FROM headgate.renew_v1($1, $2, $3, $4, $5, $6)"
EXPIRE_LOST: Final = "SELECT id, what FROM headgate.expire_lost_v1($1, $2, $3, $4, $5, $6)"
REAP: Final = "SELECT tenant_no, id, state, run_at, topic_no FROM headgate.reap_v1($1, $2)"
REAP_EACH: Final = "SELECT tenant_no, id, state, run_at, topic_no, problem FROM headgate.reap_v1($1, $2, true)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The leases of one tenant to push forward: parallel ids and epochs."""

    tenant_no: int
    ids: Sequence[UUID]
    epochs: Sequence[int]
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """An attempt the watchdog has ended, and what became of its job."""

    tenant_no: int
    id: UUID
    state: State
    run_at: datetime | None
    topic_no: int


async def renew(
    db: Connection, held: Sequence[Held], *, owner: int | None = None
) -> dict[tuple[int, UUID, int], Renewal]:
    """Push leases forward in one statement, without waiting; returns only those lost, to be cancelled, or skipped.

    By tenant, id and epoch: two workers may hold one job, of which one does not know yet that it lost it. `owner`: the
    instance that their worker has declared them to.
    """
    check_rows(held, field="leases", limit=limits.SETTLE_FLUSH_MAX_ROWS, unit="tenants")
    for part in held:
        check_kind(part, Held, field="leases")
        check_tenant_no(part.tenant_no)
        check_rows(part.epochs, field="epochs", limit=limits.SETTLE_FLUSH_MAX_ROWS)
        check_parallel(
            "epochs", check_rows(part.ids, field="ids", limit=limits.SETTLE_FLUSH_MAX_ROWS), {"epochs": part.epochs}
        )
        check_integer(part.lease_ms, field="lease_ms", low=1, high=86_400_000)
    size = sum(len(part.ids) for part in held)
    if size > limits.SETTLE_FLUSH_MAX_ROWS:
        raise TooLarge("leases", size=size, limit=limits.SETTLE_FLUSH_MAX_ROWS, unit="rows", hint="renew less at once")
    if not size:
        return {}
    keys = [
        (part.tenant_no, job_id, epoch) for part in held for job_id, epoch in zip(part.ids, part.epochs, strict=True)
    ]
    with translating(writing=True, names=("tenant_no", "counts", "ids", "epochs", "lease_ms")):
        rows = await db.fetch(
            RENEW,
            [part.tenant_no for part in held],
            [len(part.ids) for part in held],
            [job_id for part in held for job_id in part.ids],
            [epoch for part in held for epoch in part.epochs],
            [part.lease_ms for part in held],
            owner,
        )
    return {keys[ord_ - 1]: Renewal(lost=lost, cancel=cancel, skipped=skipped) for ord_, lost, cancel, skipped in rows}


async def reap(db: Connection, *, limit: int = 1_000, floor: datetime = BEGINNING) -> list[Reaped]:
    """End at most `limit` attempts whose lease has run out, as failed attempts."""
    check_integer(limit, field="limit", low=1, high=limits.CLAIM_MAX)
    check_aware(floor, field="floor")
    with translating(writing=True, names=("limit", "floor")):
        rows = await fetch_into_days(db, REAP, limit, floor)
    return [_reaped(*row) for row in rows]


async def reap_each(
    db: Connection, *, limit: int = 1_000, floor: datetime = BEGINNING
) -> tuple[list[Reaped], list[Problem]]:
    """As `reap`, but each attempt by itself: one that cannot be ended keeps no other from it."""
    with translating(writing=True, names=("limit", "floor")):
        rows = await fetch_into_days(db, REAP_EACH, limit, floor)
    reaped = [_reaped(*values) for *values, problem in rows if problem is None]
    return reaped, [(row[0], row[1], row[5]) for row in rows if row[5] is not None]


def _reaped(tenant_no: int, job_id: UUID, state: int, run_at: datetime | None, topic_no: int) -> Reaped:
    return Reaped(tenant_no=tenant_no, id=job_id, state=State(state), run_at=run_at, topic_no=topic_no)


class LeaseCalls(Database):
    """Fits dispatch/ports.LeaseStore. All but `renew` without `for_call` is done on the lane of heartbeats."""

    async def renew(
        self,
        held: Mapping[tuple[int, int], tuple[Sequence[UUID], Sequence[int]]],
        *,
        for_call: bool = False,
        declared: bool = False,
    ) -> dict[tuple[int, UUID, int], Renewal]:
        """Push leases forward; `for_call`: a caller waits for it, and renewals must not wait behind it.

        `declared`: by a worker that has connected here; from now on this instance is the owner of these jobs.
        """
        async with self.lane("heartbeats" if for_call else "leases").use("renew") as db:
            return await renew(
                db,
                [
                    Held(tenant_no=tenant_no, ids=ids, epochs=epochs, lease_ms=lease_ms)
                    for (tenant_no, lease_ms), (ids, epochs) in held.items()
                ],
                owner=self.instance_no if declared else None,
            )

    async def expire_lost(
        self, tenant_no: int, ids: Sequence[UUID], epochs: Sequence[int], *, lost_ms: int, end: bool
    ) -> LostLeases:
        """End leases of a lost worker, or only look what would be ended. See expire_lost_v1."""
        async with self.lane("heartbeats").use() as db:
            with translating(writing=True):
                rows = await db.fetch(EXPIRE_LOST, tenant_no, self.instance_no, list(ids), list(epochs), lost_ms, end)
        found = LostLeases()
        for job_id, what in rows:
            if what == "lost":
                found.lost += 1
            else:
                (found.locked if what == "locked" else found.moved).add(job_id)
        return found

    async def progress(self, tenant_no: int, reports: Mapping[UUID, tuple[int, Mapping[str, object]]]) -> list[UUID]:
        """Note how far jobs of a tenant are, in one statement: by job, its epoch and the newest report.

        Returns the jobs that others have locked: nothing is noted of them.
        """
        ids = sorted(reports, key=lambda job_id: job_id.bytes)
        async with self.lane("heartbeats").use() as db:
            with translating(writing=True):
                rows = await db.fetch(
                    "SELECT headgate.progress_v1($1, $2, $3, $4)",
                    tenant_no,
                    ids,
                    [reports[job_id][0] for job_id in ids],
                    [json.dumps(reports[job_id][1]) for job_id in ids],
                )
        return [row[0] for row in rows]

    async def abandon_undeclared(self, tenant_no: int, worker: str, held: Sequence[UUID]) -> list[UUID]:
        """Give back what a worker was sent and does not declare; says which. See abandon_undeclared_v1."""
        try:
            async with self.lane("heartbeats").use("undeclared") as db:
                with translating(writing=True):
                    rows = await db.fetch(
                        "SELECT headgate.abandon_undeclared_v1($1, $2, $3)", tenant_no, worker, list(held)
                    )
        except RowLocked as error:  # the worker is greeted anyway: those jobs come back when their leases end
            log.warning("undeclared_locked worker=%s error=%s", worker, error)
            return []
        return [row[0] for row in rows]

    async def topics_of(self, tenant_no: int, ids: Sequence[UUID]) -> dict[UUID, str]:
        """The topics of jobs, live or finished; without those that do not exist."""
        async with self.lane("heartbeats").use() as db:
            found = await states(db, tenant_no, list(dict.fromkeys(ids)))
            return {
                job_id: (await self.names.topic_by_no(db, topic_no)).name for job_id, (_, topic_no, _) in found.items()
            }
