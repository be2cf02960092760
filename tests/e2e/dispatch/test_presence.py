"""Workers that come, leave and return, and what is on the wire."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from headgate.store.control import pause, resume
from headgate.wire import jobs_pb2, worker_pb2
from tests.e2e.conftest import Serve
from tests.e2e.dispatch.calls import ALPHA, STALE, TOKENS, _report
from tests.support.epochs import claims
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import WORK, Wire, abandon, completed, held, nack

# ---------------------------------------------------------------------- presence and the wire


@pytest.mark.req("D11")
async def test_who_has_left_is_given_nothing_whatever_credit_it_had(
    server: ServerProcess, wire: Wire, topic: str
) -> None:
    for number in range(3):
        async with wire.worker(f"leaves-{number}-{topic}") as session:
            await session.ready(100, topic)
        await asyncio.to_thread(server.saw, f"session_ended worker=leaves-{number}-{topic} reason=connection_lost")
    async with wire.worker() as session:
        await wire.submit(f"{topic}-2")
        await session.ready(1, f"{topic}-2")
        await session.take(1)  # claims go one by one: the one that was on its way when the last session left is over
        job_id = await wire.submit(topic)
        await session.ready(1, topic)
        (job,) = await session.take(1)
        assert (job.id, job.attempt, claims(job.epoch)) == (job_id, 1, 1)


async def test_a_ready_makes_no_topic_and_its_jobs_come_when_there_are_some(
    wire: Wire, topic: str, rows: asyncpg.Connection[asyncpg.Record]
) -> None:
    count = "SELECT count(*) FROM headgate.topics"
    before = await rows.fetchval(count)
    async with wire.worker("asks") as session:
        for page in range(9):
            await session.ready(1, *(f"{topic}-{page}-{n}" for n in range(100)))
        await session.ready(1, topic, lease_seconds=30)
        for n in range(100):  # more combinations than a session may have: the worker gets an error, and continues
            await session.ready(1, topic, lease_seconds=40 + n)
        error = await session.error()
        assert (error.code, "limit of 64" in error.message) == ("too_large", True)
        answer = await wire.call(
            "Claim", worker_pb2.ClaimRequest(worker_id="script", topics=[f"{topic}-none"], wait_ms=1)
        )
        assert not answer.jobs
        assert await rows.fetchval(count) == before
        job_id = await wire.submit(topic)
        assert [job.id for job in await session.take(1)] == [job_id]
        assert await rows.fetchval(count) == before + 1


@pytest.mark.req("D16")
async def test_a_claim_is_committed_before_anything_is_on_the_wire(
    server: ServerProcess, wire: Wire, rows: asyncpg.Connection[asyncpg.Record], topic: str
) -> None:
    """The peer reads nothing, so most of what is claimed for it cannot be sent; then its wire breaks."""
    async with Wire(server.address, token=ALPHA, options=[("grpc.http2.bdp_probe", 0)]) as broken:  # a narrow window
        call = broken.channel.stream_stream(WORK)(metadata=broken.metadata)
        hello = worker_pb2.Hello(worker_id=f"deaf-{topic}")
        ready = worker_pb2.Ready(topics=[topic], count=20, lease_seconds=30)
        await call.write(worker_pb2.WorkerFrame(hello=hello, ready=ready).SerializeToString())
        ids = await wire.submit_many(topic, [os.urandom(150_000)] * 20)  # less than may wait for one session
        uuids = [UUID(bytes=job_id) for job_id in ids]

        async def all_claimed() -> bool:
            claimed = await rows.fetchval(
                "SELECT count(*) FROM headgate.jobs WHERE id = ANY ($1) AND state = 1 AND worker = $2 AND attempt = 1"
                " AND lease_until > now() AND owner IS NOT NULL",
                uuids,
                f"deaf-{topic}",
            )
            return claimed == len(ids)

        await until_async(all_claimed, "all are running, with a lease, and hardly one was sent")
    async with wire.worker() as session:
        await session.ready(20, topic)
        beats = asyncio.create_task(session.beat_on())
        jobs = await session.take(20)
        beats.cancel()
        assert {job.id for job in jobs} == set(ids)
        # Not a single frame was written to its end: all are back at once, and none has cost an attempt.
        assert {(job.attempt, claims(job.epoch)) for job in jobs} == {(1, 2)}


@pytest.mark.req("D19")
async def test_neither_a_pause_nor_a_lost_database_nor_a_failing_claim_ends_a_stream(
    server: ServerProcess, wire: Wire, rows: asyncpg.Connection[asyncpg.Record], topic: str
) -> None:
    async with wire.worker() as session, wire.stream_jobs("plain", f"{topic}-2", max_in_flight=9) as stream:
        beats = asyncio.create_task(session.beat_on())
        await session.ready(3, topic)

        async def both_get_one() -> None:
            mine, theirs = await wire.submit(topic), await wire.submit(f"{topic}-2")
            assert [job.id for job in await session.take(1)] == [mine]
            (job,) = await stream.take(1)
            assert job.id == theirs
            await _report(wire, "plain", completed(job))

        await pause(rows)
        refused = len(server.seen("claim_failed"))
        paused = asyncio.create_task(both_get_one())
        await session.beat()
        await resume(rows)
        await paused

        await rows.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'headgate %' AND pid <> pg_backend_pid()"
        )
        await both_get_one()

        names = ("claim", "submit_running", "submit_claim")  # by any of them a job comes to run
        functions = [
            await rows.fetchval("SELECT $1::text::regproc::regprocedure::text", f"headgate.{name}_v1") for name in names
        ]
        for name, function in zip(names, functions, strict=True):
            await rows.execute(f"ALTER FUNCTION {function} RENAME TO {name}_away")
        failing = asyncio.create_task(both_get_one())
        try:
            await asyncio.to_thread(server.saw, "claim_failed", times=refused + 1)
        finally:
            for name, function in zip(names, functions, strict=True):
                away = function.replace(f"{name}_v1", f"{name}_away")
                await rows.execute(f"ALTER FUNCTION {away} RENAME TO {name}_v1")
        await failing
        beats.cancel()
        assert session.over is None
        assert stream.over is None


@pytest.mark.req("D21")
async def test_every_delivery_has_its_own_epoch_also_when_the_attempt_repeats(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic, max_attempts=3)
    async with wire.worker() as session:
        await session.ready(4, topic)
        seen = []
        for outcome in (abandon, nack, abandon):
            (job,) = await session.take(1)
            seen.append((job.id, job.attempt, claims(job.epoch)))
            await session.report(outcome(job))
        (job,) = await session.take(1)
        assert [*seen, (job.id, job.attempt, claims(job.epoch))] == [
            (job_id, 1, 1),
            (job_id, 1, 2),
            (job_id, 2, 3),
            (job_id, 2, 4),
        ]
        receipts = await session.report(
            *(completed(job._replace(epoch=epoch)) for epoch in range(job.epoch - 3, job.epoch))
        )
        assert [receipts[place].code for place in range(3)] == [STALE] * 3
        assert await session.complete(job) == {}


async def test_a_worker_that_comes_back_keeps_what_it_declares_and_the_rest_is_free(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 3, max_attempts=1)
    async with wire.worker("returns", incarnation=7) as session:
        await session.ready(3, topic)
        kept, forgotten, done = await session.take(3)
        await session.complete(done)
    async with wire.worker("returns", held=held(kept, done), resumed=True, incarnation=7) as session:
        assert session.ack is not None
        assert list(session.ack.lost.ids) == [done.id]
        await session.ready(1, topic)
        (again,) = await session.take(1)
        assert (again.id, again.attempt, claims(again.epoch)) == (forgotten.id, 1, 2)
        assert await session.complete(kept, again) == {}
    assert [(await wire.job(job_id)).state for job_id in ids] == [jobs_pb2.STATE_COMPLETED] * 3


@pytest.mark.parametrize("incarnation", [2, 0])
async def test_a_worker_that_comes_back_leaves_what_its_twin_on_another_server_runs(
    wire: Wire, running: tuple[ServerProcess, str], serve: Serve, tmp_path: Path, topic: str, incarnation: int
) -> None:
    name, tokens = f"twin-{topic}", tmp_path / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    ids = await wire.submit_many(topic, [b""] * 2, max_attempts=1)
    second = await asyncio.to_thread(lambda: serve("--tokens", str(tokens), dsn=running[1]))
    async with Wire(second.address, token=ALPHA) as elsewhere, elsewhere.worker(name, incarnation=incarnation) as twin:
        await twin.ready(1, topic, lease_seconds=60)
        (theirs,) = await twin.take(1)
        async with wire.worker(name, incarnation=1) as session:
            await session.ready(1, topic, lease_seconds=60)
            (mine,) = await session.take(1)
            # Answered after the frame with the job is known to be written: until then it would go back as never sent.
            await session.beat(mine)
        async with wire.worker(name, resumed=True):  # a client that sends no incarnation: nothing is given back
            assert {(await wire.job(one)).state for one in ids} == {jobs_pb2.STATE_RUNNING}
        async with wire.worker(name, resumed=True, incarnation=1) as session:
            assert (await wire.job(theirs.id)).state == jobs_pb2.STATE_RUNNING
            await session.ready(2, topic)
            (again,) = await session.take(1)
            assert (again.id, again.attempt, claims(again.epoch)) == (mine.id, 1, 2)  # its own, at once, at no cost
            assert await session.complete(again) == {}
        assert await twin.complete(theirs) == {}
    for job in (theirs, again):
        ended = await wire.job(job.id)
        assert (ended.state, ended.worker, ended.epoch) == (jobs_pb2.STATE_COMPLETED, name, job.epoch)
