"""Headgate's wire without the SDK: bare frames over real sockets, each wait with a deadline.

async with Wire(server.address, token=TOKEN) as wire, wire.worker() as session:
    job_id = await wire.submit("mail", b"body")
    await session.ready(1, "mail")
    (job,) = await session.take(1)
    assert await session.report(completed(job, b"done")) == {}
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import grpc
import grpc.aio

from headgate.domain.ids import new_job_id
from headgate.wire import (
    admin_pb2,
    batches_pb2,
    bulk_pb2,
    events_pb2,
    jobs_pb2,
    keys_pb2,
    producer_pb2,
    schedules_pb2,
    stats_pb2,
    tenants_pb2,
    topics_pb2,
    webhooks_pb2,
    worker_pb2,
)
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.waiting import TIME_LIMIT

SERVICE_FILES: Final[tuple[Any, ...]] = (
    batches_pb2,
    bulk_pb2,
    admin_pb2,
    events_pb2,
    keys_pb2,
    producer_pb2,
    schedules_pb2,
    stats_pb2,
    tenants_pb2,
    topics_pb2,
    webhooks_pb2,
    worker_pb2,
)
"""Where the services of the wire contract are described."""
WAIT = TIME_LIMIT.total_seconds()
"""Seconds after which a test gives up on anything it awaits."""
WORK = "/headgate.v1.WorkerService/Work"
PRODUCE = "/headgate.v1.ProducerService/Produce"
STREAM_JOBS = "/headgate.v1.WorkerService/StreamJobs"
_SERVICE_OF: Final[dict[str, tuple[str, Any]]] = {
    "Heartbeat": ("WorkerService", worker_pb2.HeartbeatResponse),
    "ReportOutcome": ("WorkerService", worker_pb2.ReportOutcomeResponse),
    "Claim": ("WorkerService", worker_pb2.ClaimResponse),
    "ListWorkers": ("AdminService", admin_pb2.ListWorkersResponse),
    "ReadEvents": ("EventService", events_pb2.ReadEventsResponse),
    "Submit": ("ProducerService", producer_pb2.SubmitResponse),
    "SubmitBatch": ("ProducerService", producer_pb2.SubmitBatchResponse),
    "GetJob": ("ProducerService", jobs_pb2.JobInfo),
    "WaitResult": ("ProducerService", jobs_pb2.JobInfo),
}
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: what one test does to it is not another's affair
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
)


def _bytes(message: Any) -> bytes:
    """A message, or the bytes that a test sends in its place."""
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


class Delivered(NamedTuple):
    """One job as a frame brought it."""

    id: bytes
    epoch: int
    topic: str
    payload: bytes
    attempt: int
    max_attempts: int
    priority: int
    created_us: int
    lease_until_us: int
    headers: Mapping[str, str]
    deadline_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a call ended: its status, the sentence, and Headgate's own stable code."""

    status: grpc.StatusCode
    details: str
    code: str

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> Ended:
        trailers = dict(error.trailing_metadata() or ())
        return cls(status=error.code(), details=error.details() or "", code=str(trailers.get("headgate-code", "")))


@contextmanager
def served(
    postgres: Server, template: str, folder: Path, *args: str, dev: bool = True
) -> Iterator[tuple[ServerProcess, str]]:
    """A server for all tests of a module, on a database of its own; and that database's URL."""
    name = postgres.create(template=template)
    try:
        with ServerProcess(postgres.dsn_of(name), folder=folder, args=args, dev=dev) as server:
            yield server, postgres.dsn_of(name)
    finally:
        postgres.drop(name)


def new_id() -> bytes:
    """The 16 bytes of a new version 7 UUID."""
    return new_job_id(now_ms=time.time_ns() // 1_000_000, random_bits=uuid4().bytes[:10]).bytes


def completed(job: Delivered | jobs_pb2.Job, result: bytes = b"") -> jobs_pb2.Outcome:
    return jobs_pb2.Outcome(id=job.id, epoch=job.epoch, completed=jobs_pb2.Completed(result=result))


def failed(job: Delivered | jobs_pb2.Job, message: str = "no", **more: Any) -> jobs_pb2.Outcome:
    return jobs_pb2.Outcome(id=job.id, epoch=job.epoch, failed=jobs_pb2.Failed(type="Oops", message=message, **more))


def nack(job: Delivered | jobs_pb2.Job, delay_ms: int = 0, reason: str = "") -> jobs_pb2.Outcome:
    return jobs_pb2.Outcome(id=job.id, epoch=job.epoch, nack=jobs_pb2.Nack(delay_ms=delay_ms, reason=reason))


def abandon(job: Delivered | jobs_pb2.Job) -> jobs_pb2.Outcome:
    return jobs_pb2.Outcome(id=job.id, epoch=job.epoch, abandon=jobs_pb2.Abandon())


def snooze(job: Delivered | jobs_pb2.Job, delay_ms: int) -> jobs_pb2.Outcome:
    return jobs_pb2.Outcome(id=job.id, epoch=job.epoch, snooze=jobs_pb2.Snooze(delay_ms=delay_ms))


def held(*jobs: Delivered | jobs_pb2.Job) -> worker_pb2.Held:
    return worker_pb2.Held(ids=[job.id for job in jobs], epochs=[job.epoch for job in jobs])


def retry_after(milliseconds: int) -> producer_pb2.RetryPolicy:
    return producer_pb2.RetryPolicy(kind=producer_pb2.RetryPolicy.FIXED, base_ms=milliseconds, cap_ms=milliseconds)


# ---------------------------------------------------------------------- one connection


class Wire:
    """One connection under one token."""

    def __init__(self, address: str, *, token: str = "", options: Sequence[tuple[str, Any]] = ()) -> None:
        self.token = token
        self.channel = grpc.aio.insecure_channel(address, options=[*_OPTIONS, *options])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    async def call(self, method: str, request: Any, *, within: float = WAIT) -> Any:
        """A unary call by its name; raises grpc.aio.AioRpcError."""
        service, answer = _SERVICE_OF[method]
        begin = self.channel.unary_unary(
            f"/headgate.v1.{service}/{method}",
            request_serializer=_bytes,
            response_deserializer=answer.FromString,
        )
        return await begin(request, timeout=within, metadata=self.metadata, wait_for_ready=True)

    async def refused(self, method: str, request: Any) -> Ended:
        """How a call that must fail was refused."""
        try:
            answer = await self.call(method, request)
        except grpc.aio.AioRpcError as error:
            return Ended.of(error)
        raise AssertionError(f"{method} was not refused: {answer}")

    async def submit(self, topic: str, payload: bytes = b"", **options: Any) -> bytes:
        """Submit one job; returns its id."""
        job = producer_pb2.NewJob(topic=topic, payload=payload, **options)
        answer = await self.call("Submit", producer_pb2.SubmitRequest(job=job))
        assert answer.receipt.code == producer_pb2.SUBMIT_CREATED, answer
        return bytes(answer.receipt.id)

    async def submit_many(self, topic: str, payloads: Iterable[bytes], **options: Any) -> list[bytes]:
        """Submit jobs in one call; returns their ids in order."""
        jobs = [producer_pb2.NewJob(topic=topic, payload=payload, **options) for payload in payloads]
        answer = await self.call("SubmitBatch", producer_pb2.SubmitBatchRequest(jobs=jobs))
        assert {receipt.code for receipt in answer.receipts} == {producer_pb2.SUBMIT_CREATED}, answer
        return [bytes(receipt.id) for receipt in answer.receipts]

    async def job(self, job_id: bytes) -> jobs_pb2.JobInfo:
        """The job as it is now, with everything."""
        request = producer_pb2.GetJobRequest(id=job_id, with_payload=True, with_result=True, with_events=True)
        return await self.call("GetJob", request)  # type: ignore[no-any-return]

    async def ended(self, job_id: bytes) -> jobs_pb2.JobInfo:
        """The job once it is completed, dead or cancelled."""
        await self.call("WaitResult", producer_pb2.WaitResultRequest(id=job_id, wait_ms=int(WAIT * 900)))
        job = await self.job(job_id)
        assert job.state >= jobs_pb2.STATE_COMPLETED, f"it did not end: {job}"
        return job

    @asynccontextmanager
    async def worker(self, worker_id: str = "", **hello: Any) -> AsyncIterator[WorkerSession]:
        """A Work stream that has said hello and was answered."""
        session = self.session()
        try:
            await session.hello(worker_id or f"worker-{uuid4()}", **hello)
            yield session
        finally:
            await session.close()

    def session(self) -> WorkerSession:
        """A Work stream on which nothing was said yet."""
        begin = self.channel.stream_stream(
            WORK,
            request_serializer=_bytes,
            response_deserializer=worker_pb2.ServerFrame.FromString,
        )
        return WorkerSession(begin(metadata=self.metadata))

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[Producer]:
        """A Produce stream that has said hello and was answered."""
        begin = self.channel.stream_stream(
            PRODUCE,
            request_serializer=_bytes,
            response_deserializer=producer_pb2.ProducerReply.FromString,
        )
        stream = Producer(begin(metadata=self.metadata))
        try:
            await stream.send(producer_pb2.ProducerFrame(hello=producer_pb2.ProducerHello()))
            await stream.until(lambda: stream.ack is not None, "the producer was greeted")
            yield stream
        finally:
            await stream.close()

    @asynccontextmanager
    async def stream_jobs(
        self, worker_id: str, *topics: str, max_in_flight: int, **more: Any
    ) -> AsyncIterator[Batches]:
        """A plain server stream of jobs."""
        begin = self.channel.unary_stream(
            STREAM_JOBS,
            request_serializer=worker_pb2.StreamJobsRequest.SerializeToString,
            response_deserializer=worker_pb2.JobBatch.FromString,
        )
        request = worker_pb2.StreamJobsRequest(worker_id=worker_id, topics=topics, max_in_flight=max_in_flight, **more)
        stream = Batches(begin(request, metadata=self.metadata))
        try:
            yield stream
        finally:
            await stream.close()


# ---------------------------------------------------------------------- streams


class Stream:
    """Reads everything at once into memory, and wakes tasks that wait for something."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.over: Ended | None = None
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()  # gRPC takes one write at a time
        self._reader = asyncio.create_task(self._read(), name="frames from the server")

    async def send(self, frame: Any, *, within: float = WAIT) -> None:
        """Write one frame; bytes go as they are. On a stream that has ended this says how it did."""
        try:
            async with asyncio.timeout(within):
                await asyncio.shield(self._write(frame))  # gRPC ends a call whose write is cancelled
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            ended = await self.ended()
            raise AssertionError(f"the stream had ended: {ended}") from error

    async def _write(self, frame: Any) -> None:
        async with self._writing:
            await self.call.write(frame)

    async def done_writing(self) -> None:
        await self.call.done_writing()

    async def until(self, check: Callable[[], Any], what: str, *, within: float = WAIT) -> Any:
        """The first truthy answer of `check`, asked again at every frame."""
        try:
            async with asyncio.timeout(within):
                while not (answer := check()):
                    assert self.over is None, f"the stream ended before {what}: {self.over}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited {within} s in vain until {what}") from None
        return answer

    async def ended(self, *, within: float = WAIT) -> Ended:
        """How the server ended the stream."""
        async with asyncio.timeout(within):
            await asyncio.shield(self._reader)
        assert self.over is not None
        return self.over

    async def close(self) -> None:
        """Cancel the call, as a broken wire does."""
        self.call.cancel()
        await asyncio.wait((self._reader,), timeout=WAIT)

    def took(self, frame: Any) -> None:
        raise NotImplementedError

    async def _read(self) -> None:
        try:
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                self.took(frame)
                self._news.set()
            status, details = await self.call.code(), await self.call.details()
            trailers = dict(await self.call.trailing_metadata() or ())
            self.over = Ended(status=status, details=details or "", code=str(trailers.get("headgate-code", "")))
        except grpc.aio.AioRpcError as error:
            self.over = Ended.of(error)
        except asyncio.CancelledError:
            self.over = Ended(status=grpc.StatusCode.CANCELLED, details="by us", code="")
        finally:
            self._news.set()


class WorkerSession(Stream):
    """A worker's Work stream."""

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self.ack: worker_pb2.HelloAck | None = None
        self.frames: list[worker_pb2.ServerFrame] = []
        self.jobs: deque[Delivered] = deque()
        self.receipts: dict[int, dict[int, jobs_pb2.Receipt]] = {}
        self.errors: deque[jobs_pb2.Error] = deque()
        self.lost: list[tuple[bytes, int]] = []
        self.cancels: list[tuple[bytes, int]] = []
        self.beats = 0
        self.quieted = 0
        self.jobs_seen = 0
        self.drain: int | None = None
        self._seqs = count(1)

    async def hello(self, worker_id: str, **hello: Any) -> worker_pb2.HelloAck:
        await self.send(worker_pb2.WorkerFrame(hello=worker_pb2.Hello(worker_id=worker_id, **hello)))
        await self.until(lambda: self.ack is not None, "the worker was greeted")
        assert self.ack is not None
        return self.ack

    async def ready(self, count: int, *topics: str, lease_seconds: int = 0) -> None:
        ready = worker_pb2.Ready(topics=topics, count=count, lease_seconds=lease_seconds)
        await self.send(worker_pb2.WorkerFrame(ready=ready))

    async def take(self, number: int = 1, *, within: float = WAIT) -> list[Delivered]:
        """The next jobs, in the order in which they came."""
        await self.until(lambda: len(self.jobs) >= number, f"{number} jobs have come", within=within)
        return [self.jobs.popleft() for _ in range(number)]

    async def report(self, *outcomes: jobs_pb2.Outcome) -> dict[int, jobs_pb2.Receipt]:
        """Send outcomes as messages, and await their receipts: those out of the ordinary, by place."""
        return await self.report_all(worker_pb2.Outcomes(others=outcomes))

    async def complete(self, *jobs: Delivered, results: Sequence[bytes] = ()) -> dict[int, jobs_pb2.Receipt]:
        """Complete jobs the fast way, as parallel arrays."""
        return await self.report_all(
            worker_pb2.Outcomes(ids=[job.id for job in jobs], epochs=[job.epoch for job in jobs], results=results)
        )

    async def report_all(self, outcomes: worker_pb2.Outcomes) -> dict[int, jobs_pb2.Receipt]:
        outcomes.seq = next(self._seqs)
        await self.send(worker_pb2.WorkerFrame(outcomes=outcomes))
        await self.until(lambda: outcomes.seq in self.receipts, f"receipts for frame {outcomes.seq} came")
        return self.receipts.pop(outcomes.seq)

    async def beat(self, *jobs: Delivered, **more: Any) -> None:
        """Beat, and await the answer: whatever the server sent before has arrived then."""
        before = self.beats
        await self.send(worker_pb2.WorkerFrame(beat=worker_pb2.Beat(held=held(*jobs), **more)))
        await self.until(lambda: self.beats > before, "the beat was answered")

    async def beat_on(self, *, apart: float = 0.5) -> None:
        """Beat as a worker does, a third of its lease apart, until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(apart)

    async def error(self) -> jobs_pb2.Error:
        """The next error that did not end the stream."""
        await self.until(lambda: self.errors, "an error was told")
        return self.errors.popleft()

    def took(self, frame: worker_pb2.ServerFrame) -> None:
        self.frames.append(frame)
        if frame.HasField("hello_ack"):
            self.ack = frame.hello_ack
        if frame.HasField("receipts"):
            self.receipts[frame.receipts.seq] = {receipt.index: receipt for receipt in frame.receipts.exceptions}
        if frame.HasField("jobs"):
            self.jobs.extend(jobs_of(frame.jobs))
            self.jobs_seen = max(self.jobs_seen, frame.jobs.seq)
        self.quieted += frame.HasField("quieted")
        if frame.HasField("beat_ack"):
            self.beats += 1
        if frame.HasField("lost"):
            self.lost += zip(frame.lost.ids, frame.lost.epochs, strict=True)
        if frame.HasField("cancel"):
            self.cancels += zip(frame.cancel.ids, frame.cancel.epochs, strict=True)
        if frame.HasField("drain"):
            self.drain = frame.drain.grace_seconds
        if frame.HasField("error"):
            self.errors.append(frame.error)


class Producer(Stream):
    """A Produce stream."""

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self.ack: producer_pb2.ProducerHelloAck | None = None
        self.replies: dict[int, producer_pb2.ProducerReply] = {}

    async def reply(self, seq: int) -> producer_pb2.ProducerReply:
        await self.until(lambda: seq in self.replies, f"frame {seq} was answered")
        return self.replies.pop(seq)

    def took(self, frame: producer_pb2.ProducerReply) -> None:
        if frame.HasField("hello_ack"):
            self.ack = frame.hello_ack
        else:
            self.replies[frame.seq] = frame


class Batches(Stream):
    """A StreamJobs stream."""

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self.jobs: deque[jobs_pb2.Job] = deque()
        self.lost: list[tuple[bytes, int]] = []
        self.drain: int | None = None

    async def take(self, number: int = 1, *, within: float = WAIT) -> list[jobs_pb2.Job]:
        await self.until(lambda: len(self.jobs) >= number, f"{number} jobs have come", within=within)
        return [self.jobs.popleft() for _ in range(number)]

    def took(self, frame: worker_pb2.JobBatch) -> None:
        self.jobs.extend(frame.jobs)
        self.lost += zip(frame.lost.ids, frame.lost.epochs, strict=True)
        if frame.HasField("drain"):
            self.drain = frame.drain.grace_seconds


def jobs_of(jobs: worker_pb2.Jobs) -> list[Delivered]:
    """A frame's parallel arrays as jobs."""
    headers = {one.index: dict(one.headers) for one in jobs.headers}
    deadlines = {one.index: one.deadline_us for one in jobs.headers}
    return [
        Delivered(
            id=jobs.ids[place],
            epoch=jobs.epochs[place],
            topic=jobs.topic_names[jobs.topics[place] if jobs.topics else 0],
            payload=jobs.payloads[place],
            attempt=jobs.attempts[place],
            max_attempts=jobs.max_attempts[place],
            priority=jobs.priorities[place] if jobs.priorities else 0,
            created_us=jobs.created_us[place],
            lease_until_us=jobs.lease_until_us,
            headers=headers.get(place, {}),
            deadline_us=deadlines.get(place, 0),
        )
        for place in range(len(jobs.ids))
    ]
