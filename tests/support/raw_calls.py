"""Calls by bytes of any method, and how they end: for tests that ask every method of a table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import grpc
import grpc.aio
from google.protobuf.message import Message

from headgate.wire import producer_pb2 as producer
from headgate.wire import worker_pb2 as worker
from tests.support.wire import Wire

HELLO = {
    "/headgate.v1.WorkerService/Work": worker.WorkerFrame(hello=worker.Hello(worker_id="asks")),
    "/headgate.v1.ProducerService/Produce": producer.ProducerFrame(hello=producer.ProducerHello()),
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a call ended, and what it said before that."""

    status: grpc.StatusCode
    code: str
    details: str
    messages: tuple[bytes, ...]

    def without(self, *names: str | bytes) -> Answer:
        """The same with these names and ids blotted out: ids as bytes in messages, and as text."""
        details, messages = self.details, list(self.messages)
        for name in names:
            raw = name if isinstance(name, bytes) else name.encode()
            text = str(UUID(bytes=name)) if isinstance(name, bytes) else name
            details = details.replace(text, "?")
            messages = [one.replace(raw, b"?" * len(raw)).replace(text.encode(), b"?" * len(text)) for one in messages]
        return replace(self, details=details, messages=tuple(messages))


async def ask(wire: Wire, path: str, *requests: Message, within: float = 20) -> Answer:
    """Call by bytes, whatever the kind of the method; a stream is left when it has nothing more to say."""
    while True:
        answer = await _ask(wire, path, *requests, within=within)
        if not answer.details.startswith("Internal error from Core"):
            return answer  # else it was refused while we wrote, and grpc.aio has forgotten the status


async def _ask(wire: Wire, path: str, *requests: Message, within: float) -> Answer:
    call: Any = wire.channel.stream_stream(path)(metadata=wire.metadata)
    messages: list[bytes] = []
    frames: Sequence[Message] = requests
    if path in HELLO and requests:
        frames = [HELLO[path], *requests]
    try:
        async with asyncio.timeout(within):
            try:
                for frame in frames:
                    await call.write(frame.SerializeToString())
                await call.done_writing()
            except (asyncio.InvalidStateError, grpc.aio.InternalError):
                pass  # it has ended already, and says how below
            while (message := await call.read()) is not grpc.aio.EOF:
                if not _is_greeting(path, message):
                    messages.append(message)
        status, details = await call.code(), await call.details()
        trailers = await call.trailing_metadata()
    except TimeoutError:
        call.cancel()
        status, details, trailers = grpc.StatusCode.CANCELLED, "by us", ()
    except grpc.aio.AioRpcError as error:
        status, details, trailers = error.code(), error.details(), error.trailing_metadata()
    code = str(dict(trailers or ()).get("headgate-code", ""))
    return Answer(status=status, code=code, details=details or "", messages=tuple(messages))


def _is_greeting(path: str, message: bytes) -> bool:
    if path.endswith("/Work"):
        return worker.ServerFrame.FromString(message).HasField("hello_ack")
    return path.endswith("/Produce") and producer.ProducerReply.FromString(message).HasField("hello_ack")


def error_codes(path: str, answer: Answer) -> list[str]:
    """Of errors within an answer."""
    found: list[str] = []
    for message in answer.messages:
        if path.endswith("/SubmitBatch"):
            found += [one.error.code for one in producer.SubmitBatchResponse.FromString(message).receipts]
        elif path.endswith("/Produce"):
            reply = producer.ProducerReply.FromString(message)
            found += [reply.error.code, *(one.error.code for one in reply.exceptions)]
    return found
