"""Wire ⇄ domain. The fast path moves whole arrays; nothing here touches a single job unless it is special."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from headgate.api.grpc.errors import message_of
from headgate.control.ports import JobDetails
from headgate.dispatch.delivery import ControlFrame, Delivery
from headgate.dispatch.ports import SettledOutcome
from headgate.domain import limits
from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.dependencies import Met, Needs, Relation
from headgate.domain.errors import HeadgateError, InvalidInput, TooLarge
from headgate.domain.headers import deadline_us_of, made_by, of_caller
from headgate.domain.ids import ID_BYTES
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.rank import MICROSECOND, unix_us
from headgate.domain.states import Receipt, State
from headgate.domain.validation import check_integer, clean_text
from headgate.wire import jobs_pb2, producer_pb2, worker_pb2

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_LOCKED: Final = "not written yet: another transaction has locked this job; send the outcome again in a moment"


def state_of(state: State | None) -> jobs_pb2.State.ValueType:
    """The wire's number: the store's plus one, since 0 means unsaid there."""
    return jobs_pb2.State.ValueType(0 if state is None else int(state) + 1)


def state_counts(by_state: Mapping[State, int]) -> list[jobs_pb2.StateCount]:
    """How many jobs are in each state."""
    return [jobs_pb2.StateCount(state=state_of(state), count=by_state[state]) for state in sorted(by_state)]


def at_us(moment: datetime | None) -> int:
    """Microseconds, 0 for none."""
    return 0 if moment is None else unix_us(moment)


def raw_ids(ids: Sequence[UUID]) -> list[bytes]:
    """The 16 bytes of each."""
    return [one.bytes for one in ids]


def check_parallel(ids: Sequence[bytes], epochs: Sequence[int], *, field: str) -> None:
    """Parallel arrays must be parallel."""
    if len(ids) != len(epochs):
        raise InvalidInput(field, f"{len(ids)} ids with {len(epochs)} epochs; give one epoch for each id")


def check_ids(ids: Sequence[bytes], epochs: Sequence[int], *, field: str) -> None:
    """Parallel arrays must be parallel, ids 16 bytes long, and epochs such as the store can give."""
    check_parallel(ids, epochs, field=field)
    for one in ids:
        if len(one) != ID_BYTES:
            raise InvalidInput(field, f"an id has {len(one)} bytes; it must be the 16 bytes of a UUID")
    # The store's epochs are signed: a larger one would fail the whole statement it shares with other workers' jobs.
    if epochs and max(epochs) > limits.EPOCH_MAX:
        raise InvalidInput(field, f"an epoch is {max(epochs)}; none was ever given above {limits.EPOCH_MAX}")


def check_held(held: worker_pb2.Held, *, field: str, limit: int = limits.HELD_MAX, hint: str = "") -> None:
    """As `check_ids`, for no more jobs than a session can hold, or than may be named in one call."""
    if len(held.ids) > limit:
        raise TooLarge(field, size=len(held.ids), limit=limit, unit="jobs", hint=hint)
    check_ids(held.ids, held.epochs, field=field)


def held_of(pairs: Sequence[tuple[UUID, int]]) -> worker_pb2.Held:
    """Jobs by id and epoch."""
    return worker_pb2.Held(ids=[one.bytes for one, _ in pairs], epochs=[epoch for _, epoch in pairs])


# ---------------------------------------------------------------------- to workers


def jobs_frame(
    delivery: Delivery, topic_name: Callable[[int], str], receipts: ControlFrame | None = None
) -> worker_pb2.ServerFrame:
    """Jobs as parallel arrays, and the receipts that go with them."""
    numbers = delivery.topic_nos
    distinct = sorted(set(numbers))
    indexes = {number: index for index, number in enumerate(distinct)}
    return worker_pb2.ServerFrame(
        receipts=None if receipts is None else _receipts(receipts),
        jobs=worker_pb2.Jobs(
            ids=raw_ids(delivery.ids),
            epochs=delivery.epochs,
            payloads=delivery.payloads,
            topic_names=[topic_name(number) for number in distinct],
            topics=[] if len(distinct) == 1 else [indexes[number] for number in numbers],
            attempts=delivery.attempts,
            max_attempts=delivery.max_attempts,
            priorities=delivery.priorities if any(delivery.priorities) else [],
            created_us=delivery.created_us,
            lease_until_us=delivery.lease_until_us,
            headers=[
                _job_headers(index, json.loads(text), delivery.claimed_us)
                for index, text in enumerate(delivery.headers)
                if text
            ],
            seq=delivery.seq,
        ),
    )


def _job_headers(index: int, found: dict[str, str], claimed_us: int) -> worker_pb2.JobHeaders:
    schedule, occurrence_us = made_by(found)
    deadline_us = deadline_us_of(found)
    return worker_pb2.JobHeaders(
        index=index,
        headers=of_caller(found),
        schedule=schedule,
        occurrence_us=occurrence_us,
        deadline_us=deadline_us,
        deadline_in_ms=max(0, -((claimed_us - deadline_us) // 1000)),
    )


def job_messages(delivery: Delivery, topic_name: Callable[[int], str], tenant: str) -> list[jobs_pb2.Job]:
    """Jobs as messages, for the simple streams."""
    found = [json.loads(text) if text else {} for text in delivery.headers]
    return [
        jobs_pb2.Job(
            id=delivery.ids[index].bytes,
            topic=topic_name(delivery.topic_nos[index]),
            payload=delivery.payloads[index],
            epoch=delivery.epochs[index],
            attempt=delivery.attempts[index],
            max_attempts=delivery.max_attempts[index],
            priority=delivery.priorities[index],
            created_us=delivery.created_us[index],
            lease_until_us=delivery.lease_until_us,
            headers=of_caller(found[index]),
            tenant=tenant,
            schedule=made_by(found[index])[0],
            occurrence_us=made_by(found[index])[1],
            deadline_us=deadline_us_of(found[index]),
        )
        for index in range(len(delivery))
    ]


def control_frame(control: ControlFrame) -> worker_pb2.ServerFrame:
    """Everything a session is sent that is not jobs."""
    frame = worker_pb2.ServerFrame()
    if control.receipts_seq is not None:
        frame.receipts.CopyFrom(_receipts(control))
    if control.beat_ack:
        frame.beat_ack.SetInParent()
    if control.lost:
        frame.lost.CopyFrom(held_of(control.lost))
    if control.cancel:
        frame.cancel.CopyFrom(held_of(control.cancel))
    if control.drain_seconds is not None:
        frame.drain.grace_seconds = control.drain_seconds
    if control.error is not None:
        frame.error.CopyFrom(message_of(control.error))
        frame.error_seq = control.error_seq
    if control.quieted:
        frame.quieted.SetInParent()
    return frame


def _receipts(control: ControlFrame) -> worker_pb2.Receipts:
    exceptions = [receipt(index, answer) for index, answer in control.receipt_exceptions]
    return worker_pb2.Receipts(seq=control.receipts_seq or 0, exceptions=exceptions)


def receipt(index: int, settled: SettledOutcome | HeadgateError | None) -> jobs_pb2.Receipt:
    """What was done with one outcome; None means applied as sent."""
    if settled is None:
        return jobs_pb2.Receipt(index=index, state=state_of(State.COMPLETED))
    if isinstance(settled, HeadgateError):
        return jobs_pb2.Receipt(index=index, code=jobs_pb2.RECEIPT_INVALID, message=str(settled))
    return jobs_pb2.Receipt(
        index=index,
        code=jobs_pb2.ReceiptCode.ValueType(int(settled.receipt)),
        state=state_of(settled.state),
        run_at_us=at_us(settled.run_at),
        message=_LOCKED if settled.receipt is Receipt.LOCKED else "",
    )


# ---------------------------------------------------------------------- from workers


def bad_completions(outcomes: worker_pb2.Outcomes) -> dict[int, HeadgateError]:
    """What is wrong with single completions of a frame, by index: mostly nothing."""
    bad: dict[int, HeadgateError] = {}
    for index, (job_id, epoch) in enumerate(zip(outcomes.ids, outcomes.epochs, strict=True)):
        if len(job_id) != ID_BYTES or epoch > limits.EPOCH_MAX:
            try:
                check_ids([job_id], [epoch], field="outcomes.ids")
            except InvalidInput as error:
                bad[index] = error.with_traceback(None)  # which would lead back here, and keep the whole frame
    for index, result in enumerate(outcomes.results):
        if len(result) > limits.RESULT_MAX_BYTES:
            bad[index] = TooLarge("result", size=len(result), limit=limits.RESULT_MAX_BYTES)
    return bad


def outcome_of(message: jobs_pb2.Outcome) -> Outcome:
    """One outcome; raises InvalidInput, also when none is set."""
    match message.WhichOneof("kind"):
        case "completed":
            return Completed(result=message.completed.result)
        case "failed":
            failed = message.failed
            error = ErrorInfo(type=failed.type or "Error", message=failed.message, traceback=failed.traceback)
            return Failed(error=error, permanent=failed.permanent)
        case "nack":
            return Nack(delay=span(message.nack.delay_ms, "nack.delay_ms"), reason=message.nack.reason)
        case "abandon":
            return Abandon()
        case "snooze":
            return Snooze(delay=span(message.snooze.delay_ms, "snooze.delay_ms"))
        case _:
            raise InvalidInput("outcome", "none of completed, failed, nack, abandon, snooze is set")


def progress_of(progress: jobs_pb2.Progress) -> dict[str, object]:
    """How far a job is; raises InvalidInput when that makes no sense."""
    done = check_integer(progress.done, field="progress.done", low=0, high=2**62)
    total = check_integer(progress.total, field="progress.total", low=0, high=2**62)
    if total and done > total:
        raise InvalidInput("progress.done", f"{done} is more than the total of {total}")
    message = clean_text(progress.message, limits.REASON_MAX_CHARS)
    return {"done": done, "total": total, "message": message, "at_us": time.time_ns() // 1000}


def moment(microseconds: int, *, field: str) -> datetime:
    """A point in time; raises InvalidInput for one that no calendar has."""
    try:
        return _EPOCH + microseconds * MICROSECOND
    except OverflowError:
        raise InvalidInput(field, f"{microseconds} µs is out of range (must be before 9999-12-31)") from None


def duration(milliseconds: int, *, field: str) -> timedelta:
    """A span that the domain checks further; raises InvalidInput for one that is out of range."""
    try:
        return milliseconds * _MS
    except OverflowError:
        raise InvalidInput(field, f"{milliseconds} ms is out of range") from None


def span(milliseconds: int, field: str) -> timedelta:
    """A span of the wire; raises InvalidInput for one that no clock can count."""
    if not 0 <= milliseconds <= 10**15:
        raise InvalidInput(field, f"must be 0 or more milliseconds, got {milliseconds}")
    return milliseconds * _MS


# ---------------------------------------------------------------------- jobs


def id_of(raw: bytes, *, field: str) -> UUID:
    """The UUID of 16 bytes."""
    if len(raw) != ID_BYTES:
        raise InvalidInput(field, f"has {len(raw)} bytes; it must be the 16 bytes of a UUID")
    return UUID(bytes=raw)


def needs_word(needs: Needs) -> jobs_pb2.Needs.ValueType:
    """The wire's word."""
    return jobs_pb2.Needs.ValueType(int(needs))


def _relations(found: Sequence[Relation]) -> list[jobs_pb2.Relation]:
    return [
        jobs_pb2.Relation(id=one.job_id.bytes, needs=needs_word(one.needs), met=Met(one.met).name.lower())
        for one in found
    ]


def job_info(job: JobDetails) -> jobs_pb2.JobInfo:
    """A job as read."""
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
        worker=job.worker,
        created_us=at_us(job.created_at),
        run_at_us=at_us(job.run_at),
        claimed_us=at_us(job.claimed_at),
        lease_until_us=at_us(job.lease_until),
        finished_us=at_us(job.finished_at),
        last_error=job.last_error,
        headers=job.headers,
        deadline_us=at_us(job.deadline),
        payload=job.payload or b"",
        result=job.result or b"",
        unique_key=job.dependencies.unique_key,
        parents=_relations(job.dependencies.parents),
        parent_count=job.dependencies.parent_count,
        children=_relations(job.dependencies.children),
        child_count=job.dependencies.child_count,
        batch_id=job.dependencies.batch_id.bytes if job.dependencies.batch_id else b"",
        lineage=_lineage(job),
        progress=jobs_pb2.Progress(**progress) if progress else None,  # type: ignore[arg-type]  # written by us
        events=[
            jobs_pb2.Event(
                at_us=at_us(event.at),
                kind=event.kind,
                epoch=event.epoch,
                attempt=event.attempt,
                state=state_of(event.state),
                run_at_us=at_us(event.run_at),
                claimed_us=at_us(event.claimed_at),
                worker=event.worker,
                actor=event.actor,
                reason=event.reason,
                error_type=event.error_type,
                error_message=event.error_message,
                error_trace=event.error_trace,
            )
            for event in job.events
        ],
    )


def _lineage(job: JobDetails) -> jobs_pb2.Lineage | None:
    if job.lineage is None:
        return None
    name, occurrence, triggered = job.lineage
    return jobs_pb2.Lineage(schedule=name, occurrence_us=at_us(occurrence), triggered=triggered)


def retry_policy(policy: producer_pb2.RetryPolicy) -> RetryPolicy:
    """A retry policy; raises InvalidInput for a kind that nobody knows."""
    if int(policy.kind) not in [int(kind) for kind in BackoffKind]:
        raise InvalidInput("retry.kind", f"{policy.kind} is not one of {', '.join(kind.name for kind in BackoffKind)}")
    default = RetryPolicy()
    kind = BackoffKind(policy.kind)
    return RetryPolicy(
        kind=kind,
        base_ms=policy.base_ms or default.base_ms,
        cap_ms=policy.cap_ms or default.cap_ms,
        delays_ms=tuple(policy.delays_ms),
    )


def policy_message(policy: RetryPolicy) -> producer_pb2.RetryPolicy:
    """A retry policy as read."""
    return producer_pb2.RetryPolicy(
        kind=producer_pb2.RetryPolicy.Kind.ValueType(int(policy.kind)),
        base_ms=policy.base_ms,
        cap_ms=policy.cap_ms,
        delays_ms=policy.delays_ms,
    )
