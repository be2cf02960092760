"""Requests are measured before they are parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from headgate.api.grpc.methods import Unreadable, reader_of
from headgate.api.grpc.shapes import PARTS_MAX, Shape
from headgate.control.permissions import RULES
from headgate.domain.errors import HeadgateError, InvalidInput, TooLarge
from headgate.wire import jobs_pb2, producer_pb2, worker_pb2

BATCH = "/headgate.v1.ProducerService/SubmitBatch"
PRODUCE = "/headgate.v1.ProducerService/Produce"
WORK = "/headgate.v1.WorkerService/Work"
EMPTY_JOB = b"\x0a\x00"  # one element of field 1, of no bytes


class Spy:
    """A kind of message that notes whether it was made."""

    DESCRIPTOR = producer_pb2.SubmitBatchRequest.DESCRIPTOR

    def __init__(self) -> None:
        self.parsed = 0

    def FromString(self, raw: bytes) -> producer_pb2.SubmitBatchRequest:  # noqa: N802 - protobuf's name
        self.parsed += 1
        return producer_pb2.SubmitBatchRequest.FromString(raw)


def refusal(read: Callable[[bytes], Any], raw: bytes) -> HeadgateError:
    answer = read(raw)
    assert isinstance(answer, Unreadable), answer
    return answer.error


def test_a_message_of_too_many_bytes_or_jobs_is_never_parsed() -> None:
    kind: Any = Spy()
    read: Any = reader_of(kind, RULES[BATCH])
    error = refusal(read, EMPTY_JOB * 4_000_000)
    assert (error.code, str(error)) == (
        "too_large",
        "jobs: 10001 jobs is over the limit of 10000 jobs; it may have more",
    )
    error = refusal(read, b"x" * (8 * 2**20 + 1))
    assert str(error) == "message: 8388609 bytes is over the limit of 8388608 bytes; send less at once"
    assert kind.parsed == 0
    assert len(read(EMPTY_JOB * 10_000).jobs) == 10_000
    assert kind.parsed == 1


def test_a_message_over_a_megabyte_is_walked_no_further_than_its_limits() -> None:
    """Four million elements would keep the loop for 0.1 s; ten thousand take two milliseconds."""
    read = reader_of(worker_pb2.WorkerFrame, RULES[WORK])
    frame = worker_pb2.WorkerFrame
    ids = worker_pb2.Outcomes(ids=[b""] * 1_000_000)
    assert "outcomes.ids: 20001 ids is over the limit of 20000 ids; it may have more" in str(
        refusal(read, frame(outcomes=ids).SerializeToString())
    )
    plain = producer_pb2.ProducerFrame(plain=producer_pb2.PlainJobs(ids=[b""] * 1_000_000)).SerializeToString()
    assert "plain.ids: 20001" in str(refusal(reader_of(producer_pb2.ProducerFrame, RULES[PRODUCE]), plain))
    unknown = b"\x98\x06\x01"  # field 99, which does not exist
    assert "message: 101 unknown fields is over" in str(refusal(read, unknown * 500_000))
    results = [b"x" * 300] * 5_000
    outcomes = worker_pb2.Outcomes(ids=[bytes(16)] * 5_000, epochs=range(5_000), results=results)
    large = frame(hello=worker_pb2.Hello(worker_id="w"), outcomes=outcomes)
    assert len(large.SerializeToString()) > 2**20
    assert read(large.SerializeToString()) == large


def test_what_jobs_carry_is_counted_for_all_of_them_together() -> None:
    """A job may have 32 headers, so n jobs have 32 n at most, however they are spread: 8 MB cannot hold a million."""
    read = reader_of(producer_pb2.SubmitBatchRequest, RULES[BATCH])
    one = producer_pb2.NewJob(topic="mail", payload=b"x" * 1_000)
    many = producer_pb2.NewJob(headers={str(n): "" for n in range(10_000)})
    error = refusal(read, producer_pb2.SubmitBatchRequest(jobs=[one] * 99 + [many]).SerializeToString())
    assert str(error) == "jobs.headers: 10000 headers is over the limit of 3200 headers"
    wide = producer_pb2.NewJob(depends_on=[b"x" * 16] * 1_500)
    error = refusal(read, producer_pb2.SubmitBatchRequest(jobs=[wide]).SerializeToString())
    assert str(error) == "jobs.depends_on: 1500 depends_on is over the limit of 1000 depends_on"
    full = producer_pb2.NewJob(topic="mail", headers={str(n): "x" * 9 for n in range(32)}, tags=["t"] * 20)
    request = producer_pb2.SubmitBatchRequest(jobs=[full] * 100, atomic=True)
    assert read(request.SerializeToString()) == request


def test_lists_within_parts_of_a_frame_are_counted() -> None:
    read = reader_of(worker_pb2.WorkerFrame, RULES[WORK])
    frame = worker_pb2.WorkerFrame
    others = worker_pb2.Outcomes(others=[jobs_pb2.Outcome()] * 100_000)
    assert "outcomes.others: 100000" in str(refusal(read, frame(outcomes=others).SerializeToString()))
    beat = worker_pb2.Beat(progress=[worker_pb2.JobProgress()] * 100_000)
    assert "beat.progress: 100000" in str(refusal(read, frame(beat=beat).SerializeToString()))
    beat = worker_pb2.Beat(extensions=[worker_pb2.Extension()] * 100_000)
    assert "beat.extensions: 100000" in str(refusal(read, frame(beat=beat).SerializeToString()))
    ids = [bytes(16)] * 5_000
    outcomes = worker_pb2.Outcomes(seq=7, ids=ids, epochs=range(5_000), results=[b"x" * 100] * 5_000)
    good = frame(outcomes=outcomes, beat=worker_pb2.Beat(held=worker_pb2.Held(ids=ids, epochs=[2**53] * 5_000)))
    assert read(good.SerializeToString()) == good


def test_a_part_that_comes_in_many_pieces_is_refused_before_they_are_put_together() -> None:
    """Protobuf joins the pieces of a message that is no list; each of them would be one more on the way here."""
    read: Any = reader_of(worker_pb2.WorkerFrame, RULES[WORK])
    piece = b"\x12\x02\x2a\x00"  # outcomes of one empty outcome
    big = worker_pb2.WorkerFrame(ready=worker_pb2.Ready(topics=["x" * 200] * 100)).SerializeToString()
    assert len(read(big + piece * PARTS_MAX).outcomes.others) == PARTS_MAX
    assert "outcomes: " in str(refusal(read, piece * 100_000))


@pytest.mark.parametrize("raw", [b"\xff" * 20_000, b"\x0a\x05abc" * 5_000, b"\x0b" * 20_000])
def test_what_is_no_message_is_called_none_whatever_its_size(raw: bytes) -> None:
    error = refusal(reader_of(producer_pb2.ProducerFrame, RULES[PRODUCE]), raw)
    assert isinstance(error, InvalidInput)
    assert "cannot be read as headgate.v1.ProducerFrame" in str(error)


def test_a_job_that_is_no_message_hides_none_of_those_before_it() -> None:
    shape = Shape.of(producer_pb2.SubmitBatchRequest.DESCRIPTOR, {"jobs": 100, "jobs.headers": 2})
    header = b"\x5a\x00"
    swallows = b"\x1a\x7f"  # a payload of 127 bytes that is not there: joined, it would take in what follows
    jobs = [header * 3, header * 3, swallows, header * 50]
    raw = b"".join(b"\x0a" + bytes([len(job)]) + job for job in jobs)
    with pytest.raises(DecodeError):  # whatever the shape says of it
        producer_pb2.SubmitBatchRequest.FromString(raw)
    with pytest.raises((DecodeError, TooLarge)):
        shape.check(raw)
