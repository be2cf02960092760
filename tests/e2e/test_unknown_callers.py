"""Calls without a valid token: nothing of what they send is read, and they cost the server next to nothing."""

from __future__ import annotations

import asyncio
import json
import resource
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from headgate import Headgate, Unauthenticated
from headgate.control.permissions import RULES
from headgate.wire import producer_pb2, worker_pb2
from tests.support import http2
from tests.support.database import Server
from tests.support.http2 import Http2
from tests.support.server import ServerProcess
from tests.support.wire import PRODUCE, WORK, Ended, Wire, completed, served

NEIGHBOUR, GREEDY = "token-of-a-neighbour", "token-of-the-greedy"
TOKENS = {NEIGHBOUR: {"tenant": "good"}, GREEDY: {"tenant": "greedy"}}
SUBMIT = "/headgate.v1.ProducerService/Submit"
SUBMIT_BATCH = "/headgate.v1.ProducerService/SubmitBatch"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
MIB = 2**20
EMPTY_JOBS = b"\x0a\x00" * (4 * MIB)  # 8 MiB on the wire, 700 MB when they are made


@pytest.fixture(scope="module")
def the_server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("unknown-callers")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens), dev=False) as (server, _):
        yield server


@pytest.fixture
def server(server: ServerProcess) -> Iterator[ServerProcess]:
    """It must outlive every test, and log no fault of its own."""
    with server.logging_no_fault():
        yield server


@pytest.fixture
async def neighbour(server: ServerProcess) -> AsyncIterator[Neighbour]:
    async with Wire(server.address, token=NEIGHBOUR) as wire:
        one = Neighbour(wire)
        await one.round()
        yield one
        await one.round()


class Neighbour:
    """Another tenant, which must notice nothing."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def round(self, topic: str = "neighbour") -> None:
        """A job from submit to its outcome; every refusal is an error."""
        async with asyncio.timeout(20):
            job_id = await self.wire.submit(topic)
            claim = worker_pb2.ClaimRequest(worker_id=topic, topics=[topic], wait_ms=15_000)
            (job,) = (await self.wire.call("Claim", claim)).jobs
            assert job.id == job_id
            await self.wire.call("ReportOutcome", worker_pb2.ReportOutcomeRequest(outcomes=[completed(job)]))


# ---------------------------------------------------------------------- without a token


async def test_large_requests_without_a_token_are_refused_unread(server: ServerProcess, neighbour: Neighbour) -> None:
    """Twelve of them took 8.9 GB and 22 s: each was read and parsed, and only then asked who it was."""
    before = _memory(server)
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(Wire(server.address)) for _ in range(12)]
        calls = [asyncio.create_task(_refused(wire, SUBMIT_BATCH, EMPTY_JOBS)) for wire in wires]
        most = before
        while any(not call.done() for call in calls):
            await neighbour.round()
            most = max(most, _memory(server))
        for call in calls:
            ended = await call
            assert (ended.status, ended.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
    assert most - before < 30 * MIB


@pytest.mark.parametrize("path", [SUBMIT, SUBMIT_BATCH, WORK, PRODUCE, CHECK, WATCH, "/unknown/Nothing"])
async def test_messages_that_are_begun_and_never_finished_are_not_kept(
    server: ServerProcess, neighbour: Neighbour, path: str
) -> None:
    """A hundred of 8 MiB took 800 MB, and kept them. Each sends as much as the server's windows let it."""
    before = _memory(server)
    with ExitStack() as stack:
        peers = [stack.enter_context(Http2(server.host, server.port)) for _ in range(3)]
        found = await asyncio.gather(*(asyncio.to_thread(_never_finish, peer, path, streams=10) for peer in peers))
        await neighbour.round()
        assert _memory(server) - before < 30 * MIB
        assert [len(ended) for ended in found] == [10, 10, 10]


async def test_every_method_but_health_needs_a_token_in_its_metadata(server: ServerProcess) -> None:
    async with Wire(server.address) as wire:

        async def refused(path: str, *metadata: tuple[str, str]) -> str:
            call: Any = wire.channel.stream_stream(path)(metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await asyncio.wait_for(call.read(), 20)
            return Ended.of(ended.value).code

        paths = [path for path in RULES if not path.startswith("/grpc.health")]
        wrong = ("authorization", "Bearer wrong-wrong-wrong-wrong")
        # All at once: answers to many failures are held back for a second, but only a few of them at a time.
        codes = await asyncio.gather(*(refused(path, *given) for path in paths for given in ((), (wrong,))))
        assert set(codes) == {"unauthenticated"}
        answer = await wire.channel.unary_unary(CHECK, response_deserializer=health_pb2.HealthCheckResponse.FromString)(
            b"\xff" * 100, timeout=20
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING  # the request is not read


async def test_a_client_with_a_wrong_token_gets_an_error_and_does_not_retry(server: ServerProcess) -> None:
    """The server refuses before the client has written its hello: it must hear why, not that its write failed."""
    for _ in range(2):
        async with Headgate(server.address, token="a-token-not-in-the-file") as hg:
            with pytest.raises(Unauthenticated, match="HEADGATE_TOKEN"):
                await hg.submit("mail", b"x", timeout=20)

            @hg.job("mail")
            async def mail() -> None: ...

            with pytest.raises(Unauthenticated, match="HEADGATE_TOKEN"):
                async with asyncio.timeout(20):
                    await hg.work(grace=0.1)


async def test_watches_of_health_are_bounded_by_address(server: ServerProcess, neighbour: Neighbour) -> None:
    async with Wire(server.address) as wire:
        begin: Any = wire.channel.unary_stream(WATCH)
        watches = [begin(b"") for _ in range(100)]
        try:
            for watch in watches:
                assert await asyncio.wait_for(watch.read(), 20) is not grpc.aio.EOF
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(begin(b"").read(), 20)
            assert Ended.of(refused.value).code == "too_many_streams"
        finally:
            for watch in watches:
                watch.cancel()


async def test_streams_opened_and_reset_as_fast_as_possible_cancel_no_other_calls(
    server: ServerProcess, neighbour: Neighbour
) -> None:
    """Rapid reset, by four callers without a token for as long as another one needs for its rounds.

    Each has up to 1,000 calls that nobody has looked at: with room for 3,000 of them, all of the neighbour's are lost.
    """
    over = threading.Event()
    floods = [
        asyncio.create_task(asyncio.to_thread(_reset_all_the_time, server.host, server.port, over)) for _ in range(4)
    ]
    try:
        for _ in range(2):  # four at a time: the flood takes both processors for as long as they need
            await asyncio.gather(*(neighbour.round(f"neighbour-{number}") for number in range(4)))
    finally:
        over.set()
        sent = sum(await asyncio.gather(*floods))
    assert sent > 5_000  # or it was no flood


# ---------------------------------------------------------------------- with a token


@pytest.mark.parametrize(("connections", "callers"), [(1, 900), (4, 300)])
async def test_many_honest_calls_at_once_are_taken_or_refused_in_words_of_ours(
    server: ServerProcess, connections: int, callers: int
) -> None:
    """gRPC's own protection would reset them: it counts calls that are over and not put away yet."""
    unexplained: list[Ended] = []

    async def submits(wire: Wire) -> None:
        for _ in range(3):
            try:
                await wire.submit("many")
            except grpc.aio.AioRpcError as error:
                if Ended.of(error).code != "overloaded":
                    unexplained.append(Ended.of(error))

    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(Wire(server.address, token=GREEDY)) for _ in range(connections)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(submits(wire) for wire in wires for _ in range(callers)))
    assert unexplained == []


async def test_more_calls_on_one_connection_than_it_takes_are_taken_or_refused_with_code_and_hint(
    server: ServerProcess,
) -> None:
    """3,000 callers share a connection of 1,000 streams, so that it is always full, and a call that ends makes way for
    the next one before the server has put it away. gRPC resets none of them for that."""
    ends: Counter[str] = Counter()
    job = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic="flood", payload=b"x" * 100)).SerializeToString()

    async def submits(wire: Wire) -> None:
        submit: Any = wire.channel.unary_unary(SUBMIT)
        try:
            await submit(job, timeout=60, metadata=wire.metadata)
            ends["taken"] += 1
        except grpc.aio.AioRpcError as error:
            trailers = dict(error.trailing_metadata() or ())
            explained = trailers.get("headgate-code") and int(trailers.get("headgate-retry-after-ms", 0)) > 0
            ends["refused with code and hint" if explained else f"{error.code().name} {error.details()}"] += 1

    async with Wire(server.address, token=GREEDY) as wire:
        await asyncio.gather(*(submits(wire) for _ in range(3_000)))
    assert ends.total() == 3_000
    assert set(ends) <= {"taken", "refused with code and hint"}, ends


async def test_large_requests_with_a_token_cost_a_few_times_their_size(
    server: ServerProcess, neighbour: Neighbour
) -> None:
    """Counted before they are made, for holders of a token as well."""
    before = _memory(server)
    frames = {
        SUBMIT_BATCH: EMPTY_JOBS,
        "/headgate.v1.WorkerService/ReportOutcome": b"\x12\x00" * (4 * MIB),
        "/headgate.v1.WorkerService/Heartbeat": b"\x22\x00" * (4 * MIB),
    }
    most = before
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(Wire(server.address, token=GREEDY)) for _ in range(4)]
        for path, raw in frames.items():
            calls = [asyncio.create_task(_refused(wire, path, raw[: 8 * MIB])) for wire in wires]
            while any(not call.done() for call in calls):
                await neighbour.round()
                most = max(most, _memory(server))
            for call in calls:
                ended = await call
                assert (ended.status, ended.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large"), ended
    assert most - before < 200 * MIB


@pytest.mark.parametrize("path", [SUBMIT_BATCH, WORK])
async def test_messages_of_a_token_that_are_never_finished_are_received_in_turns(
    server: ServerProcess, neighbour: Neighbour, path: str
) -> None:
    """Fifty of 8 MiB would be 400 MB. No more than sixteen are received at once; others do not wait for them."""
    before = most = _memory(server)
    headers = {"authorization": f"Bearer {GREEDY}"}
    with ExitStack() as stack:
        peers = [stack.enter_context(Http2(server.host, server.port)) for _ in range(5)]
        sending = [
            asyncio.create_task(asyncio.to_thread(_never_finish, peer, path, streams=10, seconds=3, **headers))
            for peer in peers
        ]
        while any(not one.done() for one in sending):
            await neighbour.round()
            most = max(most, _memory(server))
    assert most - before < 200 * MIB


async def test_all_unfinished_messages_of_a_token_fit_after_large_ones(
    server: ServerProcess, neighbour: Neighbour
) -> None:
    """Calls and streams take all of their 20 turns of 8 MiB; the memory that large requests have left is used again.

    `make hostile` has 300 MiB for the whole process, which needs about 100 without them.
    """
    before = most = _memory(server)
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(Wire(server.address, token=GREEDY)) for _ in range(6)]
        for _ in range(10):
            calls = [asyncio.create_task(_refused(wire, SUBMIT_BATCH, EMPTY_JOBS[: 8 * MIB - 128])) for wire in wires]
            assert {(await call).code for call in calls} == {"too_large"}
    headers = {"authorization": f"Bearer {GREEDY}"}
    with ExitStack() as stack:
        peers = [stack.enter_context(Http2(server.host, server.port)) for _ in range(6)]
        sending = [
            asyncio.create_task(asyncio.to_thread(_never_finish, peer, path, streams=10, seconds=5, **headers))
            for peer, path in zip(peers, [SUBMIT_BATCH, WORK] * 3, strict=True)
        ]
        while any(not one.done() for one in sending):
            await neighbour.round()
            most = max(most, _memory(server))
    assert most - before < 180 * MIB


@pytest.mark.parametrize(
    ("path", "frames"),
    [
        (PRODUCE, [producer_pb2.ProducerFrame(hello=producer_pb2.ProducerHello()), b"\x22\x00" * (4 * MIB)]),
        (
            WORK,
            [
                worker_pb2.WorkerFrame(hello=worker_pb2.Hello(worker_id="greedy")),
                b"\x12" + b"\xf8\xff\xff\x03" + b"\x2a\x00" * (4 * MIB - 4),  # outcomes of four million empty ones
            ],
        ),
    ],
    ids=["produce", "work"],
)
async def test_a_frame_of_too_many_elements_ends_its_stream(
    server: ServerProcess, neighbour: Neighbour, path: str, frames: list[Any]
) -> None:
    before = _memory(server)
    async with Wire(server.address, token=GREEDY) as wire:
        call: Any = wire.channel.stream_stream(path)(metadata=wire.metadata)
        for frame in frames:
            await call.write(frame if isinstance(frame, bytes) else frame.SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(_read_to_the_end(call), 60)
        assert Ended.of(ended.value).code == "too_large"
        assert "is over the limit of" in Ended.of(ended.value).details
    assert _memory(server) - before < 200 * MIB


async def test_a_producer_that_falls_silent_keeps_no_frame_in_memory(
    server: ServerProcess, neighbour: Neighbour
) -> None:
    """Ten streams send 8 MB each, are refused, and say nothing more."""
    frame = producer_pb2.ProducerFrame(seq=1, plain=producer_pb2.PlainJobs(topic="x", payloads=[b"x" * 1_000] * 8_000))
    async with Wire(server.address, token=GREEDY) as wire, AsyncExitStack() as stack:
        before = _memory(server)
        for _ in range(10):
            stream = await stack.enter_async_context(wire.producer())
            await stream.send(frame)
            assert (await stream.reply(1)).error.code == "too_large"
        await neighbour.round()
        assert _memory(server) - before < 60 * MIB


# ---------------------------------------------------------------------- small parts


async def _refused(wire: Wire, path: str, raw: bytes) -> Ended:
    call: Any = wire.channel.unary_unary(path)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call(raw, timeout=60, metadata=wire.metadata)
    return Ended.of(ended.value)


async def _read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def _never_finish(peer: Http2, path: str, *, streams: int, seconds: float = 20, **headers: str) -> set[int]:
    """Begin a message of 8 MiB on each stream, send all but its end as windows permit; gives the streams answered."""
    chunk, first = 16_000, struct.pack(">BI", 0, 8 * MIB)
    left, window, answered = {}, {0: http2.WINDOW}, set[int]()
    for _ in range(streams):
        stream, opened = peer.opening(path, **headers)
        left[stream], window[stream] = 8 * MIB - chunk, http2.WINDOW - len(first)
        window[0] -= len(first)
        peer.send(opened, http2.part(stream, first))
    deadline = time.monotonic() + seconds
    while len(answered) < streams and any(left.values()) and not peer.over and time.monotonic() < deadline:
        for frame in peer.frames(within=0.05):
            if frame.kind == http2.WINDOW_UPDATE:
                window[frame.stream] = window.get(frame.stream, 0) + int.from_bytes(frame.body)
            elif frame.kind == http2.SETTINGS and not frame.flags & http2.ACK:
                more = frame.settings.get(http2.INITIAL_WINDOW_SIZE, http2.WINDOW) - http2.WINDOW
                for stream in left:
                    window[stream] += more
            elif frame.stream and frame.kind in (http2.HEADERS, http2.RST_STREAM):
                answered.add(frame.stream)
        for stream in left:
            while stream not in answered and left[stream] and min(window[0], window[stream]) >= chunk:
                peer.send(http2.part(stream, bytes(chunk)))
                window[0] -= chunk
                window[stream] -= chunk
                left[stream] -= min(chunk, left[stream])
    return answered


def _reset_all_the_time(host: str, port: int, over: threading.Event) -> int:
    sent = 0
    while not over.is_set():
        with Http2(host, port) as peer:
            while not over.is_set() and not peer.over and sent < 10**7:
                opened = [peer.opening(PRODUCE) for _ in range(100)]
                peer.send(*(part for stream, frame in opened for part in (frame, http2.reset(stream))))
                sent += 100
                for _ in peer.frames(within=0.001):
                    pass
    return sent


def _memory(server: ServerProcess) -> int:
    """Bytes of memory the server has in use."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * resource.getpagesize()
