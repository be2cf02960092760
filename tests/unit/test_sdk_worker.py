"""The worker against a scripted server: credit, outcomes, leases, stopping."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from headgate import Abandon, Headgate, InvalidInput, Job, Superseded, Unauthenticated, Worker
from headgate.sdk.io_thread import io_thread
from headgate.sdk.worker import ledger as ledger_module
from headgate.sdk.worker.worker import _signals
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.fake_server import FakeServer, WorkLink, fake_server, until
from tests.support.waiting import until as wait_until


@asynccontextmanager
async def working(app: Headgate, server: FakeServer, **options: Any) -> AsyncIterator[tuple[Worker, WorkLink]]:
    worker = app.worker(**{"concurrency": 4, "grace": 5, "cancel_grace": 0, **options})
    running = asyncio.create_task(worker.run())
    try:
        yield worker, await server.worker()
    finally:
        worker.stop()
        worker.stop()
        await running


class Gate:
    """A handler that waits until it is let go, and says that it has begun."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self.open = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        self.begun.append(job.raw_id)
        try:
            await self.open.wait()
        finally:
            self.ended.append(job.raw_id)


@pytest.mark.req("W1", "W6", "W8", "W10", "K2")
async def test_one_stream_carries_all_slots_and_credit_follows_the_outcomes() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)

        @app.job("double")
        async def double(n: int) -> int:
            return 2 * n

        async with working(app, server) as (worker, link):
            assert (link.credit, link.topics) == (4, ["double"])
            ids = link.deliver("double", b'{"n":1}', b'{"n":2}', b'{"n":3}')
            await until(lambda: len(link.completed()) == 3, "all are done")
            assert [link.completed()[one] for one in ids] == [b"2", b"4", b"6"]
            assert link.credit == 7
            assert len(server.workers) == 1
            await until(lambda: worker.receipts == {"applied": 3}, "the receipts are in")
            # An outcome and the credit of its slot travel together.
            for frame in link.received:
                assert frame.HasField("outcomes") == (frame.HasField("ready") and not frame.ready.topics)


@pytest.mark.req("W18", "O13")
async def test_no_more_is_asked_for_than_there_are_slots() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server, concurrency=2, prefetch=1) as (_, link):
            assert link.credit == 3
            link.deliver("wait", b"", b"", b"")
            await until(lambda: len(gate.begun) == 2, "two have begun")
            assert link.credit == 3
            gate.open.set()
            await until(lambda: len(link.completed()) == 3, "all are done")
            assert len(gate.begun) == 3
            await until(lambda: link.credit == 6, "the credit is back")


async def test_slots_take_all_that_is_held_run_no_more_at_a_time_and_begin_nothing_that_was_cancelled() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server, concurrency=2, prefetch=6) as (worker, link):
            ids = link.deliver("wait", *[b""] * 8)
            await until(lambda: len(gate.begun) == 2, "two have begun")
            link.say(cancel=link.held(ids[4]))
            link.say(lost=link.held(ids[5]))
            assert worker._link is not None
            held = worker._link.ledger.held
            await until(lambda: held[ids[4]].cancel_requested and ids[5] not in held, "it has heard both")
            gate.open.set()
            await until(lambda: len(link.completed()) == 6, "the others are done")
            assert gate.begun == [*ids[:4], *ids[6:]]
            (refused,) = link.others()
            assert (refused.id, refused.failed.type) == (ids[4], "Cancelled")
            assert worker.receipts["applied"] <= 7


async def test_what_slots_have_not_begun_is_handed_back_by_a_drain() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server, concurrency=2, prefetch=6) as (worker, link):
            ids = link.deliver("wait", *[b""] * 8)
            await until(lambda: len(gate.begun) == 2, "two have begun")
            worker.stop()
            await until(lambda: len(link.others()) == 6, "the rest is handed back")
            assert {one.id for one in link.others() if one.HasField("abandon")} == set(ids[2:])
            gate.open.set()
            await until(lambda: len(link.completed()) == 2, "what had begun is finished")
            assert gate.begun == ids[:2]


@pytest.mark.req("W19", "W8")
async def test_a_slow_job_holds_one_slot_and_nobody_elses_outcome() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("slow", gate)
        app.register("fast", lambda job: None)
        async with working(app, server) as (_, link):
            link.deliver("slow", b"")
            fast = link.deliver("fast", b"", b"")
            await until(lambda: set(fast) <= link.completed().keys(), "the fast ones are done")
            assert gate.ended == []
            gate.open.set()


@pytest.mark.req("W20", "W21", "W28")
async def test_a_handler_sees_the_fields_of_its_job() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        seen: list[Job] = []
        app.register("look", lambda job: seen.append(job))

        async with working(app, server) as (_, link):
            (raw,) = link.deliver("look", b"\x00\xff", epoch=3, attempt=2, headers={"trace": "abc"})
            await until(lambda: link.completed(), "it is done")
            (job,) = seen
            assert (job.id.bytes, job.topic, job.payload, job.epoch, job.attempt) == (raw, "look", b"\x00\xff", 3, 2)
            assert (job.max_attempts, job.priority, job.tenant, job.headers) == (20, 0, "acme", {"trace": "abc"})
            assert job.created_at.year == 2023
            assert (job.lease_until - job.created_at).total_seconds() == 60


@pytest.mark.req("W22", "W15")
async def test_a_handler_that_raises_fails_its_job_and_the_worker_lives() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)

        @app.job("async")
        async def bad(kind: str) -> object:
            if kind == "exit":
                raise SystemExit(1)
            if kind == "value":
                raise ValueError("no")
            return object() if kind == "object" else kind

        @app.job("sync")
        def worse(kind: str) -> object:
            if kind == "exit":
                raise SystemExit(1)
            raise KeyboardInterrupt

        async with working(app, server) as (_, link):
            link.deliver("async", b'{"kind":"exit"}', b'{"kind":"value"}', b'{"kind":"object"}', b'{"kind":"ok"}')
            await until(lambda: len(link.others()) == 3 and link.completed(), "the four are done")
            link.deliver("sync", b'{"kind":"exit"}', b'{"kind":"interrupt"}')
            await until(lambda: len(link.others()) == 5, "the two are done")
            kinds = sorted(one.failed.type.rpartition(".")[2] for one in link.others())
            assert kinds == ["KeyboardInterrupt", "PayloadError", "SystemExit", "SystemExit", "ValueError"]


@pytest.mark.req("O16", "W17", "L2", "O15")
async def test_beats_list_everything_held_while_a_handler_blocks_the_loop() -> None:
    async with fake_server() as server:
        app, release, begun = Headgate(server.address), threading.Event(), threading.Event()

        @app.job("block")
        async def block() -> None:
            begun.set()
            release.wait(20)  # what one must not do on an event loop

        worker = app.worker(concurrency=2, lease=1)
        thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
        thread.start()
        try:
            link = await server.worker()
            ids = link.deliver("block", b"{}", b"{}")
            await until(begun.is_set, "it blocks")
            await until(lambda: sum(set(beat.held.ids) == set(ids) for beat in link.frames("beat")) >= 3, "it beats")
            assert len(server.workers) == 1
            release.set()
            await until(lambda: len(link.completed()) == 2, "both are done")
        finally:
            release.set()
            worker.stop()
            await asyncio.to_thread(thread.join)


@pytest.mark.req("O17", "W24")
async def test_after_a_reconnect_what_runs_is_declared_and_runs_only_once() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server) as (worker, link):
            (raw,) = link.deliver("wait", b"", epoch=7)
            await until(lambda: gate.begun, "it runs")
            link.end(grpc.StatusCode.UNAVAILABLE, "going away")
            again = await server.worker(1)
            assert not link.hello.resumed
            assert again.hello.resumed
            assert again.hello.worker_id == link.hello.worker_id == worker.worker_id
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
        async with working(app, server) as (worker, link):
            one, two = link.deliver("t", b'{"n":1}', b'{"n":2}')
            await until(lambda: link.completed() and link.others(), "both were sent")
            link.end(grpc.StatusCode.UNAVAILABLE)
            again = await server.worker(1)
            await until(lambda: again.completed() and again.others(), "both were sent again")
            # Declared as held: otherwise the server would hand them out before it hears what became of them.
            assert set(again.hello.held.ids) == {one, two}
            assert again.completed() == {one: b"1"}
            assert [(other.id, other.epoch) for other in again.others()] == [(two, 1)]
            for outcomes in again.frames("outcomes"):
                again.receipts(outcomes.seq, jobs_pb2.Receipt(place=0, code=jobs_pb2.RECEIPT_DUPLICATE))
            await until(lambda: sum(worker.receipts.values()) == 2, "they were answered")
            again.end(grpc.StatusCode.UNAVAILABLE)
            third = await server.worker(2)
            assert not third.hello.held.ids
            assert not third.frames("outcomes")


async def test_outcomes_the_server_could_not_write_are_sent_again_on_the_same_stream() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        async with working(app, server) as (worker, link):
            link.deliver("t", b"")
            await until(lambda: link.frames("outcomes"), "it was sent")
            server.answers_outcomes = True
            link.say(error=jobs_pb2.Error(code="store_unavailable", message="the database is restarting"))
            await until(lambda: worker.receipts.get("applied") == 1, "it was sent again")
            assert len(server.workers) == 1


async def test_of_two_frames_exactly_the_one_the_server_names_is_sent_again() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("t", lambda job: None)
        app.register("wait", gate)
        server.answers_outcomes = False
        async with working(app, server) as (worker, link):
            (first,) = link.deliver("t", b"")
            await until(lambda: link.frames("outcomes"), "the first was sent")
            (second,) = link.deliver("wait", b"")
            gate.open.set()
            await until(lambda: len(link.frames("outcomes")) == 2, "the second was sent")
            server.answers_outcomes = True
            busy = jobs_pb2.Error(code="overloaded", message="try again", retry_after_ms=20)
            link.say(error=busy, error_seq=2)
            await until(lambda: worker.receipts.get("applied") == 1, "it was sent again")
            assert [list(frame.ids) for frame in link.frames("outcomes")] == [[first], [second], [second]]
            assert [frame.seq for frame in link.frames("outcomes")] == [1, 2, 2]
            # What the server will never take is not sent for ever: the worker could not end.
            link.say(error=jobs_pb2.Error(code="invalid_input", message="no"), error_seq=1)
            worker.stop()
            await until(lambda: link.ended, "the worker has nothing left to say")
        assert len(link.frames("outcomes")) == 3


@pytest.mark.req("D21")
async def test_a_delivery_already_held_is_ignored_and_a_newer_epoch_replaces_it() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server) as (_, link):
            (raw,) = link.deliver("wait", b"", epoch=3)
            await until(lambda: len(gate.begun) == 1, "it runs")
            link.deliver("wait", b"", ids=[raw], epoch=3)
            await until(lambda: link.credit == 5, "the ignored one's credit is back")
            assert len(gate.begun) == 1
            link.deliver("wait", b"", ids=[raw], epoch=4)
            await until(lambda: len(gate.begun) == 2 and len(gate.ended) == 1, "the new run replaced the old one")
            gate.open.set()
            await until(lambda: raw in link.completed(), "it is done")
            assert [list(outcomes.epochs) for outcomes in link.frames("outcomes")] == [[4]]


async def test_a_lost_lease_stops_the_handler_and_sends_nothing() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        app.register("next", lambda job: None)
        async with working(app, server) as (_, link):
            (raw,) = link.deliver("wait", b"")
            await until(lambda: gate.begun, "it runs")
            link.say(lost=link.held(raw))
            await until(lambda: gate.ended, "it was stopped")
            await until(lambda: link.credit == 5, "its slot is free")
            (after,) = link.deliver("next", b"")
            await until(lambda: after in link.completed(), "the next one is done")
            assert raw not in link.completed()
            assert not link.others()


async def test_what_the_greeting_says_is_lost_is_stopped() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server) as (_, link):
            (raw,) = link.deliver("wait", b"")
            await until(lambda: gate.begun, "it runs")
            server.lost = link.held(raw)
            link.end(grpc.StatusCode.UNAVAILABLE)
            again = await server.worker(1)
            await until(lambda: gate.ended, "it was stopped")
            await until(lambda: again.credit == 4, "its slot is free")
            assert not again.frames("outcomes")


async def test_a_cancel_reaches_async_sync_and_unaware_handlers() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        begun: list[str] = []

        @app.job("polite")
        async def polite(job: Job) -> None:
            begun.append("polite")
            await job.cancelled.wait_async()
            job.raise_if_cancelled()

        @app.job("thread")
        def in_thread(job: Job) -> None:
            begun.append("thread")
            assert job.cancelled.wait(20)
            job.raise_if_cancelled()

        @app.job("unaware")
        async def unaware() -> None:
            begun.append("unaware")
            await gate.open.wait()

        @app.job("deaf")
        async def deaf(job: Job) -> None:
            begun.append("deaf")
            await gate.open.wait()

        async with working(app, server, cancel_grace=0.05) as (_, link):
            ids = [link.deliver(topic, b"{}")[0] for topic in ("polite", "thread", "unaware", "deaf")]
            await until(lambda: len(begun) == 4, "all run")
            link.say(cancel=link.held(*ids))
            await until(lambda: len(link.others()) == 4, "all have ended")
            assert {one.failed.type for one in link.others()} == {"Cancelled"}
            assert {one.id for one in link.others()} == set(ids)


@pytest.mark.req("O9")
async def test_jobs_of_an_unknown_topic_are_handed_back_and_it_is_asked_for_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("known", lambda job: None)
        app.register("dropped", lambda job: None)
        worker = app.worker(concurrency=4)
        worker._tasks.pop("dropped")  # as if the server sent what nobody here can do
        running = asyncio.create_task(worker.run())
        link = await server.worker()
        assert link.topics == ["known", "dropped"]
        with caplog.at_level(logging.WARNING):
            link.deliver("dropped", b"", b"")
            await until(lambda: len(link.others()) == 2, "they are back")
            link.deliver("dropped", b"")
            await until(lambda: len(link.others()) == 3, "it is back")
        assert {one.WhichOneof("kind") for one in link.others()} == {"abandon"}
        assert caplog.text.count("no handler for topic dropped") == 1
        assert link.topics == ["known"]
        worker.stop()
        await running


async def test_a_draining_server_gets_its_unstarted_jobs_back_and_the_worker_goes_elsewhere() -> None:
    async with fake_server() as first, fake_server() as second:
        app, gate = Headgate([first.address, second.address]), Gate()
        app.register("wait", gate)
        worker = app.worker(concurrency=1, prefetch=2, grace=5)
        running = asyncio.create_task(worker.run())
        await until(lambda: first.workers or second.workers, "it connects")
        here, there = (first, second) if first.workers else (second, first)
        link = await here.worker()
        ids = link.deliver("wait", b"", b"", b"")
        await until(lambda: gate.begun, "one runs")
        link.say(drain=worker_pb2.Drain(grace_seconds=20))
        await until(lambda: len(link.others()) == 2, "two are back")
        assert {one.id for one in link.others()} == set(ids[1:])
        credit = link.credit
        gate.open.set()
        other = await there.worker()
        assert link.completed() == {ids[0]: b""}
        assert link.credit == credit
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
        link = await here.worker()
        (raw,) = link.deliver("wait", b"", epoch=2)
        await until(lambda: gate.begun, "it runs")
        link.say(drain=worker_pb2.Drain(grace_seconds=1))
        await until(lambda: there.workers, "it went elsewhere")
        assert (list(there.workers[0].hello.held.ids), there.workers[0].hello.resumed) == ([raw], True)
        gate.open.set()
        await until(lambda: raw in there.workers[0].completed(), "it is done there")
        assert gate.begun == [raw]
        worker.stop()
        await running


@pytest.mark.req("W23", "K9")
async def test_what_still_comes_to_a_stopping_worker_is_handed_back_unstarted() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        server.answers_quiet = False
        worker = app.worker(concurrency=2, prefetch=2, grace=20)
        running = asyncio.create_task(worker.run())
        link = await server.worker()
        (begun,) = link.deliver("wait", b"")
        await until(lambda: gate.begun, "one runs")
        worker.stop()
        await until(lambda: link.frames("quiet"), "it wants no more")
        late = link.deliver("wait", b"", b"")  # was on its way, and there is a free slot
        await until(lambda: len(link.others()) == 2, "they are back")
        gate.open.set()
        await until(lambda: link.completed(), "the one that ran is done")
        assert not running.done()  # more may be on its way
        link.say(quieted=worker_pb2.Quieted())
        await running
        assert [(one.id, one.WhichOneof("kind")) for one in link.others()] == [(one, "abandon") for one in late]
        assert (gate.begun, len(link.frames("quiet"))) == ([begun], 1)


@pytest.mark.req("W23", "K9")
async def test_stopping_finishes_what_started_and_hands_back_the_rest() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        worker = app.worker(concurrency=1, prefetch=1, grace=20)
        running = asyncio.create_task(worker.run())
        link = await server.worker()
        ids = link.deliver("wait", b"", b"")
        await until(lambda: gate.begun, "one runs")
        worker.stop()
        await until(lambda: link.others(), "the other is back")
        gate.open.set()
        await running
        assert link.completed() == {ids[0]: b""}
        assert [(one.id, one.WhichOneof("kind")) for one in link.others()] == [(ids[1], "abandon")]
        assert link.credit == 2  # nothing more was asked for
        await until(lambda: link.ended, "the stream was closed")


@pytest.mark.req("W23", "K9")
@pytest.mark.parametrize("how", ["grace over", "asked twice", "cancelled"])
async def test_a_handler_that_outlasts_the_grace_is_cancelled_and_its_job_handed_back(how: str) -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        worker = app.worker(concurrency=1, grace=0.05 if how == "grace over" else 60)
        running = asyncio.create_task(worker.run())
        link = await server.worker()
        (raw,) = link.deliver("wait", b"")
        await until(lambda: gate.begun, "it runs")
        if how == "cancelled":
            running.cancel()
        else:
            worker.stop()
            if how == "asked twice":
                worker.stop()
        await asyncio.wait((running,), timeout=60)
        assert running.cancelled() == (how == "cancelled")
        assert [(one.id, one.WhichOneof("kind")) for one in link.others()] == [(raw, "abandon")]
        assert gate.ended == [raw]


async def test_outcomes_without_an_answer_are_reported_by_a_call_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sdk.worker.stopping.FLUSH_SECONDS", 0.1)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        worker = app.worker(concurrency=1)
        running = asyncio.create_task(worker.run())
        link = await server.worker()
        (raw,) = link.deliver("t", b"")
        await until(lambda: link.frames("outcomes"), "it was sent")
        worker.stop()
        await running
        (report,) = server.reports
        assert [(one.id, one.WhichOneof("kind")) for one in report.outcomes] == [(raw, "completed")]
        assert report.worker_id == worker.worker_id


async def test_a_silent_server_is_left() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        server.answers_beats = False
        async with working(app, server, lease=1) as (_, link):
            (raw,) = link.deliver("wait", b"")
            await until(lambda: gate.begun, "it runs")
            again = await server.worker(1)
            assert list(again.hello.held.ids) == [raw]
            assert link.frames("beat")
            gate.open.set()
            server.answers_beats = True


async def test_a_server_that_does_not_greet_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sdk.worker.link.HELLO_SECONDS", 0.05)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.greets = False
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await until(lambda: len(server.workers) >= 2, "it tries again")
        assert not worker.connected
        server.greets = True
        await until(lambda: worker.connected, "it is connected")
        worker.stop()
        await running


async def test_a_frame_that_makes_no_sense_ends_the_stream_and_not_the_worker() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        async with working(app, server) as (_, link):
            link.say(jobs=worker_pb2.Jobs(ids=[b"x" * 16, b"y" * 16], epochs=[1], payloads=[b""], topic_names=["t"]))
            again = await server.worker(1)
            assert not again.hello.held.ids
            again.say(receipts=worker_pb2.Receipts(seq=999))
            again.say(cancel=again.held(b"z" * 16), lost=again.held(b"z" * 16))
            (raw,) = again.deliver("t", b"")
            await until(lambda: raw in again.completed(), "it works")


async def test_a_refused_result_becomes_a_failure() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: "big")
        server.answers_outcomes = False
        async with working(app, server) as (_, link):
            (raw,) = link.deliver("t", b"")
            await until(lambda: link.frames("outcomes"), "it was sent")
            server.answers_outcomes = True
            link.receipts(1, jobs_pb2.Receipt(place=0, code=jobs_pb2.RECEIPT_INVALID, message="too large here"))
            await until(lambda: link.others(), "it failed")
            assert (link.others()[0].id, link.others()[0].failed.message) == (raw, "too large here")


@pytest.mark.req("W14")
async def test_a_stale_receipt_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        async with working(app, server) as (worker, link):
            link.deliver("t", b"", b"")
            await until(lambda: len(link.completed()) == 2, "both were sent")
            with caplog.at_level(logging.WARNING):
                for outcomes in link.frames("outcomes"):
                    link.receipts(outcomes.seq, jobs_pb2.Receipt(place=0, code=jobs_pb2.RECEIPT_STALE))
                await until(lambda: worker.receipts.get("stale"), "it is counted")
            assert "was not taken: stale" in caplog.text


async def test_too_many_unanswered_outcomes_stop_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "UNACKNOWLEDGED_MAX", 2)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        async with working(app, server) as (_, link):
            link.deliver("t", b"", b"", b"", b"")
            await until(lambda: len(link.completed()) == 4, "all were sent")
            assert link.credit <= 4 + 1  # what was asked for before the bound was reached
            for outcomes in link.frames("outcomes"):
                link.receipts(outcomes.seq)
            await until(lambda: link.credit == 8, "it asks again")


@pytest.mark.req("W17")
async def test_progress_and_extensions_ride_on_a_beat() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()

        @app.job("t")
        async def step(job: Job) -> None:
            await job.progress(1, 3, "rendering")
            await job.extend(120)
            await gate.open.wait()

        async with working(app, server) as (_, link):
            (raw,) = link.deliver("t", b"", epoch=5)
            await until(lambda: [word for beat in link.frames("beat") for word in beat.progress], "progress came")
            await until(lambda: [word for beat in link.frames("beat") for word in beat.extensions], "extension came")
            words = [word for beat in link.frames("beat") for word in beat.progress]
            assert (words[0].id, words[0].epoch, words[0].progress.done, words[0].progress.total) == (raw, 5, 1, 3)
            (wish,) = [word for beat in link.frames("beat") for word in beat.extensions]
            assert wish.lease_seconds == 120
            assert all(raw in beat.held.ids for beat in link.frames("beat"))
            gate.open.set()


async def test_what_a_handler_leaves_in_its_context_does_not_reach_the_next_job() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine", default=0)

        @app.job("async")
        async def leave(n: int) -> int:
            before = mine.get()
            mine.set(n)
            return before

        @app.job("thread")
        def leave_too(n: int) -> int:
            before = mine.get()
            mine.set(n)
            return before

        async with working(app, server, concurrency=1, prefetch=9) as (_, link):
            link.deliver("async", *[b'{"n":5}'] * 5)
            link.deliver("thread", *[b'{"n":5}'] * 5)
            await until(lambda: len(link.completed()) == 10, "all are done")
            assert set(link.completed().values()) == {b"0"}


async def test_many_handlers_that_do_not_wait_are_answered_in_few_frames() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)

        @app.job("t")
        async def nothing() -> None: ...

        async with working(app, server, concurrency=500) as (_, link):
            link.deliver("t", *[b"{}"] * 500)
            await until(lambda: len(link.completed()) == 500, "all are done")
            assert len(link.frames("outcomes")) <= 50


async def test_async_handlers_that_wait_run_side_by_side() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server, concurrency=50) as (_, link):
            link.deliver("wait", *[b""] * 50)
            await until(lambda: len(gate.begun) == 50, "all run at once")
            gate.open.set()
            await until(lambda: len(link.completed()) == 50, "all are done")


async def test_threads_run_side_by_side_up_to_the_concurrency() -> None:
    async with fake_server() as server:
        app, barrier = Headgate(server.address), threading.Barrier(4)
        app.register("meet", lambda job: barrier.wait(20) >= 0)
        async with working(app, server, concurrency=4) as (_, link):
            for round_ in range(1, 4):
                link.deliver("meet", b"", b"", b"", b"")
                await until(lambda done=4 * round_: len(link.completed()) == done, "they met")
            names = [thread.name for thread in threading.enumerate() if thread.name.startswith("headgate-handler")]
            assert len(names) <= 4


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


async def test_a_superseded_worker_ends() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        running = asyncio.create_task(app.work())
        link = await server.worker()
        link.end(grpc.StatusCode.ABORTED, "a newer one took its place", "superseded")
        with pytest.raises(Superseded, match="id of its own"):
            await running
        assert len(server.workers) == 1


def test_a_worker_refuses_what_it_cannot_do() -> None:
    app = Headgate("127.0.0.1:1")
    with pytest.raises(InvalidInput, match="no handler is registered"):
        app.worker()
    app.register("t", lambda job: None)
    for options, says in [
        ({"topics": ["x"]}, "no handler"),
        ({"concurrency": 0}, "concurrency"),
        ({"lease": 10**6}, "lease"),
        ({"colour": 1}, "colour"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            app.worker(**options)  # type: ignore[arg-type]


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
