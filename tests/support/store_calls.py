"""Calls of the store's functions one by one, for tests: the server makes them as parts of its tick and its flushes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from headgate.domain import limits
from headgate.domain.bulk import JobLine
from headgate.domain.dispatching import Claimed, ClaimRequest, Settled
from headgate.domain.ids import JobId
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Outcome
from headgate.domain.states import SubmitReceipt
from headgate.domain.validation import check_aware, check_integer, check_page_size
from headgate.store import claim as claiming
from headgate.store import listing
from headgate.store.arguments import check_kind, check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.flush import fill
from headgate.store.names import Names
from headgate.store.new_ids import BEGINNING
from headgate.store.partitions import clear_and_drop
from headgate.store.settle import APPLIED, OutcomeFlush, settle
from headgate.store.submit import submit

PROMOTE: Final = "SELECT tenant_no, topic_no, id, rank_class, rank_at, run_at FROM headgate.promote_v1($1, $2)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The answer to one submission: `id` is the job that exists now, which after a duplicate may be an older one."""

    id: JobId
    receipt: SubmitReceipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """A job that has become claimable, with its place in the order: a hint for the next claim."""

    tenant_no: int
    topic_no: int
    id: UUID
    rank_class: int
    rank_at: int
    run_at: datetime


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


async def oldest_running(db: Connection, *, floor: datetime = BEGINNING) -> datetime | None:
    """When the oldest attempt that still runs began: nothing older need be looked at by the next reap."""
    check_aware(floor, field="floor")
    with translating(writing=False, names=("floor",)):
        began: datetime | None = await db.fetchval("SELECT headgate.oldest_running_v1($1)", floor)
    return began


async def submit_all(
    db: Connection, names: Names, jobs: Sequence[Submission], *, now: datetime | None = None
) -> list[Submitted]:
    """Submit checked jobs in flushes; one answer per job, in order. A refused row raises its error at the end."""
    answers: list[Submitted] = []
    for start in range(0, len(jobs), limits.SUBMIT_FLUSH_MAX_ROWS):
        flush = await fill(db, names, jobs[start : start + limits.SUBMIT_FLUSH_MAX_ROWS], now=now)
        exceptions = await submit(db, flush)
        for index, job_id in enumerate(flush.ids):
            answer = exceptions.get(index)
            if answer is not None and answer.error is not None:
                raise answer.error
            receipt = SubmitReceipt.CREATED if answer is None else answer.receipt
            answers.append(Submitted(id=JobId(job_id) if answer is None else answer.job_id, receipt=receipt))
    return answers


async def claim(db: Connection, *, owner: int, **asked: Any) -> Claimed:
    """Claim what a ClaimRequest with these fields asks for."""
    return await claiming.claim(db, ClaimRequest(**asked), owner=owner)


async def drop_expired(
    db: Connection,
    *,
    keep: timedelta,
    lock_wait: timedelta = timedelta(seconds=2),
    on_session: bool = True,
    chunks: int = 1_000_000,
) -> list[str]:
    """As `clear_and_drop`; returns the names dropped."""
    dropped, _ = await clear_and_drop(db, keep=keep, lock_wait=lock_wait, on_session=on_session, chunks=chunks)
    return dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page, newest first. It may be short or empty although more follows: only `cursor is None` is the end."""

    rows: list[JobLine]
    cursor: str | None


async def list_jobs(
    db: Connection,
    tenant_no: int,
    *,
    matching: listing.Filter | None = None,
    limit: int = limits.PAGE_DEFAULT,
    cursor: str | None = None,
) -> Page:
    """One page of the tenant's jobs, as `matching.list_matching` reads it for a filter in text."""
    check_tenant_no(tenant_no)
    check_page_size(limit)
    wanted = listing.Filter() if matching is None else matching
    check_kind(wanted, listing.Filter, field="matching")
    seal = sha256(repr((tenant_no, wanted)).encode()).digest()[:8]
    below = listing.NEWEST if cursor is None else listing.read_cursor(cursor, seal)
    found = await listing.step(db, tenant_no, wanted, below=below, limit=limit)
    return Page(rows=found.rows, cursor=listing.write_cursor(found.below, seal) if found.more else None)


async def settle_one(db: Connection, tenant_no: int, job_id: UUID, epoch: int, outcome: Outcome) -> Settled:
    """Settle a single attempt: for scripts and unary calls."""
    flush = OutcomeFlush()
    flush.add(tenant_no, job_id, epoch, outcome)
    return (await settle(db, flush)).get(0, APPLIED)
