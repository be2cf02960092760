"""`headgate webhook …`: endpoints that get events over HTTP, and what was delivered to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.confirming import confirm_on_terminal
from headgate.cli.connection import with_client
from headgate.cli.lists import show_list
from headgate.cli.options import (
    DEFAULT_SERVER,
    LISTING,
    SHORT_LISTING,
    Listing,
    Output,
    Reason,
    Server,
    ShortListing,
    YesOnTerminal,
)
from headgate.cli.output import Columns, details, duration, for_people, painted, print_lines, print_one, table, when
from headgate.domain.errors import InvalidInput
from headgate.sdk.admin.webhooks import DeliveryAttempt, DeliveryInfo, WebhookChanges, WebhookInfo

webhook = App(name="webhook", help="Send events to HTTP endpoints, and show what was delivered.")
WebhookId = Annotated[str, Parameter(help="Id of the endpoint.")]
DeliveryId = Annotated[str, Parameter(help="Id of the delivery, or the header webhook-id: msg_….")]
Events = Annotated[
    str, Parameter(help="Events, separated by commas: job.completed, job.dead, job.cancelled, queue.ready.")
]
TopicPatterns = Annotated[str, Parameter(help="Topics, separated by commas: names, or patterns such as `mail.*`.")]
Description = Annotated[str, Parameter(help="Text for people.")]
NamedOnly = Annotated[
    bool, Parameter(help="Only jobs that have the id of the endpoint in their header headgate-webhook.")
]
IncludeResult = Annotated[
    bool, Parameter(help="job.completed: add the result, if it is JSON of at most 64 KiB. Secret values are masked.")
]
MinInterval = Annotated[str, Parameter(help="queue.ready: at most one event per topic in this time: 5s, 1m.")]
Ttl = Annotated[str, Parameter(help="Delete the endpoint after this time without an update: 10m, 1h.")]

COLUMNS: Final[Columns[WebhookInfo]] = {
    "WEBHOOK": lambda one: one.id,
    "STATE": lambda one: state_of(one),
    "EVENTS": lambda one: ",".join(one.events),
    "TOPICS": lambda one: ",".join(one.topics) or "*",
    "URL": lambda one: one.url,
}
DELIVERIES: Final[Columns[DeliveryInfo]] = {
    "DELIVERY": lambda one: one.id,
    "EVENT": lambda one: one.event,
    "STATE": lambda one: one.state,
    "AT": lambda one: one.at,
    "ATTEMPTS": lambda one: one.attempts,
    "STATUS": lambda one: one.status,
    "JOB": lambda one: one.job_id,
    "ERROR": lambda one: one.error,
}
ATTEMPTS: Final[Columns[DeliveryAttempt]] = {
    "ATTEMPT": lambda one: one.number,
    "AT": lambda one: one.at,
    "TOOK": lambda one: f"{one.duration_ms} ms",
    "STATUS": lambda one: one.status,
    "ERROR": lambda one: one.error,
    "RESPONSE": lambda one: one.response,
}


@webhook.command(name="create")
def create_command(
    url: Annotated[str, Parameter(help="URL of the endpoint: https://….")],
    events: Events,
    *,
    topics: TopicPatterns = "",
    description: Description = "",
    disabled: Annotated[bool, Parameter(help="Send nothing until the endpoint is enabled.")] = False,
    named_only: NamedOnly = False,
    include_result: IncludeResult = False,
    mode: Annotated[
        str, Parameter(help="queue.ready: send to each endpoint (fanout), or to one of a group (group, hash).")
    ] = "fanout",
    group: Annotated[str, Parameter(help="Name of the group, with --mode group and --mode hash.")] = "",
    min_interval: MinInterval = "5s",
    ttl: Ttl = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Create an endpoint, and print its secret, which is not shown again."""
    interval = values.duration(min_interval, field="--min-interval")
    lives = values.duration(ttl, field="--ttl") if ttl else None
    made = with_client(
        server,
        lambda hg: hg.admin.webhooks.create(
            url,
            _listed(events),
            topics=_listed(topics),
            description=description,
            enabled=not disabled,
            named_only=named_only,
            include_result=include_result,
            mode=mode,
            group=group,
            min_interval=interval,
            ttl=lives,
        ),
    )
    _report(made, output)


@webhook.command(name="list")
def list_command(*, listing: Listing = LISTING) -> None:
    """List all endpoints."""
    show_list(
        listing.shown,
        lambda hg: hg.admin.webhooks.list(),
        COLUMNS,
        name=lambda one: one.id,
        empty="no webhooks",
        fields=_fields,
        part=listing.part,
        limit=listing.limit,
    )


@webhook.command(name="get")
def get_command(webhook_id: WebhookId, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Show one endpoint."""
    _report(with_client(server, lambda hg: hg.admin.webhooks.get(webhook_id)), output)


@webhook.command(name="update")
def update_command(
    webhook_id: WebhookId,
    *,
    url: Annotated[str, Parameter(help="New URL.")] = "",
    events: Events = "",
    topics: Annotated[str, Parameter(help="New topics, separated by commas; `*` for all.")] = "",
    description: Annotated[str | None, Parameter(help="New text for people.")] = None,
    enable: Annotated[bool, Parameter(help="Send events again, and those that wait.")] = False,
    disable: Annotated[bool, Parameter(help="Send nothing; events from now on are not kept.")] = False,
    named_only: Annotated[bool | None, Parameter(help="As for create.", negative="--all-jobs")] = None,
    include_result: Annotated[bool | None, Parameter(help="As for create.", negative="--without-result")] = None,
    min_interval: MinInterval = "",
    ttl: Ttl = "",
    version: Annotated[int, Parameter(help="Fail unless the endpoint has this version.")] = -1,
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Change an endpoint, and renew its time to live."""
    if enable and disable:
        raise InvalidInput("--enable", "cannot be given together with --disable", hint="pass one of the two")
    changes = WebhookChanges()
    if url:
        changes["url"] = url
    if events:
        changes["events"] = _listed(events)
    if topics:
        changes["topics"] = _listed(topics)
    if description is not None:
        changes["description"] = description
    if enable or disable:
        changes["enabled"] = enable
    if named_only is not None:
        changes["named_only"] = named_only
    if include_result is not None:
        changes["include_result"] = include_result
    if min_interval:
        changes["min_interval"] = values.duration(min_interval, field="--min-interval")
    if ttl:
        changes["ttl"] = values.duration(ttl, field="--ttl")
    expected = None if version < 0 else version
    changed = with_client(
        server, lambda hg: hg.admin.webhooks.update(webhook_id, version=expected, reason=reason, **changes)
    )
    _report(changed, output)


@webhook.command(name="delete")
def delete_command(
    webhook_id: WebhookId,
    *,
    reason: Reason = "",
    yes: YesOnTerminal = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Delete an endpoint and its deliveries."""
    confirm_on_terminal(lambda: [f"The endpoint {webhook_id} and its deliveries are deleted."], output, yes=yes)
    with_client(server, lambda hg: hg.admin.webhooks.delete(webhook_id, reason=reason))
    print_one({"id": webhook_id, "deleted": True}, output, lambda: [f"{webhook_id} is deleted"], name=webhook_id)


@webhook.command(name="rotate-secret")
def rotate_command(
    webhook_id: WebhookId,
    *,
    overlap: Annotated[str, Parameter(help="How long the previous secret signs as well: 24h; 0s: not at all.")] = "24h",
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Sign with a new secret, and print it; it is not shown again."""
    lasting = values.duration(overlap, field="--overlap")
    made = with_client(server, lambda hg: hg.admin.webhooks.rotate_secret(webhook_id, overlap=lasting, reason=reason))
    _report(made, output)


@webhook.command(name="deliveries")
def deliveries_command(
    webhook_id: WebhookId,
    delivery_id: Annotated[str, Parameter(help="Show this delivery and its attempts.")] = "",
    *,
    state: Annotated[str, Parameter(help="Only deliveries that are waiting, sending, delivered or failed.")] = "",
    listing: ShortListing = SHORT_LISTING,
) -> None:
    """List the deliveries of an endpoint, newest first, or show one with its attempts."""
    if delivery_id:
        server, output = listing.shown.server, listing.shown.output
        _report_delivery(with_client(server, lambda hg: hg.admin.webhooks.delivery(webhook_id, delivery_id)), output)
        return
    show_list(
        listing.shown,
        lambda hg: hg.admin.webhooks.deliveries(webhook_id, state=state, limit=listing.read_limit),
        DELIVERIES,
        name=lambda one: one.id,
        empty="no deliveries",
        part=listing.part,
        limit=listing.limit,
    )


@webhook.command(name="resend")
def resend_command(
    webhook_id: WebhookId,
    delivery_id: DeliveryId,
    *,
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Send a delivery again, under the same id."""
    again = with_client(server, lambda hg: hg.admin.webhooks.resend(webhook_id, delivery_id, reason=reason))
    _report_delivery(again, output)


@webhook.command(name="test")
def ping_command(webhook_id: WebhookId, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Send an event of the type ping, and print its delivery."""
    _report_delivery(with_client(server, lambda hg: hg.admin.webhooks.test(webhook_id)), output)


def state_of(info: WebhookInfo) -> str:
    """One word for people."""
    return "disabled" if not info.enabled else "active" if info.failing_since is None else "failing"


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _report(info: WebhookInfo, output: str) -> None:
    title = f"{info.id}  {painted(state_of(info))}   version {info.version}"
    print_one(_fields(info), output, lambda: details(title, _details(info)), name=info.id)


def _details(info: WebhookInfo) -> Iterator[tuple[str, object]]:
    yield "url", info.url
    yield "events", ", ".join(info.events)
    yield "topics", ", ".join(info.topics) or "all"
    if info.named_only:
        yield "jobs", f"only those with the header headgate-webhook: {info.id}"
    if info.include_result:
        yield "body", "with the result of the job"
    if "queue.ready" in info.events:
        group = f" of the group {info.group}" if info.group else ""
        yield "mode", f"{info.mode}{group}, at most one event per topic in {duration(info.min_interval)}"
    yield "text", info.description
    yield "created", f"{when(info.created_at)} by {info.created_by}"
    yield "expires", when(info.expires_at) if info.expires_at else ""
    yield "failing", f"since {when(info.failing_since)}" if info.failing_since else ""
    if info.disabled_at is not None:
        yield "disabled", f"{when(info.disabled_at)}: {info.disabled_reason}"
    yield "secret", f"{info.secret}   (not shown again)" if info.secret else ""


def _report_delivery(info: DeliveryInfo, output: str) -> None:
    title = f"{info.id}  {painted(info.state)}"
    fields = {
        "event": info.event,
        "job": info.job_id or "",
        "topic": info.topic,
        "at": when(info.at),
        "next": when(info.next_at) if info.next_at else "",
        "status": info.status or "",
        "error": info.error,
    }
    print_one(info, output, lambda: details(title, fields.items()), name=info.id)
    if for_people(output) and info.log:
        print_lines(["", *table(info.log, ATTEMPTS)])


def _fields(info: WebhookInfo) -> dict[str, object]:
    shown = {"state": state_of(info)} | asdict(info)
    if not info.secret:
        del shown["secret"]
    return shown
