"""A client that opens a call or a stream sends its first message in time, or is disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import pytest

from headgate.domain import limits
from headgate.server import Server, ServerOptions
from headgate.wire import producer_pb2
from tests.support.wire import PRODUCE, WORK, Ended, Wire

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
    assert said.details.startswith(f"no whole message came within {seconds} s")


async def test_a_stream_that_was_greeted_may_be_silent_for_longer(wire: Wire) -> None:
    async with wire.producer() as producer:
        await asyncio.sleep(0.7)  # longer than either of the two
        job = producer_pb2.NewJob(topic="mail")
        await producer.send(producer_pb2.ProducerFrame(seq=1, jobs=[job]))
        assert (await producer.reply(1)).odd[0].code == producer_pb2.SUBMIT_CREATED


async def test_a_call_without_a_request_is_told_so(wire: Wire) -> None:
    call: Any = wire.channel.stream_stream(SUBMIT)()
    await call.done_writing()
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await asyncio.wait_for(call.read(), 20)
    said = Ended.of(ended.value)
    assert (said.code, said.details) == ("invalid_input", "message: is missing; send one headgate.v1.SubmitRequest")
