"""A stream of jobs, with outcomes reported by calls."""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg
import grpc
import grpc.aio
import pytest

from headgate.wire import jobs_pb2, worker_pb2
from tests.e2e.dispatch.calls import APPLIED, DUPLICATE, STALE, _report
from tests.support.epochs import claims
from tests.support.waiting import until_async
from tests.support.wire import Wire, completed, failed, held, nack, retry_after

# ---------------------------------------------------------------------- a stream of jobs, outcomes by calls


@pytest.mark.req("D8", "D20")
async def test_a_plain_stream_brings_jobs_and_a_reported_outcome_frees_its_place(wire: Wire, topic: str) -> None:
    async with wire.stream_jobs("plain", topic, max_in_flight=2) as stream, wire.worker() as other:
        ids = await wire.submit_many(topic, [b"%d" % n for n in range(6)])
        first, second = await stream.take(2)
        assert [(job.id, job.payload, job.topic, job.tenant) for job in (first, second)] == [
            (ids[0], b"0", topic, "alpha"),
            (ids[1], b"1", topic, "alpha"),
        ]
        assert (first.attempt, claims(first.epoch), first.max_attempts) == (1, 1, 20)
        await other.ready(1, topic)  # there is more, but not for who holds all it may
        (third,) = await other.take(1)
        assert (third.id, len(stream.jobs)) == (ids[2], 0)
        answer = await wire.call("Heartbeat", worker_pb2.HeartbeatRequest(worker_id="plain", held=held(first, second)))
        assert not answer.lost.ids
        await _report(wire, "plain", completed(first, b"r"))
        (fourth,) = await stream.take(1)
        assert (fourth.id, (await wire.job(ids[0])).result) == (ids[3], b"r")
        # A report of another attempt frees nothing: the job it names is still held.
        late = jobs_pb2.Outcome(id=fourth.id, epoch=fourth.epoch + 1, completed=jobs_pb2.Completed())
        assert [receipt.code for receipt in await _report(wire, "plain", late)] == [STALE]
        await other.ready(1, topic)
        (fifth,) = await other.take(1)
        assert (fifth.id, len(stream.jobs)) == (ids[4], 0)
        await _report(wire, "plain", nack(second, 60_000), failed(fourth))
        (sixth,) = await stream.take(1)
        assert sixth.id == ids[5]


@pytest.mark.req("D20")
async def test_losing_the_stream_loses_neither_beats_nor_reports(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker("loses-it") as session:
        await session.ready(1, topic, lease_seconds=8)
        (job,) = await session.take(1)
        await session.beat(job)  # answered after the frame of jobs was written: cut short, it would count as never sent
    beat = worker_pb2.HeartbeatRequest(worker_id="loses-it", held=held(job), lease_seconds=8)

    async def outlived() -> bool:
        assert not (await wire.call("Heartbeat", beat)).lost.ids
        info = await wire.job(job_id)
        assert (info.state, claims(info.epoch)) == (jobs_pb2.STATE_RUNNING, 1)
        return info.lease_until_us > job.lease_until_us + 1_500_000

    await until_async(outlived, "the lease outlived its stream by calls alone")
    (receipt,) = await _report(wire, "loses-it", completed(job, b"late, and right"))
    assert receipt.code == APPLIED
    (again,) = await _report(wire, "loses-it", completed(job, b"late, and right"))
    assert again.code == DUPLICATE
    assert (await wire.job(job_id)).result == b"late, and right"


@pytest.mark.req("D20")
async def test_a_beat_says_which_rows_were_locked_and_neither_waits_for_them_nor_calls_them_lost(
    wire: Wire, topic: str, rows: asyncpg.Connection[asyncpg.Record]
) -> None:
    await wire.submit_many(topic, [b"a", b"b"])
    claim = worker_pb2.ClaimRequest(worker_id="script", topics=[topic], count=2, lease_seconds=60, wait_ms=30_000)
    locked, free = (await wire.call("Claim", claim)).jobs
    beat = worker_pb2.HeartbeatRequest(worker_id="script", held=held(locked, free), lease_seconds=120)
    async with rows.transaction():
        await rows.execute("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", UUID(bytes=locked.id))
        answer = await wire.call("Heartbeat", beat)
        assert (list(answer.skipped.ids), list(answer.lost.ids)) == ([locked.id], [])
        assert (await wire.job(locked.id)).lease_until_us == locked.lease_until_us
        assert (await wire.job(free.id)).lease_until_us > free.lease_until_us
    assert not (await wire.call("Heartbeat", beat)).skipped.ids
    assert (await wire.job(locked.id)).lease_until_us > locked.lease_until_us


async def test_a_plain_stream_without_beats_is_ended_and_its_job_comes_back(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic, retry=retry_after(1))
    async with wire.stream_jobs("forgets", topic, max_in_flight=1, lease_seconds=1) as stream:
        await stream.take(1)
        ended = await stream.ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.DEADLINE_EXCEEDED, "session_silent")
    async with wire.worker() as session:
        await session.ready(1, topic)
        beats = asyncio.create_task(session.beat_on())
        (again,) = await session.take(1)
        beats.cancel()
        assert (again.id, again.attempt) == (job_id, 2)
