"""Webhooks: HTTP endpoints that get events, and what was delivered to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from headgate.api.http.codec import Input, Milliseconds, Output, answers, span, tagged
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.job_verbs import WithReason
from headgate.api.http.routing import PageSize, PathId, delete, get, patch, post
from headgate.domain import limits
from headgate.domain.egress import URL_MAX_CHARS
from headgate.domain.validation import to_ms
from headgate.domain.webhooks import (
    DESCRIPTION_MAX_CHARS,
    GROUP_MAX_CHARS,
    INTERVAL_DEFAULT,
    TOPICS_MAX,
    DeliveryView,
    Mode,
    Webhook,
    WebhookSpec,
)

TAG = ["webhooks"]
Url = Annotated[str, msgspec.Meta(min_length=1, max_length=URL_MAX_CHARS)]
EventName = Literal["job.completed", "job.dead", "job.cancelled", "queue.ready"]
Events = Annotated[list[EventName], msgspec.Meta(min_length=1, max_length=4)]
Patterns = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1, max_length=limits.TOPIC_MAX_CHARS)]],
    msgspec.Meta(max_length=TOPICS_MAX, description="Names, or patterns that end with a star; empty: all."),
]
Description = Annotated[str, msgspec.Meta(max_length=DESCRIPTION_MAX_CHARS)]
Interval = Annotated[int, msgspec.Meta(ge=1_000, le=86_400_000)]
Ttl = Annotated[Milliseconds, msgspec.Meta(description="Deleted after this time without an update; 0: never.")]
VERSION_MAX = 2**31 - 1


class NewWebhook(Input, kw_only=True):
    """An endpoint to create."""

    url: Url
    events: Events
    topics: Patterns = []
    description: Description = ""
    disabled: bool = False
    named_only: Annotated[
        bool, msgspec.Meta(description="Only jobs that name the endpoint in their header headgate-webhook.")
    ] = False
    include_result: bool = False
    mode: Literal["fanout", "group", "hash"] = "fanout"
    group: Annotated[str, msgspec.Meta(max_length=GROUP_MAX_CHARS)] = ""
    min_interval_ms: Interval = to_ms(INTERVAL_DEFAULT)
    ttl_ms: Ttl = 0


class WebhookChanges(Input, kw_only=True):
    """What to change; the rest stays. The time to live begins again."""

    url: Url | msgspec.UnsetType = msgspec.UNSET
    events: Events | msgspec.UnsetType = msgspec.UNSET
    topics: Patterns | msgspec.UnsetType = msgspec.UNSET
    description: Description | msgspec.UnsetType = msgspec.UNSET
    disabled: bool | msgspec.UnsetType = msgspec.UNSET
    named_only: bool | msgspec.UnsetType = msgspec.UNSET
    include_result: bool | msgspec.UnsetType = msgspec.UNSET
    min_interval_ms: Interval | msgspec.UnsetType = msgspec.UNSET
    ttl_ms: Ttl | msgspec.UnsetType = msgspec.UNSET
    expected_version: Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)] | None = None
    reason: Annotated[str, msgspec.Meta(max_length=limits.REASON_MAX_CHARS)] = ""


class Rotation(WithReason, kw_only=True):
    """How long the previous secret signs as well."""

    overlap_ms: Annotated[int, msgspec.Meta(ge=0, le=604_800_000)] | None = None


class WebhookInfo(Output, kw_only=True):
    """An endpoint as it is now."""

    id: str
    url: str
    events: list[str]
    topics: list[str] = []
    description: str = ""
    disabled: bool = False
    named_only: bool = False
    include_result: bool = False
    mode: str
    group: str = ""
    min_interval_ms: int
    ttl_ms: int = 0
    version: int
    created_us: int
    created_by: str = ""
    changed_us: int
    changed_by: str = ""
    expires_us: int = 0
    disabled_reason: str = ""
    disabled_us: int = 0
    failing_since_us: int = 0
    secrets: Annotated[int, msgspec.Meta(description="How many sign.")] = 0
    secret: Annotated[str, msgspec.Meta(description="Only in the answer that made it.")] = ""


class WebhookPage(Output, kw_only=True):
    """Oldest first; the last id is `after` of the next page."""

    webhooks: list[WebhookInfo]


class AttemptOut(Output, kw_only=True):
    """One request to the endpoint."""

    number: int
    at_us: int
    duration_ms: int
    status: Annotated[int, msgspec.Meta(description="Left out: no answer.")] = 0
    response: Annotated[str, msgspec.Meta(description="The beginning of its body.")] = ""
    error: str = ""


class DeliveryOut(Output, kw_only=True):
    """One event for one endpoint."""

    id: Annotated[str, msgspec.Meta(description="In the header webhook-id: msg_ and its 32 digits.")]
    webhook_id: str
    event: str
    state: Literal["waiting", "sending", "delivered", "failed"]
    at_us: int
    topic: str = ""
    job_id: str = ""
    attempts: int = 0
    next_us: int = 0
    ended_us: int = 0
    status: int = 0
    error: str = ""
    log: list[AttemptOut] = []


class DeliveryPage(Output, kw_only=True):
    """Newest first, without their attempts; the last id is `before` of the next page."""

    deliveries: list[DeliveryOut]


@post("/v1/webhooks", uses="WebhookService/Create", status=201, tags=TAG)
async def create_webhook(request: ApiRequest, data: JSONBody[NewWebhook]) -> WebhookInfo:
    """Create an endpoint. The answer has its secret, which is not shown again."""
    spec = WebhookSpec(
        url=data.url,
        events=tuple(data.events),
        topics=tuple(data.topics),
        description=data.description,
        enabled=not data.disabled,
        named_only=data.named_only,
        include_result=data.include_result,
        mode=Mode.parse(data.mode),
        group=data.group,
        min_interval=span(data.min_interval_ms) or INTERVAL_DEFAULT,
        ttl=span(data.ttl_ms or None),
    )
    view, secret = await request.cases.webhooks.create(request.caller, spec)
    return _info(view, secret=secret)


@get("/v1/webhooks", uses="WebhookService/List", tags=TAG)
async def list_webhooks(
    request: ApiRequest,
    after: Annotated[UUID | None, QueryParameter(description="The last id of the previous page.")] = None,
    limit: PageSize = limits.PAGE_DEFAULT,
) -> WebhookPage:
    """List endpoints, oldest first."""
    found = await request.cases.webhooks.listed(request.caller, after=after, limit=limit)
    return WebhookPage(webhooks=[_info(one) for one in found])


@get("/v1/webhooks/{webhook_id:str}", uses="WebhookService/Get", tags=TAG, etag=True)
async def get_webhook(request: ApiRequest, webhook_id: PathId) -> Response[WebhookInfo]:
    """Read an endpoint."""
    return tagged(request, _info(await request.cases.webhooks.get(request.caller, webhook_id)))


@patch("/v1/webhooks/{webhook_id:str}", uses="WebhookService/Update", tags=TAG)
async def update_webhook(request: ApiRequest, webhook_id: PathId, data: JSONBody[WebhookChanges]) -> WebhookInfo:
    """Change an endpoint, and renew its time to live."""
    view = await request.cases.webhooks.update(
        request.caller, webhook_id, _changes(data), expected=data.expected_version, reason=data.reason
    )
    return _info(view)


@delete("/v1/webhooks/{webhook_id:str}", uses="WebhookService/Delete", status=204, tags=TAG)
async def delete_webhook(
    request: ApiRequest,
    webhook_id: PathId,
    reason: Annotated[str, QueryParameter(max_length=limits.REASON_MAX_CHARS)] = "",
) -> None:
    """Delete an endpoint and its deliveries."""
    await request.cases.webhooks.delete(request.caller, webhook_id, reason=reason)


@post("/v1/webhooks/{webhook_id:str}/rotate-secret", uses="WebhookService/RotateSecret", tags=TAG)
async def rotate_webhook_secret(
    request: ApiRequest, webhook_id: PathId, data: JSONBody[Rotation | None] = None
) -> WebhookInfo:
    """Sign with a new secret. The answer has it; it is not shown again."""
    given = data or Rotation()
    view, secret = await request.cases.webhooks.rotate_secret(
        request.caller, webhook_id, overlap=span(given.overlap_ms), reason=given.reason
    )
    return _info(view, secret=secret)


@post("/v1/webhooks/{webhook_id:str}/test", uses="WebhookService/Test", status=202, tags=TAG)
async def check_webhook(request: ApiRequest, webhook_id: PathId) -> DeliveryOut:
    """Send an event of the type ping."""
    return _delivery(await request.cases.webhooks.test(request.caller, webhook_id))


@get("/v1/webhooks/{webhook_id:str}/deliveries", uses="WebhookService/ListDeliveries", tags=TAG)
async def list_deliveries(
    request: ApiRequest,
    webhook_id: PathId,
    delivery_state: Annotated[
        Literal["waiting", "sending", "delivered", "failed"] | None, QueryParameter(description="Only these.")
    ] = None,
    before: Annotated[UUID | None, QueryParameter(description="The last id of the previous page.")] = None,
    limit: PageSize = limits.PAGE_DEFAULT,
) -> DeliveryPage:
    """List deliveries, newest first."""
    found = await request.cases.webhooks.deliveries(
        request.caller, webhook_id, state=delivery_state or "", before=before, limit=limit
    )
    return DeliveryPage(deliveries=[_delivery(one) for one in found])


@get("/v1/webhooks/{webhook_id:str}/deliveries/{delivery_id:str}", uses="WebhookService/GetDelivery", tags=TAG)
async def get_delivery(request: ApiRequest, webhook_id: PathId, delivery_id: PathId) -> DeliveryOut:
    """Read a delivery with its attempts."""
    return _delivery(await request.cases.webhooks.delivery(request.caller, webhook_id, delivery_id))


@post(
    "/v1/webhooks/{webhook_id:str}/deliveries/{delivery_id:str}/resend",
    uses="WebhookService/Resend",
    status=202,
    tags=TAG,
)
async def resend_delivery(
    request: ApiRequest, webhook_id: PathId, delivery_id: PathId, data: JSONBody[WithReason | None] = None
) -> DeliveryOut:
    """Send a delivery again, under the same id."""
    reason = "" if data is None else data.reason
    return _delivery(await request.cases.webhooks.resend(request.caller, webhook_id, delivery_id, reason=reason))


def _changes(data: WebhookChanges) -> dict[str, Any]:
    given: dict[str, Any] = {
        name: value
        for name in ("url", "description", "named_only", "include_result")
        if (value := getattr(data, name)) is not msgspec.UNSET
    }
    if data.events is not msgspec.UNSET:
        given["events"] = tuple(data.events)
    if data.topics is not msgspec.UNSET:
        given["topics"] = tuple(data.topics)
    if data.disabled is not msgspec.UNSET:
        given["enabled"] = not data.disabled
    if data.min_interval_ms is not msgspec.UNSET:
        given["min_interval"] = span(data.min_interval_ms)
    if data.ttl_ms is not msgspec.UNSET:
        given["ttl"] = span(data.ttl_ms or None)
    return given


def _info(view: Webhook, *, secret: str = "") -> WebhookInfo:
    return answers.of(WebhookInfo, view, view.spec, disabled=not view.spec.enabled, secret=secret)


def _delivery(view: DeliveryView) -> DeliveryOut:
    return answers.of(DeliveryOut, view, log=[answers.of(AttemptOut, one) for one in view.log])
