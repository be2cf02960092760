"""Dispatch as its users see it: PostgreSQL, servers and workers as processes of their own, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

import asyncpg
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headgate.store.connect import connect
from headgate.store.control import pause, resume
from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.e2e.conftest import Serve, Spawn
from tests.support.database import Server
from tests.support.epochs import claims
from tests.support.server import HEADGATE, ServerProcess, clean_environ
from tests.support.waiting import until_async
from tests.support.wire import WORK, Wire, abandon, completed, failed, held, nack, new_id, retry_after, served

ALPHA, BETA, MAIL, SUBMITS, READS, WORKS = (
    f"a-token-for-{name}-only" for name in ("alpha", "beta", "mail", "submits", "reads", "works")
)
TOKENS: dict[str, dict[str, object]] = {
    ALPHA: {"tenant": "alpha"},
    BETA: {"tenant": "beta"},
    MAIL: {"tenant": "alpha", "topics": ["mail"]},
    SUBMITS: {"tenant": "alpha", "scopes": ["submit"]},
    READS: {"tenant": "alpha", "scopes": ["read"]},
    WORKS: {"tenant": "alpha", "scopes": ["work"]},
}
APPLIED, DUPLICATE, STALE, UNKNOWN = range(4)


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    """One server for the module, with leases of 8 s and tokens of two tenants; and the URL of its database."""
    folder = tmp_path_factory.mktemp("dispatch")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--lease", "8", "--tokens", str(tokens)) as both:
        yield both


@pytest.fixture
def the_server(running: tuple[ServerProcess, str]) -> ServerProcess:
    return running[0]


@pytest.fixture
async def rows(running: tuple[ServerProcess, str]) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection to the server's database."""
    connection = await connect(running[1], application_name="headgate test")
    yield connection
    await connection.close()


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(server.address, token=ALPHA) as wire:
        yield wire


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4()}"


# ---------------------------------------------------------------------- who runs what


@pytest.mark.req("D1", "D3")
async def test_handlers_run_in_the_workers_process_and_nothing_but_postgres_is_needed(
    server: ServerProcess, wire: Wire, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(
        "import os\n"
        "from headgate import Headgate\n"
        "hg = Headgate()\n"
        "@hg.job('pids')\n"
        "def pid() -> int:\n"
        "    return os.getpid()\n"
    )
    environ = {**clean_environ(), "HEADGATE_URL": server.address, "HEADGATE_TOKEN": ALPHA}
    worker = spawn("worker", HEADGATE, "worker", "app:hg", environ=environ)
    job = await wire.ended(await wire.submit("pids", b"{}"))
    assert int(job.result) == worker.pid != server.pid
    assert not Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()  # and no children of its own either


@pytest.mark.req("D2")
async def test_eight_workers_take_two_thousand_jobs_without_a_rollback(
    serve: Serve, postgres: Server, database: str, topic: str
) -> None:
    """Counted, not timed: the rate is printed, and beaten by the benchmark on a machine that does nothing else."""
    server = await asyncio.to_thread(serve)
    started = Counter[tuple[bytes, int]]()

    async def work(wire: Wire) -> None:
        async with wire.worker() as session:
            await session.ready(20, topic)
            while sum(started.values()) < 2_000:
                try:
                    await session.until(lambda: session.jobs, "jobs have come", within=0.2)
                except AssertionError:
                    continue
                jobs = await session.take(len(session.jobs))
                started.update((job.id, claims(job.epoch)) for job in jobs)
                assert await session.complete(*jobs) == {}
                await session.ready(len(jobs))

    async with asyncio.timeout(60), Wire(server.address) as wire:
        before = await asyncio.to_thread(postgres.run, _traffic(postgres, database))
        began = time.monotonic()
        workers = [asyncio.create_task(work(wire)) for _ in range(8)]
        ids = [job_id for _ in range(4) for job_id in await wire.submit_many(topic, [b"{}"] * 500)]
        await asyncio.gather(*workers)
        rate = 2_000 / (time.monotonic() - began)
    assert started == Counter({(job_id, 1): 1 for job_id in ids})
    assert await asyncio.to_thread(server.terminate) == 0  # its connections end, and have reported all they did
    commits, rollbacks = await asyncio.to_thread(postgres.run, _traffic(postgres, database))
    per_job = (commits - before[0]) / 2_000
    print(f"{rate:.0f} jobs/s, {per_job:.2f} transactions a job")  # noqa: T201
    assert rollbacks == before[1]
    assert per_job <= 1.6


async def _traffic(postgres: Server, database: str) -> tuple[int, int]:
    """Commits and rollbacks of a database so far, asked from outside of it."""
    name = unquote(urlsplit(database).path.lstrip("/"))
    db = await connect(postgres.dsn, application_name="headgate test")
    try:
        row = await db.fetchrow("SELECT xact_commit, xact_rollback FROM pg_stat_database WHERE datname = $1", name)
    finally:
        await db.close()
    assert row is not None
    return row[0], row[1]


@pytest.mark.req("D7", "O1")
async def test_a_job_starts_well_within_a_second(wire: Wire, topic: str) -> None:
    async with wire.worker() as session:
        await session.ready(20, topic)
        waits, claims = [], []
        for _ in range(20):
            began = time.monotonic()
            await wire.submit(topic)
            (job,) = await session.take(1)
            waits.append(time.monotonic() - began)
            info = await wire.job(job.id)
            claims.append(info.claimed_us - info.created_us)
        # By the tick alone, each would wait for the next one, a second after that which found the last.
        assert median(waits) < 0.5, waits
        assert median(claims) < 500_000, claims


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
        for n in range(100):  # more combinations than a session may have: the worker gets an error, and goes on
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


# ---------------------------------------------------------------------- attempts


@pytest.mark.req("R1", "R3", "R4")
async def test_attempts_count_from_the_claim_wait_by_their_square_and_end_dead(
    wire: Wire, rows: asyncpg.Connection[asyncpg.Record], topic: str
) -> None:
    job_id = await wire.submit(topic, max_attempts=2)
    async with wire.worker("fails") as session:
        beats = asyncio.create_task(session.beat_on())
        await session.ready(2, topic)
        (job,) = await session.take(1)
        running = await wire.job(job_id)
        assert (running.state, running.attempt) == (jobs_pb2.STATE_RUNNING, 1)  # before anything was reported
        receipts = await session.report(failed(job, "once"))
        waiting = await wire.job(job_id)
        assert receipts[0].run_at_us == waiting.run_at_us
        assert (waiting.state, waiting.lease_until_us) == (jobs_pb2.STATE_RETRYING, 0)
        assert await rows.fetchval("SELECT owner FROM headgate.jobs WHERE id = $1", UUID(bytes=job_id)) is None
        assert waiting.run_at_us - waiting.events[0].at_us == 1_000_000
        assert "once" in waiting.last_error
        (job,) = await session.take(1)
        assert (await wire.job(job_id)).claimed_us >= waiting.run_at_us
        await session.report(failed(job, "twice"))
        dead = await wire.job(job_id)
        assert (dead.state, dead.attempt, dead.finished_us > 0) == (jobs_pb2.STATE_DEAD, 2, True)
        assert "twice" in dead.last_error
        beats.cancel()


@pytest.mark.req("R6")
async def test_silent_deaths_use_up_attempts_and_end_dead(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic, max_attempts=1)
    async with wire.worker("dies") as session:
        await session.ready(1, topic, lease_seconds=1)
        await session.take(1)
        await session.beat()  # answered after the frame of jobs was written: cut short, it would count as never sent
    dead = await wire.ended(job_id)
    assert (dead.state, dead.attempt, [event.kind for event in dead.events]) == (jobs_pb2.STATE_DEAD, 1, ["lapsed"])
    assert "lease" in dead.last_error


@pytest.mark.req("R2", "R7")
async def test_of_two_reporters_of_one_attempt_exactly_one_wins(wire: Wire, topic: str) -> None:
    await wire.submit_many(topic, [b""] * 20, retry=retry_after(60_000))
    async with wire.worker() as session, wire.worker() as rival:
        await session.ready(20, topic)
        jobs = await session.take(20)
        mine, theirs = await asyncio.gather(
            session.report(*(completed(job, b"mine") for job in jobs)), rival.report(*(failed(job) for job in jobs))
        )
        for place, job in enumerate(jobs):
            codes = {mine[place].code if place in mine else APPLIED, theirs[place].code if place in theirs else APPLIED}
            assert codes == {APPLIED, STALE}
            won = jobs_pb2.STATE_RETRYING if place in mine else jobs_pb2.STATE_COMPLETED
            assert (await wire.job(job.id)).state == won


# ---------------------------------------------------------------------- tenants, scopes, topics


async def test_tenants_neither_see_nor_settle_each_others_jobs(server: ServerProcess, wire: Wire) -> None:
    shared = new_id()
    async with (
        Wire(server.address, token=BETA) as beta,
        wire.worker("same-name") as session,
        beta.worker("same-name") as other,
    ):
        for one, body in ((wire, b"alpha"), (beta, b"beta")):
            assert await one.submit("same-topic", body, id=shared) == shared  # the same id, and two jobs
        await other.ready(9, "same-topic")
        (theirs,) = await other.take(1)
        await session.ready(9, "same-topic")
        (mine,) = await session.take(1)
        assert (theirs.id, theirs.payload, mine.id, mine.payload) == (shared, b"beta", shared, b"alpha")
        only_mine = await wire.submit("same-topic", b"only alpha")
        (job,) = await session.take(1)
        assert (await other.report(completed(job._replace(id=only_mine))))[0].code == UNKNOWN
        assert [receipt.code for receipt in await _report(beta, "same-name", failed(job))] == [UNKNOWN]
        beat = worker_pb2.HeartbeatRequest(worker_id="same-name", held=held(job))
        assert list((await beta.call("Heartbeat", beat)).lost.ids) == [only_mine]
        missing = await beta.refused("GetJob", producer_pb2.GetJobRequest(id=only_mine))
        nobodys = await beta.refused("GetJob", producer_pb2.GetJobRequest(id=(stranger := new_id())))
        assert (missing.status, missing.code) == (grpc.StatusCode.NOT_FOUND, "not_found")
        assert missing.details.replace(str(UUID(bytes=only_mine)), "") == nobodys.details.replace(
            str(UUID(bytes=stranger)), ""
        )
        assert (await beta.refused("WaitResult", producer_pb2.WaitResultRequest(id=only_mine))).code == "not_found"
        assert await other.complete(theirs, results=[b"b"]) == {}
        assert (await wire.job(shared)).state == jobs_pb2.STATE_RUNNING
        assert await session.complete(mine, job, results=[b"a", b""]) == {}
        assert ((await wire.job(shared)).result, (await beta.job(shared)).result) == (b"a", b"b")
        assert not other.jobs


async def test_a_token_may_do_what_its_scopes_say_and_no_more(server: ServerProcess, wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    requests: dict[str, tuple[str, Any]] = {
        "Submit": (SUBMITS, producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=topic))),
        "SubmitBatch": (SUBMITS, producer_pb2.SubmitBatchRequest(jobs=[producer_pb2.NewJob(topic=topic)])),
        "GetJob": (READS, producer_pb2.GetJobRequest(id=job_id)),
        "WaitResult": (READS, producer_pb2.WaitResultRequest(id=job_id)),
        "Claim": (WORKS, worker_pb2.ClaimRequest(worker_id="w", topics=["none-there"])),
        "Heartbeat": (WORKS, worker_pb2.HeartbeatRequest(worker_id="w")),
        "ReportOutcome": (WORKS, worker_pb2.ReportOutcomeRequest(worker_id="w")),
    }
    for token in (SUBMITS, READS, WORKS, "", "a-token-not-in-the-file"):
        async with Wire(server.address, token=token) as caller:
            for method, (needed, request) in requests.items():
                if token == needed:
                    await caller.call(method, request)
                    continue
                refused = await caller.refused(method, request)
                expected = "permission_denied" if token in TOKENS else "unauthenticated"
                assert (method, refused.code) == (method, expected)
                assert (refused.status is grpc.StatusCode.PERMISSION_DENIED) is (token in TOKENS)


async def test_a_token_for_some_topics_submits_and_works_on_those_only(server: ServerProcess, topic: str) -> None:
    async with Wire(server.address, token=MAIL) as mail:
        await mail.submit("mail")
        request = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=topic))
        refused = await mail.refused("Submit", request)
        assert (refused.status, refused.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
        assert topic in refused.details
        batch = producer_pb2.SubmitBatchRequest(
            jobs=[producer_pb2.NewJob(topic="mail"), producer_pb2.NewJob(topic=topic)]
        )
        answer = await mail.call("SubmitBatch", batch)
        assert [receipt.code for receipt in answer.receipts] == [
            producer_pb2.SUBMIT_CREATED,
            producer_pb2.SUBMIT_REFUSED,
        ]
        assert answer.receipts[1].error.code == "permission_denied"
        async with mail.producer() as producer:
            plain = producer_pb2.PlainJobs(topic=topic, ids=[new_id()], payloads=[b""])
            await producer.send(producer_pb2.ProducerFrame(seq=1, plain=plain))
            assert (await producer.reply(1)).error.code == "permission_denied"
            # Jobs of others in the same frame are none the worse for it.
            job = producer_pb2.NewJob(topic="mail", id=new_id(), new_id=True)
            await producer.send(producer_pb2.ProducerFrame(seq=2, plain=plain, jobs=[job]))
            (refusal,) = (await producer.reply(2)).exceptions
            assert (refusal.index, refusal.error.code) == (0, "permission_denied")
            assert (await mail.job(job.id)).state == jobs_pb2.STATE_PENDING
        claim = worker_pb2.ClaimRequest(worker_id="w", topics=[topic])
        assert (await mail.refused("Claim", claim)).code == "permission_denied"
        async with mail.stream_jobs("w", topic, max_in_flight=1) as stream:
            assert (await stream.ended()).code == "permission_denied"


# ---------------------------------------------------------------------- what operators ask


async def test_reflection_tells_what_there_is_in_dev_mode(wire: Wire) -> None:
    call: Any = wire.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(metadata=wire.metadata)
    async with asyncio.timeout(60):
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = {service.name for service in (await call.read()).list_services_response.service}
        assert {"headgate.v1.WorkerService", "headgate.v1.ProducerService"} <= services
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="headgate.v1.WorkerService"))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()


async def test_a_server_that_stops_says_so_and_sends_workers_and_producers_away(serve: Serve, topic: str) -> None:
    server = await asyncio.to_thread(serve, "--grace", "40")
    async with Wire(server.address) as wire, wire.worker() as session, wire.producer() as producer:
        async with asyncio.timeout(60):
            assert await _health(wire) == health_pb2.HealthCheckResponse.SERVING
        watch: Any = wire.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        job_id = await wire.submit(topic)
        await session.ready(5, topic)
        (job,) = await session.take(1)
        waiting = asyncio.create_task(wire.ended(job_id))
        began = time.monotonic()
        stopping = asyncio.create_task(asyncio.to_thread(server.terminate))
        async with asyncio.timeout(60):
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await session.until(lambda: session.drain is not None, "the worker was asked to leave")
        assert session.drain == 40
        assert (await producer.ended()).code == "shutting_down"
        waiting.cancel()
        assert await session.complete(job) == {}  # what was begun is still taken
        await session.done_writing()
        assert await stopping == 0
        assert time.monotonic() - began < 20  # nobody was left to wait for


async def _health(wire: Wire) -> int:
    call = wire.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await call(health_pb2.HealthCheckRequest(), timeout=60)
    return int(answer.status)


# ---------------------------------------------------------------------- small parts


async def _report(wire: Wire, worker_id: str, *outcomes: jobs_pb2.Outcome) -> list[jobs_pb2.Receipt]:
    request = worker_pb2.ReportOutcomeRequest(worker_id=worker_id, outcomes=outcomes)
    return list((await wire.call("ReportOutcome", request)).receipts)
