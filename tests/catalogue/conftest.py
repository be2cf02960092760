"""A server with two tenants and something in every state; after each row, it must live and nothing be written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import asyncpg
import grpc.aio
import pytest

from headgate.sdk import Headgate
from headgate.wire import batches_pb2, bulk_pb2, jobs_pb2, schedules_pb2, worker_pb2
from tests.catalogue.calls import ask
from tests.catalogue.table import World
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import Wire, completed, failed, served

OURS, THEIRS, READER = "token-of-our-operator", "token-of-the-others", "token-of-a-reader"
_ALL = ["submit", "work", "read", "operate"]
TOKENS = {
    OURS: {"tenant": "acme", "name": "olga", "scopes": _ALL},
    THEIRS: {"tenant": "umbrella", "name": "theo", "scopes": _ALL},
    READER: {"tenant": "acme", "scopes": ["read"]},
}
FAULTS = "Traceback|ERROR|CRITICAL"
# What an instance writes by itself, whatever anybody says.
_ITS_OWN = ("instances", "count", "flow", "arrivals", "latency", "stored_parts")
_TABLES = """
SELECT format('SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)) FROM headgate.%I AS t', c.relname), c.relname
  FROM pg_catalog.pg_class AS c
 WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"""


@dataclass(frozen=True, kw_only=True)
class Env:
    """The server, its database, what is in it."""

    server: ServerProcess
    dsn: str
    world: World


@pytest.fixture(scope="session")
def env(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Env]:
    folder = tmp_path_factory.mktemp("catalogue")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens), dev=False) as (server, dsn):
        yield Env(server=server, dsn=dsn, world=asyncio.run(_filled(server.address, folder)))


@pytest.fixture
def world(env: Env) -> World:
    return env.world


@pytest.fixture
def unharmed(env: Env, postgres: Server) -> Iterator[ServerProcess]:
    """Whatever a test says: the server lives and logs no fault, a neighbour works on, and nothing was written."""
    server = env.server
    faults, before = len(server.seen(FAULTS)), postgres.run(_digest(env.dsn))
    yield server
    assert server.exit_code is None, server.shown()
    assert len(server.seen(FAULTS)) == faults, server.shown()
    after = postgres.run(_digest(env.dsn))
    assert after == before, f"written to {[table for table in after if after[table] != before.get(table)]}"
    postgres.run(_neighbour_works(server.address))


@pytest.fixture
async def wire(unharmed: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(unharmed.address, token=OURS) as wire:
        yield wire


@pytest.fixture
def hg(unharmed: ServerProcess) -> Iterator[Headgate]:
    app = Headgate(unharmed.address, token=OURS)
    yield app
    app.sync.close()


@pytest.fixture
def unharmed_worker(unharmed_but_written: ServerProcess) -> Iterator[Headgate]:
    """A client whose worker may write."""
    app = Headgate(unharmed_but_written.address, token=OURS)
    yield app
    app.sync.close()


@pytest.fixture
def unharmed_but_written(env: Env) -> Iterator[ServerProcess]:
    """As `unharmed`, for a test that writes."""
    faults = len(env.server.seen(FAULTS))
    yield env.server
    assert env.server.exit_code is None, env.server.shown()
    assert len(env.server.seen(FAULTS)) == faults, env.server.shown()


@pytest.fixture
async def stranger() -> AsyncIterator[str]:
    """A gRPC server that knows none of our calls."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def _digest(dsn: str) -> dict[str, str]:
    """One value for the content of every table of ours."""
    db = await asyncpg.connect(dsn)
    try:
        return {
            table: await db.fetchval(statement)
            for statement, table in await db.fetch(_TABLES)
            if not any(word in table for word in _ITS_OWN)
        }
    finally:
        await db.close()


async def _neighbour_works(address: str) -> None:
    """A job of the other tenant from submit to completion, and out of the tables again."""
    async with asyncio.timeout(60), Wire(address, token=THEIRS) as wire:
        job_id = await wire.submit("theirs")
        request = worker_pb2.ClaimRequest(worker_id="neighbour", topics=["theirs"], wait_ms=30_000)
        (job,) = (await wire.call("Claim", request)).jobs
        assert job.id == job_id
        await wire.call("ReportOutcome", worker_pb2.ReportOutcomeRequest(outcomes=[completed(job)]))


async def _filled(address: str, folder: Path) -> World:
    async with Wire(address, token=OURS) as wire, Wire(address, token=THEIRS) as others:
        done, dead, running = await wire.submit_many("mail", [b"{}"] * 3, max_attempts=1)
        epochs: dict[bytes, int] = {}
        for job_id in (done, dead, running):
            claim = worker_pb2.ClaimRequest(worker_id="w", topics=["mail"], lease_seconds=86_400, wait_ms=30_000)
            (job,) = (await wire.call("Claim", claim)).jobs
            assert job.id == job_id
            epochs[job_id] = job.epoch
            if job_id != running:
                outcome = completed(job) if job_id == done else failed(job)
                await wire.call("ReportOutcome", worker_pb2.ReportOutcomeRequest(outcomes=[outcome]))
        theirs = await others.submit("theirs-held")
        claim = worker_pb2.ClaimRequest(worker_id="w", topics=["theirs-held"], lease_seconds=86_400, wait_ms=30_000)
        assert (await others.call("Claim", claim)).jobs
        pending = await wire.submit("waiting")
        keyed = await wire.submit("mail", b"first", key="once")
        batch = await ask(wire, "BatchService/OpenBatch", batches_pb2.OpenBatchRequest())
        await ask(wire, "BatchService/SealBatch", batches_pb2.SealBatchRequest(id=batch.id))
        cron = schedules_pb2.Timing(cron=schedules_pb2.Cron(expression="0 0 1 1 *"))
        spec = schedules_pb2.ScheduleSpec(topic="mail", timing=cron)
        await ask(wire, "ScheduleService/Put", schedules_pb2.PutScheduleRequest(name="nightly", spec=spec))
        page = await ask(wire, "BulkService/ListJobs", bulk_pb2.ListJobsRequest(limit=1))
        await _neighbour_works(address)  # interns its topic, once
        assert (await wire.job(dead)).state == jobs_pb2.STATE_DEAD
    big = folder / "big.json"
    big.write_bytes(b'"' + b"x" * 1_048_575 + b'"')
    ids = {
        name: str(UUID(bytes=raw))
        for name, raw in {
            "pending": pending,
            "running": running,
            "done": done,
            "dead": dead,
            "theirs": theirs,
            "keyed": keyed,
            "sealed_batch": batch.id,
        }.items()
    }
    return World(folder=folder, running_epoch=epochs[running], cursor=page.cursor, big=big, **ids)
