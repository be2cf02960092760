"""What a peer can get wrong: each time a stable code, a sentence naming the field, a server that goes on, neighbours
that notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.e2e.conftest import _PROCESSES
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import PRODUCE, WORK, Ended, Link, Wire, completed, new_id, served

GARBAGE = [
    b"\xff\xff\xff\xff",
    b"\x0a\x05abc",  # a field that is cut short
    b"\x0a\xff\xff\xff\xff\x7f",  # … of 32 GiB
    b"\x0b" * 5_000,  # groups, 5,000 deep
    b"\x0a\x03\x0a\x01\xff",  # a text that is not UTF-8
    os.urandom(64) + b"\x07",
]
INVALID = jobs_pb2.RECEIPT_INVALID


@pytest.fixture(scope="module")
def the_server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for the module, with leases of 2 s."""
    with served(postgres, template, tmp_path_factory.mktemp("bad-frames"), "--lease", "2") as (server, _):
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest, the_server: ServerProcess) -> Iterator[ServerProcess]:
    """It must outlive every test, and say nothing that a fault of its own would make it say."""
    request.node.stash.setdefault(_PROCESSES, []).append(the_server)
    faults = len(the_server.seen("Traceback|ERROR|CRITICAL"))
    yield the_server
    assert the_server.exit_code is None, the_server.shown()
    assert len(the_server.seen("Traceback|ERROR|CRITICAL")) == faults, the_server.shown()


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(server.address) as wire:
        yield wire


@pytest.fixture
async def neighbour(server: ServerProcess) -> AsyncIterator[Neighbour]:
    """Another worker on another connection, which must go on as if nothing happened."""
    async with Wire(server.address) as wire, wire.worker() as link:
        neighbour = Neighbour(wire, link)
        await neighbour.works()
        beats = asyncio.create_task(neighbour.link.beat_on(), name="a neighbour's beats")
        yield neighbour
        await neighbour.works()
        beats.cancel()


class Neighbour:
    def __init__(self, wire: Wire, link: Link) -> None:
        self.wire, self.link, self.topic = wire, link, f"neighbour-{uuid4()}"

    async def works(self) -> None:
        """A job from submit to receipt within a second or two."""
        async with asyncio.timeout(3):
            job_id = await self.wire.submit(self.topic)
            await self.link.ready(1, self.topic)
            (job,) = await self.link.take(1)
            assert job.id == job_id
            assert await self.link.complete(job) == {}


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4()}"


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_bytes_that_are_no_message_end_the_stream_with_a_sentence(
    wire: Wire, neighbour: Neighbour, garbage: bytes
) -> None:
    async with wire.worker() as link:
        await link.send(garbage)
        _is_unreadable(await link.ended(), "WorkerFrame")
    first = wire.link()
    await first.send(garbage)
    _is_unreadable(await first.ended(), "WorkerFrame")
    async with wire.producer() as producer:
        await producer.send(garbage)
        _is_unreadable(await producer.ended(), "ProducerFrame")


async def test_bytes_that_are_no_message_are_refused_by_unary_calls(wire: Wire, neighbour: Neighbour) -> None:
    for method in ("Heartbeat", "ReportOutcome", "Claim", "Submit", "SubmitBatch", "GetJob", "WaitResult"):
        _is_unreadable(await wire.refused(method, b"\xff\xff\xff\xff"), "headgate.v1.")
    call = wire.channel.unary_stream("/headgate.v1.WorkerService/StreamJobs")(b"\xff\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(call.read(), 5)
    _is_unreadable(Ended.of(refused.value), "StreamJobsRequest")


def _is_unreadable(ended: Ended, name: str) -> None:
    assert (ended.status, ended.code) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_input")
    assert "cannot be read as" in ended.details
    assert name in ended.details


async def test_a_message_over_ten_megabytes_ends_its_call_and_not_the_connection(
    wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    async with wire.worker() as link:
        big = jobs_pb2.Outcome(id=new_id(), epoch=1, completed=jobs_pb2.Completed(result=bytes(10_000_000)))
        await link.send(worker_pb2.WorkerFrame(outcomes=worker_pb2.Outcomes(others=[big])))
        assert (await link.ended()).status is grpc.StatusCode.RESOURCE_EXHAUSTED
    request = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=topic, payload=bytes(10_000_000)))
    assert (await wire.refused("Submit", request)).status is grpc.StatusCode.RESOURCE_EXHAUSTED
    await wire.submit(topic)


async def test_an_unknown_method_is_unimplemented(wire: Wire, neighbour: Neighbour) -> None:
    for path in ("/headgate.v1.WorkerService/Play", "/headgate.v2.WorkerService/Work", "/nobody/Nothing"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await wire.channel.unary_unary(path)(b"", timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_what_is_not_even_http2_is_hung_up_on(server: ServerProcess, neighbour: Neighbour) -> None:
    for request in (
        b"GET / HTTP/1.1\r\nHost: headgate\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 99,
    ):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(request)
        async with asyncio.timeout(10):
            try:
                while await reader.read(4096):
                    pass
            except ConnectionError:
                pass
            writer.close()


async def test_a_deadline_that_is_over_and_a_huge_header_are_refused(wire: Wire, neighbour: Neighbour) -> None:
    claim = wire.channel.unary_unary("/headgate.v1.WorkerService/Claim")
    request = worker_pb2.ClaimRequest(worker_id="w", topics=["mail"]).SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await claim(request, timeout=0)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    with pytest.raises(grpc.aio.AioRpcError) as large:
        await claim(request, timeout=5, metadata=(("authorization", "Bearer " + "x" * 64_000),))
    assert large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# ---------------------------------------------------------------------- order of frames


@pytest.mark.req("W2")
@pytest.mark.parametrize(
    "first",
    [
        worker_pb2.WorkerFrame(),
        worker_pb2.WorkerFrame(beat=worker_pb2.Beat()),
        worker_pb2.WorkerFrame(outcomes=worker_pb2.Outcomes(seq=1)),
    ],
    ids=["empty", "beat", "outcomes"],
)
async def test_a_stream_that_does_not_begin_with_hello_is_ended(
    wire: Wire, neighbour: Neighbour, first: worker_pb2.WorkerFrame
) -> None:
    link = wire.link()
    await link.send(first)
    ended = await link.ended()
    assert (ended.status, ended.code) == (grpc.StatusCode.FAILED_PRECONDITION, "protocol_error")
    assert "hello" in ended.details


async def test_a_producer_that_does_not_begin_with_hello_is_ended_and_one_that_repeats_it_is_told(
    wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    call = wire.channel.stream_stream(PRODUCE)()
    await call.write(producer_pb2.ProducerFrame(seq=1).SerializeToString())
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(call.read(), 5)
    assert (Ended.of(refused.value).code, refused.value.code()) == (
        "protocol_error",
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    async with wire.producer() as producer:
        await producer.send(producer_pb2.ProducerFrame(seq=1, hello=producer_pb2.ProducerHello(token="x")))
        assert (await producer.reply(1)).error.code == "protocol_error"
        await producer.send(producer_pb2.ProducerFrame(seq=2))  # nothing at all
        error = (await producer.reply(2)).error
        assert (error.code, error.field) == ("invalid_input", "frame")
        await producer.send(producer_pb2.ProducerFrame(seq=3, jobs=[producer_pb2.NewJob(topic=topic)]))
        assert (await producer.reply(3)).odd[0].code == producer_pb2.SUBMIT_CREATED


@pytest.mark.parametrize(
    ("hello", "field"),
    [
        (worker_pb2.Hello(), "worker_id"),
        (worker_pb2.Hello(worker_id="x" * 201), "worker_id"),
        (worker_pb2.Hello(worker_id="two\nlines"), "worker_id"),
        (worker_pb2.Hello(worker_id="w", held=worker_pb2.Held(ids=[b"x" * 16])), "hello.held"),
        (worker_pb2.Hello(worker_id="w", held=worker_pb2.Held(ids=[b"short"], epochs=[1])), "hello.held"),
        (worker_pb2.Hello(worker_id="w", held=worker_pb2.Held(ids=[b"x" * 16], epochs=[2**31])), "hello.held"),
        (worker_pb2.Hello(worker_id="w", held=worker_pb2.Held(ids=[b""] * 100_001)), "hello.held"),
    ],
    ids=["nameless", "long name", "two lines", "epochs missing", "short id", "large epoch", "100,001 held"],
)
async def test_a_bad_hello_is_refused_by_field(
    wire: Wire, neighbour: Neighbour, hello: worker_pb2.Hello, field: str
) -> None:
    link = wire.link()
    await link.send(worker_pb2.WorkerFrame(hello=hello))
    ended = await link.ended()
    assert ended.code in ("invalid_input", "too_large")
    assert ended.status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert ended.details.startswith(f"{field}: ")


# ---------------------------------------------------------------------- values


@pytest.mark.req("W6")
async def test_a_bad_ready_is_an_error_by_field_and_the_stream_lives(
    wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    ready = worker_pb2.Ready
    cases = [
        (ready(count=1), "ready.topics"),
        (ready(topics=[topic], count=0), "ready.count"),
        (ready(topics=[topic], count=-1), "ready.count"),
        (ready(topics=[topic], count=-(2**31)), "ready.count"),  # what 2^31 becomes on the wire
        (ready(topics=[topic], count=2**31 - 1), "ready.count"),
        (ready(topics=[topic], count=100_001), "ready.count"),
        (ready(topics=[topic], count=1, lease_seconds=2**32 - 1), "ready.lease_seconds"),
        (ready(topics=[f"t{n}" for n in range(10_000)], count=1), "ready.topics"),
        (ready(topics=["no topic"], count=1), "ready.topics"),
        (ready(topics=[""], count=1), "ready.topics"),
        (ready(topics=["../etc"], count=1), "ready.topics"),
    ]
    async with wire.worker() as link:
        for frame, field in cases:
            await link.send(worker_pb2.WorkerFrame(ready=frame))
            error = await link.error()
            assert (error.code, error.field) == ("invalid_input", field), error
            assert error.message.startswith(field)
        job_id = await wire.submit(topic)
        await link.ready(1, topic)
        assert [job.id for job in await link.take(1)] == [job_id]


async def test_a_bad_claim_or_stream_request_is_refused_by_field(wire: Wire, neighbour: Neighbour, topic: str) -> None:
    claim = worker_pb2.ClaimRequest
    for request, field in (
        (claim(topics=[topic]), "worker_id"),
        (claim(worker_id="w"), "topics"),
        (claim(worker_id="w", topics=[f"t{n}" for n in range(10_000)]), "topics"),
        (claim(worker_id="w", topics=[topic], count=5_001), "count"),
        (claim(worker_id="w", topics=[topic], lease_seconds=90_000), "lease_seconds"),
    ):
        refused = await wire.refused("Claim", request)
        assert (refused.status, refused.code) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_input")
        assert refused.details.startswith(f"{field}: ")
    for options, field in (
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": 2**31}, "max_in_flight"),
        ({"max_in_flight": 1, "lease_seconds": 90_000}, "lease_seconds"),
    ):
        async with wire.stream_jobs("w", topic, **options) as stream:
            ended = await stream.ended()
            assert ended.code == "invalid_input"
            assert ended.details.startswith(f"{field}: ")
    async with wire.stream_jobs("w", *[f"t{n}" for n in range(10_000)], max_in_flight=1) as stream:
        assert (await stream.ended()).details.startswith("topics: ")


async def test_arrays_that_do_not_match_refuse_the_frame_and_not_the_stream(
    wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    job_id = await wire.submit(topic)
    async with wire.worker() as link:
        await link.ready(1, topic)
        (job,) = await link.take(1)
        many = [job.id] * 5_001
        for frame, field in (
            (_outcomes(ids=[job.id]), "outcomes.ids"),
            (_outcomes(ids=[job.id], epochs=[1, 2]), "outcomes.ids"),
            (_outcomes(ids=[job.id], epochs=[1], results=[b"", b""]), "outcomes.results"),
            (_outcomes(results=[b"x"]), "outcomes.results"),
            (_outcomes(ids=many, epochs=[1] * 5_001), "outcomes"),
            (_outcomes(others=[jobs_pb2.Outcome()] * 5_001), "outcomes"),
            (_beat(held=worker_pb2.Held(ids=[job.id])), "beat.held"),
            (_beat(held=worker_pb2.Held(ids=[b"short"], epochs=[1])), "beat.held"),
            (_beat(held=worker_pb2.Held(ids=[job.id], epochs=[2**32 - 1])), "beat.held"),
            (_beat(held=worker_pb2.Held(ids=[b""] * 100_001)), "beat.held"),
            (_beat(extensions=[worker_pb2.Extension(id=b"short")]), "beat.extensions"),
            (_beat(extensions=[worker_pb2.Extension(id=job.id, epoch=2**31, lease_seconds=9)]), "beat.extensions"),
            (_beat(progress=[worker_pb2.JobProgress(id=b"")]), "progress.id"),
            (_beat(progress=[_progress(job.id, done=-1)]), "progress.done"),
            (_beat(progress=[_progress(job.id, done=101, total=100)]), "progress.done"),
            (_beat(progress=[_progress(job.id, done=1, total=-5)]), "progress.total"),
        ):
            await link.send(frame)
            error = await link.error()
            assert (error.code in ("invalid_input", "too_large"), error.field) == (True, field), error
            assert error.message.startswith(field)
        assert (await wire.job(job_id)).state == jobs_pb2.STATE_RUNNING
        assert await link.complete(job) == {}


async def test_an_epoch_that_no_column_holds_hurts_nobody_elses_outcomes_or_leases(
    wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    """Outcomes of all links share statements, and so do renewals: one bad value must not fail them."""
    job_id = await wire.submit(topic)
    async with wire.worker() as link:
        await link.ready(1, topic, lease_seconds=1)
        (job,) = await link.take(1)
        beat = worker_pb2.HeartbeatRequest(worker_id="w", held=worker_pb2.Held(ids=[job.id], epochs=[2**32 - 1]))
        refused = await wire.refused("Heartbeat", beat)
        assert (refused.code, refused.details.startswith("held: ")) == ("invalid_input", True)
        async with wire.worker() as poisoner:
            for frame in (
                _beat(held=worker_pb2.Held(ids=[new_id()], epochs=[2**32 - 1])),
                _outcomes(seq=1, ids=[new_id()], epochs=[2**32 - 1]),
                _outcomes(seq=2, others=[jobs_pb2.Outcome(id=new_id(), epoch=2**31, abandon=jobs_pb2.Abandon())]),
            ):
                await poisoner.send(frame)

            async def renewed() -> bool:
                await link.beat(job)
                await poisoner.beat()
                return (await wire.job(job_id)).lease_until_us > job.lease_until_us + 1_000_000

            await until_async(renewed, "the neighbour's lease was renewed", within=timedelta(seconds=5))
            assert [poisoner.receipts[seq][0].code for seq in (1, 2)] == [INVALID] * 2
        assert await link.complete(job) == {}


async def test_a_bad_outcome_is_refused_alone_and_its_job_stays_leased(
    wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    ids = await wire.submit_many(topic, [b""] * 3)
    async with wire.worker() as link:
        await link.ready(3, topic)
        one, two, three = await link.take(3)
        receipts = await link.report(
            jobs_pb2.Outcome(id=one.id, epoch=one.epoch),  # no kind
            completed(two, bytes(1_048_577)),
            completed(three),
        )
        assert {place: receipt.code for place, receipt in receipts.items()} == {0: INVALID, 1: INVALID}
        assert "none of completed, failed, nack, abandon, snooze is set" in receipts[0].message
        assert "result: 1048577 bytes is over the limit of 1048576 bytes" in receipts[1].message
        states = [(await wire.job(job_id)).state for job_id in ids]
        assert states == [jobs_pb2.STATE_RUNNING, jobs_pb2.STATE_RUNNING, jobs_pb2.STATE_COMPLETED]
        assert await link.complete(one, two) == {}


async def test_bad_jobs_are_refused_by_field(wire: Wire, neighbour: Neighbour, topic: str) -> None:
    job = producer_pb2.NewJob
    for request, field, code in (
        (job(), "topic", "invalid_input"),
        (job(topic="x" * 201), "topic", "too_large"),
        (job(topic="a b"), "topic", "invalid_input"),
        (job(topic=topic, id=b"\0" * 16), "id", "invalid_input"),
        (job(topic=topic, run_at_us=-62_135_596_800_000_000), "run_at_us", "invalid_input"),
        (job(topic=topic, run_at_us=2**63 - 1), "run_at_us", "invalid_input"),
        (job(topic=topic, delay_ms=2**62), "delay_ms", "invalid_input"),
        (job(topic=topic, delay_ms=6 * 365 * 86_400_000), "delay", "invalid_input"),
        (job(topic=topic, max_attempts=2**32 - 1), "max_attempts", "invalid_input"),
        (job(topic=topic, key="k" * 256), "key", "too_large"),
        (job(topic=topic, key="k", key_window_ms=1), "key_window", "invalid_input"),
        (job(topic=topic, headers={"bad name": "x"}), "headers name", "invalid_input"),
        (job(topic=topic, headers={"n": "x" * 9_000}), "headers[n]", "too_large"),
        (job(topic=topic, tags=["t"] * 21), "tags", "too_large"),
        (job(topic=topic, tags=["a\nb"]), "tags[0]", "invalid_input"),
        (job(topic=topic, retry=producer_pb2.RetryPolicy(kind=99)), "retry.kind", "invalid_input"),  # type: ignore[arg-type]
        (job(topic=topic, retry=producer_pb2.RetryPolicy(base_ms=10, cap_ms=5)), "cap_ms", "invalid_input"),
    ):
        refused = await wire.refused("Submit", producer_pb2.SubmitRequest(job=request))
        assert refused.code == code, refused
        assert field in refused.details, refused
    empty = await wire.refused("SubmitBatch", producer_pb2.SubmitBatchRequest())
    assert (empty.code, empty.details.startswith("jobs: ")) == ("invalid_input", True)
    many = await wire.refused("SubmitBatch", producer_pb2.SubmitBatchRequest(jobs=[job(topic=topic)] * 10_001))
    assert (many.code, "10001 jobs is over the limit of 10000 jobs" in many.details) == ("too_large", True)
    for method, request in (
        ("GetJob", producer_pb2.GetJobRequest(id=b"short")),
        ("WaitResult", producer_pb2.WaitResultRequest()),
    ):
        refused = await wire.refused(method, request)
        assert (refused.code, refused.details.startswith("id: ")) == ("invalid_input", True)


# ---------------------------------------------------------------------- too much, too slow, too quiet


async def test_a_flood_of_ready_is_credit_and_nothing_more(wire: Wire, neighbour: Neighbour, topic: str) -> None:
    async with wire.worker() as link:
        for _ in range(2_000):
            await link.ready(100_000, topic)
        await link.beat()
        assert not link.errors
        job_id = await wire.submit(topic)
        assert [job.id for job in await link.take(1)] == [job_id]


async def test_streams_opened_and_cancelled_in_a_loop_leave_nothing_behind(
    server: ServerProcess, wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    before = len(server.seen("link_opened")), len(server.seen("link_ended"))
    for number in range(100):
        async with wire.worker(f"short-{number}") as link:
            await link.ready(5, topic)

    async def all_ended() -> bool:
        return len(server.seen("link_ended")) - before[1] == len(server.seen("link_opened")) - before[0]

    await until_async(all_ended, "all links have ended")
    await neighbour.works()  # claims go one by one: the one that was on its way when the last link left is over
    job_id = await wire.submit(topic)
    async with wire.worker() as link:
        await link.ready(1, topic)
        (job,) = await link.take(1)
        assert (job.id, job.epoch) == (job_id, 1)  # nobody who is gone was given it


@pytest.mark.req("D26", "W18", "T12")
async def test_a_peer_that_never_reads_is_closed_and_the_servers_memory_stays_flat(
    server: ServerProcess, wire: Wire, neighbour: Neighbour
) -> None:
    """Every outcome is refused, with a sentence: two megabytes of receipts for a frame of twenty kilobytes."""
    frame = _outcomes(others=[jobs_pb2.Outcome()] * 5_000).SerializeToString()
    before = _memory(server)
    call = wire.channel.stream_stream(WORK)()
    await call.write(_hello("never-reads"))
    ended = asyncio.create_task(
        asyncio.to_thread(server.saw, "link_ended worker=never-reads reason=link_overflow"), name="its end"
    )
    most = before
    async with asyncio.timeout(30):
        while not ended.done():
            # Its last write may hang until it reads, and a write that is cancelled would cancel the stream.
            writing = asyncio.create_task(_write(call, frame), name="a write")
            await asyncio.wait((writing, ended), return_when=asyncio.FIRST_COMPLETED)
            await neighbour.works()
            most = max(most, _memory(server))
    await ended
    assert most - before < 100_000_000
    fate = Ended.of(await _fate(call))  # it reads at last
    assert (fate.status, fate.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "link_overflow")
    assert "never-reads does not read" in fate.details


@pytest.mark.req("D26", "W18", "W28", "T12", "O19")
async def test_a_peer_that_takes_no_jobs_is_closed_and_they_go_to_others(
    server: ServerProcess, neighbour: Neighbour, topic: str
) -> None:
    """It neither reads nor speaks again, so it is silent; until then what waits for it is bounded by bytes."""
    before = _memory(server)
    async with (
        Wire(server.address, options=[("grpc.http2.bdp_probe", 0)]) as narrow,  # a window of 64 KiB, less than a job
        Wire(server.address) as other,
    ):
        call = narrow.channel.stream_stream(WORK)()
        await call.write(_hello("takes-none"))
        ready = worker_pb2.Ready(topics=[topic], count=50)
        await call.write(worker_pb2.WorkerFrame(ready=ready).SerializeToString())
        payload = os.urandom(900_000)
        ids = [job_id for _ in range(8) for job_id in await other.submit_many(topic, [payload] * 5)]
        async with other.worker() as link:
            await link.ready(40, topic)

            async def all_here() -> bool:
                await link.beat(*link.jobs)
                return {job.id for job in link.jobs} == set(ids)

            # No frame was ever written to it as a whole: all come at once, and none has cost an attempt.
            await until_async(all_here, "every job went to the other")
            assert {job.attempt for job in link.jobs} == {1}
            assert 0 < sum(job.epoch == 2 for job in link.jobs) < 20  # more than it could take was not kept for it
        assert _memory(server) - before < 300_000_000
        await asyncio.to_thread(server.saw, "link_ended worker=takes-none reason=link_silent")
        assert Ended.of(await _fate(call)).status in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@pytest.mark.req("W18", "T12")
async def test_a_slow_reader_gets_everything_and_slows_down_nobody_else(
    wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    bodies = [os.urandom(700_000) for _ in range(8)]
    for start in (0, 4):
        await wire.submit_many(topic, bodies[start : start + 4])
    call = wire.channel.stream_stream(WORK, response_deserializer=worker_pb2.ServerFrame.FromString)()
    await call.write(_hello("slow"))
    await call.write(worker_pb2.WorkerFrame(ready=worker_pb2.Ready(topics=[topic], count=8)).SerializeToString())
    received: list[bytes] = []
    async with asyncio.timeout(20):
        while len(received) < len(bodies):
            await neighbour.works()  # a round trip of another between any two of its reads
            frame = await call.read()
            received += frame.jobs.payloads
            await call.write(_beat().SerializeToString())
    assert received == bodies
    call.cancel()


async def test_a_silent_link_is_ended_after_its_lease(server: ServerProcess, wire: Wire, neighbour: Neighbour) -> None:
    async with wire.worker("silent") as link:
        ended = await link.ended(within=6)
        assert (ended.status, ended.code) == (grpc.StatusCode.DEADLINE_EXCEEDED, "link_silent")
        assert "silent" in ended.details
        assert "2 s" in ended.details or "3 s" in ended.details


@pytest.mark.req("W28")
async def test_cancelling_frees_a_producer_stuck_behind_its_unread_replies(
    server: ServerProcess, wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    """Replies are bounded: who does not read them is not read from, and the writer blocks. Cancelling unblocks it."""
    before = _memory(server)
    call = wire.channel.stream_stream(PRODUCE)()
    await call.write(producer_pb2.ProducerFrame(hello=producer_pb2.ProducerHello()).SerializeToString())
    # Refused one by one, so that the replies are long and nothing is written.
    frame = producer_pb2.ProducerFrame(seq=1, jobs=[producer_pb2.NewJob(topic="no topic")] * 2_000).SerializeToString()
    stuck = asyncio.create_task(_write_on(call, frame), name="a flood")
    done, _ = await asyncio.wait((stuck,), timeout=1.5)
    assert not done
    await neighbour.works()
    assert _memory(server) - before < 300_000_000
    call.cancel()
    async with asyncio.timeout(5):
        await stuck


async def test_a_connection_that_says_nothing_at_all_is_no_burden(server: ServerProcess, neighbour: Neighbour) -> None:
    sockets = [socket.create_connection((server.host, server.port), timeout=5) for _ in range(50)]
    try:
        await neighbour.works()
    finally:
        for one in sockets:
            one.close()


# ---------------------------------------------------------------------- small parts


def _hello(worker_id: str) -> bytes:
    return worker_pb2.WorkerFrame(hello=worker_pb2.Hello(worker_id=worker_id)).SerializeToString()


def _outcomes(**parts: Any) -> worker_pb2.WorkerFrame:
    return worker_pb2.WorkerFrame(outcomes=worker_pb2.Outcomes(**parts))


def _beat(**parts: Any) -> worker_pb2.WorkerFrame:
    return worker_pb2.WorkerFrame(beat=worker_pb2.Beat(**parts))


def _progress(job_id: bytes, **progress: Any) -> worker_pb2.JobProgress:
    return worker_pb2.JobProgress(id=job_id, epoch=1, progress=jobs_pb2.Progress(**progress))


def _memory(server: ServerProcess) -> int:
    """Bytes of memory the server has in use."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def _write(call: Any, frame: bytes) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
        await call.write(frame)


async def _write_on(call: Any, frame: bytes) -> None:
    """Write one frame over and over, until the stream is over."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
        while True:
            await call.write(frame)


async def _fate(call: Any) -> grpc.aio.AioRpcError:
    """Read until the end, which must be an error."""
    try:
        async with asyncio.timeout(10):
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the stream ended without an error")
