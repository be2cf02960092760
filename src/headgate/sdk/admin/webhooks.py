"""`hg.admin.webhooks`: HTTP endpoints that get events, and what was delivered to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias, TypedDict, Unpack
from uuid import UUID

from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_integer, check_page_size, shown
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.records import record
from headgate.sdk.rpc import Answered, Asked, Method
from headgate.wire import webhooks_pb2 as pb

_MS: Final = timedelta(milliseconds=1)
# Not repeatable: a second endpoint would get every event, too, and its secret is not known to anyone.
CREATE: Final = Method("WebhookService/Create", pb.CreateWebhookRequest, pb.WebhookWithSecret, repeatable=False)
GET: Final = Method("WebhookService/Get", pb.GetWebhookRequest, pb.Webhook)
LIST: Final = Method("WebhookService/List", pb.ListWebhooksRequest, pb.ListWebhooksResponse)
UPDATE: Final = Method("WebhookService/Update", pb.UpdateWebhookRequest, pb.Webhook)
DELETE: Final = Method("WebhookService/Delete", pb.DeleteWebhookRequest, pb.DeleteWebhookResponse)
ROTATE: Final = Method("WebhookService/RotateSecret", pb.RotateSecretRequest, pb.WebhookWithSecret, repeatable=False)
TEST: Final = Method("WebhookService/Test", pb.TestWebhookRequest, pb.Delivery)
DELIVERIES: Final = Method("WebhookService/ListDeliveries", pb.ListDeliveriesRequest, pb.ListDeliveriesResponse)
DELIVERY: Final = Method("WebhookService/GetDelivery", pb.GetDeliveryRequest, pb.Delivery)
RESEND: Final = Method("WebhookService/Resend", pb.ResendRequest, pb.Delivery)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookInfo:
    """An endpoint. `secret` is set in the answers of `create` and `rotate_secret` only."""

    id: UUID
    url: str
    events: tuple[str, ...]
    topics: tuple[str, ...]  # empty: all
    description: str
    enabled: bool
    named_only: bool
    include_result: bool
    mode: str
    group: str
    min_interval: timedelta
    ttl: timedelta | None
    version: int
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str
    expires_at: datetime | None
    disabled_reason: str
    disabled_at: datetime | None
    failing_since: datetime | None
    secrets: int
    secret: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """One request to an endpoint."""

    number: int
    at: datetime
    duration_ms: int
    status: int | None  # None: no answer
    response: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryInfo:
    """One event for one endpoint. `log` is set in the answer of `delivery` only."""

    id: UUID
    webhook_id: UUID
    event: str
    state: str
    at: datetime
    topic: str
    job_id: UUID | None
    attempts: int
    next_at: datetime | None
    ended_at: datetime | None
    status: int | None
    error: str
    log: tuple[DeliveryAttempt, ...] = ()


class WebhookChanges(TypedDict, total=False):
    """What `update` can change."""

    url: str
    events: Sequence[str]
    topics: Sequence[str]
    description: str
    enabled: bool
    named_only: bool
    include_result: bool
    min_interval: Seconds
    ttl: Seconds


Infos: TypeAlias = list[WebhookInfo]  # inside the class, `list` is its method
Id: TypeAlias = UUID | str


class WebhooksAdmin:
    """Changing, `test` and `resend` need the scope `operate`, reading needs `read`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        url: str,
        events: Sequence[str],
        *,
        topics: Sequence[str] = (),
        description: str = "",
        enabled: bool = True,
        named_only: bool = False,
        include_result: bool = False,
        mode: str = "fanout",
        group: str = "",
        min_interval: Seconds = 5,
        ttl: Seconds | None = None,
    ) -> WebhookInfo:
        """Create an endpoint for `job.completed`, `job.dead`, `job.cancelled` or `queue.ready`.

        `topics`: names, or patterns such as `mail.*`; none: all. The answer has the secret, which is not shown again.
        """
        spec = pb.WebhookSpec(
            url=utf8_text(url, field="url"),
            events=_texts(events, "events"),
            topics=_texts(topics, "topics"),
            description=utf8_text(description, field="description"),
            disabled=not enabled,
            named_only=named_only,
            include_result=include_result,
            mode=utf8_text(mode, field="mode"),
            group=utf8_text(group, field="group"),
            min_interval_ms=delay_in_ms(min_interval, field="min_interval"),
            ttl_ms=0 if ttl is None else delay_in_ms(ttl, field="ttl"),
        )
        made = await self._call(CREATE, pb.CreateWebhookRequest(spec=spec), "")
        return _info(made.webhook, secret=made.secret)

    async def get(self, webhook_id: Id) -> WebhookInfo:
        """One endpoint. Raises NotFound."""
        return _info(await self._call(GET, pb.GetWebhookRequest(id=_id(webhook_id)), webhook_id))

    async def list(self) -> Infos:
        """All endpoints, oldest first."""
        found: Infos = []
        while True:
            request = pb.ListWebhooksRequest(after=found[-1].id.bytes if found else b"", limit=limits.PAGE_MAX)
            page = (await self._call(LIST, request, "")).webhooks
            found += [_info(one) for one in page]
            if len(page) < limits.PAGE_MAX:
                return found

    async def update(
        self, webhook_id: Id, *, version: int | None = None, reason: str = "", **changes: Unpack[WebhookChanges]
    ) -> WebhookInfo:
        """Change what is given, and renew the time to live. Raises NotFound, VersionConflict."""
        request = pb.UpdateWebhookRequest(id=_id(webhook_id), reason=utf8_text(reason, field="reason"))
        if version is not None:
            request.expected_version = check_integer(version, field="version", low=0, high=2**31 - 1)
        if "url" in changes:
            request.url = utf8_text(changes["url"], field="url")
        if "description" in changes:
            request.description = utf8_text(changes["description"], field="description")
        if "events" in changes:
            request.events.CopyFrom(pb.WebhookTexts(values=_texts(changes["events"], "events")))
        if "topics" in changes:
            request.topics.CopyFrom(pb.WebhookTexts(values=_texts(changes["topics"], "topics")))
        if "enabled" in changes:
            request.disabled = not changes["enabled"]
        if "named_only" in changes:
            request.named_only = changes["named_only"]
        if "include_result" in changes:
            request.include_result = changes["include_result"]
        if "min_interval" in changes:
            request.min_interval_ms = delay_in_ms(changes["min_interval"], field="min_interval")
        if "ttl" in changes:
            request.ttl_ms = delay_in_ms(changes["ttl"], field="ttl")
        return _info(await self._call(UPDATE, request, webhook_id))

    async def delete(self, webhook_id: Id, *, reason: str = "") -> None:
        """Delete an endpoint and its deliveries. Raises NotFound."""
        request = pb.DeleteWebhookRequest(id=_id(webhook_id), reason=utf8_text(reason, field="reason"))
        await self._call(DELETE, request, webhook_id)

    async def rotate_secret(
        self, webhook_id: Id, *, overlap: Seconds = timedelta(days=1), reason: str = ""
    ) -> WebhookInfo:
        """Sign with a new secret, which is in the answer; for `overlap` the previous one signs as well."""
        request = pb.RotateSecretRequest(
            id=_id(webhook_id),
            overlap_ms=delay_in_ms(overlap, field="overlap"),
            reason=utf8_text(reason, field="reason"),
        )
        made = await self._call(ROTATE, request, webhook_id)
        return _info(made.webhook, secret=made.secret)

    async def test(self, webhook_id: Id) -> DeliveryInfo:
        """Send a `ping`; `delivery` shows later what became of it."""
        return _delivery(await self._call(TEST, pb.TestWebhookRequest(id=_id(webhook_id)), webhook_id))

    async def deliveries(
        self, webhook_id: Id, *, state: str = "", limit: int = limits.PAGE_DEFAULT, before: Id | None = None
    ) -> Sequence[DeliveryInfo]:
        """A page of deliveries, newest first; `state`: waiting, sending, delivered or failed."""
        check_page_size(limit)
        request = pb.ListDeliveriesRequest(
            webhook_id=_id(webhook_id),
            state=utf8_text(state, field="state"),
            before=b"" if before is None else _id(before),
            limit=limit,
        )
        return [_delivery(one) for one in (await self._call(DELIVERIES, request, webhook_id)).deliveries]

    async def delivery(self, webhook_id: Id, delivery_id: Id) -> DeliveryInfo:
        """One delivery with its attempts. Raises NotFound."""
        request = pb.GetDeliveryRequest(webhook_id=_id(webhook_id), delivery_id=_id(delivery_id))
        return _delivery(await self._call(DELIVERY, request, delivery_id))

    async def resend(self, webhook_id: Id, delivery_id: Id, *, reason: str = "") -> DeliveryInfo:
        """Send a delivery again, under the same id. Raises NotFound, and Refused while it is being sent."""
        request = pb.ResendRequest(
            webhook_id=_id(webhook_id), delivery_id=_id(delivery_id), reason=utf8_text(reason, field="reason")
        )
        return _delivery(await self._call(RESEND, request, delivery_id))

    async def _call(self, method: Method[Asked, Answered], request: Asked, about: Id) -> Answered:
        return await self._connection.call(method, request, about=("webhook", str(about)))


def _id(given: Id) -> bytes:
    """The bytes of an id; `msg_` before it, as in the header webhook-id, is left out."""
    if isinstance(given, UUID):
        return given.bytes
    try:
        return UUID(given.removeprefix("msg_")).bytes
    except ValueError:
        raise InvalidInput("id", f"must be a UUID, got {shown(given)}") from None


def _texts(values: Sequence[str], field: str) -> list[str]:
    if isinstance(values, str):
        raise InvalidInput(field, "must be a list of texts, got one text", hint=f"use [{shown(values)}]")
    return [utf8_text(one, field=field) for one in values]


def _info(found: pb.Webhook, *, secret: str = "") -> WebhookInfo:
    spec = found.spec
    ttl = spec.ttl_ms * _MS if spec.ttl_ms else None
    return record(WebhookInfo, found, spec, enabled=not spec.disabled, ttl=ttl, secret=secret)


def _delivery(found: pb.Delivery) -> DeliveryInfo:
    log = tuple(record(DeliveryAttempt, one, status=one.status or None) for one in found.log)
    return record(DeliveryInfo, found, status=found.status or None, log=log)
