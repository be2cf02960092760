"""Webhooks in tests: endpoints and their deliveries on a real database, and a receiver that only remembers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from headgate.domain.ids import TenantNo
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.webhooks import ClaimedDelivery, Sent, Verdict, Webhook, WebhookSpec, new_secret
from headgate.store import webhook_deliveries, webhooks
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.webhook_deliveries import DeliveryStore
from tests.support.queue import Queue, new_id

URL = "http://127.0.0.1:9/hook"
SECRET = new_secret(bytes(32))
ROWS = "SELECT event, state, attempts, job_id, data FROM headgate.webhook_deliveries ORDER BY delivery_no"


class Hooks:
    """One tenant's endpoints, and its queue."""

    def __init__(self, db: Connection, database: Database, *, tenant: str = "acme") -> None:
        self.db, self.database, self.queue = db, database, Queue(db, tenant=tenant)
        self.deliveries = DeliveryStore(database)

    async def tenant_no(self) -> TenantNo:
        return await self.queue.tenant_no()

    async def create(self, *events: str, url: str = URL, secret: str = SECRET, **options: Any) -> Webhook:
        """An endpoint; job.completed unless told otherwise."""
        spec = WebhookSpec(url=url, events=events or ("job.completed",), **options).checked()
        return await webhooks.create(self.db, await self.tenant_no(), new_id(), spec, secret=secret, who="ana")

    async def get(self, webhook_id: UUID) -> Webhook:
        return await webhooks.get(self.db, await self.tenant_no(), webhook_id)

    async def update(self, webhook_id: UUID, **changes: Any) -> Webhook:
        return await webhooks.update(
            self.db, await self.tenant_no(), webhook_id, changes, expected=None, who="ana", reason=""
        )

    async def complete(self, count: int = 1, topic: str = "mail", **options: Any) -> list[UUID]:
        """Submit, claim and complete jobs."""
        ids = await self.queue.add(count, topic, **options)
        await self.queue.claim(count, topic)
        await self.queue.settle(*((job_id, 1, Completed(result=b'{"ok": true}')) for job_id in ids))
        return list(ids)

    async def kill(self, topic: str = "mail") -> UUID:
        """A job that ends dead."""
        (job_id,) = await self.queue.add(1, topic, max_attempts=1)
        await self.queue.claim(1, topic)
        await self.queue.settle((job_id, 1, Failed(error=ErrorInfo(type="ValueError", message="no such customer"))))
        return job_id

    async def rows(self) -> Sequence[asyncpg.Record]:
        """All deliveries: event, state, attempts, job, data."""
        return await self.db.fetch(ROWS)

    async def claim(self, limit: int = 10, *, failing: int = 10, per_webhook: int = 4) -> list[ClaimedDelivery]:
        return await self.deliveries.claim(limit=limit, failing=failing, per_webhook=per_webhook, lease_ms=30_000)

    async def record(self, delivery: ClaimedDelivery, status: int | None, verdict: Verdict) -> tuple[bool, str]:
        sent = Sent(status=status, error="" if status == 200 else f"status {status}", response="body", duration_ms=7)
        return await self.deliveries.record(delivery, sent, verdict)

    async def shown(self, webhook: Webhook, delivery_id: UUID) -> Any:
        (view,) = await webhook_deliveries.listed(
            self.db, await self.tenant_no(), webhook.id, delivery_id=delivery_id, limit=1
        )
        return view


class Remembering:
    """Stands for all receivers: remembers what was posted, answers what it is told."""

    def __init__(self, *statuses: int | None) -> None:
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        self._statuses = list(statuses)

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Sent:
        self.posted.append((url, dict(headers), body))
        status = self._statuses.pop(0) if self._statuses else 200
        return Sent(status=status, error="" if status == 200 else "told so")
