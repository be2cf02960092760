"""Webhooks: endpoints, their deliveries with what was answered, a test, a new secret, and why one is disabled."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from litestar.params import FromPath, FromQuery

from headgate.domain.units import exact
from headgate.domain.webhooks import (
    CHOICES,
    INTERVAL_DEFAULT,
    OVERLAP_DEFAULT,
    DeliveryState,
    Mode,
    Webhook,
    WebhookSpec,
)
from headgate.web.forms import Form
from headgate.web.rendering import pager, url
from headgate.web.request import Html, PageRequest
from headgate.web.routing import action, page

ROWS: Final = 100
DELIVERIES: Final = 50
STATES: Final = tuple(state.label for state in DeliveryState)
MODES: Final = (
    ("fanout", "fanout: each endpoint gets it"),
    ("group", "group: one of the group gets it"),
    ("hash", "hash: one of the group, the same for a topic"),
)


@page("/webhooks", uses="WebhookService/List")
async def list_webhooks(request: PageRequest, after: FromQuery[UUID | None] = None) -> Html:
    """All endpoints."""
    found = await request.cases.webhooks.listed(request.caller, after=after, limit=ROWS)
    return request.render(
        "webhooks/index.html",
        webhooks=found,
        **pager("webhooks", at="after", here=after, following=found[-1].id if len(found) == ROWS else None),
    )


@page("/webhooks/new", uses="WebhookService/Create")
async def new_webhook(request: PageRequest) -> Html:
    """The form of a new one."""
    return request.render("webhooks/edit.html", webhook=None, **_form(None))


@page("/webhooks/{webhook_id:str}", uses="WebhookService/Get")
async def show_webhook(request: PageRequest, webhook_id: FromPath[UUID], before: FromQuery[UUID | None] = None) -> Html:
    """One endpoint and its deliveries."""
    state = request.query_params.get("state", "")  # as an argument, the name belongs to Litestar
    webhook = await request.cases.webhooks.get(request.caller, webhook_id)
    deliveries = await request.cases.webhooks.deliveries(
        request.caller, webhook_id, state=state, before=before, limit=DELIVERIES
    )
    following = deliveries[-1].id if len(deliveries) == DELIVERIES else None
    return request.render(
        "webhooks/webhook.html",
        fragment="webhooks/_deliveries.html",
        webhook=webhook,
        deliveries=deliveries,
        state=state,
        delivery_states=STATES,
        overlap=exact(OVERLAP_DEFAULT),
        exact=exact,
        **pager("webhooks", webhook_id, state=state, at="before", here=before, following=following),
    )


@page("/webhooks/{webhook_id:str}/edit", uses="WebhookService/Update")
async def edit_webhook(request: PageRequest, webhook_id: FromPath[UUID]) -> Html:
    """The form of one that exists."""
    webhook = await request.cases.webhooks.get(request.caller, webhook_id)
    return request.render("webhooks/edit.html", webhook=webhook, **_form(webhook))


@page("/webhooks/{webhook_id:str}/deliveries/{delivery_id:str}", uses="WebhookService/GetDelivery")
async def show_delivery(request: PageRequest, webhook_id: FromPath[UUID], delivery_id: FromPath[UUID]) -> Html:
    """One delivery with its attempts and what was answered."""
    delivery = await request.cases.webhooks.delivery(request.caller, webhook_id, delivery_id)
    return request.render(
        "webhooks/delivery.html", fragment="webhooks/_delivery.html", webhook_id=webhook_id, delivery=delivery
    )


@action("/webhooks", uses="WebhookService/Create")
async def create_webhook(request: PageRequest) -> Html:
    """Store an endpoint. Its secret is on the page that follows, and never again."""
    webhook, secret = await request.cases.webhooks.create(request.caller, _spec(request.fields))
    return request.render("webhooks/secret.html", webhook=webhook, secret=secret, rotated=False)


@action("/webhooks/{webhook_id:str}", uses="WebhookService/Update")
async def update_webhook(request: PageRequest, webhook_id: FromPath[UUID]) -> Html:
    """Save the form, if the endpoint is still the one that it was made from."""
    form = request.fields
    spec = _spec(form)
    changes = {name: getattr(spec, name) for name in WebhookSpec.__dataclass_fields__}
    await request.cases.webhooks.update(
        request.caller, webhook_id, changes, expected=form.integer("version"), reason=form.text("reason")
    )
    return request.done("The webhook is saved.", to=url("webhooks", webhook_id))


@action("/webhooks/{webhook_id:str}/enable", uses="WebhookService/Update")
async def enable_webhook(request: PageRequest, webhook_id: FromPath[UUID]) -> Html:
    """Send to it, or stop."""
    enabled = request.fields.flag("enabled")
    await request.cases.webhooks.update(request.caller, webhook_id, {"enabled": enabled})
    message = "The webhook is enabled. What waited is sent now." if enabled else "The webhook is disabled."
    return request.done(message, to=url("webhooks", webhook_id))


@action("/webhooks/{webhook_id:str}/rotate", uses="WebhookService/RotateSecret", confirm=True)
async def rotate_secret(request: PageRequest, webhook_id: FromPath[UUID]) -> Html:
    """Sign with a new secret. It is on the page that follows, and never again."""
    form = request.fields
    overlap = form.duration("overlap")
    webhook, secret = await request.cases.webhooks.rotate_secret(
        request.caller, webhook_id, overlap=overlap, reason=form.text("reason")
    )
    return request.render(
        "webhooks/secret.html", webhook=webhook, secret=secret, rotated=True, overlap=overlap or OVERLAP_DEFAULT
    )


@action("/webhooks/{webhook_id:str}/test", uses="WebhookService/Test")
async def ping_webhook(request: PageRequest, webhook_id: FromPath[UUID]) -> Html:
    """Send a ping."""
    made = await request.cases.webhooks.test(request.caller, webhook_id)
    return request.done(
        "A ping is on its way. Its delivery is below.", to=url("webhooks", webhook_id, "deliveries", made.id)
    )


@action("/webhooks/{webhook_id:str}/deliveries/{delivery_id:str}/resend", uses="WebhookService/Resend")
async def resend_delivery(request: PageRequest, webhook_id: FromPath[UUID], delivery_id: FromPath[UUID]) -> Html:
    """Send a delivery again."""
    await request.cases.webhooks.resend(request.caller, webhook_id, delivery_id, reason=request.fields.text("reason"))
    return request.done("It is sent again, under the same id.", changed="webhooks")


@action("/webhooks/{webhook_id:str}/delete", uses="WebhookService/Delete", confirm=True)
async def delete_webhook(request: PageRequest, webhook_id: FromPath[UUID]) -> Html:
    """Delete an endpoint and its deliveries."""
    await request.cases.webhooks.delete(request.caller, webhook_id, reason=request.fields.text("reason"))
    return request.done("The webhook and its deliveries are deleted.", to=url("webhooks"))


def _spec(form: Form) -> WebhookSpec:
    """What the form says. Raises InvalidInput naming the field."""
    return WebhookSpec(
        url=form.required("url"),
        events=tuple(form.many("events")),
        topics=tuple(form.text("topics").replace(",", " ").split()),
        description=form.text("description"),
        enabled=form.flag("enabled"),
        named_only=form.flag("named_only"),
        include_result=form.flag("include_result"),
        mode=Mode.parse((form.text("mode") or "fanout").lower()),
        group=form.text("group"),
        min_interval=form.duration("min_interval") or INTERVAL_DEFAULT,
        ttl=form.duration("ttl"),
    ).checked()


def _form(webhook: Webhook | None) -> dict[str, Any]:  # for a template
    spec = WebhookSpec(url="", events=("job.dead",)) if webhook is None else webhook.spec
    return {
        "spec": spec,
        "events": tuple(CHOICES),
        "modes": MODES,
        "mode": Mode(spec.mode).name.lower(),
        "min_interval": exact(spec.min_interval),
        "ttl": "" if spec.ttl is None else exact(spec.ttl),
    }
