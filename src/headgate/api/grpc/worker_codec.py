"""From the messages of workers to the values of `dispatch/session_rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias
from uuid import UUID

from headgate.api.grpc import codec
from headgate.dispatch.session_rules import Beat, Extension, Hello, OutcomeFrame, Progress, check_outcome_count
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.outcomes import Outcome
from headgate.wire import jobs_pb2, worker_pb2

Uuids: TypeAlias = Callable[[Sequence[bytes]], list[UUID]]
"""Turns many ids of 16 bytes into UUIDs at once."""


def hello_of(hello: worker_pb2.Hello, uuids: Uuids) -> Hello:
    """How a worker opens its session; raises InvalidInput."""
    codec.check_held(hello.held, field="hello.held")
    return Hello(
        worker_id=hello.worker_id,
        incarnation=hello.incarnation,
        resumed=hello.resumed,
        ids=uuids(hello.held.ids),
        epochs=hello.held.epochs,
    )


def outcome_frame(outcomes: worker_pb2.Outcomes, uuids: Uuids) -> OutcomeFrame:
    """One frame's outcomes, those that are not valid apart: their neighbours are written."""
    codec.check_parallel(outcomes.ids, outcomes.epochs, field="outcomes.ids")
    if outcomes.results and len(outcomes.results) != len(outcomes.ids):
        raise InvalidInput("outcomes.results", f"{len(outcomes.results)} results for {len(outcomes.ids)} jobs")
    first_other = len(outcomes.ids)
    check_outcome_count(first_other + len(outcomes.others))
    ids: Sequence[bytes] = outcomes.ids
    epochs, results = list(outcomes.epochs), list(outcomes.results)
    keep: Sequence[int] = range(first_other)
    bad = codec.bad_completions(outcomes)
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
            codec.check_ids([message.id], [message.epoch], field="outcome.id")
            outcome = codec.outcome_of(message)
        except HeadgateError as error:
            # Without its traceback: that leads to this frame, hence to all the others, and only the collector
            # would part them.
            bad[index] = error.with_traceback(None)
            continue
        good.append((uuids([message.id])[0], message.epoch, outcome))
        indexes.append(index)
    return bad, good, indexes


def beat_of(beat: worker_pb2.Beat, uuids: Uuids) -> Beat:
    """A sign of life; its list is read only when the rules ask for it."""

    def listed() -> list[tuple[UUID, int]]:
        codec.check_held(beat.held, field="beat.held")
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
            codec.check_ids([message.id], [message.epoch], field="beat.extensions")
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
    codec.check_ids([message.id], [message.epoch], field="progress.id")
    return uuids([message.id])[0], message.epoch, codec.progress_of(message.progress)
