"""Shares: in which order leases are renewed, and how each statement is divided among tenants and sessions (ADR 27).

Every session gives the leases that expire soonest. Every tenant with leases to renew has the same share of a statement,
and within it every session of the tenant; what one does not need goes to the others. So a lease waits for the leases of
its own session that expire sooner, never for another tenant's number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from headgate.dispatch.session import WorkerSession


class Due(NamedTuple):
    """A lease that is to be renewed."""

    expires: float
    session: WorkerSession
    job_id: UUID
    epoch: int
    lease_ms: int


def in_shares(due: Sequence[Due], rows: int) -> Iterator[Sequence[Due]]:
    """The batches in which these are to be renewed, of at most `rows` each."""
    if len(due) <= rows:  # all of them together: none waits for another
        if due:
            yield due
        return
    waiting: dict[int, dict[WorkerSession, list[Due]]] = {}
    for one in due:
        waiting.setdefault(one.session.tenant_no, {}).setdefault(one.session, []).append(one)
    for sessions in waiting.values():
        for leases in sessions.values():
            leases.sort(key=_expires, reverse=True)  # they are taken from the end
    while waiting:
        yield _next_batch(waiting, rows)


def _next_batch(waiting: dict[int, dict[WorkerSession, list[Due]]], rows: int) -> list[Due]:
    """Take the next batch out of what waits, by tenant and session."""
    batch: list[Due] = []
    # The tenant with the lease that expires soonest comes first: there may be more tenants, or sessions, than rows.
    tenants = sorted(waiting, key=lambda tenant_no: min(leases[-1].expires for leases in waiting[tenant_no].values()))
    sizes = [sum(map(len, waiting[tenant_no].values())) for tenant_no in tenants]
    for tenant_no, share in zip(tenants, fair_shares(sizes, rows), strict=True):
        if share:
            batch += _taken(waiting[tenant_no], share)
            if not waiting[tenant_no]:
                del waiting[tenant_no]
    return batch


def _taken(waiting: dict[WorkerSession, list[Due]], share: int) -> Iterator[Due]:
    sessions = sorted(waiting, key=lambda session: waiting[session][-1].expires)
    sizes = [len(waiting[session]) for session in sessions]
    for session, part in zip(sessions, fair_shares(sizes, share), strict=True):
        leases = waiting[session]
        for _ in range(part):
            yield leases.pop()
        if not leases:
            del waiting[session]


def _expires(one: Due) -> float:
    return one.expires


def fair_shares(wanted: Sequence[int], total: int) -> list[int]:
    """How much of `total` each gets: equal shares, but none more than it wants.

    What cannot be divided goes to the first of them, one each.
    """
    left, level = total, 0
    for index, want in enumerate(sorted(wanted)):
        level = left // (len(wanted) - index)
        if want > level:
            break
        left -= want
    else:
        return list(wanted)
    shares = [min(want, level) for want in wanted]
    spare = total - sum(shares)
    for index, want in enumerate(wanted):
        if spare and want > level:
            shares[index] += 1
            spare -= 1
    return shares
