"""A worker in another language, made from the proto files alone: what they say must be enough to write one.

The worker is examples/node-worker, as a user gets it. Its dependencies are installed once per lock file, under build/.
Where Node is missing the tests are skipped; HEADGATE_REQUIRE_NODE=1 makes that a failure, and so does CI=true on a
machine that has Node.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import grpc
import pytest

from headgate import Headgate
from headgate.domain.ids import TenantName
from headgate.store import verbs
from headgate.store.connect import connect
from headgate.store.names import Names
from headgate.wire import admin_pb2, jobs_pb2, producer_pb2
from tests.e2e.conftest import Serve, Spawn
from tests.support.database import Server
from tests.support.epochs import claims
from tests.support.server import LoggedProcess, ServerProcess, clean_environ
from tests.support.waiting import until
from tests.support.wire import served

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node-worker"
INSTALL_SECONDS = 90
WAIT = timedelta(seconds=50)

StartWorker = Callable[..., LoggedProcess]
Lasting: TypeAlias = "tuple[ServerProcess, str, Producer]"


# ---------------------------------------------------------------------- Node and its packages


def unavailable(why: str) -> None:
    """Skip, or fail where the worker must be tested."""
    required = os.environ.get("HEADGATE_REQUIRE_NODE") == "1"
    if required or (os.environ.get("CI") == "true" and shutil.which("node")):
        pytest.fail(f"the Node worker must be tested here, but {why}", pytrace=False)
    pytest.skip(f"THE NODE WORKER IS NOT TESTED: {why}")


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The example's dependencies, as locked: installed under a name of their own and moved, so they are whole."""
    if not (shutil.which("node") and shutil.which("npm")):
        unavailable("node or npm is not on the PATH")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout  # noqa: S607
    if int(version.strip().lstrip("v").split(".")[0]) < 20:
        unavailable(f"it needs Node 20, and this is {version.strip()}")
    lock = (EXAMPLE / "package-lock.json").read_bytes()
    folder = ROOT / "build" / "node-worker" / hashlib.sha256(lock).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "install.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # two runs in one tree
        if not folder.exists():
            _install(folder)
    return folder / "node_modules"


def _install(folder: Path) -> None:
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(EXAMPLE / name, fresh)
    try:
        done = subprocess.run(
            ["npm", "ci", "--prefer-offline", "--no-progress"],  # noqa: S607
            cwd=fresh,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        unavailable(f"npm ci did not end within {INSTALL_SECONDS} s")
    else:
        if done.returncode:
            unavailable(f"npm ci failed: {done.stderr.strip()[-1000:]}")
    fresh.rename(folder)


@pytest.fixture
def start_worker(node_modules: Path, spawn: Spawn, tmp_path: Path) -> StartWorker:
    """Starts a worker; unless set otherwise, returns when the server has welcomed it."""
    # A copy beside a link to the packages, since imports are resolved from where a module is; the example stays clean.
    for module in EXAMPLE.glob("*.mjs"):
        shutil.copy(module, tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules)

    def start(server: ServerProcess, *, welcomed: bool = True, **settings: str) -> LoggedProcess:
        environ = {
            **clean_environ(),
            "HEADGATE_SERVERS": server.address,
            "HEADGATE_PROTO": str(ROOT / "proto"),
            **{f"HEADGATE_{name.upper()}": value for name, value in settings.items()},
        }
        worker = spawn("node-worker", "node", tmp_path / "worker.mjs", environ=environ)
        if welcomed:
            worker.saw("^connected to ")
        return worker

    return start


# ---------------------------------------------------------------------- a producer, as bare as the worker


def two_lines(lines: list[admin_pb2.StoredLogLine]) -> list[admin_pb2.StoredLogLine]:
    return lines if len(lines) == 2 else []


class Producer:
    """Submits and looks, in raw calls."""

    def __init__(self, address: str) -> None:
        # Connections of its own, tried again at once: a server that was killed comes back on the same port.
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 500),
            ],
        )

    def submit(self, topic: str, payload: bytes = b"", **options: Any) -> UUID:
        job = producer_pb2.NewJob(topic=topic, payload=payload, **options)
        answer = self._call("Submit", producer_pb2.SubmitRequest(job=job), producer_pb2.SubmitResponse)
        assert answer.receipt.code == producer_pb2.SUBMIT_CREATED
        return UUID(bytes=answer.receipt.id)

    def job(self, job_id: UUID) -> jobs_pb2.JobInfo:
        request = producer_pb2.GetJobRequest(id=job_id.bytes, with_result=True, with_events=True)
        job: jobs_pb2.JobInfo = self._call("GetJob", request, jobs_pb2.JobInfo)
        return job

    def ended(self, job_id: UUID) -> jobs_pb2.JobInfo:
        """The job once it is completed, dead or cancelled."""
        request = producer_pb2.WaitResultRequest(id=job_id.bytes, wait_ms=int(WAIT.total_seconds() * 1000))
        self._call("WaitResult", request, jobs_pb2.JobInfo)
        job = self.job(job_id)
        assert job.state >= jobs_pb2.STATE_COMPLETED, f"{job_id} did not end within {WAIT}: {job}"
        return job

    def log(self, job_id: UUID) -> list[admin_pb2.StoredLogLine]:
        """What its handlers logged."""
        call = self._channel.unary_unary(
            "/headgate.v1.AdminService/ListJobLogs",
            request_serializer=admin_pb2.ListJobLogsRequest.SerializeToString,
            response_deserializer=admin_pb2.ListJobLogsResponse.FromString,
        )
        return list(call(admin_pb2.ListJobLogsRequest(id=job_id.bytes), timeout=WAIT.total_seconds()).lines)

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"/headgate.v1.ProducerService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=2 * WAIT.total_seconds(), wait_for_ready=True)


@pytest.fixture
def server(serve: Serve) -> ServerProcess:
    """One that the test may kill."""
    return serve()


@pytest.fixture
def producer(server: ServerProcess) -> Iterator[Producer]:
    producer = Producer(server.address)
    yield producer
    producer.close()


@pytest.fixture
def lasting(one_for_all: Lasting) -> Lasting:
    """The server for those that leave it alone, once it has noticed that the worker of the test before is gone."""
    server = one_for_all[0]
    until(lambda: len(server.seen("session_opened")) == len(server.seen("session_ended")), "no worker is connected")
    return one_for_all


@pytest.fixture(scope="module")
def one_for_all(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str, Producer]]:
    """A server for those that leave it alone, its database's URL, and a producer."""
    with served(postgres, template, tmp_path_factory.mktemp("node")) as (server, dsn):
        producer = Producer(server.address)
        yield server, dsn, producer
        producer.close()


def soon(milliseconds: int = 50) -> producer_pb2.RetryPolicy:
    return producer_pb2.RetryPolicy(kind=producer_pb2.RetryPolicy.FIXED, base_ms=milliseconds, cap_ms=milliseconds)


def told(job: jobs_pb2.JobInfo) -> list[str]:
    return [event.kind for event in job.events]


# ---------------------------------------------------------------------- outcomes


@pytest.mark.req("W10", "W21")
def test_jobs_complete_with_the_bytes_their_handler_returned(lasting: Lasting, start_worker: StartWorker) -> None:
    server, _, producer = lasting
    start_worker(server)
    bodies = [b"", b"plain", bytes(range(256)), os.urandom(500_000)]
    jobs = [producer.ended(job_id) for job_id in [producer.submit("echo", body) for body in bodies]]
    assert [job.state for job in jobs] == [jobs_pb2.STATE_COMPLETED] * len(bodies)
    assert [job.result for job in jobs] == bodies
    assert [(job.attempt, claims(job.epoch)) for job in jobs] == [(1, 1)] * len(bodies)


@pytest.mark.req("W9", "W11", "W13", "W14")
def test_each_other_outcome_does_what_it_is_named_for(
    lasting: Lasting, start_worker: StartWorker, tmp_path: Path
) -> None:
    server, _, producer = lasting
    handlers = tmp_path / "handlers.mjs"
    a_level_that_there_is_not = handlers.read_text().replace("'WARNING'", "job.attempt === 1 ? 'WARNING' : 'loud'")
    handlers.write_text(a_level_that_there_is_not)
    worker = start_worker(server)
    fails = producer.submit("fail", b"out of paper", max_attempts=2, retry=soon())
    nacks = producer.submit("nack", b"300")
    refused = producer.submit("nack", b"-1", max_attempts=1)
    abandons = producer.submit("abandon-once", max_attempts=1)
    snoozes = producer.submit("snooze", max_attempts=1)

    dead = producer.ended(fails)
    assert (dead.state, dead.attempt) == (jobs_pb2.STATE_DEAD, 2)
    assert told(dead) == ["failed", "failed"]
    assert [event.error_type for event in dead.events] == ["RangeError"] * 2
    assert dead.events[-1].error_message == "out of paper (attempt 2 of 2)"
    assert "handlers.mjs" in dead.events[-1].error_trace
    assert "out of paper (attempt 2 of 2)" in dead.last_error

    lines = until(lambda: two_lines(producer.log(fails)), "the log of both attempts is stored")
    assert [(line.attempt, line.line.level, line.line.text) for line in lines] == [
        (1, jobs_pb2.LOG_LEVEL_WARNING, "no luck in attempt 1"),
        (2, jobs_pb2.LOG_LEVEL_INFO, "no luck in attempt 2"),
    ]

    again = producer.ended(nacks)
    (nacked,) = again.events
    assert (again.state, again.result, claims(again.epoch)) == (jobs_pb2.STATE_COMPLETED, b"attempt 2", 2)
    assert (nacked.kind, nacked.reason, nacked.attempt) == ("nacked", "the printer is warming up", 1)
    assert nacked.run_at_us - nacked.at_us == pytest.approx(300_000, abs=5_000)
    assert again.claimed_us >= nacked.run_at_us

    invalid = producer.ended(refused)  # an outcome that cannot be accepted leaves the job leased, so it needs another
    assert (invalid.state, told(invalid)) == (jobs_pb2.STATE_DEAD, ["failed"])
    assert invalid.events[0].error_type == "InvalidOutcome"
    assert "delay" in invalid.events[0].error_message

    for job_id, kind in ((abandons, "abandoned"), (snoozes, "snoozed")):
        job = producer.ended(job_id)  # with a single attempt: the first run was free
        assert (job.state, job.result, claims(job.epoch)) == (jobs_pb2.STATE_COMPLETED, b"attempt 1", 2)
        assert told(job) == [kind]
    assert len(worker.seen(r"^started ")) == 2 + 2 + 1 + 2 + 2


def test_no_more_handlers_run_at_a_time_than_the_worker_allows(lasting: Lasting, start_worker: StartWorker) -> None:
    server, _, producer = lasting
    ids = [producer.submit("slow", b"60") for _ in range(6)]
    worker = start_worker(server, concurrency="2")
    for job_id in ids:
        producer.ended(job_id)
    worker.saw("^ended slow", times=6)
    at_work = [0]
    for line in worker.seen("^(started|ended) slow"):
        at_work.append(at_work[-1] + (1 if line[1] == "started" else -1))
    assert max(at_work) == 2


def test_an_outcome_whose_job_is_locked_is_kept_and_sent_again(
    lasting: Lasting, start_worker: StartWorker, postgres: Server
) -> None:
    server, database, producer = lasting
    worker = start_worker(server)
    job_id = producer.submit("slow", b"1000")
    worker.saw(f"^started slow {job_id}")

    async def hold() -> None:
        db = await connect(database, application_name="a stranger")
        try:
            async with db.transaction():
                assert await db.fetch("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", job_id)
                await asyncio.to_thread(worker.saw, f"^{job_id}/\\d+: RECEIPT_LOCKED", times=2)
        finally:
            await db.close()

    postgres.run(hold())
    job = producer.ended(job_id)
    assert (job.state, job.attempt) == (jobs_pb2.STATE_COMPLETED, 1)


def test_a_cancelled_job_is_stopped(lasting: Lasting, start_worker: StartWorker, postgres: Server) -> None:
    server, database, producer = lasting
    worker = start_worker(server)
    job_id = producer.submit("slow", b"60000")
    worker.saw(f"^started slow {job_id}")
    postgres.run(_cancel(database, job_id))
    job = producer.ended(job_id)
    assert job.state == jobs_pb2.STATE_CANCELLED
    assert worker.saw(f"^ended slow {job_id} epoch=\\d+ (.*)$")[1] == "failed"


async def _cancel(dsn: str, job_id: UUID) -> None:
    db = await connect(dsn, application_name="headgate test")
    try:
        await verbs.cancel(db, await Names().tenant(db, TenantName("default")), [job_id])
    finally:
        await db.close()


# ---------------------------------------------------------------------- leases and connections


@pytest.mark.req("W17")
def test_beats_keep_the_lease_of_a_job_that_takes_longer(serve: Serve, start_worker: StartWorker) -> None:
    server = serve("--lease", "6")
    producer = Producer(server.address)
    worker = start_worker(server)
    job = producer.ended(producer.submit("slow", b"7000"))
    producer.close()
    assert (job.state, job.result, claims(job.epoch)) == (jobs_pb2.STATE_COMPLETED, b"attempt 1", 1)
    assert not worker.seen("^disconnected")  # a link is ended after a lease of silence


def test_what_runs_while_the_server_is_killed_is_not_run_again(
    serve: Serve, server: ServerProcess, producer: Producer, start_worker: StartWorker
) -> None:
    worker = start_worker(server)
    through, meanwhile = producer.submit("slow", b"4000"), producer.submit("slow", b"2000")
    worker.saw(f"^started slow {through}")
    worker.saw(f"^started slow {meanwhile}")
    server.kill()
    worker.saw(f"^ended slow {meanwhile}")  # with no one to tell
    worker.saw("^disconnected")
    second = serve(port=server.port)
    worker.saw("^connected to .* resumed=true held=2$")

    for job_id in (meanwhile, through):
        job = producer.ended(job_id)
        assert (job.state, job.result) == (jobs_pb2.STATE_COMPLETED, b"attempt 1")
        assert (job.attempt, claims(job.epoch), told(job)) == (1, 1, [])
    assert len(worker.seen("^started ")) == 2
    assert producer.ended(producer.submit("echo", b"still there")).result == b"still there"
    assert second.exit_code is None


def test_a_draining_server_lets_the_worker_finish_and_come_back(
    serve: Serve, server: ServerProcess, producer: Producer, start_worker: StartWorker
) -> None:
    worker = start_worker(server)
    job_id = producer.submit("slow", b"800")
    worker.saw(f"^started slow {job_id}")
    assert server.terminate() == 0
    worker.saw(f"^ended slow {job_id}")  # the server waited for it
    serve(port=server.port)
    worker.saw("^connected to .* resumed=true held=0$")
    job = producer.job(job_id)
    assert (job.state, claims(job.epoch)) == (jobs_pb2.STATE_COMPLETED, 1)


def test_a_stop_of_an_operator_is_as_sigterm(
    server: ServerProcess, producer: Producer, start_worker: StartWorker
) -> None:
    worker = start_worker(server, worker_id="node-stopped")
    job_id = producer.submit("slow", b"400")
    worker.saw(f"^started slow {job_id}")
    hg = Headgate(server.address)
    hg.sync.wait(hg.admin.workers.stop("node-stopped", reason="leak"))
    worker.saw("^asked to stop by dev: leak$")
    assert worker.wait() == 0
    assert worker.seen("^stopped$")
    job = producer.job(job_id)
    assert (job.state, claims(job.epoch)) == (jobs_pb2.STATE_COMPLETED, 1)


@pytest.mark.req("W23")
def test_sigterm_finishes_what_it_can_and_gives_back_the_rest(
    server: ServerProcess, producer: Producer, start_worker: StartWorker
) -> None:
    worker = start_worker(server, grace_seconds="2.5")
    short, long = producer.submit("slow", b"400"), producer.submit("slow", b"60000")
    worker.saw(f"^started slow {short}")
    worker.saw(f"^started slow {long}")
    assert worker.terminate() == 0
    assert worker.seen("^stopped$")
    assert producer.job(short).state == jobs_pb2.STATE_COMPLETED
    given_back = producer.job(long)
    assert (given_back.state, given_back.attempt, told(given_back)) == (jobs_pb2.STATE_PENDING, 0, ["abandoned"])


def test_a_refused_worker_says_why_and_ends(serve: Serve, start_worker: StartWorker, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text('{"the-right-token-of-all": {"tenant": "default", "scopes": ["work"]}}', encoding="utf-8")
    server = serve("--tokens", str(tokens))
    worker = start_worker(server, welcomed=False, token="a-token-not-in-the-file")
    assert worker.wait() == 1
    assert worker.seen("^refused: ")
    start_worker(server, token="the-right-token-of-all")
