"""Tenants: their quotas, and what they use of them (ADR 47).

The quotas that count are columns of the tenant's own row: where none was set for it, the default is copied there. So
submits, schedules and webhooks compare with one row, and all instances and submits by SQL agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from headgate.domain.errors import NotFound
from headgate.domain.rate_limits import parse_rate, rate_text
from headgate.domain.tenants import BUILT_IN, QUOTAS, Quota, TenantView, exceeded
from headgate.domain.topic_limits import Rate
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.tenant_calls import TenantCalls, lane_call

# By name; $2 one of them, or all after $1. What is used is counted from rollups and small tables.
SHOW: Final = """
SELECT t.name, t.submit_rate, t.max_backlog, t.max_stored_bytes, t.max_payload_bytes, t.max_sessions, t.max_schedules,
       t.max_webhooks, t.max_topics, t.max_policies, t.own, t.created_at, t.stored_at,
       CASE WHEN t.stored_at IS NOT NULL THEN t.stored_bytes END,
       (SELECT greatest(0, coalesce(sum(c.n), 0))::bigint
          FROM (SELECT s.n FROM headgate.state_counts s
                 WHERE s.tenant_no = t.tenant_no AND s.state IN (0, 2, 3, 4) /* pending, scheduled, retrying, blocked */
                 UNION ALL
                SELECT CASE WHEN d.to_state IN (0, 2, 3, 4) /* the same */ THEN d.n ELSE 0 END
                       - CASE WHEN d.from_state IN (0, 2, 3, 4) /* the same */ THEN d.n ELSE 0 END
                  FROM headgate.flow_deltas d WHERE d.tenant_no = t.tenant_no) AS c),
       (SELECT coalesce(sum((i.summary -> 'counts' ->> t.tenant_no::text)::int), 0)::int FROM headgate.instances i
         WHERE i.seen_at > headgate.clock_v1() - interval '10 seconds'),
       (SELECT count(*) FROM headgate.schedules s WHERE s.tenant_no = t.tenant_no),
       (SELECT count(*) FROM headgate.webhooks w WHERE w.tenant_no = t.tenant_no AND NOT w.deleted),
       (SELECT count(*) FROM headgate.topics p WHERE p.tenant_no = t.tenant_no),
       (SELECT count(*) FROM headgate.retry_policies r WHERE r.tenant_no = t.tenant_no)
  FROM headgate.tenants t
 WHERE t.name > $1 AND ($2::text IS NULL OR t.name = $2) ORDER BY t.name LIMIT $3"""
DEFAULTS: Final = """
SELECT submit_rate, max_backlog, max_stored_bytes, max_payload_bytes, max_sessions, max_schedules, max_webhooks,
       max_topics, max_policies
  FROM headgate.tenant_defaults"""
LOCK_DEFAULTS: Final = "SELECT FROM headgate.tenant_defaults FOR UPDATE"
LOCK: Final = "SELECT FROM headgate.tenants WHERE tenant_no = $1 FOR NO KEY UPDATE"
SET: Final = """
UPDATE headgate.tenants
   SET submit_rate = $2, max_backlog = $3, max_stored_bytes = $4, max_payload_bytes = $5, max_sessions = $6,
       max_schedules = $7, max_webhooks = $8, max_topics = $9, max_policies = $10, own = $11
 WHERE tenant_no = $1"""
SET_DEFAULTS: Final = """
UPDATE headgate.tenant_defaults
   SET submit_rate = $1, max_backlog = $2, max_stored_bytes = $3, max_payload_bytes = $4, max_sessions = $5,
       max_schedules = $6, max_webhooks = $7, max_topics = $8, max_policies = $9"""
SPREAD: Final = """
UPDATE headgate.tenants t
   SET submit_rate = CASE WHEN 'submit_rate' = ANY (t.own) THEN t.submit_rate ELSE d.submit_rate END,
       max_backlog = CASE WHEN 'max_backlog' = ANY (t.own) THEN t.max_backlog ELSE d.max_backlog END,
       max_stored_bytes = CASE WHEN 'max_stored_bytes' = ANY (t.own) THEN t.max_stored_bytes
                               ELSE d.max_stored_bytes END,
       max_payload_bytes = CASE WHEN 'max_payload_bytes' = ANY (t.own) THEN t.max_payload_bytes
                                ELSE d.max_payload_bytes END,
       max_sessions = CASE WHEN 'max_sessions' = ANY (t.own) THEN t.max_sessions ELSE d.max_sessions END,
       max_schedules = CASE WHEN 'max_schedules' = ANY (t.own) THEN t.max_schedules ELSE d.max_schedules END,
       max_webhooks = CASE WHEN 'max_webhooks' = ANY (t.own) THEN t.max_webhooks ELSE d.max_webhooks END,
       max_topics = CASE WHEN 'max_topics' = ANY (t.own) THEN t.max_topics ELSE d.max_topics END,
       max_policies = CASE WHEN 'max_policies' = ANY (t.own) THEN t.max_policies ELSE d.max_policies END
  FROM headgate.tenant_defaults d"""
# What an instance keeps in memory: the rate, and sessions of its tenant on other instances.
LIMITS: Final = """
SELECT t.submit_rate, t.max_sessions,
       CASE WHEN t.max_sessions IS NOT NULL THEN
           (SELECT coalesce(sum((i.summary -> 'counts' ->> t.tenant_no::text)::int), 0)::int FROM headgate.instances i
             WHERE i.seen_at > headgate.clock_v1() - interval '10 seconds' AND i.instance_no <> $2) END
  FROM headgate.tenants t WHERE t.tenant_no = $1"""
PAYLOAD: Final = "SELECT max_payload_bytes FROM headgate.tenants WHERE tenant_no = $1 AND max_payload_bytes < $2"
_USED: Final = ("max_stored_bytes", "max_backlog", "max_sessions", "max_schedules", "max_webhooks", "max_topics")


async def show(db: Connection, *, after: str = "", name: str | None = None, limit: int = 1) -> list[TenantView]:
    """Tenants by name, with what they use."""
    with translating(writing=False):
        rows = await db.fetch(SHOW, after, name, limit)
    return [_view(row) for row in rows]


async def check_payload(db: Connection, tenant_no: int, payload: bytes) -> None:
    """Raise TooLarge for a payload over the quota of its tenant. Submits are compared by over_quota_v1."""
    with translating(writing=False):
        limit = await db.fetchval(PAYLOAD, tenant_no, len(payload))
    if limit is not None:
        raise exceeded("max_payload_bytes", limit=limit, current=len(payload))


async def defaults(db: Connection) -> dict[str, Quota]:
    """The quotas of tenants without their own."""
    with translating(writing=False):
        (row,) = await db.fetch(DEFAULTS)
    return _quotas(row)


async def set_quotas(
    db: Connection, tenant_no: int, name: str, changes: Mapping[str, Quota], *, actor: str, reason: str
) -> TenantView:
    """Set quotas of a tenant; None: the default counts again."""
    async with transaction(db):
        with translating(writing=True):
            await db.execute(LOCK, tenant_no)
            (before,) = await show(db, name=name)
            general = await defaults(db)
            own = sorted(
                (before.own | {one for one, value in changes.items() if value is not None})
                - {one for one, value in changes.items() if value is None}
            )
            values = {one: changes.get(one, before.quotas[one]) if one in own else general[one] for one in QUOTAS}
            await db.execute(SET, tenant_no, *_columns(values), own)
            (view,) = await show(db, name=name)
        detail = {"before": _texts(before.quotas, changes), "after": _texts(view.quotas, changes)}
        await audit.record(
            db, tenant_no, actor=actor, verb="set_tenant", target=f"tenant {name}", reason=reason, detail=detail
        )
    return view


async def set_defaults(db: Connection, changes: Mapping[str, Quota], *, actor: str, reason: str) -> dict[str, Quota]:
    """Set quotas of all tenants without their own; None: back to the built-in default."""
    async with transaction(db):
        with translating(writing=True):
            await db.execute(LOCK_DEFAULTS)
            before = await defaults(db)
            after = {
                one: (BUILT_IN.get(one) if changes[one] is None else changes[one]) if one in changes else before[one]
                for one in QUOTAS
            }
            await db.execute(SET_DEFAULTS, *_columns(after))
            await db.execute(SPREAD)
        detail = {"before": _texts(before, changes), "after": _texts(after, changes)}
        await audit.record(
            db, 0, actor=actor, verb="set_tenant_defaults", target="all tenants", reason=reason, detail=detail
        )
    return after


def _quotas(values: Any) -> dict[str, Quota]:
    found: dict[str, Any] = dict(zip(QUOTAS, values, strict=True))
    rate = found["submit_rate"]
    return found | {"submit_rate": None if rate is None else parse_rate(rate, field="submit_rate")}


def _columns(values: Mapping[str, Quota]) -> list[int | str | None]:
    return [rate_text(one) if isinstance(one := values[name], Rate) else one for name in QUOTAS]


def _texts(values: Mapping[str, Quota], names: Mapping[str, object]) -> dict[str, object]:
    return {name: json.loads(json.dumps(one, default=rate_text)) for name in names for one in (values[name],)}


def _view(row: Any) -> TenantView:
    name, *values = row[:10]
    stored, *counted = row[13:]
    used = dict(zip(_USED, (stored, *counted[:5]), strict=True)) | {"max_policies": counted[5]}
    return TenantView(
        name=name,
        quotas=_quotas(values),
        own=frozenset(row[10]),
        used={one: count for one, count in used.items() if count is not None},
        created_at=row[11],
        measured_at=row[12],
    )


class TenantStore(TenantCalls):
    """Fits control's port for tenants."""

    page = lane_call("upkeep", show)
    defaults = lane_call("upkeep", defaults)
    set_defaults = lane_call("upkeep", set_defaults)

    async def get(self, name: str, *, own: bool) -> TenantView:
        """One tenant; `own`: it asks for itself. Raises NotFound."""
        # Its own is made on first use, as by its first submit.
        tenant_no = await self._database.tenant_no(name) if own else None
        async with self._database.as_tenant("read", tenant_no) as db:
            found = await show(db, name=name)
        if not found:
            raise NotFound("tenant", name)
        return found[0]

    async def set_quotas(self, name: str, changes: Mapping[str, Quota], *, actor: str, reason: str) -> TenantView:
        """Set quotas of a tenant, made if need be."""
        tenant_no = await self._database.tenant_no(name)
        async with self._database.lane("upkeep").use() as db:
            return await set_quotas(db, tenant_no, name, changes, actor=actor, reason=reason)

    async def limits(self, name: str) -> tuple[Rate | None, int | None, int]:
        """The rate of submits, the maximum of worker sessions, and how many are open on other instances."""
        tenant_no = await self._database.tenant_no(name)
        async with self._database.as_tenant("read", tenant_no) as db:
            with translating(writing=False):
                ((rate, most, elsewhere),) = await db.fetch(LIMITS, tenant_no, self._database.instance_no)
        return None if rate is None else parse_rate(rate, field="submit_rate"), most, elsewhere or 0
