"""Jobs to submit, between JSON and the domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from headgate.api.http.codec import (
    CONTENT_TYPE,
    Attempts,
    Input,
    Microseconds,
    Milliseconds,
    NeedsName,
    OnFailureName,
    Priority,
    RawJson,
    RetryPolicyIn,
    TopicName,
    moment,
    payload_bytes,
    span,
)
from headgate.api.http.problems import ItemError, item_error
from headgate.control.submit import SubmitResult
from headgate.domain import limits
from headgate.domain.dependencies import Unique
from headgate.domain.errors import InvalidInput, not_both
from headgate.domain.ids import JobId, TenantName, id_from_bytes, parse_job_id
from headgate.domain.ids import TopicName as Topic
from headgate.domain.jobs import Submission
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_deadline, check_key, check_run_at

KeyText = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.KEY_MAX_CHARS)]


class UniqueIn(Input, kw_only=True):
    """At most one live job of the topic has this key."""

    key: KeyText
    on_conflict: Literal["keep", "replace", "reschedule"] = "keep"
    debounce_max_ms: Milliseconds | None = None


class NewJob(Input, kw_only=True):
    """One job to submit. Only the topic is required."""

    topic: TopicName
    payload: Annotated[
        RawJson, msgspec.Meta(description="Any JSON value: for a handler, an object of its arguments by name.")
    ] = msgspec.UNSET
    payload_base64: Annotated[
        str | None, msgspec.Meta(description="Other bytes, in place of `payload`; at most 1 MiB.")
    ] = None
    content_type: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None,
        msgspec.Meta(description="Of `payload_base64`; kept as the header `content-type` of the job."),
    ] = None
    id: Annotated[
        UUID | None,
        msgspec.Meta(description="A UUID of version 7, made by the client: sending the job again is safe then."),
    ] = None
    priority: Priority | None = None
    delay_ms: Milliseconds | None = None
    run_at_us: Annotated[Microseconds | None, msgspec.Meta(description="Not together with `delay_ms`.")] = None
    deadline_ms: Annotated[
        Milliseconds | None, msgspec.Meta(description="The job is not started later than this after the submit.")
    ] = None
    deadline_us: Annotated[Microseconds | None, msgspec.Meta(description="The same as a time.")] = None
    max_attempts: Attempts | None = None
    retry: RetryPolicyIn | None = None
    key: Annotated[
        KeyText | None,
        msgspec.Meta(description="Idempotency key, within the topic. The header Idempotency-Key is the same."),
    ] = None
    key_window_ms: Milliseconds | None = None
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=limits.HEADERS_MAX)] = {}
    tags: Annotated[list[str], msgspec.Meta(max_length=limits.TAGS_MAX)] = []
    limit_key: KeyText | None = None
    unique: UniqueIn | None = None
    depends_on: Annotated[list[UUID], msgspec.Meta(max_length=limits.PARENTS_MAX)] = []
    needs: NeedsName = "succeeded"
    on_parent_failure: OnFailureName = "cancel"
    batch: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawJob:
    """A job as the use case takes it: `control.submit.RawJob`."""

    id: bytes
    topic: str
    payload: bytes
    new_id: bool
    given: NewJob


def raw_job(job: NewJob, *, key: str | None = None) -> RawJob:
    """A job with the bytes of its payload; `key` is the idempotency key of its request. Raises InvalidInput."""
    if key is not None:
        check_key(key, field="Idempotency-Key")
        if job.key is not None and job.key != key:
            raise InvalidInput("key", "is not the same as the header Idempotency-Key", hint="give one of the two")
        job = msgspec.structs.replace(job, key=key)
    if job.content_type is not None:
        if job.payload_base64 is None:
            raise InvalidInput("content_type", "is for payload_base64 only", hint="payload is always JSON")
        job = msgspec.structs.replace(job, headers=job.headers | {CONTENT_TYPE: job.content_type})
    return RawJob(
        id=b"" if job.id is None else job.id.bytes,
        topic=job.topic,
        payload=payload_bytes(job.payload, job.payload_base64),
        new_id=job.id is None,
        given=job,
    )


def submission_of(
    job: RawJob, *, tenant: str, make_id: Callable[[], JobId], sees: TopicSet | None = None
) -> Submission:
    """One job to submit; raises InvalidInput naming the field. `sees`: topics whose jobs it may refer to."""
    given = job.given
    delay = span(given.delay_ms)
    run_at = moment(given.run_at_us, field="run_at_us")
    if delay is not None and run_at is not None:
        raise not_both("run_at_us", "delay_ms")
    if run_at is not None:
        run_at = check_run_at(run_at, now=datetime.now(UTC), field="run_at_us")
    return Submission(
        tenant=TenantName(tenant),
        topic=Topic(given.topic),
        sees=sees,
        id=make_id() if given.id is None else parse_job_id(given.id),
        payload=job.payload,
        priority=given.priority,
        delay=delay,
        run_at=run_at,
        deadline=_deadline(given, run_at or delay),
        max_attempts=given.max_attempts,
        policy=None if given.retry is None else given.retry.policy(),
        headers=given.headers,
        tags=tuple(given.tags),
        key=given.key,
        key_window=span(given.key_window_ms),
        limit_key=given.limit_key,
        new_id=job.new_id,
        unique=None
        if given.unique is None
        else Unique(
            key=given.unique.key,
            on_conflict=given.unique.on_conflict,
            debounce_max=span(given.unique.debounce_max_ms),
        ),
        depends_on=given.depends_on,
        needs=given.needs,
        on_parent_failure=given.on_parent_failure,
        batch=given.batch,
    )


def _deadline(given: NewJob, due: datetime | timedelta | None) -> datetime | timedelta | None:
    if given.deadline_ms is not None and given.deadline_us is not None:
        raise not_both("deadline_us", "deadline_ms")
    # The deadline of a repeated submit may have passed meanwhile: that must not hide that the job exists.
    now = datetime.now(UTC) if given.id is None else None
    if given.deadline_ms is not None:
        return check_deadline(span(given.deadline_ms), due=due, now=now, field="deadline_ms")
    if (at := moment(given.deadline_us, field="deadline_us")) is None:
        return None
    at = check_run_at(at, now=datetime.now(UTC), field="deadline_us")
    return check_deadline(at, due=due, now=now, field="deadline_us")


class SubmitReceipt(msgspec.Struct, kw_only=True):
    """What happened to one job."""

    index: Annotated[int, msgspec.Meta(description="Its position in the request.")]
    id: Annotated[str | None, msgspec.Meta(description="The job that exists now; null if there is none.")]
    code: Literal["created", "duplicate", "conflict", "refused"]
    error: ItemError | None = None


def receipt_of(result: SubmitResult) -> SubmitReceipt:
    """What happened to one job."""
    return SubmitReceipt(
        index=result.index,
        id=str(id_from_bytes(result.job_id)) if result.job_id else None,
        code=result.receipt.label,  # type: ignore[arg-type]  # the four words
        error=item_error(result.error),
    )
