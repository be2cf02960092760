"""Overload over real sockets: an explicit refusal with a hint, on streams and calls, and nothing lost or half taken."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc
import pytest

from headgate import Headgate
from headgate.dispatch.submits import QUEUE_ROWS
from headgate.store.connect import connect
from headgate.wire import producer_pb2
from tests.fault.conftest import Servers
from tests.support.wire import new_id

Stream: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"
PAGE = 1_000
FRAMES = QUEUE_ROWS // PAGE // 2 + 4  # half of the queue, what is in flight, and one that is refused for sure


@pytest.mark.req("W18")
async def test_what_does_not_fit_is_refused_with_a_code_and_a_hint_and_the_sdk_waits(
    servers: Servers, database: str
) -> None:
    (server,) = await asyncio.to_thread(servers, 1)
    blocker = await connect(database, application_name="blocker")
    locked = blocker.transaction()
    await locked.start()
    await blocker.execute("LOCK TABLE headgate.jobs IN SHARE MODE")  # no submit gets through
    channel = grpc.aio.insecure_channel(server.address)
    try:
        produce = channel.stream_stream(
            "/headgate.v1.ProducerService/Produce",
            request_serializer=producer_pb2.ProducerFrame.SerializeToString,
            response_deserializer=producer_pb2.ProducerReply.FromString,
        )
        async with asyncio.timeout(60):
            streams = [await flooded(produce()) for _ in range(2)]
            refused = [await anext_reply(stream) for stream in streams]  # what waits has no answer yet
            for reply in refused:
                assert reply.error.code == "overloaded"
                assert reply.error.retry_after_ms >= 50
            status = await refused_call(channel)
            assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            trailers = dict(status.trailing_metadata() or ())
            assert trailers["headgate-code"] == "overloaded"
            assert int(trailers["headgate-retry-after-ms"]) >= 50
            async with Headgate(server.address) as hg:
                waiting = asyncio.ensure_future(hg.submit_many("plain", [b"x"] * 10_000))
                await locked.rollback()
                handles = await waiting  # a plain user waited, and saw no exception
            taken = 0
            for stream in streams:
                for _ in range(FRAMES - 1):
                    reply = await anext_reply(stream)
                    taken += PAGE * (not reply.HasField("error"))
                stream.cancel()
            assert await blocker.fetchval("SELECT count(*) FROM headgate.jobs") == taken + len(handles)
    finally:
        await blocker.close()
        await channel.close()


async def flooded(stream: Stream) -> Stream:
    await stream.write(producer_pb2.ProducerFrame(hello=producer_pb2.ProducerHello()))
    await stream.read()
    for seq in range(1, FRAMES + 1):
        ids = [new_id() for _ in range(PAGE)]
        plain = producer_pb2.PlainJobs(topic="flood", ids=ids, payloads=[b"x"] * PAGE, new_id=True)
        await stream.write(producer_pb2.ProducerFrame(seq=seq, plain=plain))
    return stream


async def anext_reply(stream: Stream) -> producer_pb2.ProducerReply:
    reply = await stream.read()
    assert isinstance(reply, producer_pb2.ProducerReply)
    return reply


async def refused_call(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    """Batches by unary calls until one does not fit."""
    batch = channel.unary_unary(
        "/headgate.v1.ProducerService/SubmitBatch",
        request_serializer=producer_pb2.SubmitBatchRequest.SerializeToString,
        response_deserializer=producer_pb2.SubmitBatchResponse.FromString,
    )
    jobs = [producer_pb2.NewJob(topic="flood", payload=b"x") for _ in range(2 * PAGE)]
    calls = [
        asyncio.ensure_future(_answer(batch(producer_pb2.SubmitBatchRequest(jobs=jobs, atomic=True))))
        for _ in range(10)
    ]
    for first in asyncio.as_completed(calls):
        answer = await first
        if isinstance(answer, grpc.aio.AioRpcError):
            for call in calls:
                call.cancel()
            return answer
    raise AssertionError("all of them were taken")


async def _answer(call: object) -> object:
    try:
        return await call  # type: ignore[misc]
    except grpc.aio.AioRpcError as error:
        return error
