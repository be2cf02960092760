"""A worker whose server goes, drains, forgets or refuses; and how a worker stops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest

from headgate import Abandon, Headgate, Superseded, Unauthenticated
from headgate.sdk.addresses import Rotation
from headgate.sdk.io_thread import io_thread
from headgate.sdk.worker.worker import _signals
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.fake_server import fake_server, until
from tests.support.waiting import until as wait_until
from tests.unit.sdk_working import Gate, working


async def test_what_slots_have_not_begun_is_returned_by_a_drain() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server, concurrency=2, prefetch=6) as (worker, peer):
            ids = peer.deliver("wait", *[b""] * 8)
            await until(lambda: len(gate.begun) == 2, "two have begun")
            worker.stop()
            await until(lambda: len(peer.others()) == 6, "the rest is handed back")
            assert {one.id for one in peer.others() if one.HasField("abandon")} == set(ids[2:])
            gate.open.set()
            await until(lambda: len(peer.completed()) == 2, "what had begun is finished")
            assert gate.begun == ids[:2]


async def test_two_workers_of_one_name_have_incarnations_of_their_own() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("wait", Gate())
        async with working(app, server, worker_id="twin") as (_, one), working(app, server, worker_id="twin"):
            two = await server.worker(1)
            assert one.hello.worker_id == two.hello.worker_id == "twin"
            assert len({0, one.hello.incarnation, two.hello.incarnation}) == 3


@pytest.mark.req("O17", "W24")
async def test_after_a_reconnect_what_runs_is_declared_and_runs_only_once() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server) as (worker, peer):
            (raw,) = peer.deliver("wait", b"", epoch=7)
            await until(lambda: gate.begun, "it runs")
            peer.end(grpc.StatusCode.UNAVAILABLE, "going away")
            again = await server.worker(1)
            assert not peer.hello.resumed
            assert again.hello.resumed
            assert again.hello.incarnation == peer.hello.incarnation != 0
            assert again.hello.worker_id == peer.hello.worker_id == worker.worker_id
            assert (list(again.hello.held.ids), list(again.hello.held.epochs)) == ([raw], [7])
            assert again.credit == 3  # one of the four slots is taken
            assert again.topics == ["wait"]
            gate.open.set()
            await until(lambda: raw in again.completed(), "it is done")
            assert gate.begun == [raw]


@pytest.mark.req("O17", "W14")
async def test_unanswered_outcomes_are_sent_again_after_a_reconnect() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)

        @app.job("t")
        async def answer(n: int) -> int:
            if n == 2:
                raise Abandon
            return n

        server.answers_outcomes = False
        async with working(app, server) as (worker, peer):
            one, two = peer.deliver("t", b'{"n":1}', b'{"n":2}')
            await until(lambda: peer.completed() and peer.others(), "both were sent")
            peer.end(grpc.StatusCode.UNAVAILABLE)
            again = await server.worker(1)
            await until(lambda: again.completed() and again.others(), "both were sent again")
            # Declared as held: otherwise the server would hand them out before it hears what became of them.
            assert set(again.hello.held.ids) == {one, two}
            assert again.completed() == {one: b"1"}
            assert [(other.id, other.epoch) for other in again.others()] == [(two, 1)]
            for outcomes in again.frames("outcomes"):
                again.receipts(outcomes.seq, jobs_pb2.Receipt(index=0, code=jobs_pb2.RECEIPT_DUPLICATE))
            await until(lambda: sum(worker.receipts.values()) == 2, "they were answered")
            again.end(grpc.StatusCode.UNAVAILABLE)
            third = await server.worker(2)
            assert not third.hello.held.ids
            assert not third.frames("outcomes")


async def test_an_outcome_whose_job_is_locked_is_kept_held_and_sent_again() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)

        @app.job("t")
        async def answer(n: int) -> int:
            if n == 3:
                raise Abandon
            return n

        server.answers_outcomes = False
        async with working(app, server) as (worker, peer):
            one, two, three = peer.deliver("t", b'{"n":1}', b'{"n":2}', b'{"n":3}')
            await until(lambda: len(peer.completed()) == 2 and peer.others(), "all were sent")
            server.answers_outcomes = True
            sent = list(peer.frames("outcomes"))
            for outcomes in sent:
                ids = [*outcomes.ids, *(other.id for other in outcomes.others)]
                exceptions = [
                    jobs_pb2.Receipt(index=place, code=jobs_pb2.RECEIPT_LOCKED)
                    for place, job in enumerate(ids)
                    if job != one
                ]
                peer.receipts(outcomes.seq, *exceptions)
            await until(lambda: worker.receipts.get("applied") == 3, "the locked ones were sent again")
            again = peer.frames("outcomes")[len(sent) :]
            assert {job: result for frame in again for job, result in zip(frame.ids, frame.results, strict=True)} == {
                two: b"2"
            }
            assert [other.id for frame in again for other in frame.others] == [three]
            assert worker.receipts["locked"] == 2


async def test_outcomes_the_server_could_not_write_are_sent_again_on_the_same_stream() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        async with working(app, server) as (worker, peer):
            peer.deliver("t", b"")
            await until(lambda: peer.frames("outcomes"), "it was sent")
            server.answers_outcomes = True
            peer.say(error=jobs_pb2.Error(code="store_unavailable", message="the database is restarting"))
            await until(lambda: worker.receipts.get("applied") == 1, "it was sent again")
            assert len(server.workers) == 1


async def test_of_two_frames_exactly_the_one_the_server_names_is_sent_again() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("t", lambda job: None)
        app.register("wait", gate)
        server.answers_outcomes = False
        async with working(app, server) as (worker, peer):
            (first,) = peer.deliver("t", b"")
            await until(lambda: peer.frames("outcomes"), "the first was sent")
            (second,) = peer.deliver("wait", b"")
            gate.open.set()
            await until(lambda: len(peer.frames("outcomes")) == 2, "the second was sent")
            server.answers_outcomes = True
            busy = jobs_pb2.Error(code="overloaded", message="try again", retry_after_ms=20)
            peer.say(error=busy, error_seq=2)
            await until(lambda: worker.receipts.get("applied") == 1, "it was sent again")
            assert [list(frame.ids) for frame in peer.frames("outcomes")] == [[first], [second], [second]]
            assert [frame.seq for frame in peer.frames("outcomes")] == [1, 2, 2]
            # What the server will never take is not sent forever: the worker could not end.
            peer.say(error=jobs_pb2.Error(code="invalid_input", message="no"), error_seq=1)
            worker.stop()
            await until(lambda: peer.ended, "the worker has nothing left to say")
        assert len(peer.frames("outcomes")) == 3


@pytest.mark.req("D21")
async def test_a_delivery_already_held_is_ignored_and_a_newer_epoch_replaces_it() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("wait", b"", epoch=3)
            await until(lambda: len(gate.begun) == 1, "it runs")
            peer.deliver("wait", b"", ids=[raw], epoch=3)
            await until(lambda: peer.credit == 5, "the ignored one's credit is back")
            assert len(gate.begun) == 1
            peer.deliver("wait", b"", ids=[raw], epoch=4)
            await until(lambda: len(gate.begun) == 2 and len(gate.ended) == 1, "the new run replaced the old one")
            gate.open.set()
            await until(lambda: raw in peer.completed(), "it is done")
            assert [list(outcomes.epochs) for outcomes in peer.frames("outcomes")] == [[4]]


async def test_a_lost_lease_stops_the_handler_and_sends_nothing() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        app.register("next", lambda job: None)
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("wait", b"")
            await until(lambda: gate.begun, "it runs")
            peer.say(lost=peer.held(raw))
            await until(lambda: gate.ended, "it was stopped")
            await until(lambda: peer.credit == 5, "its slot is free")
            (after,) = peer.deliver("next", b"")
            await until(lambda: after in peer.completed(), "the next one is done")
            assert raw not in peer.completed()
            assert not peer.others()


async def test_what_the_greeting_says_is_lost_is_stopped() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("wait", b"")
            await until(lambda: gate.begun, "it runs")
            server.lost = peer.held(raw)
            peer.end(grpc.StatusCode.UNAVAILABLE)
            again = await server.worker(1)
            await until(lambda: gate.ended, "it was stopped")
            await until(lambda: again.credit == 4, "its slot is free")
            assert not again.frames("outcomes")


async def test_a_draining_server_gets_its_unstarted_jobs_back_and_the_worker_goes_elsewhere() -> None:
    async with fake_server() as first, fake_server() as second:
        app, gate = Headgate([first.address, second.address]), Gate()
        app.register("wait", gate)
        worker = app.worker(concurrency=1, prefetch=2, grace=5)
        running = asyncio.create_task(worker.run())
        await until(lambda: first.workers or second.workers, "it connects")
        here, there = (first, second) if first.workers else (second, first)
        peer = await here.worker()
        ids = peer.deliver("wait", b"", b"", b"")
        await until(lambda: gate.begun, "one runs")
        peer.say(drain=worker_pb2.Drain(grace_seconds=20))
        await until(lambda: len(peer.others()) == 2, "two are back")
        assert {one.id for one in peer.others()} == set(ids[1:])
        credit = peer.credit
        gate.open.set()
        other = await there.worker()
        assert peer.completed() == {ids[0]: b""}
        assert peer.credit == credit
        assert not other.hello.held.ids
        worker.stop()
        await running


async def test_a_job_that_outlasts_the_drain_is_declared_to_the_next_server() -> None:
    async with fake_server() as first, fake_server() as second:
        app, gate = Headgate([first.address, second.address]), Gate()
        app.register("wait", gate)
        worker = app.worker(concurrency=1, grace=5)
        running = asyncio.create_task(worker.run())
        await until(lambda: first.workers or second.workers, "it connects")
        here, there = (first, second) if first.workers else (second, first)
        peer = await here.worker()
        (raw,) = peer.deliver("wait", b"", epoch=2)
        await until(lambda: gate.begun, "it runs")
        peer.say(drain=worker_pb2.Drain(grace_seconds=1))
        await until(lambda: there.workers, "it went elsewhere")
        assert (list(there.workers[0].hello.held.ids), there.workers[0].hello.resumed) == ([raw], True)
        gate.open.set()
        await until(lambda: raw in there.workers[0].completed(), "it is done there")
        assert gate.begun == [raw]
        worker.stop()
        await running


async def test_a_silent_server_is_left_and_its_connection_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sdk.worker.beats.silence_limit", lambda _: 3.0)  # not before it has beaten once
    async with fake_server() as server, relay(server.address) as (address, connections):
        app, gate = Headgate(address), Gate()
        app.register("wait", gate)
        server.answers_beats = False
        async with working(app, server, lease=1) as (_, peer):
            (raw,) = peer.deliver("wait", b"")
            await until(lambda: gate.begun, "it runs")
            first = list(connections)
            again = await server.worker(1)
            assert list(again.hello.held.ids) == [raw]
            assert peer.frames("beat")
            server.answers_beats = True
            await until(lambda: any(closed.is_set() for closed in first), "the first connection is closed")
            gate.open.set()


@asynccontextmanager
async def relay(address: str) -> AsyncIterator[tuple[str, list[asyncio.Event]]]:
    """An address that leads to another one; for each connection, whether its client has closed it."""
    host, _, port = address.rpartition(":")
    connections: list[asyncio.Event] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(closed := asyncio.Event())
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        back = asyncio.create_task(copy(far_reader, writer))
        try:
            await copy(reader, far_writer)
        finally:
            closed.set()
            back.cancel()
            far_writer.close()
            writer.close()

    listening = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", connections
    finally:
        listening.close()


async def test_a_server_that_does_not_greet_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sdk.worker.stream.HELLO_SECONDS", 0.05)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.greets = False
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await until(lambda: len(server.workers) >= 2, "it tries again")
        assert not worker.connected
        monkeypatch.setattr("headgate.sdk.worker.stream.HELLO_SECONDS", 10)
        server.greets = True
        await until(lambda: worker.connected, "it is connected")
        worker.stop()
        await running


async def test_a_frame_that_makes_no_sense_ends_the_stream_and_not_the_worker() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        async with working(app, server) as (_, peer):
            peer.say(jobs=worker_pb2.Jobs(ids=[b"x" * 16, b"y" * 16], epochs=[1], payloads=[b""], topic_names=["t"]))
            again = await server.worker(1)
            assert not again.hello.held.ids
            again.say(receipts=worker_pb2.Receipts(seq=999))
            again.say(cancel=again.held(b"z" * 16), lost=again.held(b"z" * 16))
            (raw,) = again.deliver("t", b"")
            await until(lambda: raw in again.completed(), "it works")


@pytest.mark.req("W2")
async def test_a_refused_token_ends_the_worker_with_a_sentence() -> None:
    async with fake_server() as server:
        app = Headgate(server.address, token="wrong")
        app.register("t", lambda job: None)
        server.refuses = grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(Unauthenticated, match="HEADGATE_TOKEN") as caught:
            await app.work()
        assert server.address in str(caught.value)
        assert caught.value.__cause__ is None


async def test_a_worker_whose_token_was_changed_connects_again() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("wait", b"")
            await until(lambda: gate.begun, "it runs")
            peer.end(grpc.StatusCode.UNAUTHENTICATED, "the token of ana has changed", "token_revoked")
            again = await server.worker(1)
            assert list(again.hello.held.ids) == [raw]
            gate.open.set()
            await until(lambda: raw in again.completed(), "it is done")


async def test_a_worker_outlives_a_file_of_tokens_that_is_gone_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", Gate())
        async with working(app, server) as (_, peer):
            server.refuses = grpc.StatusCode.UNAUTHENTICATED
            peer.end(grpc.StatusCode.UNAUTHENTICATED, "the token of ana is not valid any more", "token_revoked")
            await until(lambda: "the token is not known" in caplog.text, "it was refused")
            server.refuses = None
            await server.worker(1)


async def test_a_worker_whose_token_stays_refused_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sdk.worker.stream.REFUSED_SECONDS", 0.0)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", Gate())
        running = asyncio.create_task(app.worker().run())
        peer = await server.worker()
        server.refuses = grpc.StatusCode.UNAUTHENTICATED
        peer.end(grpc.StatusCode.UNAUTHENTICATED, "the token of ana is not valid any more", "token_revoked")
        with pytest.raises(Unauthenticated, match="HEADGATE_TOKEN"):
            await asyncio.wait_for(running, 60)


async def test_a_worker_that_is_refused_by_a_rate_limit_comes_back_no_sooner_than_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rotation, "move_on", lambda _: 0.0)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", Gate())
        server.refuses = grpc.StatusCode.RESOURCE_EXHAUSTED
        server.refusal = (("headgate-code", "rate_limited"), ("headgate-retry-after-ms", "700"))
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await until(lambda: len(server.refused_at) > 1, "it was refused twice")
        server.refuses = None
        await server.worker()
        worker.stop()
        await running
        assert server.refused_at[1] - server.refused_at[0] >= 0.7


async def test_a_superseded_worker_ends() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        running = asyncio.create_task(app.work())
        peer = await server.worker()
        peer.end(grpc.StatusCode.ABORTED, "a newer one took its place", "superseded")
        with pytest.raises(Superseded, match="id of its own"):
            await running
        assert len(server.workers) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(grpc.StatusCode.ABORTED, "unknown_jobs"), (grpc.StatusCode.ALREADY_EXISTS, "worker_id_taken")],
)
async def test_a_worker_whose_session_is_ended_or_refused_by_the_guards_comes_back_with_what_it_runs(
    status: grpc.StatusCode, code: str
) -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("wait", b"", epoch=7)
            await until(lambda: gate.begun, "it runs")
            peer.end(status, "says the server", code)
            again = await server.worker(1)
            assert list(again.hello.held.ids) == [raw]
            gate.open.set()
            await until(lambda: raw in again.completed(), "it ends on the new stream")
            assert gate.begun == [raw]


def test_signals_in_the_middle_of_each_others_lines_all_ask_for_the_stop() -> None:
    """A log cannot be entered twice by one thread, so the line is not written where the signal is handled."""
    asked: list[threading.Thread] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "stopping" in record.getMessage():
                asked.append(threading.current_thread())

    log, listening = logging.getLogger("headgate.worker"), Listening(logging.INFO)
    before = log.level
    log.addHandler(listening)
    log.setLevel(logging.INFO)
    stops: list[int] = []
    try:
        with _signals(io_thread(), lambda: stops.append(1)):
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: len(asked) == 3, "each was told of")
    finally:
        log.removeHandler(listening)
        log.setLevel(before)
    assert len(stops) == 3
    assert threading.main_thread() not in asked
