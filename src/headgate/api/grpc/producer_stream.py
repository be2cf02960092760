"""One producer's stream: frames in, replies out by seq after commit, and the ways it ends."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from headgate.api.grpc import submit_codec
from headgate.api.grpc.auth import caller
from headgate.api.grpc.errors import GONE, ProtocolError, end_with, message_of
from headgate.api.grpc.methods import Context, first_message, next_message
from headgate.control.auth import TokenValidator
from headgate.control.revocation import OpenCall, OpenCalls
from headgate.control.submit import SubmitResult, Submits
from headgate.domain.errors import HeadgateError, ShuttingDown
from headgate.domain.identity import Scope
from headgate.wire import producer_pb2 as pb

REPLIES_WAITING: Final = 1_024
LAST_WRITE_SECONDS: Final = 2.0
"""How long a producer has to read its last replies when its stream must end."""


class ProducerStream:
    """Reads frames and writes replies until the producer, its token or this instance ends."""

    def __init__(
        self,
        submits: Submits[Any, Any],
        validator: TokenValidator,
        calls: OpenCalls,
        draining: asyncio.Event,
        stream: Context,
    ) -> None:
        self._submits, self._validator, self._calls = submits, validator, calls
        self._draining, self._stream = draining, stream
        self._account = submits.stream_account()
        self._replies = _Replies()

    async def run(self, hello: pb.ProducerHelloAck) -> None:
        """Serve the stream; returns, or ends the call with an error, when everything that was taken is answered."""
        stream = self._stream
        try:
            first = await first_message(stream, pb.ProducerFrame, hello=True)
            if first is None or not first.HasField("hello"):
                raise ProtocolError("the first frame must carry hello")
        except HeadgateError as error:
            await end_with(stream, error)
        except GONE:
            raise asyncio.CancelledError from None  # the peer has left: there is nothing to answer or log
        hello.tenant = caller().tenant
        try:
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await stream.write(pb.ProducerReply(hello_ack=hello))
        except TimeoutError:
            raise asyncio.CancelledError from None  # the peer reads nothing
        opening = [first]
        del first  # a stream that is silent for hours keeps none of its frames
        with self._calls.watched(caller()) as call:
            ends = await self._serve(call, opening)
        for end in ends:
            if isinstance(end, HeadgateError):
                try:
                    async with asyncio.timeout(LAST_WRITE_SECONDS):
                        await end_with(stream, end)
                except TimeoutError:
                    raise asyncio.CancelledError from None  # gRPC keeps the status until the peer reads, or leaves
            if isinstance(end, Exception) and not isinstance(end, GONE):
                raise end
        if self._draining.is_set():
            await end_with(stream, ShuttingDown("this instance is shutting down; connect to another one"))

    async def _serve(self, call: OpenCall, opening: list[pb.ProducerFrame]) -> list[BaseException | object]:
        """Run the stream's tasks until one ends; returns how each of them ended."""
        writer = asyncio.create_task(self._replies.write_to(self._stream), name="replies to a producer")
        reader = asyncio.create_task(self._read(opening), name="frames of a producer")
        stopping = asyncio.create_task(self._draining.wait(), name="stop of a producer")
        revoked = asyncio.create_task(self._revoked(call), name="revocation of a producer")
        tasks: list[asyncio.Task[Any]] = [reader, writer, stopping, revoked]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                reader.cancel()
                await asyncio.wait((reader,))
            # No more frames are read; what was taken is still answered.
            answered = asyncio.create_task(self._replies.all_written(), name="last replies to a producer")
            tasks.append(answered)
            if not revoked.done():
                await asyncio.wait((answered, writer, revoked), return_when=asyncio.FIRST_COMPLETED)
            if revoked.done():  # not for long: it may never read its replies
                await asyncio.wait((answered, writer), timeout=LAST_WRITE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        return ends

    async def _revoked(self, call: OpenCall) -> None:
        """Wait until the token of the stream permits no submits any more, and raise why."""
        while True:
            await call.changed.wait()
            call.recheck(self._validator, Scope.SUBMIT)

    async def _read(self, opening: list[pb.ProducerFrame]) -> None:
        identity = caller()
        frame: pb.ProducerFrame | None = opening.pop()
        greeted = False
        while frame is not None:
            if greeted or frame.HasField("plain") or frame.jobs:
                # For every frame: a token that was revoked meanwhile submits nothing more.
                identity = self._validator.recheck(identity)
                identity.require(Scope.SUBMIT)
                await self._replies.promise()
                answered, failed = partial(self._replies.answer, frame.seq), partial(self._replies.fail, frame.seq)
                try:
                    if greeted and frame.HasField("hello"):
                        raise ProtocolError("hello was said already; nothing of this frame was written")
                    await self._submits.frame(
                        identity,
                        frame.plain if frame.HasField("plain") else None,
                        frame.jobs,
                        submit_codec.submission_of,
                        self._account,
                        done=answered,
                        failed=failed,
                        declared=submit_codec.declared_of(frame.plain) if frame.plain.HasField("declared") else None,
                    )
                except HeadgateError as error:
                    failed(error)
                except asyncio.CancelledError:  # before it was queued: nothing of it was written
                    failed(ShuttingDown("this instance is shutting down; send it to another one"))
                    raise
            greeted, frame = True, None  # not kept while the next one is waited for, which may take hours
            frame = await next_message(self._stream, pb.ProducerFrame)


class _Replies:
    """Replies that one producer is still to get. Bounded: a producer that reads none is not read from either."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(REPLIES_WAITING)
        self._queue: asyncio.Queue[pb.ProducerReply] = asyncio.Queue(REPLIES_WAITING)
        self._promised = 0
        self._none_promised = asyncio.Event()
        self._none_promised.set()

    async def promise(self) -> None:
        """A reply will be kept; waits until the queue can hold it."""
        await self._free.acquire()
        self._promised += 1
        self._none_promised.clear()

    def answer(self, seq: int, results: list[SubmitResult]) -> None:
        """Queue the reply to a frame that is committed; `results` are the jobs that were not simply created."""
        self._promised -= 1
        self._queue.put_nowait(pb.ProducerReply(seq=seq, exceptions=map(submit_codec.receipt_of, results)))
        if not self._promised:
            self._none_promised.set()

    def fail(self, seq: int, error: HeadgateError) -> None:
        """Queue the reply to a frame of which nothing was written."""
        self._promised -= 1
        self._queue.put_nowait(pb.ProducerReply(seq=seq, error=message_of(error)))
        if not self._promised:
            self._none_promised.set()

    async def write_to(self, stream: Context) -> None:
        """Write until cancelled."""
        while True:
            await stream.write(await self._queue.get())
            self._queue.task_done()
            self._free.release()

    async def all_written(self) -> None:
        """Return when every promised reply is written."""
        await self._none_promised.wait()
        await self._queue.join()
