"""A client that opens a call or a stream sends its first message in time, or is disconnected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from headgate.api.grpc.auth import ADMISSION, CALLER, Admission, Turns
from headgate.api.grpc.methods import first_message
from headgate.control.auth import AllowAll
from headgate.control.permissions import RULES
from headgate.domain import limits
from headgate.domain.errors import Overloaded
from headgate.domain.identity import Identity
from headgate.server import Server, ServerOptions
from headgate.wire import producer_pb2, worker_pb2
from tests.support.fake_server import until
from tests.support.wire import PRODUCE, WORK, Ended, Wire

GET_JOB = "/headgate.v1.ProducerService/GetJob"
SUBMIT = "/headgate.v1.ProducerService/Submit"
STREAM_JOBS = "/headgate.v1.WorkerService/StreamJobs"


@pytest.fixture
async def wire(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    assert timedelta(seconds=10) == limits.HELLO_WITHIN
    monkeypatch.setattr(limits, "HELLO_WITHIN", timedelta(seconds=0.3))
    monkeypatch.setattr(limits, "REQUEST_WITHIN", timedelta(seconds=0.6))
    server = Server(ServerOptions(database_url=database, port=0, dev=True))
    await server.start()
    try:
        async with Wire(f"127.0.0.1:{server.port}") as wire:
            yield wire
    finally:
        await server.stop(drain=False)


@pytest.mark.parametrize(("path", "seconds"), [(WORK, "0.3"), (PRODUCE, "0.3"), (SUBMIT, "0.6"), (STREAM_JOBS, "0.6")])
async def test_a_peer_that_says_nothing_is_sent_away(wire: Wire, path: str, seconds: str) -> None:
    call: Any = wire.channel.stream_stream(path)()
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await asyncio.wait_for(call.read(), 20)
    said = Ended.of(ended.value)
    assert (said.status, said.code) == (grpc.StatusCode.DEADLINE_EXCEEDED, "request_timeout")
    assert said.details.startswith(f"no complete message arrived within {seconds} s")


async def test_a_stream_that_was_greeted_may_be_silent_for_longer(wire: Wire) -> None:
    async with wire.producer() as producer:
        silent: Any = wire.channel.stream_stream(SUBMIT)()
        assert await asyncio.wait_for(silent.code(), 20) is grpc.StatusCode.DEADLINE_EXCEEDED  # the longer of the two
        job = producer_pb2.NewJob(topic="mail")
        await producer.send(producer_pb2.ProducerFrame(seq=1, jobs=[job]))
        assert (await producer.reply(1)).exceptions[0].code == producer_pb2.SUBMIT_CREATED


async def test_a_call_without_a_request_gets_an_error(wire: Wire) -> None:
    call: Any = wire.channel.stream_stream(SUBMIT)()
    await call.done_writing()
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await asyncio.wait_for(call.read(), 20)
    said = Ended.of(ended.value)
    assert (said.code, said.details) == ("invalid_input", "message: is missing; send one headgate.v1.SubmitRequest")


# ---------------------------------------------------------------------- turns


class Tokens:
    """A server with two tokens of one tenant."""

    ONE, OTHER = "a-token-number-one", "a-token-number-two"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write({self.ONE: {"tenant": "acme"}, self.OTHER: {"tenant": "acme"}})
        self.identified = 0

    async def serve(self, database: str) -> None:
        self.server = Server(ServerOptions(database_url=database, port=0, tokens_file=self.path))
        identify = self.server.validator.identify

        def counted(token: str) -> Identity:
            self.identified += 1
            return identify(token)

        self.server.validator.identify = counted  # type: ignore[method-assign]
        await self.server.start()

    def write(self, entries: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(entries))
        self.path.chmod(0o600)

    def wire(self, token: str) -> Wire:
        return Wire(f"127.0.0.1:{self.server.port}", token=token)


@pytest.fixture
async def tokens(database: str, tmp_path: Path) -> AsyncIterator[Tokens]:
    made = Tokens(tmp_path / "tokens.json")
    await made.serve(database)
    try:
        yield made
    finally:
        await made.server.stop(drain=False)


async def silent(tokens: Tokens, wire: Wire, path: str, count: int) -> list[Any]:
    """Calls that say nothing after their headers, and have reached the server."""
    before = tokens.identified
    calls: list[Any] = [wire.channel.stream_stream(path)(metadata=wire.metadata) for _ in range(count)]
    await until(lambda: tokens.identified == before + count, "the server has seen the headers")
    return calls


async def answered(wire: Wire) -> bool:
    """Whether a call is answered before any silent one is sent away."""
    request = producer_pb2.GetJobRequest(id=uuid4().bytes)
    return (await asyncio.wait_for(wire.refused("GetJob", request), 5)).code == "not_found"


async def test_silent_calls_of_a_token_stop_neither_other_tokens_of_the_tenant_nor_its_own_streams(
    tokens: Tokens,
) -> None:
    async with tokens.wire(tokens.ONE) as one, tokens.wire(tokens.OTHER) as other:
        calls = await silent(tokens, one, GET_JOB, limits.REQUESTS_AT_ONCE + 4)
        assert await answered(other)
        async with asyncio.timeout(10), one.worker() as worker:
            await worker.beat()
        for call in calls:
            call.cancel()


async def test_silent_streams_of_a_token_do_not_stop_its_calls(tokens: Tokens) -> None:
    async with tokens.wire(tokens.ONE) as one:
        streams = await silent(tokens, one, WORK, limits.HELLOS_AT_ONCE + limits.REQUESTS_AT_ONCE)
        assert await answered(one)
        for stream in streams:
            stream.cancel()


class Peer:
    """What a service reads from."""

    def __init__(self, message: object = None) -> None:
        self.message = message

    async def read(self) -> object:
        return self.message if self.message is not None else await asyncio.Event().wait()


def let_in(turns: Turns) -> None:
    CALLER.set(AllowAll().identify(""))
    ADMISSION.set(Admission(AllowAll(), RULES[GET_JOB], turns))


async def test_the_time_of_a_request_begins_with_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_WITHIN", timedelta(seconds=0.01))
    turns = Turns(calls=asyncio.Semaphore(0))
    let_in(turns)
    request: Any = Peer(producer_pb2.GetJobRequest())
    waiting = asyncio.create_task(first_message(request, producer_pb2.GetJobRequest))
    done, _ = await asyncio.wait((waiting,), timeout=0.1)
    assert not done, "it waits for its turn, for longer than its request may take"
    turns.calls.release()
    assert await asyncio.wait_for(waiting, 20) == producer_pb2.GetJobRequest()
    assert not turns.calls.locked(), "the turn was given back"


async def test_a_request_does_not_wait_for_its_turn_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURN_WITHIN", timedelta(seconds=0.01))
    let_in(Turns(calls=asyncio.Semaphore(0)))
    request: Any = Peer(producer_pb2.GetJobRequest())
    with pytest.raises(Overloaded):
        await asyncio.wait_for(first_message(request, producer_pb2.GetJobRequest), 20)


# ---------------------------------------------------------------------- revoked between headers and request


@pytest.mark.parametrize(
    ("path", "first"),
    [
        (SUBMIT, producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic="mail"))),
        (STREAM_JOBS, worker_pb2.StreamJobsRequest(worker_id="w", topics=["mail"], max_in_flight=1)),
        (WORK, worker_pb2.WorkerFrame(hello=worker_pb2.Hello(worker_id="w"))),
        (PRODUCE, producer_pb2.ProducerFrame(hello=producer_pb2.ProducerHello())),
    ],
)
@pytest.mark.parametrize(
    ("left", "code"), [({}, "token_revoked"), ({"tenant": "acme", "scopes": ["read"]}, "permission_denied")]
)
async def test_a_token_is_checked_again_when_the_request_is_there(
    tokens: Tokens, path: str, first: Any, left: dict[str, Any], code: str
) -> None:
    async with tokens.wire(tokens.ONE) as one:
        (call,) = await silent(tokens, one, path, 1)
        tokens.write({tokens.OTHER: {"tenant": "acme"}} | ({tokens.ONE: left} if left else {}))
        assert tokens.server.access.file is not None
        tokens.server.access.file.refresh()
        await call.write(first.SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(call.read(), 20)
        assert Ended.of(ended.value).code == code
