"""What operators and callers do to jobs by id: cancel, redrive, reprioritise, move, discard. One call for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from headgate.domain import limits
from headgate.domain.errors import InvalidInput, UniqueTaken
from headgate.domain.states import State
from headgate.domain.timestamps import MICROSECOND
from headgate.domain.validation import check_delay, check_payload, check_priority, check_reason, check_text, to_ms
from headgate.domain.views import Change
from headgate.store.arguments import check_kind, check_rows, check_tenant_no
from headgate.store.connect import Connection
from headgate.store.dependencies import holder_of
from headgate.store.errors import translating
from headgate.store.partitions import fetch_into_days


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """A job that is claimable at a new place: a hint for the next claim."""

    id: UUID
    topic_no: int
    rank_class: int
    rank_at: int


async def cancel(
    db: Connection, tenant_no: int, ids: Sequence[UUID], *, who: str = "", reason: str = ""
) -> dict[UUID, Change]:
    """Cancel jobs: queued ones end at once, running ones are flagged for their worker. Unknown ids are left out."""
    _check(tenant_no, ids, who, reason)
    with translating(writing=True):
        rows = await fetch_into_days(
            db, "SELECT ord, state, changed FROM headgate.cancel_v1($1, $2, $3, $4)", tenant_no, ids, who, reason
        )
    return {ids[ord_ - 1]: Change(changed=changed, state=State(state)) for ord_, state, changed in rows}


async def redrive(
    db: Connection,
    tenant_no: int,
    ids: Sequence[UUID],
    *,
    payloads: Sequence[bytes | None] = (),
    delay: timedelta = timedelta(0),
    apart: timedelta = timedelta(0),
    who: str = "",
    reason: str = "",
) -> dict[UUID, Requeued]:
    """Put finished jobs back on their topic, some with an edited body; what is not finished is left out.

    The first is due after `delay`, each further one `apart` later. A job whose unique key another live job has is left
    out as well; asked for alone, it raises UniqueTaken.
    """
    _check(tenant_no, ids, who, reason)
    bodies = check_rows(payloads, field="payloads", limit=limits.SETTLE_FLUSH_MAX_ROWS, unit="bodies")
    if bodies and bodies != len(ids):
        raise InvalidInput("payloads", f"{len(payloads)} bodies for {len(ids)} jobs; give one for each, or none at all")
    for payload in payloads:
        if payload is not None:
            check_payload(payload, field="payloads")
    delay_ms = to_ms(check_delay(delay))
    check_delay(len(ids) * apart, field="apart")
    with translating(writing=True):
        rows = await fetch_into_days(
            db,
            "SELECT id, topic_no, rank_class, rank_at FROM headgate.redrive_v1($1, $2, $3, $4, $5, $6, $7)",
            tenant_no,
            ids,
            payloads,
            delay_ms,
            who,
            reason,
            apart // MICROSECOND,
        )
    if not rows and len(ids) == 1 and (holder := await holder_of(db, tenant_no, ids[0])) is not None:
        raise UniqueTaken(ids[0], holder=holder)
    return {row[0]: Requeued(id=row[0], topic_no=row[1], rank_class=row[2], rank_at=row[3]) for row in rows}


async def reprioritise(
    db: Connection, tenant_no: int, ids: Sequence[UUID], *, priority: int, who: str = "", reason: str = ""
) -> dict[UUID, tuple[Change, Requeued | None]]:
    """Give queued jobs another priority, keeping their age; running and finished ones are refused, unknown left out."""
    _check(tenant_no, ids, who, reason)
    check_priority(priority)
    with translating(writing=True):
        rows = await fetch_into_days(
            db,
            "SELECT ord, changed, state, topic_no, rank_class, rank_at"
            " FROM headgate.reprioritise_v1($1, $2, $3, $4, $5)",
            tenant_no,
            ids,
            priority,
            who,
            reason,
        )
    return {
        ids[row[0] - 1]: (
            Change(changed=row[1], state=State(row[2])),
            Requeued(id=ids[row[0] - 1], topic_no=row[3], rank_class=row[4], rank_at=row[5]) if row[1] else None,
        )
        for row in rows
    }


async def move(
    db: Connection, tenant_no: int, ids: Sequence[UUID], *, topic_no: int, who: str = "", reason: str = ""
) -> dict[UUID, Change]:
    """Put queued jobs on another topic of their tenant, keeping priority and age; unknown ids are left out."""
    _check(tenant_no, ids, who, reason)
    with translating(writing=True):
        rows = await fetch_into_days(
            db,
            "SELECT ord, changed, state, keyed, topic_no FROM headgate.move_v1($1, $2, $3, $4, $5)",
            tenant_no,
            ids,
            topic_no,
            who,
            reason,
        )
    return {ids[row[0] - 1]: Change(changed=row[1], state=State(row[2]), keyed=row[3], topic_no=row[4]) for row in rows}


async def states(db: Connection, tenant_no: int, ids: Sequence[UUID]) -> dict[UUID, tuple[State, int, int]]:
    """State, topic and epoch of jobs by id; unknown ids are left out."""
    _check(tenant_no, ids, "", "")
    with translating(writing=False):
        rows = await db.fetch("SELECT id, state, topic_no, epoch FROM headgate.job_states_v1($1, $2)", tenant_no, ids)
    return {row[0]: (State(row[1]), row[2], row[3]) for row in rows}


async def discard(db: Connection, tenant_no: int, ids: Sequence[UUID], *, who: str = "", reason: str = "") -> set[UUID]:
    """Remove dead or cancelled jobs for good; returns the ids removed."""
    _check(tenant_no, ids, who, reason)
    with translating(writing=True):
        rows = await fetch_into_days(
            db, "SELECT ord FROM headgate.discard_v1($1, $2, $3, $4)", tenant_no, ids, who, reason
        )
    return {ids[row[0] - 1] for row in rows}


def _check(tenant_no: int, ids: Sequence[UUID], who: str, reason: str) -> None:
    check_tenant_no(tenant_no)
    check_rows(ids, field="ids", limit=limits.SETTLE_FLUSH_MAX_ROWS, unit="jobs")
    for job_id in ids:  # an operator's list, not the hot path
        check_kind(job_id, UUID, field="ids")
    if len(set(ids)) != len(ids):
        raise InvalidInput("ids", "the same id is given twice")
    check_text(who, field="who", low=0, high=200)
    check_reason(reason)
