"""Peers that say too much, read nothing or fall silent: a server that continues, neighbours that notice nothing.

What is wrong with a message itself is in tests/catalogue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.support.database import Server
from tests.support.epochs import claims
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import PRODUCE, WORK, Ended, Wire, WorkerSession, served


@pytest.fixture(scope="module")
def the_server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for the module, with leases of 6 s."""
    with served(postgres, template, tmp_path_factory.mktemp("bad-frames"), "--lease", "6") as (server, _):
        yield server


@pytest.fixture
def server(server: ServerProcess) -> Iterator[ServerProcess]:
    """It must outlive every test, and log no fault of its own."""
    with server.logging_no_fault():
        yield server


@pytest.fixture
async def wire(server: ServerProcess) -> AsyncIterator[Wire]:
    async with Wire(server.address) as wire:
        yield wire


@pytest.fixture
async def neighbour(server: ServerProcess) -> AsyncIterator[Neighbour]:
    """Another worker on another connection, which must go on as if nothing happened."""
    async with Wire(server.address) as wire, wire.worker() as session:
        neighbour = Neighbour(wire, session)
        await neighbour.works()
        beats = asyncio.create_task(neighbour.session.beat_on(), name="a neighbour's beats")
        yield neighbour
        await neighbour.works()
        beats.cancel()


class Neighbour:
    def __init__(self, wire: Wire, session: WorkerSession) -> None:
        self.wire, self.session, self.topic = wire, session, f"neighbour-{uuid4()}"

    async def works(self) -> None:
        """A job from submit to receipt, in a time that a machine under load may take."""
        async with asyncio.timeout(20):
            job_id = await self.wire.submit(self.topic)
            await self.session.ready(1, self.topic)
            (job,) = await self.session.take(1)
            assert job.id == job_id
            assert await self.session.complete(job) == {}


# ---------------------------------------------------------------------- too much, too slow, too quiet


async def test_a_flood_of_ready_is_credit_and_nothing_more(wire: Wire, neighbour: Neighbour, topic: str) -> None:
    async with wire.worker() as session:
        for _ in range(2_000):
            await session.ready(100_000, topic)
        await session.beat()
        assert not session.errors
        job_id = await wire.submit(topic)
        assert [job.id for job in await session.take(1)] == [job_id]


async def test_streams_opened_and_cancelled_in_a_loop_leave_nothing_behind(
    server: ServerProcess, wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    before = len(server.seen("session_opened")), len(server.seen("session_ended"))
    for number in range(100):
        async with wire.worker(f"short-{number}") as session:
            await session.ready(5, topic)

    async def all_ended() -> bool:
        return len(server.seen("session_ended")) - before[1] == len(server.seen("session_opened")) - before[0]

    await until_async(all_ended, "all sessions have ended")
    await neighbour.works()  # claims go one by one: the one that was on its way when the last session left is over
    job_id = await wire.submit(topic)
    async with wire.worker() as session:
        await session.ready(1, topic)
        (job,) = await session.take(1)
        assert (job.id, claims(job.epoch)) == (job_id, 1)  # it was not given to a peer that is gone


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
        asyncio.to_thread(server.saw, "session_ended worker=never-reads reason=session_overflow"), name="its end"
    )
    most = before
    async with asyncio.timeout(60):
        while not ended.done():
            # Its last write may hang until it reads, and a write that is cancelled would cancel the stream.
            writing = asyncio.create_task(_write(call, frame), name="a write")
            await asyncio.wait((writing, ended), return_when=asyncio.FIRST_COMPLETED)
            await neighbour.works()
            most = max(most, _memory(server))
    await ended
    assert most - before < 100_000_000
    fate = Ended.of(await _fate(call))  # it reads at last
    assert (fate.status, fate.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "session_overflow")
    assert "never-reads does not read" in fate.details


@pytest.mark.req("D26", "W18", "T12", "O19")
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
        async with other.worker() as session:
            await session.ready(40, topic)

            async def all_here() -> bool:
                await session.beat(*session.jobs)
                return {job.id for job in session.jobs} == set(ids)

            # No frame was ever written to it as a whole: all come at once, and none has cost an attempt.
            await until_async(all_here, "every job went to the other")
            assert {job.attempt for job in session.jobs} == {1}
            assert (
                0 < sum(claims(job.epoch) == 2 for job in session.jobs) < 20
            )  # more than it could take was not kept for it
        assert _memory(server) - before < 300_000_000
        await asyncio.to_thread(server.saw, "session_ended worker=takes-none reason=session_silent")
        assert Ended.of(await _fate(call)).status in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@pytest.mark.req("W18", "T12")
async def test_a_slow_reader_gets_everything_and_slows_down_no_one_else(
    wire: Wire, neighbour: Neighbour, topic: str
) -> None:
    bodies = [os.urandom(700_000) for _ in range(8)]
    for start in (0, 4):
        await wire.submit_many(topic, bodies[start : start + 4])
    call: Any = wire.channel.stream_stream(WORK, response_deserializer=worker_pb2.ServerFrame.FromString)()
    await call.write(_hello("slow"))
    await call.write(worker_pb2.WorkerFrame(ready=worker_pb2.Ready(topics=[topic], count=8)).SerializeToString())
    received: list[bytes] = []
    async with asyncio.timeout(60):
        while len(received) < len(bodies):
            await neighbour.works()  # a round trip of another between any two of its reads
            frame = await call.read()
            received += frame.jobs.payloads
            await call.write(_beat().SerializeToString())
    assert received == bodies
    call.cancel()


async def test_a_silent_session_is_ended_after_its_lease(
    server: ServerProcess, wire: Wire, neighbour: Neighbour
) -> None:
    async with wire.worker("silent") as session:
        ended = await session.ended()
        assert (ended.status, ended.code) == (grpc.StatusCode.DEADLINE_EXCEEDED, "session_silent")
        assert "silent" in ended.details
        told = re.search(r"(\d+) s", ended.details)
        assert told is not None
        assert int(told[1]) >= 6


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
    async with asyncio.timeout(60):
        await stuck


async def test_a_connection_that_says_nothing_at_all_is_no_burden(server: ServerProcess, neighbour: Neighbour) -> None:
    sockets = [socket.create_connection((server.host, server.port), timeout=20) for _ in range(50)]
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
        async with asyncio.timeout(60):
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the stream ended without an error")
