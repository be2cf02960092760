"""Submitting over the stream and by calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import grpc
import pytest

from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.support.epochs import claims
from tests.support.waiting import until_async
from tests.support.wire import Wire, new_id, retry_after


@pytest.mark.req("W26")
async def test_a_producer_pipelines_frames_with_every_option_and_is_answered_by_number(wire: Wire, topic: str) -> None:
    """Trace context travels in the headers. Left of W26: the webhook, when there is one."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    ids = [new_id() for _ in range(5)]
    key = f"key-{uuid4()}"
    async with wire.producer() as producer:
        assert producer.ack is not None
        assert producer.ack.tenant == "alpha"
        specials = [
            producer_pb2.NewJob(id=ids[0], topic=topic, run_at_us=int(tomorrow.timestamp() * 1_000_000)),
            producer_pb2.NewJob(id=ids[1], topic=topic, delay_ms=3_600_000, priority=9),
            producer_pb2.NewJob(
                id=ids[2],
                topic=topic,
                payload=b"keyed",
                max_attempts=3,
                key=key,
                headers={"traceparent": "00-1-2-3"},
                tags=["a", "b"],
                retry=retry_after(50),
            ),
        ]
        plain = [producer_pb2.PlainJobs(topic=topic, ids=[job_id], payloads=[b"p"], new_id=True) for job_id in ids[3:]]
        same_key = producer_pb2.NewJob(topic=topic, payload=b"keyed", key=key)
        other_body = producer_pb2.NewJob(topic=topic, payload=b"another", key=key)
        nameless = producer_pb2.NewJob(topic=topic)
        for frame in (  # all at once, none awaited; numbered downwards
            producer_pb2.ProducerFrame(seq=9, jobs=specials),
            producer_pb2.ProducerFrame(seq=8, plain=plain[0]),
            producer_pb2.ProducerFrame(seq=7, plain=plain[1], jobs=[same_key, other_body, nameless]),
        ):
            await producer.send(frame)
        mixed = await producer.reply(7)
        assert not (await producer.reply(9)).exceptions
        assert not (await producer.reply(8)).exceptions
        exceptions = {receipt.index: receipt for receipt in mixed.exceptions}
        assert {place: receipt.code for place, receipt in exceptions.items()} == {
            1: producer_pb2.SUBMIT_DUPLICATE,
            2: producer_pb2.SUBMIT_CONFLICT,
            3: producer_pb2.SUBMIT_CREATED,  # reported, because the server made its id
        }
        assert exceptions[1].id == exceptions[2].id == ids[2]
        assert exceptions[2].error.code == "conflict"
        await producer.done_writing()
        assert (await producer.ended()).status is grpc.StatusCode.OK
    later, delayed, keyed, *plains = [await wire.job(job_id) for job_id in ids]
    assert (later.state, later.run_at_us) == (jobs_pb2.STATE_SCHEDULED, int(tomorrow.timestamp() * 1_000_000))
    assert (delayed.state, delayed.priority) == (jobs_pb2.STATE_SCHEDULED, 9)
    assert delayed.run_at_us - delayed.created_us == pytest.approx(3_600_000_000, abs=1_000)
    assert (keyed.max_attempts, dict(keyed.headers)) == (3, {"traceparent": "00-1-2-3"})
    assert [(job.state, job.payload) for job in plains] == [(jobs_pb2.STATE_PENDING, b"p")] * 2
    assert (await wire.job(exceptions[3].id)).state == jobs_pb2.STATE_PENDING


async def test_a_bad_job_of_a_frame_is_refused_alone_and_a_bad_frame_as_a_whole(wire: Wire, topic: str) -> None:
    async with wire.producer() as producer:
        good = new_id()
        jobs = [
            producer_pb2.NewJob(id=good, topic=topic),
            producer_pb2.NewJob(topic="no topic"),
            producer_pb2.NewJob(topic=topic, run_at_us=253_402_300_000_000_000),
            producer_pb2.NewJob(topic=topic, delay_ms=-1),
            producer_pb2.NewJob(topic=topic, id=b"short"),
            producer_pb2.NewJob(topic=topic, delay_ms=1, run_at_us=1_800_000_000_000_000),
            producer_pb2.NewJob(topic=topic, max_attempts=10**9),
        ]
        await producer.send(producer_pb2.ProducerFrame(seq=1, jobs=jobs))
        reply = await producer.reply(1)
        assert {receipt.index: receipt.error.field for receipt in reply.exceptions} == {
            1: "topic",
            2: "run_at_us",
            3: "delay_ms",
            4: "id",
            5: "run_at_us",
            6: "max_attempts",
        }
        assert {receipt.code for receipt in reply.exceptions} == {producer_pb2.SUBMIT_REFUSED}
        assert (await wire.job(good)).state == jobs_pb2.STATE_PENDING
        for plain, field in (
            (producer_pb2.PlainJobs(topic=topic, ids=[new_id()]), "plain.payloads"),
            (
                producer_pb2.PlainJobs(topic=topic, ids=[new_id()], payloads=[b""], priorities=[1, 2]),
                "plain.priorities",
            ),
            (producer_pb2.PlainJobs(topic=topic, ids=[b"x"], payloads=[b""]), "plain.ids"),
            (producer_pb2.PlainJobs(topic="", ids=[new_id()], payloads=[b""]), "topic"),
            (producer_pb2.PlainJobs(topic=topic, ids=[], payloads=[b""]), "plain.ids"),
        ):
            await producer.send(producer_pb2.ProducerFrame(seq=2, plain=plain))
            error = (await producer.reply(2)).error
            assert (error.code, error.field) == ("invalid_input", field)


async def test_one_stream_may_ask_as_often_as_it_likes(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 500)
    async with wire.worker() as session:
        for _ in range(500):
            await session.ready(1, topic)
        jobs = await session.take(500)
        assert [job.id for job in jobs] == ids
        assert await session.complete(*jobs) == {}
        assert not session.errors


@pytest.mark.req("W29")
async def test_reading_a_job_shows_who_holds_it_since_when_and_until_when(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic, b"body", priority=3)
    waiting = await wire.job(job_id)
    assert (waiting.state, waiting.worker, waiting.claimed_us) == (jobs_pb2.STATE_PENDING, "", 0)
    assert (waiting.lease_until_us, waiting.attempt, waiting.priority) == (0, 0, 3)
    async with wire.worker("reader") as session:
        await session.ready(1, topic)
        (job,) = await session.take(1)
        running = await wire.job(job_id)
        assert (running.state, running.worker, claims(running.epoch)) == (jobs_pb2.STATE_RUNNING, "reader", 1)
        assert running.created_us <= running.claimed_us < running.lease_until_us == job.lease_until_us
        progress = jobs_pb2.Progress(done=2, total=5, message="pages")
        await session.beat(job, progress=[worker_pb2.JobProgress(id=job.id, epoch=job.epoch, progress=progress)])

        async def shown() -> bool:
            found = (await wire.job(job_id)).progress
            return (found.done, found.total, found.message) == (2, 5, "pages")

        await until_async(shown, "the progress is shown")
        await session.complete(job, results=[b"result"])
    done = await wire.job(job_id)
    assert (done.state, done.result, done.payload) == (jobs_pb2.STATE_COMPLETED, b"result", b"body")
    assert done.finished_us >= done.claimed_us
    assert (done.lease_until_us, done.tenant, done.topic) == (0, "alpha", topic)
    missing = await wire.refused("GetJob", producer_pb2.GetJobRequest(id=new_id()))
    assert (missing.status, missing.code) == (grpc.StatusCode.NOT_FOUND, "not_found")
