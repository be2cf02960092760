"""Keeping and ending leases, and making due jobs claimable: the instance's bounded background verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from headgate.domain import limits
from headgate.domain.errors import TooLarge
from headgate.domain.states import State
from headgate.domain.validation import check_aware, check_integer
from headgate.store.arguments import check_kind, check_parallel, check_rows, check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.partitions import fetch_into_days
from headgate.store.stuck import Problem

BEGINNING: Final = datetime(1, 1, 1, tzinfo=UTC)
RENEW: Final = "SELECT ord, lost, cancel, skipped FROM headgate.renew_v1($1, $2, $3, $4, $5)"
PROMOTE: Final = "SELECT tenant_no, topic_no, id, rank_class, rank_at, run_at FROM headgate.promote_v1($1, $2)"
REAP: Final = "SELECT tenant_no, id, state, run_at FROM headgate.reap_v1($1, $2)"
REAP_EACH: Final = "SELECT tenant_no, id, state, run_at, problem FROM headgate.reap_v1($1, $2, true)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The leases of one tenant to push forward: parallel ids and epochs."""

    tenant_no: int
    ids: Sequence[UUID]
    epochs: Sequence[int]
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What a worker must be told about a job it holds: the lease is gone, or a cancel was requested.

    Skipped: another transaction holds the row, so it is neither renewed nor lost; ask again.
    """

    lost: bool
    cancel: bool
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """A job that has become claimable, with its place in the order: a hint for the next claim."""

    tenant_no: int
    topic_no: int
    id: UUID
    rank_class: int
    rank_at: int
    run_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """An attempt the watchdog has ended, and what became of its job."""

    tenant_no: int
    id: UUID
    state: State
    run_at: datetime | None


async def renew(db: Connection, held: Sequence[Held]) -> dict[tuple[int, UUID, int], Renewal]:
    """Push leases forward in one statement, without waiting; returns only those lost, to be cancelled, or skipped.

    By tenant, id and epoch: two workers may hold one job, of which one does not know yet that it lost it.
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
        )
    return {keys[ord_ - 1]: Renewal(lost=lost, cancel=cancel, skipped=skipped) for ord_, lost, cancel, skipped in rows}


async def promote(db: Connection, *, limit: int = 1_000, floor: datetime = BEGINNING) -> list[Promoted]:
    """Make at most `limit` due jobs claimable, the longest due first."""
    check_integer(limit, field="limit", low=1, high=limits.CLAIM_MAX)
    check_aware(floor, field="floor")
    with translating(writing=True, names=("limit", "floor")):
        rows = await db.fetch(PROMOTE, limit, floor)
    return [
        Promoted(tenant_no=row[0], topic_no=row[1], id=row[2], rank_class=row[3], rank_at=row[4], run_at=row[5])
        for row in rows
    ]


async def next_due(db: Connection, *, floor: datetime = BEGINNING) -> datetime | None:
    """When the next waiting job falls due: what the promotion timer aims at."""
    check_aware(floor, field="floor")
    with translating(writing=False, names=("floor",)):
        due: datetime | None = await db.fetchval(
            # The partial index holds exactly these rows, in this order.
            "SELECT run_at FROM headgate.jobs WHERE state IN (2, 3) /* scheduled, retrying */ AND run_at >= $1"
            " ORDER BY run_at LIMIT 1",
            floor,
        )
    return due


async def reap(db: Connection, *, limit: int = 1_000, floor: datetime = BEGINNING) -> list[Reaped]:
    """End at most `limit` attempts whose lease has run out, as failed attempts."""
    check_integer(limit, field="limit", low=1, high=limits.CLAIM_MAX)
    check_aware(floor, field="floor")
    with translating(writing=True, names=("limit", "floor")):
        rows = await fetch_into_days(db, REAP, limit, floor)
    return [Reaped(tenant_no=row[0], id=row[1], state=State(row[2]), run_at=row[3]) for row in rows]


async def reap_each(
    db: Connection, *, limit: int = 1_000, floor: datetime = BEGINNING
) -> tuple[list[Reaped], list[Problem]]:
    """As `reap`, but each attempt by itself: one that cannot be ended keeps no other from it."""
    with translating(writing=True, names=("limit", "floor")):
        rows = await fetch_into_days(db, REAP_EACH, limit, floor)
    reaped = [Reaped(tenant_no=row[0], id=row[1], state=State(row[2]), run_at=row[3]) for row in rows if row[4] is None]
    return reaped, [(row[0], row[1], row[4]) for row in rows if row[4] is not None]


async def oldest_running(db: Connection, *, floor: datetime = BEGINNING) -> datetime | None:
    """When the oldest attempt that still runs began: nothing older need be looked at by the next reap."""
    check_aware(floor, field="floor")
    with translating(writing=False, names=("floor",)):
        began: datetime | None = await db.fetchval("SELECT headgate.oldest_running_v1($1)", floor)
    return began
