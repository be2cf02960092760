"""Values that several routes translate: times, spans, ids, states, payloads, jobs as read.

Names are those of the protocol (proto/headgate/v1): times are microseconds since 1970 (`_us`), spans are milliseconds
(`_ms`). Ids are UUIDs as text and states are words. What is not set is left out of an answer.

A payload or a result that is JSON is JSON here, too. Other bytes are in `payload_base64` or `result_base64`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from litestar import Response

from headgate.api.fields import Answers
from headgate.api.http.request import ApiRequest
from headgate.domain import limits
from headgate.domain.backoff import BackoffKind, RetryPolicy, policy_from
from headgate.domain.bulk import JobLine
from headgate.domain.dependencies import Met, Relation
from headgate.domain.envelope import content_type_of
from headgate.domain.errors import InvalidInput, not_both
from headgate.domain.states import State
from headgate.domain.timestamps import MAX_US, from_unix_us, unix_us
from headgate.domain.views import JobView

CONTENT_TYPE: Final = "content-type"
"""The header of a job that says what its payload is; without it, it is JSON if it can be read as JSON."""
BYTES: Final = "application/octet-stream"
JSON: Final = "application/json"
NOT_A_PAGE: Final = {"content-disposition": "attachment", "content-security-policy": "sandbox; default-src 'none'"}
"""Producers choose the bytes and their type: a browser must not run them as a page of this server."""
NOTHING: Final = timedelta(0)
_MS: Final = timedelta(milliseconds=1)

StateName = Literal["pending", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled"]
NeedsName = Literal["succeeded", "ended"]
OnFailureName = Literal["cancel", "ignore", "block"]
BackoffName = Literal[
    "quadratic",
    "fixed",
    "linear",
    "exponential",
    "exponential_equal_jitter",
    "exponential_full_jitter",
    "explicit",
]
RawJson: TypeAlias = msgspec.Raw | msgspec.UnsetType
"""A JSON value that is passed on as it is; UNSET: there is none."""
Microseconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_US)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=limits.SPAN_MAX_MS)]
Reason = Annotated[
    str, msgspec.Meta(max_length=limits.REASON_MAX_CHARS, description="Why, for the audit and the history.")
]
Priority = Annotated[int, msgspec.Meta(ge=limits.PRIORITY_MIN, le=limits.PRIORITY_MAX)]
Attempts = Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_ATTEMPTS_LIMIT)]
# Described here and checked by the use cases, whose errors have the whole rule; in a batch, for the one job alone.
TopicName = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={
            "minLength": 1,
            "maxLength": limits.TOPIC_MAX_CHARS,
            "pattern": f"^{limits.TOPIC_PATTERN}$",
        }
    ),
]


class Input(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body, or a part of one: a field that it does not have is refused by name."""


class Output(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An answer, or a part of one: what is not set is left out."""


answers: Final = Answers(
    lambda kind: kind.__struct_fields__, {UUID: str, tuple: list, IntEnum: lambda one: one.name.lower()}
)
"""Answers from records."""


# ---------------------------------------------------------------------- plain values


def at_us(moment: datetime | None) -> int:
    """Microseconds since 1970; 0 (left out) for none."""
    return 0 if moment is None else unix_us(moment)


def moment(microseconds: int | None, *, field: str) -> datetime | None:
    """A point in time; None for none. Raises InvalidInput for one that is out of range."""
    if not microseconds:
        return None
    try:
        return from_unix_us(microseconds)
    except OverflowError:
        raise InvalidInput(field, f"{microseconds} µs is out of range (must be before 9999-12-31)") from None


def span(milliseconds: int | None) -> timedelta | None:
    """A span; None for none."""
    return None if milliseconds is None else milliseconds * _MS


def label(state: State | None) -> StateName | Literal[""]:
    """The word for a state; empty (left out) for none."""
    return "" if state is None else state.label  # type: ignore[return-value]  # the labels are those of StateName


def id_text(known: UUID | None) -> str:
    """An id; empty (left out) for none."""
    return "" if known is None else str(known)


def counts_of(by_state: Mapping[State, int]) -> dict[str, int]:
    """How many jobs are in each state, without those that have none."""
    return {state.label: by_state[state] for state in sorted(by_state) if by_state[state]}


# ---------------------------------------------------------------------- bytes


def is_json(raw: bytes) -> bool:
    """Whether bytes can stand in a JSON document as they are."""
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def payload_bytes(payload: RawJson, payload_base64: str | None, *, field: str = "payload") -> bytes:
    """The bytes of a payload that is given as JSON or in base64; raises InvalidInput."""
    raw = b"" if payload is msgspec.UNSET else bytes(payload)
    if payload_base64 is None:
        try:
            raw.decode()
        except UnicodeDecodeError:
            raise InvalidInput(field, "is not UTF-8") from None
        return raw
    if raw:
        raise not_both(f"{field}_base64", field)
    try:
        return b64decode(payload_base64, validate=True)
    except (Base64Error, ValueError):
        raise InvalidInput(f"{field}_base64", "is not base64", hint="RFC 4648, with padding") from None


def media_type_of(raw: bytes, headers: Mapping[str, str] | None = None) -> str:
    """What a payload or a result is: encrypted, or what the header of its job says, else by its look."""
    named = content_type_of(raw) or (headers or {}).get(CONTENT_TYPE, "")
    return named or (JSON if is_json(raw) else BYTES)


def content(raw: bytes | None, headers: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """Bytes as a field of JSON, or else in base64; what does not apply is UNSET or empty."""
    if not raw:
        return msgspec.UNSET, ""
    named = (headers or {}).get(CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if (not named or named == JSON or named.endswith("+json")) and is_json(raw):
        return msgspec.Raw(raw), ""
    return msgspec.UNSET, b64encode(raw).decode()


# ---------------------------------------------------------------------- responses

Body = TypeVar("Body")


def tagged(request: ApiRequest, body: Body) -> Response[Body]:
    """A response with an ETag of its content, or 304 if the client has it already."""
    encoded = msgspec.json.encode(body)
    tag = f'"{blake2b(encoded, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    given = [one.strip() for one in request.headers.get("if-none-match", "").split(",")]
    if tag in given or f"W/{tag}" in given or given == ["*"]:
        return Response(None, status_code=304, headers=headers)  # type: ignore[arg-type]  # has no body
    return Response(body, headers=headers)


# ---------------------------------------------------------------------- retries


class RetryPolicyIn(Input, kw_only=True):
    """How long to wait after a failed attempt."""

    kind: BackoffName = "quadratic"
    base_ms: Annotated[int, msgspec.Meta(ge=1, le=limits.RETRY_CAP_MAX_MS)] | None = None
    cap_ms: Annotated[int, msgspec.Meta(ge=1, le=limits.RETRY_CAP_MAX_MS)] | None = None
    delays_ms: Annotated[list[Milliseconds], msgspec.Meta(max_length=limits.RETRY_DELAYS_MAX)] = []

    def policy(self) -> RetryPolicy:
        """The policy; raises InvalidInput."""
        try:
            return policy_from(BackoffKind[self.kind.upper()], self.base_ms or 0, self.cap_ms or 0, self.delays_ms)
        except InvalidInput as error:  # by the name that the field has here, in all bodies
            field = error.field.removeprefix("policy.")
            raise InvalidInput(f"retry.{field}", error.problem, hint=error.hint) from None


class RetryPolicyOut(Output, kw_only=True):
    """How long to wait after a failed attempt."""

    kind: BackoffName
    base_ms: int
    cap_ms: int
    delays_ms: list[int] = []


def policy_out(policy: RetryPolicy) -> RetryPolicyOut:
    """A retry policy as read."""
    return answers.of(RetryPolicyOut, policy)


# ---------------------------------------------------------------------- jobs as read


class RelationOut(Output, kw_only=True):
    """A dependency between two jobs."""

    id: str
    needs: NeedsName
    met: str


class ProgressOut(Output, kw_only=True):
    """What the handler has reported."""

    done: int = 0
    total: int = 0
    message: str = ""
    at_us: int = 0


class LineageOut(Output, kw_only=True):
    """The schedule that created a job."""

    schedule: str = ""
    occurrence_us: int = 0
    triggered: bool = False


class EventOut(Output, kw_only=True):
    """One entry of a job's history."""

    at_us: int
    kind: str
    epoch: int = 0
    attempt: int = 0
    state: StateName | Literal[""] = ""
    run_at_us: int = 0
    claimed_us: int = 0
    worker: str = ""
    actor: str = ""
    reason: str = ""
    error_type: str = ""
    error_message: str = ""
    error_trace: str = ""
    no: Annotated[int, msgspec.Meta(description="Its number, for `events_before`.")] = 0


class JobInfo(Output, kw_only=True):
    """A job as it is now."""

    id: str
    tenant: str
    topic: str
    state: StateName
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    epoch: int = 0
    cancel_requested: bool = False
    worker: Annotated[str, msgspec.Meta(description="The worker that runs it, or that ran it last.")] = ""
    created_us: int = 0
    run_at_us: int = 0
    claimed_us: int = 0
    lease_until_us: int = 0
    finished_us: int = 0
    deadline_us: int = 0
    last_error: str = ""
    headers: dict[str, str] = {}
    tags: list[str] = []
    payload: Annotated[RawJson, msgspec.Meta(description="With `with_payload`, if it is JSON.")] = msgspec.UNSET
    payload_base64: Annotated[str, msgspec.Meta(description="With `with_payload`, if it is not JSON.")] = ""
    result: Annotated[RawJson, msgspec.Meta(description="Of a completed job, with `with_result`.")] = msgspec.UNSET
    result_base64: str = ""
    progress: ProgressOut | None = None
    events: Annotated[
        list[EventOut], msgspec.Meta(description="With `with_events`: the newest 1,000, oldest of them first.")
    ] = []
    older_events: Annotated[bool, msgspec.Meta(description="There are events before the first of `events`.")] = False
    key: Annotated[str, msgspec.Meta(description="The idempotency key, until it expires.")] = ""
    unique_key: str = ""
    parents: list[RelationOut] = []
    parent_count: int = 0
    children: list[RelationOut] = []
    child_count: int = 0
    batch_id: str = ""
    lineage: LineageOut | None = None


def job_info(job: JobView) -> JobInfo:
    """A job as read."""
    payload, payload_base64 = content(job.payload, job.headers)
    result, result_base64 = content(job.result)
    return answers.of(
        JobInfo,
        job,
        job.dependencies,
        headers=dict(job.headers),
        payload=payload,
        payload_base64=payload_base64,
        result=result,
        result_base64=result_base64,
        progress=ProgressOut(**job.progress) if job.progress else None,  # type: ignore[arg-type]  # written by us
        events=[answers.of(EventOut, one) for one in job.events],
        parents=_relations(job.dependencies.parents),
        children=_relations(job.dependencies.children),
        lineage=None
        if job.lineage is None
        else LineageOut(schedule=job.lineage[0], occurrence_us=at_us(job.lineage[1]), triggered=job.lineage[2]),
    )


def job_line(job: JobLine, tenant: str) -> JobInfo:
    """A job of a list."""
    return answers.part_of(JobInfo, job, tenant=tenant)


def _relations(found: Sequence[Relation]) -> list[RelationOut]:
    return [
        RelationOut(id=str(one.job_id), needs=one.needs.label, met=Met(one.met).name.lower())  # type: ignore[arg-type]
        for one in found
    ]
