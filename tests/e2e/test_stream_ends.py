"""How streams end and what they leave: credit withdrawn, halves closed, drains, frames refused, jobs due soon."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

import asyncpg
import grpc
import pytest
from grpc_health.v1 import health_pb2

from headgate.sdk import Headgate, Job
from headgate.wire import admin_pb2, jobs_pb2, producer_pb2, worker_pb2
from tests.e2e.conftest import Serve
from tests.support.database import Server
from tests.support.epochs import claims
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import Wire, abandon, failed, nack, new_id, served, snooze

TOKEN = "a-token-for-everything"
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    """One server for the module, not in dev mode; and the URL of its database."""
    folder = tmp_path_factory.mktemp("stream-ends")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({TOKEN: {"tenant": "alpha"}}))
    with served(postgres, template, folder, "--lease", "8", "--tokens", str(tokens), dev=False) as both:
        yield both


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(server.address, token=TOKEN) as wire:
        yield wire


# ---------------------------------------------------------------------- no more jobs


@pytest.mark.req("W18")
async def test_after_quiet_nothing_comes_and_what_is_returned_with_it_goes_to_others(wire: Wire, topic: str) -> None:
    ids = await wire.submit_many(topic, [b""] * 3)
    async with wire.worker("leaves") as leaving, wire.worker("stays") as staying:
        await leaving.ready(10, topic)
        jobs = await leaving.take(3)
        outcomes = worker_pb2.Outcomes(seq=1, others=[abandon(job) for job in jobs])
        await leaving.send(worker_pb2.WorkerFrame(quiet=worker_pb2.Quiet(), outcomes=outcomes))
        await leaving.until(lambda: leaving.quieted, "the wish was confirmed")
        await leaving.until(lambda: 1 in leaving.receipts, "the jobs were taken back")
        ids.append(await wire.submit(topic))
        await staying.ready(4, topic)
        assert {(job.id, job.attempt) for job in await staying.take(4)} == {(job_id, 1) for job_id in ids}
        await leaving.beat()  # whatever was sent before has arrived by now
        assert not leaving.jobs
        await leaving.ready(1)  # of the topics it named before
        again = await wire.submit(topic)
        assert [job.id for job in await leaving.take(1)] == [again]


@pytest.mark.req("W23")
async def test_a_stopping_worker_is_not_sent_again_what_it_has_just_given_up(server: ServerProcess, topic: str) -> None:
    """It holds one and has a hundred waiting, and no one else is there: they would come straight back."""
    hg = Headgate(server.address, token=TOKEN)
    started, let_go = asyncio.Event(), asyncio.Event()
    seen: list[tuple[UUID, int]] = []

    async def handle(*, job: Job) -> str:
        seen.append((job.id, job.epoch))
        started.set()
        await let_go.wait()
        return "done"

    task = hg.register(topic, handle)
    async with asyncio.timeout(60), hg, Wire(server.address, token=TOKEN) as wire:
        handles = await task.submit_many([() for _ in range(101)])
        worker = hg.worker(concurrency=1, prefetch=150)
        running = asyncio.create_task(worker.run())
        await started.wait()

        async def delivered() -> bool:
            return (await wire.job(handles[100].id.bytes)).state == jobs_pb2.STATE_RUNNING

        await until_async(delivered, "it was sent all of them")
        worker.stop()

        async def back() -> bool:
            infos = [await wire.job(handle.id.bytes) for handle in (handles[1], handles[100])]
            return all(info.state == jobs_pb2.STATE_PENDING and claims(info.epoch) == 1 for info in infos)

        await until_async(back, "what it had not begun is back")
        let_go.set()
        await running
        jobs = [await wire.job(handle.id.bytes) for handle in handles]
    assert len(seen) == 1
    assert [(job.state, job.attempt, claims(job.epoch)) for job in jobs[1:]] == [(jobs_pb2.STATE_PENDING, 0, 1)] * 100
    assert (jobs[0].state, jobs[0].attempt) == (jobs_pb2.STATE_COMPLETED, 1)


# ---------------------------------------------------------------------- halves and errors


SETTLING = """SELECT pid FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'headgate settle'"""


@contextmanager
def frozen(backend: int) -> Iterator[None]:
    """Stop a process of PostgreSQL: what it is asked is answered afterwards, and it holds no lock meanwhile."""
    os.kill(backend, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(backend, signal.SIGCONT)


@pytest.mark.req("W14")
async def test_who_closes_its_half_still_gets_the_receipts_of_what_it_said(
    wire: Wire, rows: asyncpg.Connection[asyncpg.Record], topic: str
) -> None:
    async def withdrawn() -> bool:
        found = (await wire.call("ListWorkers", admin_pb2.ListWorkersRequest())).workers
        return [worker.credit for worker in found if worker.worker == "closes"] == [0]

    await wire.submit_many(topic, [b""] * 3)
    async with wire.worker("closes") as session:
        await session.ready(9, topic)
        before, one, two = await session.take(3)
        assert await session.complete(before) == {}  # so there is a connection for outcomes
        with frozen(await rows.fetchval(SETTLING)):
            for seq, job in ((2, one), (3, two)):
                outcomes = worker_pb2.Outcomes(seq=seq, ids=[job.id], epochs=[job.epoch])
                await session.send(worker_pb2.WorkerFrame(outcomes=outcomes))
            await session.done_writing()
            # A job that is claimed for it at this very moment is given back by the connection that is frozen.
            await until_async(withdrawn, "the server has read the end of its half")
            late = await wire.submit(topic)  # it had credit for more, and is not there for it
            async with wire.worker() as other:
                await other.ready(1, topic)
                assert [job.id for job in await other.take(1)] == [late]
            assert session.over is None
        ended = await session.ended()
        assert (ended.status, session.receipts) == (grpc.StatusCode.OK, {2: {}, 3: {}})
    assert [(await wire.job(job.id)).state for job in (one, two)] == [jobs_pb2.STATE_COMPLETED] * 2


async def test_a_refused_part_names_its_frame_and_keeps_the_other_parts(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker() as session:
        outcomes = worker_pb2.Outcomes(seq=7, ids=[new_id()])  # without an epoch
        ready = worker_pb2.Ready(topics=[topic], count=1)
        await session.send(worker_pb2.WorkerFrame(outcomes=outcomes, beat=worker_pb2.Beat(), ready=ready))
        error = await session.error()
        assert (error.field, [frame.error_seq for frame in session.frames if frame.HasField("error")]) == (
            "outcomes.ids",
            [7],
        )
        assert [job.id for job in await session.take(1)] == [job_id]
        assert session.beats == 1
        await session.ready(0)
        await session.error()
        assert session.frames[-1].error_seq == 0  # about nothing that could be sent again


@pytest.mark.req("W17")
async def test_a_bad_wish_or_word_does_not_cost_a_beat_its_answer(wire: Wire, topic: str) -> None:
    await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(1, topic)
        (job,) = await session.take(1)
        good = worker_pb2.JobProgress(id=job.id, epoch=job.epoch, progress=jobs_pb2.Progress(done=1, total=2))
        bad = worker_pb2.JobProgress(id=job.id, epoch=job.epoch, progress=jobs_pb2.Progress(done=-1))
        wish = worker_pb2.Extension(id=job.id, epoch=job.epoch, lease_seconds=60)
        await session.beat(job, progress=[bad, good], extensions=[worker_pb2.Extension(id=b"short"), wish])
        assert (await session.error()).field == "beat.extensions"

        async def noted() -> bool:
            await session.beat(job)
            info = await wire.job(job.id)
            return info.progress.done == 1 and info.lease_until_us > job.lease_until_us + 50_000_000

        await until_async(noted, "the good word was noted and the good wish granted")


@pytest.mark.req("W17", "L3")
async def test_the_lease_of_a_job_that_beats_no_longer_list_is_kept_no_longer(wire: Wire, topic: str) -> None:
    kept_id, _ = await wire.submit_many(topic, [b"", b""], max_attempts=1)
    async with wire.worker() as session:
        await session.ready(2, topic, lease_seconds=5)
        kept, forgotten = await session.take(2)
        assert kept.id == kept_id

        async def expired() -> bool:
            await session.beat(kept, jobs_seen=session.jobs_seen)
            return (await wire.job(forgotten.id)).state == jobs_pb2.STATE_DEAD

        await until_async(expired, "the forgotten one has expired")
        assert (await wire.job(kept.id)).state == jobs_pb2.STATE_RUNNING
        assert await session.complete(kept) == {}


# ---------------------------------------------------------------------- due soon


@pytest.mark.req("D7", "W12")
async def test_a_job_due_between_two_ticks_starts_when_it_is_due(wire: Wire, topic: str) -> None:
    """By the database's clock. By the tick alone, each would be claimed a second after the one before it."""
    async with wire.worker() as session:
        await session.ready(100, topic)
        waits = []
        for number in range(8):
            job_id = await wire.submit(topic, delay_ms=100)
            (job,) = await session.take(1)
            info = await wire.job(job_id)
            waits.append(("submit", (info.claimed_us - info.created_us) / 1e6))
            (receipt,) = (await session.report((nack, snooze)[number % 2](job, 100))).values()
            (job,) = await session.take(1)
            info = await wire.job(job_id)
            waits.append(("outcome", (info.claimed_us - receipt.run_at_us) / 1e6 + 0.1))
            await session.complete(job)
            await session.beat()
    print(waits)  # noqa: T201
    assert min(wait for _, wait in waits) >= 0.1, waits
    assert median(wait for _, wait in waits) < 0.6, waits


# ---------------------------------------------------------------------- heavy jobs


@pytest.mark.req("D26", "W18", "W21")
async def test_two_hundred_jobs_of_a_mebibyte_pass_through_a_server_that_stays_small(
    server: ServerProcess, wire: Wire, topic: str
) -> None:
    before = most = _memory(server)
    payload = os.urandom(MEBIBYTE)
    ids = [job_id for _ in range(40) for job_id in await wire.submit_many(topic, [payload] * 5)]
    async with Wire(server.address, token=TOKEN) as own, own.worker() as session:
        await session.ready(200, topic)
        seen: set[bytes] = set()
        while len(seen) < 200:
            await session.until(lambda: session.jobs, "a job has come")
            job = session.jobs.popleft()
            assert (job.attempt, len(job.payload)) == (1, MEBIBYTE)
            seen.add(job.id)
            most = max(most, _memory(server))
            if len(seen) % 10 == 0:
                await session.beat(job)
        assert seen == set(ids)
    print(f"memory of the server grew by {(most - before) / 1e6:.0f} MB")  # noqa: T201
    assert most - before < 120_000_000


def _memory(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * resource.getpagesize()


# ---------------------------------------------------------------------- drains


@pytest.mark.req("T35")
async def test_neither_a_watch_nor_a_claim_that_waits_delays_a_drain(serve: Serve, topic: str) -> None:
    server = await asyncio.to_thread(serve)  # with a grace of half a minute
    async with Wire(server.address) as wire:
        watch: Any = wire.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        async with asyncio.timeout(60):
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        request = worker_pb2.ClaimRequest(worker_id="waits", topics=[topic], wait_ms=60_000)
        claim = asyncio.create_task(wire.call("Claim", request))

        async def waits() -> bool:
            found = (await wire.call("ListWorkers", admin_pb2.ListWorkersRequest())).workers
            return any(one.worker == "waits" and one.credit for one in found)

        await until_async(waits, "the claim waits, and is listed as a worker")
        began = time.monotonic()
        assert await asyncio.to_thread(server.terminate) == 0
        assert time.monotonic() - began < 15
        async with asyncio.timeout(60):
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await watch.read() is grpc.aio.EOF
            assert not (await claim).jobs


async def test_reflection_is_off_outside_of_dev_mode(wire: Wire) -> None:
    call = wire.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(call.read(), 60)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


# ---------------------------------------------------------------------- who had it


async def test_a_job_that_waits_again_names_the_worker_that_ran_it_last(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    assert (await wire.job(job_id)).worker == ""
    for worker_id, outcome in (("first", nack), ("second", failed)):
        async with wire.worker(worker_id) as session:
            await session.ready(1, topic)
            (job,) = await session.take(1)
            assert (await wire.job(job_id)).worker == worker_id  # runs it
            await session.report(outcome(job))
        waiting = await wire.job(job_id)
        assert (waiting.worker, waiting.lease_until_us) == (worker_id, 0)  # ran it, and holds nothing of it any more


# ---------------------------------------------------------------------- results


@pytest.mark.req("W10")
async def test_a_result_is_stored_as_it_is_and_the_sdk_waits_for_it(
    server: ServerProcess, wire: Wire, topic: str
) -> None:
    """By the SDK and by the long poll of WaitResult. What is left of W10: reading it by REST, when there is REST."""
    hg = Headgate(server.address, token=TOKEN)
    async with asyncio.timeout(60), hg, wire.worker() as session:
        handle = await hg.submit(topic, b"{}")
        waiting = asyncio.create_task(handle.result(timeout=60))
        poll = producer_pb2.WaitResultRequest(id=handle.id.bytes, wait_ms=50)
        assert (await wire.call("WaitResult", poll)).state == jobs_pb2.STATE_PENDING  # the time was over first
        poll.wait_ms = 10_000
        polling = asyncio.create_task(wire.call("WaitResult", poll))
        await session.ready(1, topic)
        (job,) = await session.take(1)
        body = json.dumps({"pages": [1, 2], "für": "Zoë"}).encode()
        assert await session.complete(job, results=[body]) == {}
        assert await waiting == {"pages": [1, 2], "für": "Zoë"}
        assert ((await polling).state, (await polling).result) == (jobs_pb2.STATE_COMPLETED, body)
        assert (await wire.job(handle.id.bytes)).result == body
