"""WebhookService. Translates and delegates to control/webhooks.py."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import answers, span
from headgate.api.grpc.methods import Context
from headgate.control.webhooks import Webhooks
from headgate.domain import limits
from headgate.domain.ids import id_from_bytes
from headgate.domain.webhooks import INTERVAL_DEFAULT, DeliveryView, Mode, Webhook, WebhookSpec
from headgate.wire import webhooks_pb2 as pb


class WebhookService:
    """Create, Get, List, Update, Delete, RotateSecret, Test, ListDeliveries, GetDelivery, Resend."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["WebhookService"]

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    async def create(self, request: pb.CreateWebhookRequest, _call: Context) -> pb.WebhookWithSecret:
        """A new endpoint, with its secret."""
        view, secret = await self._webhooks.create(caller(), spec_of(request.spec))
        return pb.WebhookWithSecret(webhook=webhook(view), secret=secret)

    async def get(self, request: pb.GetWebhookRequest, _call: Context) -> pb.Webhook:
        """One endpoint."""
        return webhook(await self._webhooks.get(caller(), id_from_bytes(request.id)))

    async def list(self, request: pb.ListWebhooksRequest, _call: Context) -> pb.ListWebhooksResponse:
        """A page of endpoints."""
        found = await self._webhooks.listed(
            caller(), after=_cursor(request.after, "after"), limit=request.limit or limits.PAGE_DEFAULT
        )
        return pb.ListWebhooksResponse(webhooks=[webhook(one) for one in found])

    async def update(self, request: pb.UpdateWebhookRequest, _call: Context) -> pb.Webhook:
        """Change what is set."""
        view = await self._webhooks.update(
            caller(),
            id_from_bytes(request.id),
            changes_of(request),
            expected=request.expected_version if request.HasField("expected_version") else None,
            reason=request.reason,
        )
        return webhook(view)

    async def delete(self, request: pb.DeleteWebhookRequest, _call: Context) -> pb.DeleteWebhookResponse:
        """Delete one."""
        await self._webhooks.delete(caller(), id_from_bytes(request.id), reason=request.reason)
        return pb.DeleteWebhookResponse()

    async def rotate_secret(self, request: pb.RotateSecretRequest, _call: Context) -> pb.WebhookWithSecret:
        """A new secret."""
        overlap = span(request.overlap_ms, "overlap_ms") if request.HasField("overlap_ms") else None
        view, secret = await self._webhooks.rotate_secret(
            caller(), id_from_bytes(request.id), overlap=overlap, reason=request.reason
        )
        return pb.WebhookWithSecret(webhook=webhook(view), secret=secret)

    async def test(self, request: pb.TestWebhookRequest, _call: Context) -> pb.Delivery:
        """A ping."""
        return delivery(await self._webhooks.test(caller(), id_from_bytes(request.id)))

    async def list_deliveries(self, request: pb.ListDeliveriesRequest, _call: Context) -> pb.ListDeliveriesResponse:
        """A page of deliveries."""
        found = await self._webhooks.deliveries(
            caller(),
            id_from_bytes(request.webhook_id, field="webhook_id"),
            state=request.state,
            before=_cursor(request.before, "before"),
            limit=request.limit or limits.PAGE_DEFAULT,
        )
        return pb.ListDeliveriesResponse(deliveries=[delivery(one) for one in found])

    async def get_delivery(self, request: pb.GetDeliveryRequest, _call: Context) -> pb.Delivery:
        """One delivery with its attempts."""
        found = await self._webhooks.delivery(
            caller(),
            id_from_bytes(request.webhook_id, field="webhook_id"),
            id_from_bytes(request.delivery_id, field="delivery_id"),
        )
        return delivery(found)

    async def resend(self, request: pb.ResendRequest, _call: Context) -> pb.Delivery:
        """Send one again."""
        again = await self._webhooks.resend(
            caller(),
            id_from_bytes(request.webhook_id, field="webhook_id"),
            id_from_bytes(request.delivery_id, field="delivery_id"),
            reason=request.reason,
        )
        return delivery(again)


# --- between the wire and the domain --------------------------------------------------------------------------------


def spec_of(spec: pb.WebhookSpec) -> WebhookSpec:
    """The spec of a request; raises InvalidInput naming the field."""
    return WebhookSpec(
        url=spec.url,
        events=tuple(spec.events),
        topics=tuple(spec.topics),
        description=spec.description,
        enabled=not spec.disabled,
        named_only=spec.named_only,
        include_result=spec.include_result,
        mode=Mode.parse(spec.mode.lower()) if spec.mode else Mode.FANOUT,
        group=spec.group,
        min_interval=span(spec.min_interval_ms, "min_interval_ms") if spec.min_interval_ms else INTERVAL_DEFAULT,
        ttl=_ttl(spec.ttl_ms),
    )


def changes_of(request: pb.UpdateWebhookRequest) -> dict[str, object]:
    """What an update names."""
    changes: dict[str, object] = {
        name: getattr(request, name)
        for name in ("url", "description", "named_only", "include_result")
        if request.HasField(name)
    }
    if request.HasField("events"):
        changes["events"] = tuple(request.events.values)
    if request.HasField("topics"):
        changes["topics"] = tuple(request.topics.values)
    if request.HasField("disabled"):
        changes["enabled"] = not request.disabled
    if request.HasField("min_interval_ms"):
        changes["min_interval"] = span(request.min_interval_ms, "min_interval_ms")
    if request.HasField("ttl_ms"):
        changes["ttl"] = _ttl(request.ttl_ms)
    return changes


def webhook(view: Webhook) -> pb.Webhook:
    """An endpoint as read."""
    mode, disabled = view.spec.mode.label, not view.spec.enabled
    return answers.of(pb.Webhook, view, spec=answers.of(pb.WebhookSpec, view.spec, mode=mode, disabled=disabled))


def delivery(view: DeliveryView) -> pb.Delivery:
    """A delivery as read."""
    log = [answers.of(pb.DeliveryAttempt, one) for one in view.log]
    return answers.of(pb.Delivery, view, state=view.state.label, log=log)


def _cursor(raw: bytes, field: str) -> UUID | None:
    return id_from_bytes(raw, field=field) if raw else None


def _ttl(milliseconds: int) -> timedelta | None:
    return span(milliseconds, "ttl_ms") if milliseconds else None
