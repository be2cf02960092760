"""Webhooks: endpoints, the events that are sent to them, signatures, and when a failed delivery is tried again.

The form is that of Standard Webhooks: the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`, and a JSON
body with `type`, `timestamp` and `data`. Pure: no clock, no I/O, no randomness.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntFlag
from typing import Final
from uuid import UUID

from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.redaction import Redaction
from headgate.domain.states import Word
from headgate.domain.topic_sets import TopicSet, check_topic_pattern
from headgate.domain.validation import check_integer, check_span, check_text, shown

TOPICS_MAX: Final = 100
GROUP_MAX_CHARS: Final = 100
DESCRIPTION_MAX_CHARS: Final = 500
HEADER: Final = "headgate-webhook"
"""The header of a job that names the endpoint its end is sent to, among those with `named_only`."""

INTERVAL_MIN: Final = timedelta(seconds=1)
INTERVAL_MAX: Final = timedelta(days=1)
INTERVAL_DEFAULT: Final = timedelta(seconds=5)
TTL_MIN: Final = timedelta(seconds=10)
TTL_MAX: Final = timedelta(days=3650)
OVERLAP_MAX: Final = timedelta(days=7)
OVERLAP_DEFAULT: Final = timedelta(days=1)
"""How long the previous secret signs as well."""
SECRETS_MAX: Final = 5
"""Secrets of an endpoint that sign at the same time: each adds a signature to every request."""

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - not a secret
SECRET_BYTES: Final = 32
RESULT_MAX_BYTES: Final = 65_536
"""A larger result is not part of a body; the receiver reads it by the id of the job."""
RESPONSE_KEPT_CHARS: Final = 1_000
RETRY_AFTER_MAX: Final = timedelta(hours=12)

_S, _M, _H = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DELAYS: Final = (
    *(5 * _S, 30 * _S, 2 * _M, 5 * _M, 15 * _M, 30 * _M, 1 * _H, 2 * _H, 4 * _H, 6 * _H, 8 * _H),
    *(12 * _H, 14 * _H, 24 * _H),
)
"""Between the attempts of one delivery: 15 attempts in just under 72 hours."""
JITTER: Final = (0.9, 1.1)
FEW_DELAYS: Final = (5 * _S, 30 * _S)
"""For `queue.ready`, which is worth little later and is sent again anyway, and for `ping`."""
DISABLED_AFTER: Final = timedelta(days=3)
"""An endpoint that has failed for so long without one success is disabled."""


class Event(IntFlag):
    """What happened. The numbers are stored."""

    JOB_COMPLETED = 1
    JOB_DEAD = 2
    JOB_CANCELLED = 4
    QUEUE_READY = 8
    PING = 16


NAMES: Final[Mapping[Event, str]] = {
    Event.JOB_COMPLETED: "job.completed",
    Event.JOB_DEAD: "job.dead",
    Event.JOB_CANCELLED: "job.cancelled",
    Event.QUEUE_READY: "queue.ready",
    Event.PING: "ping",
}
CHOICES: Final = {name: event for event, name in NAMES.items() if event is not Event.PING}
"""The events that an endpoint can ask for; `ping` is sent on request only."""


class Mode(Word):
    """Which endpoints get a `queue.ready`: each one, or one of those with the same group."""

    FANOUT = 0
    GROUP = 1
    HASH = 2


class DeliveryState(Word):
    """What became of a delivery so far."""

    WAITING = 0
    SENDING = 1
    DELIVERED = 2
    FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSpec:
    """What a caller chooses about an endpoint."""

    url: str
    events: tuple[str, ...]
    topics: tuple[str, ...] = ()  # names, or patterns that end with a star; empty: all
    description: str = ""
    enabled: bool = True
    named_only: bool = False  # job events: only of jobs that name this endpoint in the header headgate-webhook
    include_result: bool = False
    mode: Mode = Mode.FANOUT
    group: str = ""
    min_interval: timedelta = INTERVAL_DEFAULT
    ttl: timedelta | None = None  # from the create or update on; None: without an end

    def checked(self) -> WebhookSpec:
        """The same, or InvalidInput naming the field. The URL is checked by domain/egress.py."""
        events_of(self.events)
        topics_of(self.topics)
        check_text(self.description, field="description", low=0, high=DESCRIPTION_MAX_CHARS)
        check_text(self.group, field="group", low=0, high=GROUP_MAX_CHARS)
        if self.mode is not Mode.FANOUT and not self.group:
            raise InvalidInput("group", f"is missing; mode {self.mode.label} chooses within a group")
        if self.mode is Mode.FANOUT and self.group:
            raise InvalidInput("group", "has a meaning with mode group and mode hash only")
        if self.mode is not Mode.FANOUT and events_of(self.events) != Event.QUEUE_READY:
            raise InvalidInput("events", f"must be queue.ready alone with mode {self.mode.label}")
        check_span(self.min_interval, field="min_interval", low=INTERVAL_MIN, high=INTERVAL_MAX)
        if self.ttl is not None:
            check_span(self.ttl, field="ttl", low=TTL_MIN, high=TTL_MAX)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An endpoint as stored. Its secrets are not part of it: each is shown once."""

    id: UUID
    spec: WebhookSpec
    version: int
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str
    expires_at: datetime | None = None
    disabled_reason: str = ""
    disabled_at: datetime | None = None
    failing_since: datetime | None = None
    secrets: int = 1  # how many sign


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to deliver."""

    number: int
    at: datetime
    duration_ms: int
    status: int | None  # None: no answer
    response: str  # the beginning of its body
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryView:
    """One event for one endpoint, as people see it."""

    id: UUID
    webhook_id: UUID
    event: str
    state: DeliveryState
    at: datetime
    topic: str
    job_id: UUID | None
    attempts: int
    next_at: datetime | None
    ended_at: datetime | None
    status: int | None
    error: str
    log: Sequence[Attempt] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A delivery that this instance is to send now. `attempt` is its fencing token as well."""

    no: int
    id: UUID
    webhook_no: int
    event: Event
    at: datetime
    data: Mapping[str, object] = field(hash=False)
    attempt: int
    tried: int  # attempts of this round, this one included: a resend begins another round
    url: str
    secrets: tuple[str, ...] = field(repr=False)
    failing: bool
    result: bytes | None = field(default=None, repr=False)  # only if the endpoint asks for results
    with_result: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one request."""

    status: int | None = None
    response: str = ""
    error: str = ""
    duration_ms: int = 0
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a request means for its delivery. `wait` None: it is over."""

    delivered: bool = False
    gone: bool = False  # the endpoint wants no more: it is disabled
    wait: timedelta | None = None


def verdict_of(sent: Sent, *, event: Event, tried: int, jitter: float) -> Verdict:
    """Decide: 2xx is success, 410 disables the endpoint, everything else is tried again as long as there are delays.

    `jitter` is a random number from 0 to 1. A Retry-After of 429 and 503 counts if it is later than the schedule.
    """
    if sent.status is not None and 200 <= sent.status < 300:
        return Verdict(delivered=True)
    if sent.status == 410:
        return Verdict(gone=True)
    delays = FEW_DELAYS if event in (Event.QUEUE_READY, Event.PING) else DELAYS
    if tried > len(delays):
        return Verdict()
    low, high = JITTER
    wait = delays[tried - 1] * (low + (high - low) * jitter)
    if sent.retry_after is not None and sent.status in (429, 503):
        wait = max(wait, min(sent.retry_after, RETRY_AFTER_MAX))
    return Verdict(wait=wait)


def retry_after_of(text: str, *, now: datetime) -> timedelta | None:
    """The header Retry-After: seconds, or a date. None if it is neither."""
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return timedelta(seconds=int(text))
    try:
        at = datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    except ValueError:
        return None
    return max(timedelta(0), at - now)


# --- what callers give ----------------------------------------------------------------------------------------------


def events_of(names: Sequence[str]) -> Event:
    """The events of these names. Raises InvalidInput."""
    if not names:
        raise InvalidInput("events", "must name at least one event", hint=f"one of {', '.join(CHOICES)}")
    found = Event(0)
    for name in names:
        if name not in CHOICES:
            raise InvalidInput("events", f"no event {shown(name)}", hint=f"one of {', '.join(CHOICES)}")
        found |= CHOICES[name]
    return found


def event_names(events: int) -> tuple[str, ...]:
    """The names of a set of events, in a fixed order."""
    return tuple(name for name, event in CHOICES.items() if events & event)


def topics_of(patterns: Sequence[str]) -> TopicSet | None:
    """The topics that an endpoint is for; None: all. Raises InvalidInput."""
    if len(patterns) > TOPICS_MAX:
        raise TooLarge("topics", size=len(patterns), limit=TOPICS_MAX, unit="topics", hint="use a pattern")
    found = [check_topic_pattern(one) for one in patterns]
    return None if not found or "*" in found else TopicSet.of(*found)


def like_patterns(patterns: Sequence[str]) -> list[str]:
    """The same for LIKE ANY."""
    topics = topics_of(patterns)
    return ["%"] if topics is None else topics.like


def check_overlap(value: object) -> timedelta:
    """Accept how long the previous secret signs as well; 0: not at all."""
    return check_span(value, field="overlap", low=timedelta(0), high=OVERLAP_MAX)


# --- signatures -----------------------------------------------------------------------------------------------------


def new_secret(random_bits: bytes) -> str:
    """A secret as shown to people, from 32 random bytes."""
    check_integer(len(random_bits), field="random_bits", low=SECRET_BYTES, high=SECRET_BYTES)
    return SECRET_PREFIX + base64.b64encode(random_bits).decode()


def signature(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the Base64 of the HMAC-SHA256 of `id.timestamp.body`, as Standard Webhooks specifies."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def message_id(delivery: UUID) -> str:
    """The header `webhook-id`: the same for every attempt of a delivery."""
    return f"msg_{delivery.hex}"


def headers_of(delivery: ClaimedDelivery, body: bytes, *, timestamp: int) -> list[tuple[str, str]]:
    """The three headers. With several secrets there are several signatures: a receiver accepts any of them."""
    name = message_id(delivery.id)
    signed = (signature(one, message_id=name, timestamp=timestamp, body=body) for one in delivery.secrets)
    return [
        ("webhook-id", name),
        ("webhook-timestamp", str(timestamp)),
        ("webhook-signature", " ".join(signed)),
    ]


def body_of(delivery: ClaimedDelivery, redaction: Redaction) -> bytes:
    """The body. It has no payload; a result only if the endpoint asks for it. Secret values are masked."""
    data = dict(delivery.data)
    if isinstance(error := data.get("error"), str):
        data["error"] = redaction.masked_text(error)
    if delivery.with_result and delivery.event is Event.JOB_COMPLETED:
        data |= _result(delivery.result, redaction)
    whole = {
        "type": NAMES[delivery.event],
        "timestamp": delivery.at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "data": data,
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _result(result: bytes | None, redaction: Redaction) -> dict[str, object]:
    if result is None:
        return {"result_omitted": "gone"}
    if len(result) > RESULT_MAX_BYTES:
        return {"result_omitted": "too_large"}
    if not result:
        return {"result": None}
    try:
        return {"result": redaction.masked(json.loads(result))}
    except (ValueError, RecursionError):  # what is not JSON cannot be masked
        return {"result_omitted": "not_json"}
