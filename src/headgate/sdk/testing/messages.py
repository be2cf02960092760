"""Jobs, batches and outcomes of a box as the messages that a server would send, and back."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from headgate.domain.backoff import RetryPolicy, policy_from
from headgate.domain.dependencies import Needs, NewBatch, OnConflict, OnParentFailure, Unique
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.ids import JobId, TenantName, TopicName, id_from_bytes
from headgate.domain.jobs import Submission, SubmitAnswer
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.states import State
from headgate.domain.timestamps import from_unix_us, unix_us
from headgate.domain.validation import MILLISECOND
from headgate.sdk.outcomes import Outcome as WireOutcome
from headgate.sdk.testing.dependencies import Edge, StoredBatch
from headgate.sdk.testing.store import BoxStore, StoredJob
from headgate.wire import admin_pb2 as admin
from headgate.wire import batches_pb2 as batches
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as producer

TENANT = TenantName("default")
WORKER = "box"


def submission_of(job: producer.NewJob) -> Submission:
    """A job to submit. The SDK has checked its options; raises InvalidInput for what only a server checks."""
    deadline = from_unix_us(job.deadline_us) if job.deadline_us else _span(job.deadline_ms)
    return Submission(
        tenant=TENANT,
        topic=TopicName(job.topic),
        id=id_from_bytes(job.id),
        payload=job.payload,
        priority=job.priority if job.HasField("priority") else None,
        delay=_span(job.delay_ms),
        run_at=from_unix_us(job.run_at_us) if job.run_at_us else None,
        deadline=deadline,
        max_attempts=job.max_attempts or None,
        policy=_policy(job.retry) if job.HasField("retry") else None,
        headers=dict(job.headers),
        tags=tuple(job.tags),
        key=job.key or None,
        key_window=_span(job.key_window_ms),
        limit_key=job.limit_key or None,
        unique=_unique(job.unique) if job.HasField("unique") else None,
        depends_on=[id_from_bytes(one) for one in job.depends_on],
        needs=Needs(job.needs).label,
        on_parent_failure=OnParentFailure(job.on_parent_failure).label,
        batch=id_from_bytes(job.batch) if job.batch else None,
    )


def batch_of(request: batches.OpenBatchRequest) -> NewBatch:
    """A batch to open."""
    return NewBatch(
        id=id_from_bytes(request.id),
        name=request.name,
        needs=Needs(request.needs),
        on_failure=OnParentFailure(request.on_failure),
        expires_in=request.expires_in_ms * MILLISECOND,
    )


def outcome_of(outcome: WireOutcome) -> Outcome:
    """What a handler's attempt ended with, as the rules know it."""
    if isinstance(outcome, bytes):
        return Completed(result=outcome)
    match outcome.WhichOneof("kind"):
        case "failed":
            failed = outcome.failed
            error = ErrorInfo(type=failed.type, message=failed.message, traceback=failed.traceback)
            return Failed(error=error, permanent=failed.permanent)
        case "nack":
            return Nack(delay=outcome.nack.delay_ms * MILLISECOND, reason=outcome.nack.reason)
        case "snooze":
            return Snooze(delay=outcome.snooze.delay_ms * MILLISECOND)
        case "abandon":
            return Abandon()
        case _:
            return Completed(result=outcome.completed.result)


def receipt_of(index: int, answer: SubmitAnswer) -> producer.SubmitReceipt:
    """What became of one job of a submit."""
    receipt = producer.SubmitReceipt(
        index=index, id=answer.job_id.bytes, code=producer.SubmitCode.ValueType(int(answer.receipt))
    )
    if answer.error is not None:
        receipt.error.CopyFrom(error_message(answer.error))
    return receipt


def error_message(error: HeadgateError) -> jobs.Error:
    """An error of one item."""
    field = error.field if isinstance(error, InvalidInput) else ""
    return jobs.Error(code=error.code, message=str(error), field=field)


def change_message(
    job_id: JobId, state: State | None, *, changed: bool, error: HeadgateError | None
) -> admin.JobChange:
    """What a verb did to one job."""
    change = admin.JobChange(id=job_id.bytes, changed=changed)
    if state is not None:
        change.state = wire_state(state)
    if error is not None:
        change.error.CopyFrom(error_message(error))
    return change


def job_message(store: BoxStore, job: StoredJob, *, payload: bool = False, result: bool = True) -> jobs.JobInfo:
    """A job as it is read."""
    record = job.record
    parents, children = store.dependencies.of_child(job.id), store.dependencies.of_parent(job.id)
    info = jobs.JobInfo(
        id=job.id.bytes,
        tenant=TENANT,
        topic=job.topic,
        state=wire_state(job.state),
        priority=record.priority,
        attempt=record.attempt,
        max_attempts=record.max_attempts,
        epoch=record.epoch,
        cancel_requested=record.cancel_requested,
        worker=WORKER if job.claimed_at is not None else "",
        created_us=unix_us(job.created_at),
        run_at_us=unix_us(record.run_at),
        claimed_us=unix_us(job.claimed_at) if job.claimed_at is not None else 0,
        lease_until_us=unix_us(record.lease_until) if record.lease_until is not None else 0,
        finished_us=unix_us(job.finished_at) if job.finished_at is not None else 0,
        last_error=job.last_error,
        headers=job.headers,
        tags=job.tags,
        payload=job.payload if payload else b"",
        result=job.result if result else b"",
        key=store.key_of(job.id),
        unique_key=job.unique_key,
        parents=[_relation(edge, edge.parent) for edge in parents],
        parent_count=len(parents),
        children=[_relation(edge, edge.child) for edge in children],
        child_count=len(children),
        batch_id=b"" if job.batch is None else job.batch.bytes,
        deadline_us=0 if job.deadline is None else unix_us(job.deadline),
    )
    if job.progress is not None:
        done, total, message = job.progress
        info.progress.CopyFrom(jobs.Progress(done=done, total=total, message=message, at_us=unix_us(store.now)))
    return info


def batch_message(store: BoxStore, batch: StoredBatch) -> batches.BatchInfo:
    """A batch as it is read."""
    counts = Counter(store.jobs[member].state for member in batch.members)
    info = batches.BatchInfo(
        id=batch.asked.id.bytes,
        name=batch.asked.name,
        needs=jobs.Needs.ValueType(int(batch.asked.needs)),
        created_us=unix_us(batch.created_at),
        expires_us=unix_us(batch.expires_at),
        sealed_us=0 if batch.sealed_at is None else unix_us(batch.sealed_at),
        expired=batch.expired,
        total=len(batch.members),
        counted=len(batch.members),
        counts=[jobs.StateCount(state=wire_state(state), count=count) for state, count in sorted(counts.items())],
    )
    if batch.callback is not None:
        info.callback_id = batch.callback.bytes
        info.callback_state = wire_state(store.jobs[batch.callback].state)
    return info


def wire_state(state: State) -> jobs.State.ValueType:
    """The number of a state on the wire."""
    return jobs.State.Value(f"STATE_{state.name}")


def _relation(edge: Edge, other: JobId) -> jobs.Relation:
    return jobs.Relation(id=other.bytes, needs=jobs.Needs.ValueType(int(edge.needs)), met=edge.met.name.lower())


def _span(milliseconds: int) -> timedelta | None:
    return milliseconds * MILLISECOND if milliseconds else None


def _policy(policy: producer.RetryPolicy) -> RetryPolicy:
    return policy_from(policy.kind, policy.base_ms, policy.cap_ms, policy.delays_ms)


def _unique(unique: producer.Unique) -> Unique:
    return Unique(
        key=unique.key,
        on_conflict=OnConflict(unique.on_conflict).label,
        debounce_max=_span(unique.debounce_max_ms),
    )
