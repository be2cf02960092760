"""Frames of workers, between the wire and `dispatch/`. The fast path moves whole arrays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from headgate.api.grpc.codec import at_us, span, state_of
from headgate.api.grpc.errors import message_of
from headgate.dispatch.delivery import ControlFrame, Delivery
from headgate.dispatch.ports import TopicFacts
from headgate.dispatch.session_rules import Beat, Extension, Hello, OutcomeFrame, Progress, check_outcome_count
from headgate.domain import limits
from headgate.domain.dispatching import Settled
from headgate.domain.errors import LOCKED_OUTCOME, HeadgateError, InvalidInput, TooLarge
from headgate.domain.headers import deadline_us_of, made_by, of_caller
from headgate.domain.ids import ID_BYTES
from headgate.domain.job_logs import LINES_MAX, AttemptLines, LogLevel, LogLine, log_line
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.progress import progress_values
from headgate.domain.states import Receipt, State
from headgate.domain.validation import check_integer, clean_text
from headgate.wire import jobs_pb2, worker_pb2

Uuids: TypeAlias = Callable[[Sequence[bytes]], list[UUID]]
"""Turns many ids of 16 bytes into UUIDs at once."""
_NO_RULE: Final = -1


def hello_of(hello: worker_pb2.Hello, uuids: Uuids) -> Hello:
    """How a worker opens its session; raises InvalidInput."""
    check_held(hello.held, field="hello.held")
    return Hello(
        worker_id=hello.worker_id,
        incarnation=hello.incarnation,
        client=clean_text(hello.client, limits.CLIENT_MAX_CHARS),
        clock_us=hello.clock_us,
        connected_ms=hello.connected_ms,
        resumed=hello.resumed,
        declared=len(hello.held.ids),
        ids=lambda: uuids(hello.held.ids),
        epochs=hello.held.epochs,
    )


def outcome_frame(outcomes: worker_pb2.Outcomes, uuids: Uuids) -> OutcomeFrame:
    """One frame's outcomes, those that are not valid apart: their neighbours are written."""
    check_parallel(outcomes.ids, outcomes.epochs, field="outcomes.ids")
    if outcomes.results and len(outcomes.results) != len(outcomes.ids):
        raise InvalidInput("outcomes.results", f"{len(outcomes.results)} results for {len(outcomes.ids)} jobs")
    first_other = len(outcomes.ids)
    check_outcome_count(first_other + len(outcomes.others))
    ids: Sequence[bytes] = outcomes.ids
    epochs, results = list(outcomes.epochs), list(outcomes.results)
    keep: Sequence[int] = range(first_other)
    bad = bad_completions(outcomes)
    if bad:
        keep = [index for index in keep if index not in bad]
        ids, epochs = [ids[index] for index in keep], [epochs[index] for index in keep]
        results = [results[index] for index in keep] if results else []
    bad_others, others, indexes = outcomes_of(outcomes.others, uuids)
    return OutcomeFrame(
        seq=outcomes.seq,
        ids=uuids(ids),
        epochs=epochs,
        results=results,
        others=others,
        indexes=keep if not others else [*keep, *(first_other + index for index in indexes)],
        refused=[*bad.items(), *((first_other + index, error) for index, error in bad_others.items())],
        size=sum(map(len, results)) + 100 * len(ids) + sum(other.ByteSize() for other in outcomes.others),
    )


def outcomes_of(
    messages: Sequence[jobs_pb2.Outcome], uuids: Uuids
) -> tuple[dict[int, HeadgateError], list[tuple[UUID, int, Outcome]], list[int]]:
    """What is wrong with some, by index; the valid ones, and their indexes."""
    bad: dict[int, HeadgateError] = {}
    good: list[tuple[UUID, int, Outcome]] = []
    indexes: list[int] = []
    for index, message in enumerate(messages):
        try:
            check_ids([message.id], [message.epoch], field="outcome.id")
            outcome = outcome_of(message)
        except HeadgateError as error:
            # Without its traceback: that leads to this frame, and so to all the others, and only the collector
            # would part them.
            bad[index] = error.with_traceback(None)
            continue
        good.append((uuids([message.id])[0], message.epoch, outcome))
        indexes.append(index)
    return bad, good, indexes


def beat_of(beat: worker_pb2.Beat, uuids: Uuids) -> Beat:
    """A sign of life; its list is read only when the rules ask for it."""

    def listed() -> list[tuple[UUID, int]]:
        check_held(beat.held, field="beat.held")
        return list(zip(uuids(beat.held.ids), beat.held.epochs, strict=True))

    return Beat(
        count=len(beat.held.ids),
        listed=listed,
        jobs_seen=beat.jobs_seen,
        extensions=_extensions(beat.extensions, uuids),
        progress=_progress(beat.progress, uuids),
    )


def _extensions(messages: Sequence[worker_pb2.Extension], uuids: Uuids) -> Iterator[Extension | HeadgateError]:
    for message in messages:
        try:
            check_ids([message.id], [message.epoch], field="beat.extensions")
        except HeadgateError as error:
            yield error.with_traceback(None)
        else:
            yield uuids([message.id])[0], message.epoch, message.lease_seconds


def _progress(messages: Sequence[worker_pb2.JobProgress], uuids: Uuids) -> Iterator[Progress | HeadgateError]:
    for message in messages:
        try:
            yield progress_of(message, uuids)
        except HeadgateError as error:
            yield error.with_traceback(None)


def progress_of(message: worker_pb2.JobProgress, uuids: Uuids) -> Progress:
    """How far a job is; raises InvalidInput."""
    check_ids([message.id], [message.epoch], field="progress.id")
    reported = message.progress
    return (
        uuids([message.id])[0],
        message.epoch,
        progress_values(reported.done, reported.total, reported.message, at_us=time.time_ns() // 1000),
    )


def logs_of(messages: Sequence[worker_pb2.JobLines], uuids: Uuids) -> Iterator[AttemptLines | HeadgateError]:
    """Log lines by attempt, the newest of one that has too many; of those that are not valid, the error."""
    now_us = time.time_ns() // 1000
    for message in messages:
        lines: list[LogLine] = []
        try:
            check_ids([message.id], [message.epoch], field="logs.id")
            check_integer(message.attempt, field="logs.attempt", low=0, high=limits.MAX_ATTEMPTS_LIMIT)
        except HeadgateError as error:
            yield error.with_traceback(None)
            continue
        for one in message.lines[-LINES_MAX:]:
            try:
                level = one.level or LogLevel.INFO  # not given
                lines.append(log_line(one.seq, one.at_us, level, one.logger, one.text, now_us=now_us))
            except HeadgateError as error:
                yield error.with_traceback(None)
        yield AttemptLines(uuids([message.id])[0], message.epoch, message.attempt, lines)


def check_parallel(ids: Sequence[bytes], epochs: Sequence[int], *, field: str) -> None:
    """Raise InvalidInput unless there is one epoch for each id."""
    if len(ids) != len(epochs):
        raise InvalidInput(field, f"{len(ids)} ids with {len(epochs)} epochs; give one epoch for each id")


def check_ids(ids: Sequence[bytes], epochs: Sequence[int], *, field: str) -> None:
    """Raise InvalidInput unless ids have 16 bytes, with one valid epoch for each."""
    check_parallel(ids, epochs, field=field)
    for one in ids:
        if len(one) != ID_BYTES:
            raise InvalidInput(field, f"an id has {len(one)} bytes; it must be the 16 bytes of a UUID")
    # Epochs are signed in the database: a larger one would fail the statement that it shares with other workers' jobs.
    if epochs and max(epochs) > limits.EPOCH_MAX:
        raise InvalidInput(field, f"an epoch is {max(epochs)}; none was ever given above {limits.EPOCH_MAX}")


def check_held(held: worker_pb2.Held, *, field: str, limit: int = limits.HELD_MAX, hint: str = "") -> None:
    """As `check_ids`, for no more jobs than a session can hold, or than may be named in one call."""
    if len(held.ids) > limit:
        raise TooLarge(field, size=len(held.ids), limit=limit, unit="jobs", hint=hint)
    check_ids(held.ids, held.epochs, field=field)


def bad_completions(outcomes: worker_pb2.Outcomes) -> dict[int, HeadgateError]:
    """The invalid completions of a frame, by index."""
    bad: dict[int, HeadgateError] = {}
    for index, (job_id, epoch) in enumerate(zip(outcomes.ids, outcomes.epochs, strict=True)):
        if len(job_id) != ID_BYTES or epoch > limits.EPOCH_MAX:
            try:
                check_ids([job_id], [epoch], field="outcomes.ids")
            except InvalidInput as error:
                bad[index] = error.with_traceback(None)  # which would keep the whole frame in memory
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


# ---------------------------------------------------------------------- to workers


def jobs_frame(delivery: Delivery, topics: TopicFacts, receipts: ControlFrame | None = None) -> worker_pb2.ServerFrame:
    """Jobs as parallel arrays, and the receipts that go with them."""
    numbers = delivery.topic_nos
    distinct = sorted(set(numbers))
    indexes = {number: index for index, number in enumerate(distinct)}
    limits_ms = [topics.time_limit_ms(number) for number in distinct]
    ruled = any(one is not None for one in limits_ms)
    return worker_pb2.ServerFrame(
        receipts=None if receipts is None else _receipts(receipts),
        jobs=worker_pb2.Jobs(
            ids=[one.bytes for one in delivery.ids],
            epochs=delivery.epochs,
            payloads=delivery.payloads,
            topic_names=[topics.topic_name(number) for number in distinct],
            time_limits_ms=[_NO_RULE if one is None else one for one in limits_ms] if ruled else [],
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


def job_messages(delivery: Delivery, topics: TopicFacts, tenant: str) -> list[jobs_pb2.Job]:
    """Jobs as messages, for the simple streams."""
    found = [json.loads(text) if text else {} for text in delivery.headers]
    return [
        jobs_pb2.Job(
            id=delivery.ids[index].bytes,
            topic=topics.topic_name(delivery.topic_nos[index]),
            time_limit_ms=topics.time_limit_ms(delivery.topic_nos[index]),
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
    if control.stop is not None:
        frame.stop.by, frame.stop.reason = control.stop.who, control.stop.reason
        frame.stop.SetInParent()
    if control.standby is not None:
        frame.standby.SetInParent()
        frame.standby.topics.extend(control.standby)
    return frame


def _receipts(control: ControlFrame) -> worker_pb2.Receipts:
    exceptions = [receipt(index, answer) for index, answer in control.receipt_exceptions]
    return worker_pb2.Receipts(seq=control.receipts_seq or 0, exceptions=exceptions)


def receipt(index: int, settled: Settled | HeadgateError | None) -> jobs_pb2.Receipt:
    """The receipt of one outcome; None means applied as sent."""
    if settled is None:
        return jobs_pb2.Receipt(index=index, state=state_of(State.COMPLETED))
    if isinstance(settled, HeadgateError):
        return jobs_pb2.Receipt(index=index, code=jobs_pb2.RECEIPT_INVALID, message=str(settled))
    return jobs_pb2.Receipt(
        index=index,
        code=jobs_pb2.ReceiptCode.ValueType(int(settled.receipt)),
        state=state_of(settled.state),
        run_at_us=at_us(settled.run_at),
        message=LOCKED_OUTCOME if settled.receipt is Receipt.LOCKED else "",
    )


def held_of(pairs: Sequence[tuple[UUID, int]]) -> worker_pb2.Held:
    """Jobs by id and epoch."""
    return worker_pb2.Held(ids=[one.bytes for one, _ in pairs], epochs=[epoch for _, epoch in pairs])
