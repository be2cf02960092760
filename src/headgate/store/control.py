"""Pause rows: what is paused, why, since when. The claim function reads the same rows under the same lock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from headgate.domain.errors import InvalidInput, NotFound, SchemaMismatch
from headgate.domain.validation import check_aware, check_integer, check_reason, check_text, shown
from headgate.store.arguments import INT32_MAX
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.rows import from_row

EVERYTHING: Final = (0, 0)
STATUS: Final = """
SELECT tenant_no, topic_no, paused AND (paused_until IS NULL OR paused_until > headgate.clock_v1()), reason, paused_by,
       paused_at, paused_until
  FROM headgate.dispatch_control ORDER BY tenant_no, topic_no"""

# What keeps the jobs of a topic from being started: its own pause first, then the one that reaches furthest.
OF_TOPIC: Final = """
SELECT c.tenant_no, c.topic_no, true, c.reason, c.paused_by, c.paused_at, c.paused_until
  FROM headgate.dispatch_control c
 WHERE c.tenant_no IN (0, $1) AND c.paused AND (c.paused_until IS NULL OR c.paused_until > headgate.clock_v1())
   AND c.topic_no IN (0, (SELECT t.topic_no FROM headgate.topics t WHERE t.tenant_no = $1 AND t.name = $2))
 ORDER BY c.topic_no > 0 DESC, c.tenant_no LIMIT 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One target's row. (0, 0) is everything, (tenant, 0) a tenant, (tenant, topic) a topic."""

    tenant_no: int
    topic_no: int
    paused: bool
    reason: str
    paused_by: str
    paused_at: datetime | None
    paused_until: datetime | None


async def pause(
    db: Connection,
    target: tuple[int, int] = EVERYTHING,
    *,
    reason: str = "",
    who: str = "",
    until: datetime | None = None,
) -> datetime:
    """Stop dispatch of a target everywhere; when this returns nothing of it enters `running`. Returns paused_at.

    Raises NotFound for a tenant that does not exist, and for a topic that is not this tenant's.
    """
    tenant_no, topic_no = _check_target(target)
    check_reason(reason)
    check_text(who, field="who", low=0, high=200)
    if until is not None:
        check_aware(until, field="until")
    with translating(writing=True, names=("target", "target", "reason", "who", "until")):
        paused_at: datetime | None = await db.fetchval(
            "SELECT headgate.pause_v1($1, $2, $3, $4, $5)", tenant_no, topic_no, reason, who, until
        )
    if paused_at is None:
        raise NotFound("target", f"tenant {tenant_no}, topic {topic_no}" if topic_no else f"tenant {tenant_no}")
    return paused_at


async def resume(db: Connection, target: tuple[int, int] = EVERYTHING, *, since: datetime | None = None) -> bool | None:
    """Resume a target; harmless if it is not paused. Returns whether it was paused until now.

    `since` is the paused_at of the only pause to end; None is returned if another one is in force.
    """
    tenant_no, topic_no = _check_target(target)
    if since is not None:
        check_aware(since, field="since")
    with translating(writing=True, names=("target", "target", "since")):
        changed: bool | None = await db.fetchval("SELECT headgate.resume_v1($1, $2, $3)", tenant_no, topic_no, since)
    return changed


async def controls(db: Connection) -> list[Control]:
    """All control rows. Without the global row it is not known whether dispatch is open, so that is an error."""
    with translating(writing=False):
        rows = await db.fetch(STATUS)
    found = [_control(row) for row in rows]
    if not found or (found[0].tenant_no, found[0].topic_no) != EVERYTHING:
        raise SchemaMismatch("the row for everything is missing from headgate.dispatch_control; restore it, not paused")
    return found


async def pause_of(db: Connection, tenant_no: int, topic: str) -> Control | None:
    """The pause because of which jobs of a topic are not started, if there is one."""
    with translating(writing=False):
        row = await db.fetchrow(OF_TOPIC, tenant_no, topic)
    return None if row is None else _control(row)


def _control(row: asyncpg.Record) -> Control:
    return from_row(Control, row, reason=row[3] if row[2] else "", paused_by=row[4] if row[2] else "")


def _check_target(target: object) -> tuple[int, int]:
    if not isinstance(target, tuple) or len(target) != 2:
        raise InvalidInput("target", f"must be a pair (tenant_no, topic_no), got {shown(target)}")
    tenant_no, topic_no = (check_integer(number, field="target", low=0, high=INT32_MAX) for number in target)
    if topic_no and not tenant_no:
        raise InvalidInput("target", f"topic {topic_no} needs its tenant's number beside it")
    return tenant_no, topic_no
