"""Opening the stream: hello, tokens, scopes, and the end of a token that was revoked."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from headgate.control.auth import GONE_LOOKS
from headgate.control.revocation import LOOK_SECONDS
from headgate.wire import jobs_pb2, worker_pb2
from tests.e2e.stream.tokens import NARROW, REVOKED, SUBMIT_ONLY, TOKENS
from tests.support.server import ServerProcess
from tests.support.wire import Wire


@pytest.mark.req("W1", "W8")
async def test_one_stream_carries_many_slots_and_a_slow_one_holds_only_itself(wire: Wire, topic: str) -> None:
    async with wire.worker() as session:
        await wire.submit_many(topic, [b"%d" % n for n in range(12)])
        await session.ready(4, topic)
        slow, *rest = await session.take(4)
        for _ in range(8):  # three slots go round, the first never answers
            done, *rest = rest
            await session.complete(done)
            await session.ready(1)
            rest += await session.take(1)
        assert await session.complete(slow, *rest) == {}


@pytest.mark.req("W2")
async def test_anything_but_hello_first_ends_the_stream(wire: Wire, topic: str) -> None:
    session = wire.session()
    await session.ready(1, topic)
    ended = await session.ended()
    assert (ended.status, ended.code) == (grpc.StatusCode.FAILED_PRECONDITION, "protocol_error")
    assert "hello" in ended.details


@pytest.mark.req("W2")
async def test_a_bad_token_is_not_let_in_and_nothing_is_waited_for(server: ServerProcess) -> None:
    for token in ("", "a-token-not-in-the-file"):
        async with Wire(server.address, token=token) as wire:
            ended = await wire.session().ended()  # before any frame of ours
        assert (ended.status, ended.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
        assert "token" in ended.details
        assert token not in ended.details or not token


@pytest.mark.req("W2")
async def test_a_second_hello_is_an_error_and_the_stream_lives(wire: Wire, topic: str) -> None:
    async with wire.worker("first-name") as session:
        await session.send(worker_pb2.WorkerFrame(hello=worker_pb2.Hello(worker_id="second-name")))
        error = await session.error()
        assert (error.code, "hello" in error.message) == ("protocol_error", True)
        job_id = await wire.submit(topic)
        await session.ready(1, topic)
        await session.take(1)
        assert (await wire.job(job_id)).worker == "first-name"


@pytest.mark.req("W3")
async def test_hello_fixes_worker_and_tenant_for_the_whole_stream(wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker("the-name") as session:
        assert session.ack is not None
        assert (session.ack.worker_id, session.ack.tenant, session.ack.lease_seconds) == ("the-name", "alpha", 10)
        assert session.ack.beat_seconds == 3
        assert session.ack.instance
        assert session.ack.server
        await session.ready(1, topic)
        await session.take(1)
        job = await wire.job(job_id)
        assert (job.worker, job.tenant) == ("the-name", "alpha")


async def test_a_newer_stream_of_the_same_worker_replaces_the_older(wire: Wire) -> None:
    async with wire.worker("twin") as older, wire.worker("twin") as newer:
        ended = await older.ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.ABORTED, "superseded")
        assert "twin" in ended.details
        await newer.beat()


@pytest.mark.req("W4")
async def test_a_worker_gets_the_topics_it_asked_for_that_its_token_permits(server: ServerProcess, wire: Wire) -> None:
    other = await wire.submit("other")
    mail = await wire.submit("mail")
    async with Wire(server.address, token=NARROW) as narrow:
        async with narrow.worker() as session:
            await session.ready(2, "other", "mail")
            (job,) = await session.take(1)
            assert job.id == mail
            await session.complete(job)
        async with narrow.worker() as session:
            await session.ready(1, "other", "another")
            ended = await session.ended()
            assert (ended.status, ended.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
            assert "other, another" in ended.details
    assert (await wire.job(other)).state == jobs_pb2.STATE_PENDING


async def test_a_token_without_the_scope_to_work_gets_an_error_that_names_it(server: ServerProcess) -> None:
    async with Wire(server.address, token=SUBMIT_ONLY) as wire:
        ended = await wire.session().ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
        assert '"work"' in ended.details
        for method, request in (
            ("Claim", worker_pb2.ClaimRequest(worker_id="w", topics=["mail"])),
            ("Heartbeat", worker_pb2.HeartbeatRequest(worker_id="w")),
            ("ReportOutcome", worker_pb2.ReportOutcomeRequest(worker_id="w")),
        ):
            assert (await wire.refused(method, request)).code == "permission_denied"


@pytest.mark.req("W5")
async def test_revoking_a_token_ends_its_streams_and_no_others(
    server: ServerProcess, wire: Wire, folder: Path, topic: str
) -> None:
    """`make bench` measures that it takes less than five seconds; here is the reason that it can."""
    assert (GONE_LOOKS + 1) * LOOK_SECONDS < 5
    async with (
        Wire(server.address, token=REVOKED) as revoked,
        revoked.worker() as ends,
        revoked.stream_jobs("streams", topic, max_in_flight=1) as ends_too,
        revoked.producer() as producer,
        wire.worker() as stays,
    ):
        (folder / "tokens.json").write_text(json.dumps({key: TOKENS[key] for key in TOKENS if key != REVOKED}))
        for stream in (ends, ends_too, producer):
            ended = await stream.ended(within=60)
            assert (ended.status, ended.code) == (grpc.StatusCode.UNAUTHENTICATED, "token_revoked")
        # The others moved up in the file; that is no change of theirs.
        await wire.submit(topic)
        await stays.ready(1, topic)
        await stays.take(1)
