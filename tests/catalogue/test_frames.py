"""Rows 34, 47-49: frames of the two streams. What is wrong is reported by field, or ends that stream only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.catalogue.conftest import OURS
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import PRODUCE, Ended, Wire, completed, new_id

INVALID = jobs_pb2.RECEIPT_INVALID


@pytest.fixture
async def wire(unharmed_but_written: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(unharmed_but_written.address, token=OURS) as wire:
        yield wire


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4()}"


async def test_a_hello_that_is_repeated_is_reported_and_the_stream_lives(wire: Wire) -> None:
    async with wire.worker() as session:
        await session.send(worker_pb2.WorkerFrame(hello=worker_pb2.Hello(worker_id="again")))
        assert (await session.error()).code == "protocol_error"
        await session.beat()


@pytest.mark.req("W2")
@pytest.mark.parametrize(
    "first",
    [
        worker_pb2.WorkerFrame(),
        worker_pb2.WorkerFrame(beat=worker_pb2.Beat()),
        worker_pb2.WorkerFrame(outcomes=worker_pb2.Outcomes(seq=1)),
    ],
    ids=["empty", "beat", "outcomes"],
)
async def test_a_stream_that_does_not_begin_with_hello_is_ended(wire: Wire, first: worker_pb2.WorkerFrame) -> None:
    session = wire.session()
    await session.send(first)
    ended = await session.ended()
    assert (ended.status, ended.code) == (grpc.StatusCode.FAILED_PRECONDITION, "protocol_error")
    assert "hello" in ended.details


async def test_a_producer_frame_that_cannot_be_taken_is_answered_and_the_stream_lives(wire: Wire, topic: str) -> None:
    call: Any = wire.channel.stream_stream(PRODUCE)(metadata=wire.metadata)
    await call.write(producer_pb2.ProducerFrame(seq=1).SerializeToString())
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(call.read(), 5)
    assert (Ended.of(refused.value).code, refused.value.code()) == (
        "protocol_error",
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    async with wire.producer() as producer:
        await producer.send(producer_pb2.ProducerFrame(seq=1, hello=producer_pb2.ProducerHello()))
        assert (await producer.reply(1)).error.code == "protocol_error"
        await producer.send(producer_pb2.ProducerFrame(seq=2))  # nothing at all
        error = (await producer.reply(2)).error
        assert (error.code, error.field) == ("invalid_input", "frame")
        # A frame without a row once ended the whole instance.
        await producer.send(producer_pb2.ProducerFrame(seq=4, plain=producer_pb2.PlainJobs(topic=topic)))
        error = (await producer.reply(4)).error
        assert (error.code, error.field) == ("invalid_input", "plain.ids")
        await producer.send(producer_pb2.ProducerFrame(seq=3, jobs=[producer_pb2.NewJob(topic=topic)]))
        assert (await producer.reply(3)).exceptions[0].code == producer_pb2.SUBMIT_CREATED


@pytest.mark.parametrize(
    ("hello", "field"),
    [
        (worker_pb2.Hello(), "worker_id"),
        (worker_pb2.Hello(worker_id="x" * 201), "worker_id"),
        (worker_pb2.Hello(worker_id="two\nlines"), "worker_id"),
        (worker_pb2.Hello(worker_id="w", held=worker_pb2.Held(ids=[b"x" * 16])), "hello.held"),
        (worker_pb2.Hello(worker_id="w", held=worker_pb2.Held(ids=[b"short"], epochs=[1])), "hello.held"),
        (worker_pb2.Hello(worker_id="w", held=worker_pb2.Held(ids=[b"x" * 16], epochs=[2**53])), "hello.held"),
        (worker_pb2.Hello(worker_id="w", held=worker_pb2.Held(ids=[b""] * 100_001)), "hello.held"),
    ],
    ids=["nameless", "long name", "two lines", "epochs missing", "short id", "large epoch", "100,001 held"],
)
async def test_a_bad_hello_is_refused_by_field(wire: Wire, hello: worker_pb2.Hello, field: str) -> None:
    session = wire.session()
    await session.send(worker_pb2.WorkerFrame(hello=hello))
    ended = await session.ended()
    assert ended.code in ("invalid_input", "too_large")
    assert ended.status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert ended.details.startswith(f"{field}: ")


@pytest.mark.req("W6")
async def test_a_bad_ready_is_reported_by_field_and_the_stream_lives(wire: Wire, topic: str) -> None:
    ready = worker_pb2.Ready
    cases = [
        (ready(count=1), "ready.topics"),
        (ready(topics=[topic], count=0), "ready.count"),
        (ready(topics=[topic], count=-1), "ready.count"),
        (ready(topics=[topic], count=-(2**31)), "ready.count"),  # what 2^31 becomes on the wire
        (ready(topics=[topic], count=2**31 - 1), "ready.count"),
        (ready(topics=[topic], count=100_001), "ready.count"),
        (ready(topics=[topic], count=1, lease_seconds=2**32 - 1), "ready.lease_seconds"),
        (ready(topics=[f"t{n}" for n in range(10_000)], count=1), "ready.topics"),
        (ready(topics=["no topic"], count=1), "ready.topics"),
        (ready(topics=[""], count=1), "ready.topics"),
        (ready(topics=["../etc"], count=1), "ready.topics"),
    ]
    async with wire.worker() as session:
        for frame, field in cases:
            await session.send(worker_pb2.WorkerFrame(ready=frame))
            error = await session.error()
            assert (error.code, error.field) == ("invalid_input", field), error
            assert error.message.startswith(field)
        job_id = await wire.submit(topic)
        await session.ready(1, topic)
        (job,) = await session.take(1)
        assert job.id == job_id
        assert await session.complete(job) == {}  # a lease that expires later would look like a write of another test's


async def test_a_bad_stream_request_is_refused_by_field(wire: Wire, topic: str) -> None:
    for options, field in (
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": 2**31}, "max_in_flight"),
        ({"max_in_flight": 1, "lease_seconds": 90_000}, "lease_seconds"),
    ):
        async with wire.stream_jobs("w", topic, **options) as stream:
            ended = await stream.ended()
            assert ended.code == "invalid_input"
            assert ended.details.startswith(f"{field}: ")
    async with wire.stream_jobs("w", *[f"t{n}" for n in range(10_000)], max_in_flight=1) as stream:
        assert (await stream.ended()).details.startswith("topics: ")


async def test_what_a_beat_gets_wrong_is_reported_by_field_and_the_stream_lives(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(1, topic)
        (job,) = await session.take(1)
        many = [job.id] * 5_001
        for frame, field in (
            (_outcomes(ids=[job.id]), "outcomes.ids"),
            (_outcomes(ids=[job.id], epochs=[1, 2]), "outcomes.ids"),
            (_outcomes(ids=[job.id], epochs=[1], results=[b"", b""]), "outcomes.results"),
            (_outcomes(results=[b"x"]), "outcomes.results"),
            (_outcomes(ids=many, epochs=[1] * 5_001), "outcomes"),
            (_outcomes(others=[jobs_pb2.Outcome()] * 5_001), "outcomes"),
            (_beat(held=worker_pb2.Held(ids=[job.id])), "beat.held"),
            (_beat(held=worker_pb2.Held(ids=[b"short"], epochs=[1])), "beat.held"),
            (_beat(held=worker_pb2.Held(ids=[job.id], epochs=[2**64 - 1])), "beat.held"),
            (_beat(held=worker_pb2.Held(ids=[b""] * 100_001)), "beat.held"),
            (_beat(extensions=[worker_pb2.Extension(id=b"short")]), "beat.extensions"),
            (_beat(extensions=[worker_pb2.Extension(id=job.id, epoch=2**53, lease_seconds=9)]), "beat.extensions"),
            (_beat(progress=[worker_pb2.JobProgress(id=b"")]), "progress.id"),
            (_beat(progress=[_progress(job.id, done=-1)]), "progress.done"),
            (_beat(progress=[_progress(job.id, done=101, total=100)]), "progress.done"),
            (_beat(progress=[_progress(job.id, done=1, total=-5)]), "progress.total"),
        ):
            await session.send(frame)
            error = await session.error()
            assert (error.code in ("invalid_input", "too_large"), error.field) == (True, field), error
            assert error.message.startswith(field)
        assert (await wire.job(job_id)).state == jobs_pb2.STATE_RUNNING
        assert await session.complete(job) == {}


async def test_an_epoch_that_no_column_holds_hurts_no_one_elses_outcomes_or_leases(wire: Wire, topic: str) -> None:
    """Outcomes of all sessions share statements, and so do renewals: one bad value must not fail them."""
    job_id = await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(1, topic, lease_seconds=4)
        (job,) = await session.take(1)
        beat = worker_pb2.HeartbeatRequest(worker_id="w", held=worker_pb2.Held(ids=[job.id], epochs=[2**64 - 1]))
        refused = await wire.refused("Heartbeat", beat)
        assert (refused.code, refused.details.startswith("held: ")) == ("invalid_input", True)
        async with wire.worker() as poisoner:
            for frame in (
                _beat(held=worker_pb2.Held(ids=[new_id()], epochs=[2**64 - 1])),
                _outcomes(seq=1, ids=[new_id()], epochs=[2**64 - 1]),
                _outcomes(seq=2, others=[jobs_pb2.Outcome(id=new_id(), epoch=2**53, abandon=jobs_pb2.Abandon())]),
            ):
                await poisoner.send(frame)

            async def renewed() -> bool:
                await session.beat(job)
                await poisoner.beat()
                return (await wire.job(job_id)).lease_until_us > job.lease_until_us + 1_000_000

            await until_async(renewed, "the neighbour's lease was renewed")
            assert [poisoner.receipts[seq][0].code for seq in (1, 2)] == [INVALID] * 2
        assert await session.complete(job) == {}


async def test_a_bad_outcome_is_refused_alone_and_its_job_stays_leased(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 3)
    async with wire.worker() as session:
        await session.ready(3, topic)
        one, two, three = await session.take(3)
        receipts = await session.report(
            jobs_pb2.Outcome(id=one.id, epoch=one.epoch),  # no kind
            completed(two, bytes(1_048_577)),
            completed(three),
        )
        assert {place: receipt.code for place, receipt in receipts.items()} == {0: INVALID, 1: INVALID}
        assert "none of completed, failed, nack, abandon, snooze is set" in receipts[0].message
        assert "result: 1048577 bytes is over the limit of 1048576 bytes" in receipts[1].message
        states = [(await wire.job(job_id)).state for job_id in ids]
        assert states == [jobs_pb2.STATE_RUNNING, jobs_pb2.STATE_RUNNING, jobs_pb2.STATE_COMPLETED]
        assert await session.complete(one, two) == {}


def _outcomes(**parts: Any) -> worker_pb2.WorkerFrame:
    return worker_pb2.WorkerFrame(outcomes=worker_pb2.Outcomes(**parts))


def _beat(**parts: Any) -> worker_pb2.WorkerFrame:
    return worker_pb2.WorkerFrame(beat=worker_pb2.Beat(**parts))


def _progress(job_id: bytes, **progress: Any) -> worker_pb2.JobProgress:
    return worker_pb2.JobProgress(id=job_id, epoch=1, progress=jobs_pb2.Progress(**progress))
