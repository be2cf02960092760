"""Credit, jobs, leases and back-pressure on the stream."""

from __future__ import annotations

import asyncio
import os
import random
import time

import grpc
import pytest

from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.e2e.stream.tokens import ALPHA, STALE
from tests.support.epochs import claims
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import Wire, abandon, completed, held, nack, new_id, retry_after

# ---------------------------------------------------------------------- ready


@pytest.mark.req("W6")
async def test_a_ready_is_answered_with_up_to_its_count_in_one_frame(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b"%d" % n for n in range(10)])
    async with wire.worker() as session:
        await session.ready(1, topic)
        (first,) = await session.take(1)
        await session.ready(5)  # of the same topics
        several = await session.take(5)
        frames = [list(frame.jobs.ids) for frame in session.frames if frame.HasField("jobs")]
        assert frames == [ids[:1], ids[1:6]]
        await session.complete(first, *several)
        await session.ready(50)
        assert [job.id for job in await session.take(4)] == ids[6:]


@pytest.mark.req("T13", "K10")
async def test_the_jobs_of_a_frame_are_in_the_order_in_which_they_are_to_run(wire: Wire, topic: str) -> None:
    """Neither in that of their ids nor in that of the rows: both are shuffled against the priorities."""
    ids = sorted(new_id() for _ in range(60))
    shuffled = random.Random(13).sample(ids, len(ids))
    new = [producer_pb2.NewJob(id=one, topic=topic, priority=place % 7 - 3) for place, one in enumerate(shuffled)]
    for part in (new[:30], new[30:]):
        await wire.call("SubmitBatch", producer_pb2.SubmitBatchRequest(jobs=part))
    expected = [bytes(job.id) for job in sorted(new, key=lambda job: -job.priority)]  # stable: as submitted
    async with wire.worker() as session:
        for count in (1, 9, 50):
            await session.ready(count, topic)
            await session.take(count)
        frames = [list(frame.jobs.ids) for frame in session.frames if frame.HasField("jobs")]
        assert frames == [expected[:1], expected[1:10], expected[10:]]


@pytest.mark.req("W6")
async def test_a_lease_is_the_servers_or_as_long_as_asked_for_within_a_cap(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 2)
    async with wire.worker() as session:
        for seconds, expected in ((0, 10), (40, 40)):
            await session.ready(1, topic, lease_seconds=seconds)
            (job,) = await session.take(1)
            info = await wire.job(job.id)
            assert info.lease_until_us == job.lease_until_us
            assert info.lease_until_us - info.claimed_us == expected * 1_000_000
        await session.ready(1, topic, lease_seconds=24 * 3600 + 1)
        error = await session.error()
        assert (error.code, error.field) == ("invalid_input", "ready.lease_seconds")
        assert "86400" in error.message
        assert {job_id: (await wire.job(job_id)).state for job_id in ids} == dict.fromkeys(ids, jobs_pb2.STATE_RUNNING)


@pytest.mark.req("W7")
async def test_a_ready_without_work_is_never_forgotten(wire: Wire, topic: str) -> None:
    async with wire.worker() as session:
        await session.ready(2, topic, lease_seconds=1)
        deadline = time.monotonic() + 31  # a peer was seen to forget it after 30 s; many leases, ticks, refused claims
        while time.monotonic() < deadline:
            await session.beat()
            await asyncio.sleep(0.3)
        for n in range(2):  # one by one: what is left of the credit stays as well
            job_id = await wire.submit(topic, b"%d" % n)
            (job,) = await session.take(1)
            assert job.id == job_id


# ---------------------------------------------------------------------- leases and back-pressure


@pytest.mark.req("W16")
async def test_a_job_without_an_outcome_in_time_is_back_as_a_failed_attempt(server: ServerProcess, wire: Wire) -> None:
    topic = "expires"
    job_id = await wire.submit(topic, retry=retry_after(1))
    async with Wire(server.address, token=ALPHA) as dying:
        async with dying.worker("dying") as session:
            await session.ready(1, topic, lease_seconds=1)
            (first,) = await session.take(1)
            await session.beat(first)  # answered behind the job, which so counts as delivered
        # Its stream is gone, not its lease: no one else gets the job before that is over, by the database's clock.
        async with wire.worker() as session:
            await session.ready(1, topic)
            beats = asyncio.create_task(session.beat_on())
            (second,) = await session.take(1)
            beats.cancel()
            assert (second.id, second.attempt, claims(second.epoch)) == (job_id, 2, 2)
            info = await wire.job(job_id)
            assert info.claimed_us >= first.lease_until_us
            (expired,) = info.events
            assert (expired.kind, expired.worker, expired.attempt) == ("lease_expired", "dying", 1)
            assert (await session.report(completed(first)))[0].code == STALE
            assert await session.complete(second) == {}


@pytest.mark.req("W17")
async def test_beats_keep_leases_and_say_what_is_lost(wire: Wire, topic: str) -> None:
    await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(1, topic, lease_seconds=4)
        (job,) = await session.take(1)
        stranger = job._replace(id=new_id())
        await session.beat(job, stranger)
        await session.until(lambda: session.lost, "the stranger is reported as lost")
        assert session.lost == [(stranger.id, stranger.epoch)]

        async def renewed() -> bool:
            await session.beat(job)
            # Twice its first length: the lease was pushed forward again and again.
            return (await wire.job(job.id)).lease_until_us > job.lease_until_us + 1_000_000

        await until_async(renewed, "the lease was pushed forward")
        info = await wire.job(job.id)
        assert (info.state, claims(info.epoch)) == (jobs_pb2.STATE_RUNNING, 1)
        assert session.lost == [(stranger.id, stranger.epoch)]


@pytest.mark.req("W17")
async def test_a_handler_may_ask_for_a_longer_lease_of_its_own_attempt(wire: Wire, topic: str) -> None:
    await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(2, topic)
        (old,) = await session.take(1)
        await session.report(nack(old, 0))
        (job,) = await session.take(1)
        wish = worker_pb2.Extension(id=job.id, epoch=job.epoch, lease_seconds=600)
        late = worker_pb2.Extension(id=old.id, epoch=old.epoch, lease_seconds=900)  # of the attempt before: not heeded
        await session.beat(job, extensions=[wish, late])

        async def extended() -> bool:
            return (await wire.job(job.id)).lease_until_us > job.lease_until_us + 500_000_000

        await until_async(extended, "the lease is longer")
        assert (await wire.job(job.id)).lease_until_us < job.lease_until_us + 700_000_000
        assert not session.lost
        wish.lease_seconds = 90_000
        await session.send(worker_pb2.WorkerFrame(beat=worker_pb2.Beat(held=held(job), extensions=[wish])))
        error = await session.error()
        assert (error.code, error.field) == ("invalid_input", "extension.lease_seconds")
        assert await session.complete(job) == {}


@pytest.mark.req("W18")
async def test_a_worker_without_free_slots_is_sent_nothing(wire: Wire, topic: str) -> None:
    async with wire.worker() as busy, wire.worker() as other:
        await wire.submit_many(topic, [b""] * 2)
        await busy.ready(2, topic)
        await busy.take(2)
        more = await wire.submit_many(topic, [b""] * 20)
        await other.ready(20, topic)
        assert sorted(job.id for job in await other.take(20)) == sorted(more)
        await busy.beat()  # whatever was sent before has arrived by now
        assert not busy.jobs


@pytest.mark.req("W19")
async def test_four_slots_in_batches_of_eight_settle_each_job_when_it_is_done(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b"%d" % n for n in range(64)])
    async with wire.worker() as session:
        waiting, running, seen = list[bytes](), dict[bytes, object](), list[bytes]()
        await session.ready(8, topic)
        by_id = {}
        while len(seen) < 64:
            if not waiting and not running:
                batch = await session.take(8)
                waiting = [job.id for job in batch]
                by_id = {job.id: job for job in batch}
            while waiting and len(running) < 4:
                job_id = waiting.pop(0)
                running[job_id] = None
            last = list(running)[-1]  # the newest ends first: its outcome does not wait for the batch
            del running[last]
            assert await session.complete(by_id[last]) == {}
            assert (await wire.job(last)).state == jobs_pb2.STATE_COMPLETED
            seen.append(last)
            if not waiting and not running and len(seen) < 64:
                await session.ready(8)
    assert sorted(seen) == sorted(ids)


# ---------------------------------------------------------------------- jobs


@pytest.mark.req("W20")
async def test_a_worker_sees_everything_about_its_job(wire: Wire, topic: str) -> None:
    """All fields there are; trace context travels in the headers. Left of W20: webhook.

    What a handler sees of them, with schedule, occurrence and deadline: tests/e2e/test_schedules.py.
    """
    before = time.time_ns() // 1000
    job_id = await wire.submit(
        topic,
        b"\x00body",
        priority=-7,
        max_attempts=4,
        deadline_us=before + 3_600_000_000,
        headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "user": "Zoë"},
    )
    plain = await wire.submit(topic)
    async with wire.worker() as session:
        assert session.ack is not None
        assert session.ack.tenant == "alpha"
        await session.ready(2, topic)
        other, job = await session.take(2)  # the priority is below the default
        assert other.id == plain
        assert (other.priority, other.max_attempts, other.headers) == (0, 20, {})
        assert (job.id, claims(job.epoch), job.topic, job.payload) == (job_id, 1, topic, b"\x00body")
        assert (job.attempt, job.max_attempts, job.priority) == (1, 4, -7)
        assert job.headers == {
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "user": "Zoë",
        }
        assert (job.deadline_us, other.deadline_us) == (before + 3_600_000_000, 0)
        assert job.created_us == pytest.approx(before, abs=60_000_000)
        assert job.lease_until_us > job.created_us


@pytest.mark.req("W21")
async def test_a_payload_is_any_bytes_from_none_to_a_mebibyte(wire: Wire, topic: str) -> None:
    bodies = [b"", b"\0", b"\xff\xfe\x00", bytes(range(256)), os.urandom(1_024), os.urandom(1_025), os.urandom(1 << 20)]
    await wire.submit_many(topic, bodies)
    async with wire.worker() as session:
        await session.ready(len(bodies), topic)
        assert [job.payload for job in await session.take(len(bodies))] == bodies
    request = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=topic, payload=bytes((1 << 20) + 1)))
    refused = await wire.refused("Submit", request)
    assert (refused.status, refused.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large")
    assert "1048577" in refused.details
    assert "1048576" in refused.details


@pytest.mark.req("W21")
async def test_many_large_payloads_come_in_frames_that_any_client_takes(wire: Wire, topic: str) -> None:
    """4 MiB is what a gRPC client takes unless set otherwise."""
    bodies = [os.urandom(1 << 20) for _ in range(6)]
    for start in (0, 3):
        await wire.submit_many(topic, bodies[start : start + 3])
    async with wire.worker() as session:
        await session.ready(100, topic)
        jobs = await session.take(6)
        assert [job.payload for job in jobs] == bodies
        assert max(frame.ByteSize() for frame in session.frames) < 4 << 20
        await session.report(*map(abandon, jobs))
    claim = worker_pb2.ClaimRequest(worker_id="script", topics=[topic], count=10, wait_ms=30_000)
    claimed: list[bytes] = []
    while len(claimed) < 6:
        answer = await wire.call("Claim", claim)
        assert answer.jobs
        assert all(job.attempt == 1 for job in answer.jobs)  # what did not fit went back at no cost
        claimed += [job.payload for job in answer.jobs]
        await wire.call("ReportOutcome", worker_pb2.ReportOutcomeRequest(outcomes=map(completed, answer.jobs)))
    assert sorted(claimed) == sorted(bodies)
