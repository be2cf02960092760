"""Webhook endpoints: kept, read, changed. Every change writes its audit in the same transaction, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain.errors import NotFound, Refused, VersionConflict
from headgate.domain.ids import TenantNo
from headgate.domain.tenants import check_count
from headgate.domain.validation import MILLISECOND, to_ms
from headgate.domain.webhooks import (
    SECRETS_MAX,
    DeliveryView,
    Event,
    Mode,
    Webhook,
    WebhookSpec,
    event_names,
    events_of,
    like_patterns,
)
from headgate.store import audit, webhook_deliveries
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.rows import from_row
from headgate.store.tenant_calls import TenantCalls, tenant_call

# One statement for one endpoint ($2) and for a page of them. index: webhooks_tenant_no_id_key
SHOW: Final = """
SELECT w.id, w.url, w.events, w.topics, w.description, w.enabled, w.named_only, w.include_result, w.mode, w.group_name,
       w.min_interval_ms, w.ttl_ms, w.version, w.created_at, w.created_by, w.changed_at, w.changed_by, w.expires_at,
       w.disabled_reason, w.disabled_at, w.failing_since,
       (SELECT count(*) FROM headgate.webhook_secrets s
         WHERE s.webhook_no = w.webhook_no AND (s.expires_at IS NULL OR s.expires_at > headgate.clock_v1())),
       w.webhook_no
  FROM headgate.webhooks w
 WHERE w.tenant_no = $1 AND ($2::uuid IS NULL OR w.id = $2) AND ($3::uuid IS NULL OR w.id > $3) AND NOT w.deleted
   AND (w.expires_at IS NULL OR w.expires_at > headgate.clock_v1())
 ORDER BY w.id LIMIT $4"""
LOCK: Final = "SELECT FROM headgate.webhooks WHERE tenant_no = $1 AND id = $2 FOR UPDATE"
# Creates of one tenant follow each other, so that its quota holds.
LOCK_TENANT: Final = "SELECT FROM headgate.tenants WHERE tenant_no = $1 FOR NO KEY UPDATE"
QUOTA: Final = "SELECT max_webhooks FROM headgate.tenants WHERE tenant_no = $1"
COUNT: Final = "SELECT count(*) FROM headgate.webhooks WHERE tenant_no = $1 AND NOT deleted"
INSERT: Final = """
INSERT INTO headgate.webhooks (
       tenant_no, id, url, events, topics, patterns, description, enabled, named_only, include_result, mode, group_name,
       min_interval_ms, ttl_ms, expires_at, look_at, disabled_at, created_at, created_by, changed_at, changed_by)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, n.now + $14::bigint * interval '1 ms',
       CASE WHEN $4::smallint & 8 /* queue.ready */ <> 0 THEN n.now END, CASE WHEN NOT $8::boolean THEN n.now END,
       n.now, $15, n.now, $15
  FROM (SELECT headgate.clock_v1() AS now) AS n"""
UPDATE: Final = """
UPDATE headgate.webhooks w
   SET url = $3, events = $4, topics = $5, patterns = $6, description = $7, enabled = $8, named_only = $9,
       include_result = $10, mode = $11, group_name = $12, min_interval_ms = $13, ttl_ms = $14,
       expires_at = n.now + $14::bigint * interval '1 ms',
       look_at = CASE WHEN $4::smallint & 8 /* queue.ready */ <> 0 THEN n.now END,
       disabled_at = CASE WHEN NOT $8::boolean THEN coalesce(w.disabled_at, n.now) END,
       disabled_reason = CASE WHEN $8::boolean THEN '' WHEN w.enabled THEN $16 ELSE w.disabled_reason END,
       -- What begins again gets the time that a new one has.
       failing_since = CASE WHEN w.enabled AND w.url = $3 THEN w.failing_since END,
       changed_at = n.now, changed_by = $15, version = w.version + 1
  FROM (SELECT headgate.clock_v1() AS now) AS n
 WHERE w.tenant_no = $1 AND w.id = $2"""
DELETE: Final = """
UPDATE headgate.webhooks SET deleted = true, enabled = false, look_at = NULL, disabled_at = headgate.clock_v1(),
       changed_at = headgate.clock_v1(), changed_by = $3, version = version + 1
 WHERE tenant_no = $1 AND id = $2"""
FORGET_SECRETS: Final = "DELETE FROM headgate.webhook_secrets WHERE webhook_no = $1"
# The older ones sign until their time is over; the oldest of too many do not.
RETIRE_SECRETS: Final = """
UPDATE headgate.webhook_secrets s SET expires_at = n.now + $2::interval FROM (SELECT headgate.clock_v1() AS now) AS n
 WHERE s.webhook_no = $1 AND (s.expires_at IS NULL OR s.expires_at > n.now + $2::interval)"""
DROP_SECRETS: Final = """
DELETE FROM headgate.webhook_secrets s
 WHERE s.webhook_no = $1 AND (s.expires_at <= headgate.clock_v1() OR s.secret IN (
       SELECT o.secret FROM headgate.webhook_secrets o WHERE o.webhook_no = $1 ORDER BY o.created_at DESC OFFSET $2))"""
ADD_SECRET: Final = """
INSERT INTO headgate.webhook_secrets (webhook_no, secret, created_at)
SELECT w.webhook_no, $3, headgate.clock_v1() FROM headgate.webhooks w WHERE w.tenant_no = $1 AND w.id = $2"""  # noqa: S105 - a statement
PING: Final = """
INSERT INTO headgate.webhook_deliveries (tenant_no, webhook_no, event, at, next_at, data)
SELECT $1, $2, 16 /* ping */, n.now, n.now, jsonb_build_object('webhook_id', $3::uuid)
  FROM (SELECT headgate.clock_v1() AS now) AS n RETURNING id"""


async def create(
    db: Connection, tenant_no: TenantNo, webhook_id: UUID, spec: WebhookSpec, *, secret: str, who: str
) -> Webhook:
    """Store an endpoint and its first secret. Raises QuotaExceeded if the tenant has too many."""
    async with transaction(db):
        with translating(writing=True):
            await db.execute(LOCK_TENANT, tenant_no)
            count: int = await db.fetchval(COUNT, tenant_no)
            check_count("max_webhooks", count, await db.fetchval(QUOTA, tenant_no))
            await db.execute(INSERT, tenant_no, webhook_id, *_values(spec), who)
            await db.execute(ADD_SECRET, tenant_no, webhook_id, secret)
            await _note(db, tenant_no, webhook_id, verb="create_webhook", who=who, detail={"new": summary(spec)})
            return _view(await _found(db, tenant_no, webhook_id))


async def get(db: Connection, tenant_no: TenantNo, webhook_id: UUID) -> Webhook:
    """One endpoint. Raises NotFound."""
    with translating(writing=False):
        return _view(await _found(db, tenant_no, webhook_id))


async def listed(db: Connection, tenant_no: TenantNo, *, after: UUID | None, limit: int) -> list[Webhook]:
    """A page, oldest first."""
    with translating(writing=False):
        return [_view(row) for row in await db.fetch(SHOW, tenant_no, None, after, limit)]


async def update(
    db: Connection,
    tenant_no: TenantNo,
    webhook_id: UUID,
    changes: Mapping[str, object],
    *,
    expected: int | None,
    who: str,
    reason: str,
) -> Webhook:
    """Change what is named. Raises NotFound, VersionConflict, InvalidInput."""
    async with transaction(db):
        with translating(writing=True):
            await db.execute(LOCK, tenant_no, webhook_id)
            before = _view(await _found(db, tenant_no, webhook_id))
            if expected is not None and expected != before.version:
                raise VersionConflict(
                    f"webhook {webhook_id} has version {before.version}, not {expected}: it was changed; read it and "
                    "try again"
                )
            spec = replace(before.spec, **changes).checked()  # type: ignore[arg-type]  # named by control/webhooks.py
            await db.execute(UPDATE, tenant_no, webhook_id, *_values(spec), who, reason or f"by {who}")
            detail = {"old": summary(before.spec), "new": summary(spec)}
            await _note(db, tenant_no, webhook_id, verb="update_webhook", who=who, reason=reason, detail=detail)
            return _view(await _found(db, tenant_no, webhook_id))


async def delete(db: Connection, tenant_no: TenantNo, webhook_id: UUID, *, who: str, reason: str) -> None:
    """Delete an endpoint; its deliveries are removed by retention. Raises NotFound."""
    async with transaction(db):
        with translating(writing=True):
            await db.execute(LOCK, tenant_no, webhook_id)
            row = await _found(db, tenant_no, webhook_id)
            await db.execute(DELETE, tenant_no, webhook_id, who)
            await db.execute(FORGET_SECRETS, row[22])
            detail = {"old": summary(_view(row).spec)}
            await _note(db, tenant_no, webhook_id, verb="delete_webhook", who=who, reason=reason, detail=detail)


async def rotate_secret(
    db: Connection, tenant_no: TenantNo, webhook_id: UUID, *, secret: str, overlap: timedelta, who: str, reason: str
) -> Webhook:
    """Sign with a new secret; those before it sign as well, for `overlap`. Raises NotFound."""
    async with transaction(db):
        with translating(writing=True):
            await db.execute(LOCK, tenant_no, webhook_id)
            row = await _found(db, tenant_no, webhook_id)
            await db.execute(RETIRE_SECRETS, row[22], overlap)
            await db.execute(DROP_SECRETS, row[22], SECRETS_MAX - 1)
            await db.execute(ADD_SECRET, tenant_no, webhook_id, secret)
            detail = {"overlap_seconds": overlap.total_seconds()}
            await _note(db, tenant_no, webhook_id, verb="rotate_webhook_secret", who=who, reason=reason, detail=detail)
            return _view(await _found(db, tenant_no, webhook_id))


async def ping(db: Connection, tenant_no: TenantNo, webhook_id: UUID, *, who: str) -> DeliveryView:
    """Make a ping for an endpoint. Raises NotFound, and Refused if it is disabled."""
    async with transaction(db):
        with translating(writing=True):
            row = await _found(db, tenant_no, webhook_id)
            if not row[5]:
                raise Refused(webhook_deliveries.DISABLED)
            made: UUID = await db.fetchval(PING, tenant_no, row[22], webhook_id)
            await _note(db, tenant_no, webhook_id, verb="test_webhook", who=who)
            (view,) = await webhook_deliveries.listed(db, tenant_no, webhook_id, delivery_id=made, limit=1)
            return view


def summary(spec: WebhookSpec) -> dict[str, object]:
    """For the audit: what the endpoint is for."""
    return {
        "url": spec.url,
        "events": list(spec.events),
        "topics": list(spec.topics),
        "enabled": spec.enabled,
        "include_result": spec.include_result,
        "named_only": spec.named_only,
        "mode": spec.mode.label,
    }


def _values(spec: WebhookSpec) -> tuple[object, ...]:
    return (
        spec.url,
        int(events_of(spec.events)),
        list(spec.topics),
        like_patterns(spec.topics),
        spec.description,
        spec.enabled,
        spec.named_only,
        spec.include_result,
        int(spec.mode),
        spec.group,
        to_ms(spec.min_interval),
        None if spec.ttl is None else to_ms(spec.ttl),
    )


async def _found(db: Connection, tenant_no: int, webhook_id: UUID) -> asyncpg.Record:
    row = await db.fetchrow(SHOW, tenant_no, webhook_id, None, 1)
    if row is None:
        raise NotFound("webhook", str(webhook_id))
    return row


async def _note(
    db: Connection,
    tenant_no: int,
    webhook_id: UUID,
    *,
    verb: str,
    who: str,
    reason: str = "",
    detail: Mapping[str, object] | None = None,
) -> None:
    await audit.record(
        db, tenant_no, actor=who, verb=verb, target=f"webhook {webhook_id}", reason=reason, detail=detail
    )


def _view(row: asyncpg.Record) -> Webhook:
    spec = from_row(
        WebhookSpec,
        row[1:12],
        events=event_names(Event(row[2])),
        topics=tuple(row[3]),
        mode=Mode(row[8]),
        min_interval=row[10] * MILLISECOND,
        ttl=None if row[11] is None else row[11] * MILLISECOND,
    )
    return from_row(Webhook, (row[0], spec, *row[12:22]))


class WebhookStore(TenantCalls):
    """Fits control/ports.WebhookStore."""

    create = tenant_call("admin", create)
    get = tenant_call("read", get)
    listed = tenant_call("read", listed)
    update = tenant_call("admin", update)
    delete = tenant_call("admin", delete)
    rotate_secret = tenant_call("admin", rotate_secret)
    ping = tenant_call("admin", ping)
    deliveries = tenant_call("read", webhook_deliveries.listed)
    resend = tenant_call("admin", webhook_deliveries.resend)
