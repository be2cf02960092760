"""Jobs to submit, and their receipts, between the wire and the domain."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from headgate.api.grpc.codec import moment, retry_policy, span
from headgate.api.grpc.errors import message_of
from headgate.control.submit import SubmitResult
from headgate.domain.dependencies import Needs, OnConflict, OnParentFailure, Unique
from headgate.domain.errors import InvalidInput, not_both
from headgate.domain.ids import JobId, TenantName, TopicName, id_from_bytes, parse_job_id
from headgate.domain.jobs import JobRules, Submission
from headgate.domain.states import Word
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_deadline, check_run_at
from headgate.wire import producer_pb2 as pb

_PLAIN: Final = {"id", "topic", "payload", "new_id"}


def is_plain(job: pb.NewJob) -> bool:
    """Whether it has nothing but an id, a topic and a payload."""
    return all(field.name in _PLAIN for field, _ in job.ListFields())


def submission_of(
    job: pb.NewJob, *, tenant: str, make_id: Callable[[], JobId], sees: TopicSet | None = None
) -> Submission:
    """One job to submit; raises InvalidInput naming the field. `sees`: topics whose jobs it may refer to."""
    if job.delay_ms and job.run_at_us:
        raise not_both("run_at_us", "delay_ms")
    delay = span(job.delay_ms, "delay_ms") if job.delay_ms else None
    run_at = _due_at(job.run_at_us, field="run_at_us") if job.run_at_us else None
    return Submission(
        tenant=TenantName(tenant),
        topic=TopicName(job.topic),
        sees=sees,
        id=parse_job_id(id_from_bytes(job.id)) if job.id else make_id(),
        payload=job.payload,
        priority=job.priority if job.HasField("priority") else None,
        delay=delay,
        run_at=run_at,
        deadline=_deadline(job, run_at or delay),
        max_attempts=job.max_attempts or None,
        policy=retry_policy(job.retry) if job.HasField("retry") else None,
        declared=declared_of(job),
        headers=dict(job.headers),
        tags=tuple(job.tags),
        key=job.key or None,
        key_window=span(job.key_window_ms, "key_window_ms") if job.key_window_ms else None,
        limit_key=job.limit_key or None,
        new_id=job.new_id or not job.id,
        unique=_unique(job.unique) if job.HasField("unique") else None,
        depends_on=[id_from_bytes(one, field="depends_on") for one in job.depends_on],
        needs=needs_of(job.needs).label,
        on_parent_failure=on_failure_of(job.on_parent_failure).label,
        batch=id_from_bytes(job.batch, field="batch") if job.batch else None,
    )


def declared_of(jobs: pb.NewJob | pb.PlainJobs) -> JobRules | None:
    """What the producer knows as declared by the handler of the topic; raises InvalidInput."""
    if not jobs.HasField("declared"):
        return None
    rules = jobs.declared
    return JobRules(
        priority=rules.priority if rules.HasField("priority") else None,
        max_attempts=rules.max_attempts or None,
        policy=retry_policy(rules.retry) if rules.HasField("retry") else None,
    )


def _deadline(job: pb.NewJob, due: datetime | timedelta | None) -> datetime | timedelta | None:
    if not job.deadline_ms and not job.deadline_us:
        return None
    if job.deadline_ms and job.deadline_us:
        raise not_both("deadline_us", "deadline_ms")
    field = "deadline_ms" if job.deadline_ms else "deadline_us"
    deadline = span(job.deadline_ms, field) if job.deadline_ms else _due_at(job.deadline_us, field=field)
    # The deadline of a repeated submit may have passed meanwhile: that must not hide that the job exists.
    now = datetime.now(UTC) if job.new_id or not job.id else None
    return check_deadline(deadline, due=due, now=now, field=field)


def needs_of(number: int) -> Needs:
    """What a job requires of its dependencies; an unknown number is refused."""
    return _member(Needs, number, field="needs")


def on_failure_of(number: int) -> OnParentFailure:
    """What happens to a job whose dependency fails."""
    return _member(OnParentFailure, number, field="on_parent_failure")


_Member = TypeVar("_Member", bound=Word)


def _member(kind: type[_Member], number: int, *, field: str) -> _Member:
    try:
        return kind(number)
    except ValueError:
        raise InvalidInput(field, f"{number} is not one of {', '.join(one.label for one in kind)}") from None


def _unique(unique: pb.Unique) -> Unique:
    return Unique(
        key=unique.key,
        on_conflict=_member(OnConflict, unique.on_conflict, field="on_conflict").label,
        debounce_max=span(unique.debounce_max_ms, "debounce_max_ms") if unique.debounce_max_ms else None,
    )


def _due_at(microseconds: int, *, field: str) -> datetime:
    return check_run_at(moment(microseconds, field=field), now=datetime.now(UTC), field=field)


def receipt_of(result: SubmitResult) -> pb.SubmitReceipt:
    """What happened to one job."""
    if not result.receipt:  # created, as nearly always
        return pb.SubmitReceipt(index=result.index, id=result.job_id)
    return pb.SubmitReceipt(
        index=result.index,
        id=result.job_id,
        code=pb.SubmitCode.ValueType(int(result.receipt)),
        error=None if result.error is None else message_of(result.error),
    )
