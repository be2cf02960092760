"""Delivers events to webhook endpoints. Every instance runs one; none leads.

    the transaction that ends a job writes the event  →  claim (a lease)  →  send  →  record

An instance that dies after the claim leaves a lease that expires, and another one sends the event again, under the same
id: each event arrives at least once. The tick wakes this service when something is due, a settled flush wakes it at
once; without events it does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from random import random
from typing import Final, Protocol

from headgate.domain import failpoints
from headgate.domain.errors import HeadgateError
from headgate.domain.redaction import Redaction
from headgate.domain.webhooks import ClaimedDelivery, Sent, Verdict, body_of, headers_of, message_id, verdict_of

log = logging.getLogger("headgate.webhooks")
SLOTS: Final = 64
"""Requests of one instance at the same time. More deliveries stay in the database."""
PER_WEBHOOK: Final = 4
"""Requests to one endpoint at the same time, of all instances together."""
LEASE_MS: Final = 30_000
"""Longer than a request and its record may take: then no other instance sends the same event meanwhile."""
LOOK_SECONDS: Final = 0.5
"""Between looks for topics that became ready: each request that ends wakes the service as well."""
RECORD_SECONDS: Final = 15.0
"""How long the record of an attempt is tried, if the database does not take it."""


class WebhookStore(Protocol):
    """The database's side."""

    async def note_ready(self) -> int: ...
    async def claim(
        self, *, limit: int, failing: int, per_webhook: int, lease_ms: int
    ) -> Sequence[ClaimedDelivery]: ...
    async def record(self, delivery: ClaimedDelivery, sent: Sent, verdict: Verdict) -> tuple[bool, str]: ...


class Http(Protocol):
    """What sends a request."""

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Sent: ...


class WebhookDeliverer:
    """One per instance; idle unless woken."""

    def __init__(
        self,
        store: WebhookStore,
        http: Http,
        *,
        clock: Callable[[], float],
        redaction: Redaction | None = None,
        jitter: Callable[[], float] = random,
        slots: int = SLOTS,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._store, self._http, self._redaction = store, http, redaction or Redaction()
        self._clock, self._jitter, self._slots, self._lease_ms = clock, jitter, slots, lease_ms
        self._sending: dict[asyncio.Task[None], bool] = {}  # whether its endpoint fails
        self._looked = float("-inf")  # for topics that became ready
        self._woken = asyncio.Event()
        self._stopped = False
        self.attempts = dict.fromkeys(("delivered", "retried", "failed"), 0)  # requests, by what became of the delivery

    def wake(self) -> None:
        """There are, or may be, events to deliver."""
        self._woken.set()

    async def run_once(self) -> int:
        """Note topics that became ready, and begin to send what is due; returns how many requests were begun."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            await self._store.note_ready()
        begun = 0
        while (free := self._slots - len(self._sending)) > 0:
            failing = self._slots // 2 - sum(self._sending.values())
            claimed = await self._store.claim(
                limit=free, failing=max(0, failing), per_webhook=PER_WEBHOOK, lease_ms=self._lease_ms
            )
            for delivery in claimed:
                self._begin(delivery)
            begun += len(claimed)
            if len(claimed) < free:  # else others may be due, too
                break
        return begun

    async def finished(self) -> None:
        """Wait until no request is under way."""
        while self._sending:
            await asyncio.wait(self._sending)

    async def run(self) -> None:
        """Deliver until `stop`; returns when no request is under way. After an error the next tick wakes it again."""
        self._woken.set()  # once at the start: after a failure, nothing else might wake it soon
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                if self._stopped:
                    break
                try:
                    await self.run_once()
                except HeadgateError as error:
                    log.warning("webhook_claim_failed error=%s", error)
            await self.finished()
        finally:
            for task in self._sending:  # cancelled, or a bug: what they hold is a lease, which expires
                task.cancel()

    def stop(self) -> None:
        """Claim no more. Requests that are under way end within their time limit."""
        self._stopped = True
        self._woken.set()

    def _begin(self, delivery: ClaimedDelivery) -> None:
        task = asyncio.create_task(self._deliver(delivery), name=f"webhook {delivery.no}")
        self._sending[task] = delivery.failing
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self._woken.set()  # its endpoint may have more
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("webhook_delivery_failed error=%s", error, exc_info=error)

    async def _deliver(self, delivery: ClaimedDelivery) -> None:
        if failpoints.armed:
            await failpoints.armed.reach("webhook.before_send")
        body = body_of(delivery, self._redaction)
        headers = headers_of(delivery, body, timestamp=int(self._clock()))
        sent = await self._http.post(delivery.url, headers, body)
        if failpoints.armed:
            await failpoints.armed.reach("webhook.after_send")
        verdict = verdict_of(sent, event=delivery.event, tried=delivery.tried, jitter=self._jitter())
        self.attempts["delivered" if verdict.delivered else "failed" if verdict.wait is None else "retried"] += 1
        disabled = await self._record(delivery, sent, verdict)
        if not verdict.delivered:
            log.warning(
                "webhook_attempt_failed id=%s attempt=%d error=%s retry_in=%s",
                message_id(delivery.id),
                delivery.attempt,
                sent.error,
                "never" if verdict.wait is None else f"{verdict.wait.total_seconds():.0f}s",
            )
        if disabled:
            log.warning("webhook_disabled webhook_no=%d reason=%s", delivery.webhook_no, disabled)

    async def _record(self, delivery: ClaimedDelivery, sent: Sent, verdict: Verdict) -> str:
        """Write down what happened. If the database stays away, the lease expires and the event is sent again."""
        deadline = time.monotonic() + RECORD_SECONDS
        wait = 0.1
        while True:
            try:
                return (await self._store.record(delivery, sent, verdict))[1]
            except HeadgateError as error:
                if time.monotonic() + wait > deadline or self._stopped:
                    log.warning(
                        'webhook_record_failed id=%s error=%s effect="the event is sent again"',
                        message_id(delivery.id),
                        error,
                    )
                    return ""
            await asyncio.sleep(wait)
            wait = min(2.0, wait * 2)
