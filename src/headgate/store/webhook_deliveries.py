"""Deliveries of events to webhook endpoints: claimed with a lease, recorded, listed, sent again.

Events themselves are written by the transactions that end jobs (functions/webhook_ended_v1.sql).
"""

from __future__ import annotations

import json
from typing import Final
from uuid import UUID

import asyncpg

from headgate.domain.errors import NotFound, Refused
from headgate.domain.ids import TenantNo
from headgate.domain.validation import to_ms
from headgate.domain.webhooks import (
    DISABLED_AFTER,
    NAMES,
    RESULT_MAX_BYTES,
    Attempt,
    ClaimedDelivery,
    DeliveryState,
    DeliveryView,
    Event,
    Sent,
    Verdict,
)
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.rows import from_row

READY_AT_ONCE: Final = 100
DISABLED: Final = "the endpoint is disabled; enable it first"
NOTE_READY: Final = "SELECT headgate.webhook_ready_v1($1)"
CLAIM: Final = """
SELECT delivery_no, id, webhook_no, event, at, data, attempt, tried, url, secrets, failing, with_result, result
  FROM headgate.claim_deliveries_v1($1, $2, $3, $4, $5)"""
RECORD: Final = "SELECT recorded, disabled FROM headgate.record_delivery_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)"
# Newest first. index: webhook_deliveries_listed, or webhook_deliveries_id for one
LIST: Final = """
SELECT d.id, w.id, d.event, d.state, d.at, coalesce(t.name, ''), d.job_id, d.attempts,
       CASE WHEN w.enabled THEN d.next_at END, d.ended_at, d.status, d.error, d.delivery_no, w.enabled
  FROM headgate.webhooks w
  JOIN headgate.webhook_deliveries d ON d.webhook_no = w.webhook_no
  LEFT JOIN headgate.topics t ON t.topic_no = d.topic_no
 WHERE w.tenant_no = $1 AND w.id = $2 AND NOT w.deleted AND ($3::uuid IS NULL OR (d.tenant_no = $1 AND d.id = $3))
   AND ($4::smallint IS NULL OR d.state = $4)
   AND ($5::uuid IS NULL OR d.delivery_no < (SELECT b.delivery_no FROM headgate.webhook_deliveries b
                                              WHERE b.tenant_no = $1 AND b.id = $5))
 ORDER BY d.delivery_no DESC LIMIT $6"""
ATTEMPTS: Final = """
SELECT attempt, at, duration_ms, status, response, error FROM headgate.webhook_attempts
 WHERE delivery_no = $1 ORDER BY attempt"""
# The schedule of attempts begins again, under the same id. One that is being sent is left to its attempt.
RESEND: Final = """
UPDATE headgate.webhook_deliveries
   SET state = 0 /* waiting */, next_at = headgate.clock_v1(), ended_at = NULL, round_from = attempts
 WHERE delivery_no = $1 AND state <> 1 /* sending */ RETURNING delivery_no"""


async def listed(
    db: Connection,
    tenant_no: TenantNo,
    webhook_id: UUID,
    *,
    delivery_id: UUID | None = None,
    state: DeliveryState | None = None,
    before: UUID | None = None,
    limit: int,
) -> list[DeliveryView]:
    """Deliveries of an endpoint, newest first; one that is asked for by its id has the log of its attempts."""
    with translating(writing=False):
        rows = await db.fetch(LIST, tenant_no, webhook_id, delivery_id, state, before, limit)
        log = await db.fetch(ATTEMPTS, rows[0][12]) if delivery_id is not None and rows else []
    attempts = [from_row(Attempt, row) for row in log]
    return [_view(row, attempts) for row in rows]


async def resend(
    db: Connection, tenant_no: TenantNo, webhook_id: UUID, delivery_id: UUID, *, who: str, reason: str
) -> DeliveryView:
    """Send a delivery again, whatever became of it, under the same id.

    Raises NotFound; Refused while it is sent, or if its endpoint is disabled.
    """
    async with transaction(db):
        with translating(writing=True):
            row = await db.fetchrow(LIST, tenant_no, webhook_id, delivery_id, None, None, 1)
            if row is None:
                raise NotFound("delivery", str(delivery_id))
            if not row[13]:
                raise Refused(DISABLED)
            if await db.fetchval(RESEND, row[12]) is None:
                raise Refused(f"delivery {delivery_id} is being sent at this moment; look at its result first")
            await audit.record(
                db, tenant_no, actor=who, verb="resend_delivery", target=f"delivery {delivery_id}", reason=reason
            )
            row = await db.fetchrow(LIST, tenant_no, webhook_id, delivery_id, None, None, 1)
            assert row is not None  # noqa: S101 - it is locked
    return _view(row, [])


def _view(row: asyncpg.Record, log: list[Attempt]) -> DeliveryView:
    return from_row(DeliveryView, row[:12], event=NAMES[Event(row[2])], state=DeliveryState(row[3]), log=log)


class DeliveryStore:
    """Fits dispatch/webhook_deliverer.WebhookStore, over a lane of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note_ready(self) -> int:
        """Note queue.ready for topics that have got pending jobs; returns how many endpoints were looked at."""
        async with self._database.lane("webhooks").use() as db:
            with translating(writing=True):
                looked: int = await db.fetchval(NOTE_READY, READY_AT_ONCE)
        return looked

    async def claim(self, *, limit: int, failing: int, per_webhook: int, lease_ms: int) -> list[ClaimedDelivery]:
        """Lease what is due, endpoints in turn."""
        async with self._database.lane("webhooks").use("webhook_claim") as db:
            with translating(writing=True):
                rows = await db.fetch(CLAIM, limit, failing, per_webhook, lease_ms, RESULT_MAX_BYTES)
        return [
            from_row(
                ClaimedDelivery,
                row[:11],
                event=Event(row[3]),
                data=json.loads(row[5]),
                secrets=tuple(row[9]),
                with_result=row[11],
                result=row[12],
            )
            for row in rows
        ]

    async def record(self, delivery: ClaimedDelivery, sent: Sent, verdict: Verdict) -> tuple[bool, str]:
        """Record an attempt: whether it was the newest one, and why the endpoint was disabled, if it was."""
        outcome = 0 if verdict.delivered else 3 if verdict.gone else 2 if verdict.wait is None else 1
        async with self._database.lane("webhooks").use("webhook_record") as db:
            with translating(writing=True):
                row = await db.fetchrow(
                    RECORD,
                    delivery.no,
                    delivery.attempt,
                    outcome,
                    0 if verdict.wait is None else to_ms(verdict.wait),
                    sent.status,
                    sent.duration_ms,
                    sent.response,
                    sent.error,
                    to_ms(DISABLED_AFTER),
                )
        assert row is not None  # noqa: S101 - the function always answers
        return row[0], row[1] or ""
