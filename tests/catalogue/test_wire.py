"""Rows 8-10, 50-57, 63: what can be wrong below and beside the messages. The port lives, and so do its neighbours."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import grpc.aio
import pytest

from headgate.wire import admin_pb2, jobs_pb2, producer_pb2, worker_pb2
from tests.catalogue.calls import refused
from tests.catalogue.conftest import OURS, READER
from tests.catalogue.table import World
from tests.support import http2
from tests.support.http2 import Http2
from tests.support.server import HEADGATE, READY, LoggedProcess, ServerProcess, clean_environ
from tests.support.waiting import until, until_async
from tests.support.wire import PRODUCE, WORK, Ended, Wire

GARBAGE = [
    b"\xff\xff\xff\xff",
    b"\x0a\x05abc",  # a field that is cut short
    b"\x0a\xff\xff\xff\xff\x7f",  # … of 32 GiB
    b"\x0b" * 5_000,  # groups, 5,000 deep
    b"\x0a\x03\x0a\x01\xff",  # a text that is not UTF-8
    os.urandom(64) + b"\x07",
]
STREAMS = 1_000


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_bytes_that_are_no_message_are_answered_by_a_sentence(wire: Wire, garbage: bytes) -> None:
    async with wire.worker() as session:
        await session.send(garbage)
        _is_unreadable(await session.ended(), "WorkerFrame")
    first = wire.session()
    await first.send(garbage)
    _is_unreadable(await first.ended(), "WorkerFrame")
    async with wire.producer() as producer:
        await producer.send(garbage)
        _is_unreadable(await producer.ended(), "ProducerFrame")


async def test_bytes_that_are_no_message_are_refused_by_every_kind_of_call(wire: Wire) -> None:
    for path in ("WorkerService/Claim", "ProducerService/Submit", "ScheduleService/Put", "TopicService/SetTopic"):
        _is_unreadable(await refused(wire, path, b"\xff\xff\xff\xff"), "headgate.v1.")
    begin: Any = wire.channel.unary_stream("/headgate.v1.WorkerService/StreamJobs")
    call = begin(b"\xff\xff\xff\xff", metadata=wire.metadata)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await asyncio.wait_for(call.read(), 5)
    _is_unreadable(Ended.of(ended.value), "Request")


def _is_unreadable(ended: Ended, name: str) -> None:
    assert (ended.status, ended.code) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_input")
    assert "cannot be read as" in ended.details
    assert name in ended.details


async def test_a_message_over_the_limit_ends_its_call_and_not_the_connection(wire: Wire) -> None:
    async with wire.worker() as session:
        big = jobs_pb2.Outcome(id=bytes(16), epoch=1, completed=jobs_pb2.Completed(result=bytes(10_000_000)))
        await session.send(worker_pb2.WorkerFrame(outcomes=worker_pb2.Outcomes(others=[big])))
        assert (await session.ended()).status is grpc.StatusCode.RESOURCE_EXHAUSTED
    request = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic="mail", payload=bytes(10_000_000)))
    assert (await wire.refused("Submit", request)).status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await wire.refused("GetJob", producer_pb2.GetJobRequest())).code == "invalid_input"


async def test_payloads_are_bytes_and_come_back_as_they_were(unharmed_but_written: ServerProcess) -> None:
    """What jsonb cannot hold is legal: no one looks into a payload but its handler."""
    async with Wire(unharmed_but_written.address, token=OURS) as wire:
        for body in (b'{"a": "\\u0000"}', b'"\\ud800"', b"\x00\xff\xfe", b"{" * 100):
            assert (await wire.job(await wire.submit("as-it-is", body))).payload == body


# ---------------------------------------------------------------------- names and tokens


async def test_an_unknown_method_is_unimplemented(wire: Wire) -> None:
    """So is reflection, which is for development only."""
    for path in (
        "/headgate.v1.WorkerService/Play",
        "/headgate.v2.WorkerService/Work",
        "/unknown/Nothing",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ):
        call: Any = wire.channel.unary_unary(path)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call(b"", timeout=5)
        assert ended.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_tokens_that_are_none_are_refused_alike(unharmed: ServerProcess) -> None:
    said = set()
    for token in ("garbage", "x" * 5_000, OURS + "x", OURS[:-1], "' OR 1=1--"):
        async with Wire(unharmed.address, token=token) as wire:
            call: Any = wire.channel.unary_unary("/headgate.v1.AdminService/Status")
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call(b"", timeout=5, metadata=wire.metadata)
            assert Ended.of(ended.value).code == "unauthenticated"
            over = await wire.session().ended()
            assert (over.status, over.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
            said.add(over.details)
    assert len(said) == 1


async def test_a_call_without_a_token_is_refused_and_reports_it(unharmed: ServerProcess) -> None:
    async with Wire(unharmed.address) as wire:
        over = await wire.session().ended()
    assert (over.status, over.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
    assert "none was given" in over.details


async def test_a_missing_scope_is_named(unharmed: ServerProcess) -> None:
    async with Wire(unharmed.address, token=READER) as wire:
        for path, scope in (
            ("ProducerService/Submit", "submit"),
            ("WorkerService/Claim", "work"),
            ("AdminService/CancelJobs", "operate"),
            ("ScheduleService/Put", "operate"),
        ):
            ended = await refused(wire, path, b"")
            assert (ended.status, ended.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
            assert f'needs the scope "{scope}"' in ended.details
    async with Wire(unharmed.address, token=OURS) as wire:
        everything = admin_pb2.PauseRequest(target=admin_pb2.Target(everything=True))
        assert '"system"' in (await refused(wire, "AdminService/Pause", everything)).details


# ---------------------------------------------------------------------- below the messages


def test_what_is_not_even_http2_is_hung_up_on(unharmed: ServerProcess) -> None:
    for request in (
        b"GET / HTTP/1.1\r\nHost: headgate\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 99,
    ):
        with socket.create_connection((unharmed.host, unharmed.port), timeout=10) as one:
            one.sendall(request)
            try:
                while one.recv(4096):
                    pass
            except ConnectionError:
                pass


async def test_a_deadline_that_is_over_and_a_huge_header_are_refused(wire: Wire, world: World) -> None:
    wait: Any = wire.channel.unary_unary("/headgate.v1.ProducerService/WaitResult")
    request = producer_pb2.WaitResultRequest(id=UUID(world.pending).bytes, wait_ms=20_000).SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await wait(request, timeout=0, metadata=wire.metadata)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    with pytest.raises(grpc.aio.AioRpcError) as large:
        await wait(request, timeout=5, metadata=(("authorization", "Bearer " + "x" * 64_000),))
    assert large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "headers",
    [
        {"grpc_timeout": "0n"},
        {"grpc_timeout": "yesterday"},
        {"grpc_timeout": "-5S"},
        {"grpc_timeout": "99999999999H"},
        {"headgate_bin": "!!! no base64 !!!"},
        {"content_type": "application/json"},
        {"grpc_encoding": "zip-bomb"},
        {"te": "everything"},
    ],
    ids=lambda headers: "-".join(map(str, headers.items())),
)
def test_headers_that_make_no_sense_end_their_stream_and_nothing_else(
    unharmed: ServerProcess, headers: dict[str, str]
) -> None:
    """An answer, a reset or a good-bye; but not silence. What is merely ignored finds the token missing."""
    with Http2(unharmed.host, unharmed.port) as peer:
        stream, opened = peer.opening("/headgate.v1.AdminService/Status", **headers)
        peer.send(opened, http2.data(stream))
        kinds = (http2.HEADERS, http2.RST_STREAM, http2.GOAWAY)
        answered = next((frame for frame in peer.frames(within=5) if frame.kind in kinds), None)
        assert answered is not None or peer.over


def test_no_more_streams_than_the_cap_are_taken_on_one_connection(unharmed: ServerProcess) -> None:
    with Http2(unharmed.host, unharmed.port) as peer:
        settings = next(frame.settings for frame in peer.frames(within=5) if frame.kind == http2.SETTINGS)
        assert settings[http2.MAX_CONCURRENT_STREAMS] == STREAMS
        list(peer.frames(within=0.2))  # our settings are acknowledged by now
        peer.send(*(peer.opening(WORK)[1] for _ in range(STREAMS + 100)))
        refusal = next(
            (
                frame
                for frame in peer.frames(within=30)
                if frame.kind == http2.GOAWAY or (frame.kind == http2.RST_STREAM and frame.stream > 2 * STREAMS)
            ),
            None,
        )
        assert refusal is not None or peer.over


async def test_no_more_streams_than_the_cap_are_taken_from_one_address(database: str, tmp_path: Path) -> None:
    """Unary calls are no streams, and who leaves makes room."""
    with ServerProcess(database, folder=tmp_path, args=("--streams-per-peer", "3")) as server:
        async with (
            Wire(server.address) as one,
            Wire(server.address) as two,
            one.worker("a") as first,
            two.worker("b"),
        ):
            async with one.worker("c"):
                end = await two.session().ended()
                assert (end.status, end.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_streams")
                assert "127.0.0.1 has 3 streams open" in end.details
                assert "--streams-per-peer" in end.details
                job_id = await two.submit("mail")
                await first.ready(1, "mail")
                (job,) = await first.take(1)
                assert job.id == job_id
                assert await first.complete(job) == {}

            async def let_in() -> bool:
                try:
                    async with two.worker("d"):
                        return True
                except AssertionError:  # the stream had ended
                    return False

            await until_async(let_in, "who leaves makes room for another")


def test_streams_opened_and_reset_in_a_loop_do_not_starve_others(unharmed: ServerProcess) -> None:
    with Http2(unharmed.host, unharmed.port) as peer:
        for _ in range(20):
            for path in (WORK, PRODUCE):
                opened = [peer.opening(path) for _ in range(100)]
                peer.send(*(part for stream, frame in opened for part in (frame, http2.reset(stream))))
    # `unharmed` asks a neighbour to work within seconds, and looks for traces of faults in the log.


def test_who_pings_all_the_time_is_sent_away(unharmed: ServerProcess) -> None:
    with Http2(unharmed.host, unharmed.port) as peer:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            peer.send(http2.ping())
            goodbyes = [frame for frame in peer.frames(within=0.01) if frame.kind == http2.GOAWAY]
            if goodbyes:
                assert goodbyes[0].error == http2.ENHANCE_YOUR_CALM
                return
        raise AssertionError("it may ping for ever")


FEW_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
os.execv(sys.argv[1], sys.argv[1:])"""


async def test_more_connections_than_the_process_can_hold_are_refused_and_sessions_live(
    database: str, tmp_path: Path
) -> None:
    """Files are kept back for the database: a crowd of strangers must not keep the server from its own work."""
    command = (sys.executable, "-c", FEW_FILES, HEADGATE, "serve", "--dev", "--no-http", "--port", "0")
    environ = {**clean_environ(), "HEADGATE_DATABASE_URL": database}
    with LoggedProcess("few-files", command, folder=tmp_path, environ=environ) as server:
        ready = await asyncio.to_thread(server.saw, READY)
        await _crowded(server, ready["host"], int(ready["port"]))


async def _crowded(server: LoggedProcess, host: str, port: int) -> None:
    async with Wire(f"{host}:{port}") as wire, wire.worker() as session:
        crowd = [socket.create_connection((host, port), timeout=5) for _ in range(300)]
        try:
            for _ in range(3):
                job_id = await wire.submit("mail")
                await session.ready(1, "mail")
                (job,) = await session.take(1)
                assert job.id == job_id
                assert await session.complete(job) == {}
                assert (await wire.job(job_id)).state == jobs_pb2.STATE_COMPLETED
        finally:
            for one in crowd:
                one.close()

        def answers() -> bool:
            try:
                with Http2(host, port) as peer:
                    return any(frame.kind == http2.SETTINGS for frame in peer.frames(within=0.5))
            except OSError:
                return False

        await asyncio.to_thread(until, answers, "newcomers are let in again")
        assert server.exit_code is None
        assert not server.seen("Traceback|CRITICAL|Too many open files")
