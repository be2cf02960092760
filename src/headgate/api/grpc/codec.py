"""Values that several services translate between the wire and the domain: times, states, jobs as read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from headgate.api.fields import Answers
from headgate.domain import limits
from headgate.domain.backoff import BackoffKind, RetryPolicy, policy_from
from headgate.domain.dependencies import Met, Needs, Relation
from headgate.domain.errors import InvalidInput
from headgate.domain.states import State
from headgate.domain.timestamps import from_unix_us, unix_us
from headgate.domain.views import JobView
from headgate.wire import jobs_pb2, producer_pb2

_MS: Final = timedelta(milliseconds=1)
answers: Final = Answers(
    lambda kind: kind.DESCRIPTOR.fields_by_name, {UUID: lambda one: one.bytes, State: lambda one: int(one) + 1}
)
"""Messages of records. A state is one more than stored, as in `state_of`."""


def state_of(state: State | None) -> jobs_pb2.State.ValueType:
    """The number on the wire: the stored one plus one, since 0 means unspecified there."""
    return jobs_pb2.State.ValueType(0 if state is None else int(state) + 1)


def state_counts(by_state: Mapping[State, int]) -> list[jobs_pb2.StateCount]:
    """How many jobs are in each state."""
    return [jobs_pb2.StateCount(state=state_of(state), count=by_state[state]) for state in sorted(by_state)]


def at_us(moment: datetime | None) -> int:
    """Microseconds, 0 for none."""
    return 0 if moment is None else unix_us(moment)


def moment(microseconds: int, *, field: str) -> datetime:
    """A point in time; raises InvalidInput for one that is out of range."""
    try:
        return from_unix_us(microseconds)
    except OverflowError:
        raise InvalidInput(field, f"{microseconds} µs is out of range (must be before 9999-12-31)") from None


def duration(milliseconds: int, *, field: str) -> timedelta:
    """A span that the domain checks further; raises InvalidInput for one that is out of range."""
    try:
        return milliseconds * _MS
    except OverflowError:
        raise InvalidInput(field, f"{milliseconds} ms is out of range") from None


def span(milliseconds: int, field: str) -> timedelta:
    """A span of 0 or more milliseconds; raises InvalidInput."""
    if not 0 <= milliseconds <= limits.SPAN_MAX_MS:
        raise InvalidInput(field, f"must be 0 or more milliseconds, got {milliseconds}")
    return milliseconds * _MS


def needs_word(needs: Needs) -> jobs_pb2.Needs.ValueType:
    """The number on the wire."""
    return jobs_pb2.Needs.ValueType(int(needs))


def _relations(found: Sequence[Relation]) -> list[jobs_pb2.Relation]:
    return [
        jobs_pb2.Relation(id=one.job_id.bytes, needs=needs_word(one.needs), met=Met(one.met).name.lower())
        for one in found
    ]


def job_info(job: JobView) -> jobs_pb2.JobInfo:
    """A job as read: field by field, since every wait for a result passes here."""
    progress: Mapping[str, object] = job.progress or {}
    return jobs_pb2.JobInfo(
        id=job.id.bytes,
        tenant=job.tenant,
        topic=job.topic,
        state=state_of(job.state),
        priority=job.priority,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        epoch=job.epoch,
        cancel_requested=job.cancel_requested,
        worker=job.worker or "",
        created_us=at_us(job.created_at),
        run_at_us=at_us(job.run_at),
        claimed_us=at_us(job.claimed_at),
        lease_until_us=at_us(job.lease_until),
        finished_us=at_us(job.finished_at),
        last_error=job.last_error or "",
        headers=job.headers,
        tags=job.tags,
        deadline_us=at_us(job.deadline),
        payload=job.payload or b"",
        result=job.result or b"",
        key=job.key,
        unique_key=job.dependencies.unique_key,
        parents=_relations(job.dependencies.parents) if job.dependencies.parents else (),
        parent_count=job.dependencies.parent_count,
        children=_relations(job.dependencies.children) if job.dependencies.children else (),
        child_count=job.dependencies.child_count,
        batch_id=job.dependencies.batch_id.bytes if job.dependencies.batch_id else b"",
        lineage=None if job.lineage is None else _lineage(*job.lineage),
        progress=jobs_pb2.Progress(**progress) if progress else None,  # type: ignore[arg-type]  # written by us
        events=[answers.of(jobs_pb2.Event, event, kind=event.kind.label) for event in job.events],
        older_events=job.older_events,
    )


def _lineage(name: str, occurrence: datetime, triggered: bool) -> jobs_pb2.Lineage:  # noqa: FBT001 - as it is stored
    return jobs_pb2.Lineage(schedule=name, occurrence_us=at_us(occurrence), triggered=triggered)


def retry_policy(policy: producer_pb2.RetryPolicy) -> RetryPolicy:
    """A retry policy; raises InvalidInput for an unknown kind."""
    if int(policy.kind) not in [int(kind) for kind in BackoffKind]:
        raise InvalidInput("retry.kind", f"{policy.kind} is not one of {', '.join(kind.name for kind in BackoffKind)}")
    return policy_from(policy.kind, policy.base_ms, policy.cap_ms, policy.delays_ms)


def policy_message(policy: RetryPolicy) -> producer_pb2.RetryPolicy:
    """A retry policy as read."""
    return answers.of(producer_pb2.RetryPolicy, policy)
