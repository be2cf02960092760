"""A scripted server in this process that speaks the wire contract, for tests of the SDK without a database.

It lives on the SDK's own I/O loop, because grpc.aio takes one loop per process. Tests read what it received (lists that
only grow) and tell it what to say; both are safe from the test's thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import grpc
import grpc.aio

from headgate.sdk.ids import new_id_maker
from headgate.sdk.io_thread import io_thread
from headgate.wire import admin_pb2, jobs_pb2, producer_pb2, worker_pb2
from tests.support.ports import lasting_port
from tests.support.waiting import TIME_LIMIT, until_async

T = TypeVar("T")
_ids = new_id_maker()
_END = object()


def on_io(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, io_thread().loop))


async def until(check: Callable[[], T], what: str, *, seconds: float = TIME_LIMIT.total_seconds()) -> T:
    async def ask() -> T:
        return check()

    return await until_async(ask, what, within=timedelta(seconds=seconds))


class Peer:
    """One stream of a worker or a producer."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.token = ""
        self.ended = False
        self._out: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        io_thread().loop.call_soon_threadsafe(self._out.put_nowait, message)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "", headgate_code: str = "") -> None:
        """End the stream from the server's side."""
        self.send((_END, code, details, headgate_code))

    async def write_all(self, stream: Any) -> None:
        while True:
            message = await self._out.get()
            if isinstance(message, tuple) and message[0] is _END:
                _, code, details, word = message
                await stream.abort(code, details, (("headgate-code", word),) if word else ())
            await stream.write(message)


class WorkerPeer(Peer):
    """One Work stream, greeted."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__()
        self._server = server

    @property
    def hello(self) -> worker_pb2.Hello:
        hello: worker_pb2.Hello = self.received[0].hello
        return hello

    def frames(self, part: str) -> list[Any]:
        return [getattr(frame, part) for frame in list(self.received) if frame.HasField(part)]

    @property
    def credit(self) -> int:
        return sum(ready.count for ready in self.frames("ready"))

    @property
    def topics(self) -> list[str]:
        """What the last Ready that named topics named."""
        named = [list(ready.topics) for ready in self.frames("ready") if ready.topics]
        return named[-1] if named else []

    def completed(self) -> dict[bytes, bytes]:
        """Results by id, as far as they were sent on this stream."""
        found = {}
        for outcomes in self.frames("outcomes"):
            results = list(outcomes.results) or [b""] * len(outcomes.ids)
            found.update(dict(zip(outcomes.ids, results, strict=True)))
        return found

    def others(self) -> list[jobs_pb2.Outcome]:
        return [one for outcomes in self.frames("outcomes") for one in outcomes.others]

    def say(self, **parts: Any) -> None:
        self.send(worker_pb2.ServerFrame(**parts))

    def deliver(
        self,
        topic: str,
        *payloads: bytes,
        ids: list[bytes] | None = None,
        epoch: int = 1,
        attempt: int = 1,
        headers: dict[str, str] | None = None,
        schedule: str = "",
        deadline_in_ms: int | None = None,
    ) -> list[bytes]:
        """Send jobs of one topic in one frame; gives their ids."""
        ids = ids or [_ids.next_id().bytes for _ in payloads]
        count = len(payloads)
        jobs = worker_pb2.Jobs(
            ids=ids,
            epochs=[epoch] * count,
            payloads=payloads,
            topic_names=[topic],
            attempts=[attempt] * count,
            max_attempts=[20] * count,
            created_us=[1_700_000_000_000_000] * count,
            lease_until_us=1_700_000_060_000_000,
        )
        for place in range(count if headers or schedule or deadline_in_ms is not None else 0):
            extra = jobs.headers.add(index=place, headers=headers, schedule=schedule)
            extra.occurrence_us = 1_700_000_000_000_000
            if deadline_in_ms is not None:
                extra.deadline_us, extra.deadline_in_ms = 1_700_000_000_000_000, deadline_in_ms
        self.say(jobs=jobs)
        return ids

    def held(self, *ids: bytes, epoch: int = 1) -> worker_pb2.Held:
        return worker_pb2.Held(ids=ids, epochs=[epoch] * len(ids))

    def receipts(self, seq: int, *exceptions: jobs_pb2.Receipt) -> None:
        self.say(receipts=worker_pb2.Receipts(seq=seq, exceptions=exceptions))

    def take(self, frame: worker_pb2.WorkerFrame) -> None:
        self.received.append(frame)
        if frame.HasField("quiet") and self._server.answers_quiet:
            self._out.put_nowait(worker_pb2.ServerFrame(quieted=worker_pb2.Quieted()))
        if frame.HasField("outcomes") and self._server.answers_outcomes:
            self._out.put_nowait(worker_pb2.ServerFrame(receipts=worker_pb2.Receipts(seq=frame.outcomes.seq)))
        if frame.HasField("beat") and self._server.answers_beats:
            self._out.put_nowait(worker_pb2.ServerFrame(beat_ack=worker_pb2.BeatAck()))


class ProducerPeer(Peer):
    """One Produce stream, greeted."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__()
        self._server = server

    def frames(self) -> list[producer_pb2.ProducerFrame]:
        return [frame for frame in list(self.received) if frame.seq]

    def ids(self) -> list[bytes]:
        return [one for frame in self.frames() for one in [*frame.plain.ids, *(job.id for job in frame.jobs)]]

    def reply(self, seq: int, *exceptions: producer_pb2.SubmitReceipt, error: jobs_pb2.Error | None = None) -> None:
        self.send(producer_pb2.ProducerReply(seq=seq, exceptions=exceptions, error=error))

    def take(self, frame: producer_pb2.ProducerFrame) -> None:
        self.received.append(frame)
        if frame.seq and self._server.answers_submits:
            self._out.put_nowait(producer_pb2.ProducerReply(seq=frame.seq, error=self._server.refuses_submits))


class FakeServer:
    """Greets everyone; answers by itself what it is notified to answer."""

    def __init__(self) -> None:
        self.address = ""
        self.port = 0
        self.workers: list[WorkerPeer] = []
        self.producers: list[ProducerPeer] = []
        self.reports: list[worker_pb2.ReportOutcomeRequest] = []
        self.jobs: dict[bytes, jobs_pb2.JobInfo] = {}
        self.redrives: list[admin_pb2.RedriveJobsRequest] = []
        self.answers_redrives = asyncio.Event()
        self.answers_redrives.set()
        self.call_refusals: list[tuple[grpc.StatusCode, str, int]] = []
        """What the next calls about jobs get once they have arrived: a status, a code, and when to come back in ms."""
        self.report_receipts: list[list[jobs_pb2.Receipt]] = []
        """What the next reports are answered with; those after them are taken."""
        self.report_refusals: list[str] = []
        """The codes with which the next reports are refused, before any is answered."""
        self.answers_outcomes = True
        self.answers_quiet = True
        self.answers_beats = True
        self.reads = True
        self.answers_submits = True
        self.refuses_submits: jobs_pb2.Error | None = None
        self.greets = True
        self.beat_seconds = 20
        self.lost: worker_pb2.Held | None = None
        self.refuses: grpc.StatusCode | None = None
        self.refusal: tuple[tuple[str, str], ...] = ()
        """The trailers of refused streams."""
        self.refused_at: list[float] = []
        self._server: grpc.aio.Server | None = None

    async def worker(self, number: int = 0) -> WorkerPeer:
        """The stream of the nth connection, once it asked for jobs."""
        await until(lambda: len(self.workers) > number and len(self.workers[number].received) > 1, "a worker connects")
        return self.workers[number]

    async def producer(self, number: int = 0, *, frames: int = 1) -> ProducerPeer:
        """The stream of the nth producer, once it sent so many frames."""
        await until(
            lambda: len(self.producers) > number and len(self.producers[number].frames()) >= frames, "a producer sends"
        )
        return self.producers[number]

    async def start(self, port: int = 0) -> None:
        server = self._server = grpc.aio.server()
        work = grpc.stream_stream_rpc_method_handler(
            self._work, worker_pb2.WorkerFrame.FromString, worker_pb2.ServerFrame.SerializeToString
        )
        report = grpc.unary_unary_rpc_method_handler(
            self._report,
            worker_pb2.ReportOutcomeRequest.FromString,
            worker_pb2.ReportOutcomeResponse.SerializeToString,
        )
        produce = grpc.stream_stream_rpc_method_handler(
            self._produce, producer_pb2.ProducerFrame.FromString, producer_pb2.ProducerReply.SerializeToString
        )
        get = grpc.unary_unary_rpc_method_handler(
            self._get, producer_pb2.GetJobRequest.FromString, jobs_pb2.JobInfo.SerializeToString
        )
        wait = grpc.unary_unary_rpc_method_handler(
            self._get, producer_pb2.WaitResultRequest.FromString, jobs_pb2.JobInfo.SerializeToString
        )
        redrive = grpc.unary_unary_rpc_method_handler(
            self._redrive, admin_pb2.RedriveJobsRequest.FromString, admin_pb2.JobsResponse.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("headgate.v1.AdminService", {"RedriveJobs": redrive}),
                grpc.method_handlers_generic_handler(
                    "headgate.v1.WorkerService", {"Work": work, "ReportOutcome": report}
                ),
                grpc.method_handlers_generic_handler(
                    "headgate.v1.ProducerService", {"Produce": produce, "GetJob": get, "WaitResult": wait}
                ),
            )
        )
        self.port = server.add_insecure_port(f"127.0.0.1:{port or lasting_port()}")
        self.address = f"127.0.0.1:{self.port}"
        await server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _refuse(self, stream: Any) -> None:
        if self.refuses is not None:
            self.refused_at.append(asyncio.get_running_loop().time())
            await stream.abort(self.refuses, "the token is not known", self.refusal)

    async def _work(self, _requests: object, stream: Any) -> None:
        first = await stream.read()
        await self._refuse(stream)
        peer = WorkerPeer(self)
        peer.token = _token(stream)
        peer.received.append(first)
        self.workers.append(peer)
        ack = worker_pb2.HelloAck(
            worker_id=first.hello.worker_id,
            tenant="acme",
            instance="fake",
            beat_seconds=self.beat_seconds,
            lease_seconds=3 * self.beat_seconds,
            lost=self.lost,
            server="0.0",
        )
        if self.greets:
            await stream.write(worker_pb2.ServerFrame(hello_ack=ack))
        await self._serve(peer, stream)

    async def _produce(self, _requests: object, stream: Any) -> None:
        first = await stream.read()
        await self._refuse(stream)
        peer = ProducerPeer(self)
        peer.token = _token(stream)
        peer.received.append(first)
        self.producers.append(peer)
        if self.greets:
            await stream.write(producer_pb2.ProducerReply(hello_ack=producer_pb2.ProducerHelloAck(tenant="acme")))
        await self._serve(peer, stream)

    async def _serve(self, peer: WorkerPeer | ProducerPeer, stream: Any) -> None:
        async def read_all() -> None:
            while frame := await stream.read():
                peer.take(frame)
                if not self.reads:
                    await asyncio.Event().wait()

        tasks = [asyncio.create_task(read_all()), asyncio.create_task(peer.write_all(stream))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            peer.ended = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report(self, request: worker_pb2.ReportOutcomeRequest, call: Any) -> worker_pb2.ReportOutcomeResponse:
        if self.report_refusals:
            trailers = (("headgate-code", self.report_refusals.pop(0)), ("headgate-retry-after-ms", "150"))
            await call.abort(grpc.StatusCode.UNAVAILABLE, "not now", trailers)
        self.reports.append(request)
        receipts = self.report_receipts.pop(0) if self.report_receipts else []
        return worker_pb2.ReportOutcomeResponse(receipts=receipts)

    async def _refuse_if_told(self, call: Any) -> None:
        if self.call_refusals:
            status, code, wait_ms = self.call_refusals.pop(0)
            await call.abort(status, "not now", (("headgate-code", code), ("headgate-retry-after-ms", str(wait_ms))))

    async def _redrive(self, request: admin_pb2.RedriveJobsRequest, call: Any) -> admin_pb2.JobsResponse:
        self.redrives.append(request)
        await self._refuse_if_told(call)
        await self.answers_redrives.wait()
        changes = [admin_pb2.JobChange(id=one, changed=True, state=jobs_pb2.STATE_PENDING) for one in request.ids]
        return admin_pb2.JobsResponse(results=changes)

    async def _get(self, request: Any, call: Any) -> jobs_pb2.JobInfo:
        await self._refuse_if_told(call)
        if request.id not in self.jobs:
            await call.abort(grpc.StatusCode.NOT_FOUND, "no such job")
        return self.jobs[request.id]


def _token(stream: Any) -> str:
    return str(dict(stream.invocation_metadata()).get("authorization", "")).removeprefix("Bearer ")


@asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    """A fake server on a port of its own."""
    server = FakeServer()
    await on_io(server.start())
    try:
        yield server
    finally:
        await on_io(server.stop())


def payloads(count: int) -> list[bytes]:
    """As many different small payloads."""
    return [b'{"n":%d}' % n for n in itertools.islice(itertools.count(), count)]
