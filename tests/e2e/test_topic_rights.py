"""What a token that is restricted to topics may report, and whose worker ids are whose: a real server, raw sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import grpc
import pytest

from headgate.wire import jobs_pb2, worker_pb2
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import Delivered, Wire, WorkerSession, completed, failed, held, served

ALL, MAIL = "a-token-for-all-topics", "a-token-for-mail-only"
APPLIED, DUPLICATE, UNKNOWN = jobs_pb2.RECEIPT_APPLIED, jobs_pb2.RECEIPT_DUPLICATE, jobs_pb2.RECEIPT_UNKNOWN


@pytest.fixture(scope="module")
def the_server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("topic-rights")
    tokens: Path = folder / "tokens.json"
    tokens.touch(mode=0o600)
    tokens.write_text(json.dumps({ALL: {"tenant": "alpha"}, MAIL: {"tenant": "alpha", "topics": ["mail"]}}))
    with served(postgres, template, folder, "--lease", "30", "--tokens", str(tokens), dev=False) as (server, _):
        yield server


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    """Every topic of the tenant."""
    async with Wire(server.address, token=ALL) as wire:
        yield wire


@pytest.fixture
async def mail(server: ServerProcess) -> AsyncIterator[Wire]:
    """The topic mail of the same tenant."""
    async with Wire(server.address, token=MAIL) as wire:
        yield wire


@pytest.fixture
async def payer(wire: Wire) -> AsyncIterator[WorkerSession]:
    async with wire.worker(f"payer-{uuid4()}") as session:
        yield session


@pytest.fixture
async def payment(wire: Wire, payer: WorkerSession) -> AsyncIterator[Delivered]:
    """A job of the topic pay that its worker runs; after the test it is as it was, and its worker's to complete."""
    await wire.submit("pay", b"100")
    await payer.ready(1, "pay", lease_seconds=300)  # it is not renewed by itself during a test
    (job,) = await payer.take(1)
    before = await wire.job(job.id)
    yield job
    await payer.beat(job)
    assert not payer.lost
    after = await wire.job(job.id)
    assert (after.state, after.lease_until_us, after.progress) == (before.state, before.lease_until_us, before.progress)
    assert await payer.complete(job, results=[b"paid"]) == {}
    assert (await wire.job(job.id)).result == b"paid"


def worker_of(session: WorkerSession) -> str:
    assert session.ack is not None
    return session.ack.worker_id


def beat_of(job: Delivered) -> worker_pb2.Beat:
    return worker_pb2.Beat(
        held=held(job),
        extensions=[worker_pb2.Extension(id=job.id, epoch=job.epoch, lease_seconds=86_400)],
        progress=[worker_pb2.JobProgress(id=job.id, epoch=job.epoch, progress=jobs_pb2.Progress(done=1))],
    )


# ---------------------------------------------------------------------- topics


@pytest.mark.parametrize("named", [False, True])
async def test_calls_do_not_reach_a_job_of_a_topic_that_the_token_does_not_permit(
    mail: Wire, payer: WorkerSession, payment: Delivered, named: bool
) -> None:
    worker_id = worker_of(payer) if named else "another"
    beat = worker_pb2.HeartbeatRequest(
        worker_id=worker_id, held=held(payment), lease_seconds=86_400, progress=beat_of(payment).progress
    )
    answer = await mail.call("Heartbeat", beat)
    assert (list(answer.lost.ids), list(answer.cancel.ids)) == ([payment.id], [])
    forged = [completed(payment, b"forged"), failed(payment, "forged", permanent=True)]
    report = worker_pb2.ReportOutcomeRequest(worker_id=worker_id if named else "", outcomes=forged)
    receipts = (await mail.call("ReportOutcome", report)).receipts
    assert [(one.code, one.state) for one in receipts] == [(UNKNOWN, 0)] * 2


async def test_a_session_does_not_reach_a_job_of_a_topic_that_its_token_does_not_permit(
    mail: Wire, payment: Delivered
) -> None:
    async with mail.worker("intruder", held=held(payment), resumed=True, incarnation=7) as session:
        assert session.ack is not None
        assert list(session.ack.lost.ids) == [payment.id]
        await session.send(worker_pb2.WorkerFrame(beat=beat_of(payment)))
        await session.until(lambda: session.beats, "the beat was answered")
        assert session.lost == [(payment.id, payment.epoch)]
        receipts = await session.complete(payment, results=[b"forged"])
        assert [(one.code, one.state) for one in receipts.values()] == [(UNKNOWN, 0)]
        receipts = await session.report(failed(payment, "forged", permanent=True))
        assert [(one.code, one.state) for one in receipts.values()] == [(UNKNOWN, 0)]


async def test_a_job_that_is_not_permitted_looks_as_one_that_has_ended_or_never_was(
    wire: Wire, mail: Wire, payer: WorkerSession
) -> None:
    await wire.submit("pay")
    await payer.ready(1, "pay")
    (job,) = await payer.take(1)
    assert await payer.complete(job) == {}
    ended, never = completed(job), completed(job._replace(id=uuid4().bytes))
    report = worker_pb2.ReportOutcomeRequest(outcomes=[ended, never])
    receipts = (await mail.call("ReportOutcome", report)).receipts
    assert [(one.code, one.state, one.message) for one in receipts] == [(UNKNOWN, 0, "")] * 2
    assert [one.code for one in (await wire.call("ReportOutcome", report)).receipts] == [DUPLICATE, UNKNOWN]


async def test_a_restricted_token_does_everything_with_jobs_of_its_own_topic(wire: Wire, mail: Wire) -> None:
    ids = await wire.submit_many("mail", [b"a", b"b", b"c"])
    claim = worker_pb2.ClaimRequest(worker_id="script", topics=["mail"], count=2, wait_ms=30_000)
    first, second = (await mail.call("Claim", claim)).jobs
    beat = worker_pb2.HeartbeatRequest(worker_id="script", held=held(first, second), lease_seconds=100)
    assert not (await mail.call("Heartbeat", beat)).lost.ids
    assert (await wire.job(first.id)).lease_until_us > first.lease_until_us
    report = worker_pb2.ReportOutcomeRequest(worker_id="script", outcomes=[completed(first, b"r")])
    for code in (APPLIED, DUPLICATE):
        assert [one.code for one in (await mail.call("ReportOutcome", report)).receipts] == [code]
    async with mail.worker("session", held=held(second)) as session:
        assert session.ack is not None
        assert not session.ack.lost.ids
        await session.ready(1, "mail")
        (third,) = await session.take(1)
        await session.send(worker_pb2.WorkerFrame(beat=beat_of(third)))
        await session.until(lambda: session.beats, "the beat was answered")
        mixed = worker_pb2.Outcomes(ids=[second.id, third.id], epochs=[second.epoch, third.epoch])
        assert await session.report_all(mixed) == {}
        assert {place: one.code for place, one in (await session.complete(third)).items()} == {0: DUPLICATE}
        assert not session.lost
    assert [(await wire.job(one)).state for one in ids] == [jobs_pb2.STATE_COMPLETED] * 3


# ---------------------------------------------------------------------- worker ids


async def test_a_live_worker_id_of_another_credential_is_refused_and_its_session_is_untouched(
    mail: Wire, payer: WorkerSession, payment: Delivered
) -> None:
    session = mail.session()
    await session.send(
        worker_pb2.WorkerFrame(hello=worker_pb2.Hello(worker_id=worker_of(payer), resumed=True, incarnation=7))
    )
    ended = await session.ended()
    assert (ended.status, ended.code) == (grpc.StatusCode.ALREADY_EXISTS, "worker_id_taken")
    assert "id of its own" in ended.details
    async with mail.stream_jobs(worker_of(payer), "mail", max_in_flight=1) as stream:
        assert (await stream.ended()).code == "worker_id_taken"
    await payer.beat(payment)
    assert payer.over is None


async def test_a_worker_id_is_free_again_when_its_session_has_ended(
    server: ServerProcess, wire: Wire, mail: Wire
) -> None:
    name = f"handed-on-{uuid4()}"
    async with wire.worker(name) as older, wire.worker(name):
        assert (await older.ended()).code == "superseded"  # the same credential: the newer one counts
    await asyncio.to_thread(server.saw, f"session_ended worker={name} reason=connection_lost")
    async with mail.worker(name) as session:
        await session.beat()
