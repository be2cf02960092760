"""A worker that stops: what it returns, what it finishes, and its last report."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate import Headgate
from headgate.domain import limits
from headgate.sdk.worker import final_report, stop_sequence
from headgate.sdk.worker.outbox import FRAME_OUTCOMES
from headgate.sdk.worker.time_limits import TimeLimits
from headgate.sdk.worker.worker import Worker
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.fake_server import WorkerPeer, fake_server, until
from tests.unit.sdk_working import Gate, working


@asynccontextmanager
async def unanswered_quiet() -> AsyncIterator[tuple[Worker, asyncio.Task[None], WorkerPeer, Gate]]:
    """A worker of two slots whose server does not confirm by itself that nothing more is on its way."""
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        server.answers_quiet = False
        worker = app.worker(concurrency=2, prefetch=2, grace=20)
        yield worker, asyncio.create_task(worker.run()), await server.worker(), gate


@pytest.mark.req("W23", "K9")
async def test_what_still_comes_to_a_stopping_worker_is_returned_unstarted() -> None:
    async with unanswered_quiet() as (worker, running, peer, gate):
        (begun,) = peer.deliver("wait", b"")
        await until(lambda: gate.begun, "one runs")
        worker.stop()
        await until(lambda: peer.frames("quiet"), "it wants no more")
        late = peer.deliver("wait", b"", b"")  # was on its way, and there is a free slot
        await until(lambda: len(peer.others()) == 2, "they are back")
        gate.open.set()
        await until(lambda: peer.completed(), "the one that ran is done")
        assert not running.done()  # more may be on its way
        peer.say(quieted=worker_pb2.Quieted())
        await running
        assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [(one, "abandon") for one in late]
        assert (gate.begun, len(peer.frames("quiet"))) == ([begun], 1)


@pytest.mark.req("W23")
async def test_an_idle_worker_that_stops_waits_for_what_may_be_on_its_way() -> None:
    async with unanswered_quiet() as (worker, running, peer, gate):
        worker.stop()
        await until(lambda: peer.frames("quiet"), "it wants no more")
        (late,) = peer.deliver("wait", b"")
        await until(peer.others, "it is back")
        assert not running.done()
        peer.say(quieted=worker_pb2.Quieted())
        await running
        assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [(late, "abandon")]
        assert gate.begun == []


async def test_a_stop_of_an_operator_is_a_stop_and_a_signal_after_it_is_the_first() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        worker = app.worker(concurrency=1, prefetch=1, grace=20)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        ids = peer.deliver("wait", b"", b"")
        await until(lambda: gate.begun, "one runs")
        peer.say(stop=worker_pb2.Stop(by="ana", reason="leak"))
        await until(lambda: peer.others(), "the other is back")
        peer.say(stop=worker_pb2.Stop(by="ana", reason="leak"))
        worker.stop()  # as SIGTERM does
        late = peer.deliver("wait", b"")
        await until(lambda: len(peer.others()) == 2, "it is taken after the signal, and returned")
        assert gate.ended == [], "the handler has its grace"
        gate.open.set()
        await running
        assert peer.completed() == {ids[0]: b""}
        assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [
            (ids[1], "abandon"),
            (late[0], "abandon"),
        ]
        assert not worker.overdue


@pytest.mark.req("W23", "K9")
async def test_stopping_finishes_what_started_and_returns_the_rest() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        worker = app.worker(concurrency=1, prefetch=1, grace=20)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        ids = peer.deliver("wait", b"", b"")
        await until(lambda: gate.begun, "one runs")
        worker.stop()
        await until(lambda: peer.others(), "the other is back")
        gate.open.set()
        await running
        assert peer.completed() == {ids[0]: b""}
        assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [(ids[1], "abandon")]
        assert peer.credit == 2  # nothing more was asked for
        await until(lambda: peer.ended, "the stream was closed")


@pytest.mark.req("W23", "K9")
@pytest.mark.parametrize("how", ["grace over", "asked twice", "cancelled"])
async def test_a_handler_that_outlasts_the_grace_is_cancelled_and_its_job_returned(how: str) -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        worker = app.worker(concurrency=1, grace=0.05 if how == "grace over" else 60)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        (raw,) = peer.deliver("wait", b"")
        await until(lambda: gate.begun, "it runs")
        if how == "cancelled":
            running.cancel()
        else:
            worker.stop()
            if how == "asked twice":
                worker.stop()
        await asyncio.wait((running,), timeout=60)
        assert running.cancelled() == (how == "cancelled")
        assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [(raw, "abandon")]
        assert gate.ended == [raw]


async def test_outcomes_without_an_answer_are_reported_by_a_call_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sdk.worker.stop_sequence.FLUSH_SECONDS", 0.1)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        worker = app.worker(concurrency=1)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        (raw,) = peer.deliver("t", b"")
        await until(lambda: peer.frames("outcomes"), "it was sent")
        worker.stop()
        await running
        (report,) = server.reports
        assert [(one.id, one.WhichOneof("kind")) for one in report.outcomes] == [(raw, "completed")]
        assert report.worker_id == worker.worker_id


async def test_a_worker_stops_although_its_server_reads_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sdk.worker.stop_sequence.FLUSH_SECONDS", 0.1)
    monkeypatch.setattr("headgate.sdk.worker.stream.LAST_WRITE_SECONDS", 0.1)
    async with fake_server() as server:
        app = Headgate(server.address)
        ended: list[int] = []

        @app.job("t")
        async def large(n: int) -> str:
            ended.append(n)
            return "x" * 1_000_000

        worker = app.worker(concurrency=20)
        server.reads = False
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        await until(lambda: peer.credit, "it asks for jobs")
        ids = peer.deliver("t", *(b'{"n":%d}' % n for n in range(20)))
        await until(lambda: len(ended) == 20, "all are done, and more is written than a stream takes")
        worker.stop()
        await asyncio.wait_for(running, 30)
        assert {one.id for report in server.reports for one in report.outcomes} == set(ids)


async def test_a_callback_that_raises_does_not_stop_the_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate, time_limit=0.2)
        server.beat_seconds = 1
        raised = threading.Event()

        def raise_once(self: TimeLimits, *_: object) -> None:
            raised.set()
            raise ZeroDivisionError

        monkeypatch.setattr(TimeLimits, "_stop", raise_once)
        async with working(app, server, lease=3) as (_, peer):
            peer.deliver("wait", b"")
            await until(raised.is_set, "a callback has raised")
            before = len(peer.frames("beat"))
            await until(lambda: len(peer.frames("beat")) >= before + 2, "beats go on")
            gate.open.set()


@pytest.mark.parametrize("locked_for_long", [False, True])
async def test_a_locked_outcome_of_the_last_report_is_sent_again_or_logged(
    locked_for_long: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headgate.sdk.worker.stop_sequence.FLUSH_SECONDS", 0.1)
    monkeypatch.setattr("headgate.sdk.worker.final_report.RESEND_SOON_SECONDS", 0.05)
    if locked_for_long:
        monkeypatch.setattr("headgate.sdk.worker.final_report.REPORT_SECONDS", 1.0)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        locked = jobs_pb2.Receipt(index=1, code=jobs_pb2.RECEIPT_LOCKED)
        alone = jobs_pb2.Receipt(index=0, code=jobs_pb2.RECEIPT_LOCKED)
        server.report_receipts = [[jobs_pb2.Receipt(index=0), locked], *[[alone]] * (1_000 if locked_for_long else 1)]
        worker = app.worker(concurrency=2)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        sent = peer.deliver("t", b"", b"")
        await until(lambda: len(peer.completed()) == 2, "both were sent")
        worker.stop()
        await asyncio.wait_for(running, 60)
        first, *again = [[one.id for one in report.outcomes] for report in server.reports]
        assert sorted(first) == sorted(sent)
        assert again[:2] == [[first[1]]] * 2
        assert (len(again) > 2) == locked_for_long
        assert ("outcomes_not_reported jobs=1 " in caplog.text) == locked_for_long


@pytest.mark.parametrize("refusal", ["overloaded", "store_unavailable", "shutting_down"])
async def test_the_last_report_is_made_in_parts_and_again_after_a_refusal_that_may_pass(
    refusal: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert FRAME_OUTCOMES <= limits.SETTLE_FLUSH_MAX_ROWS
    monkeypatch.setattr(final_report, "FRAME_OUTCOMES", 2)
    monkeypatch.setattr(stop_sequence, "FLUSH_SECONDS", 0.1)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        server.report_refusals = [refusal, refusal]
        locked = jobs_pb2.Receipt(index=1, code=jobs_pb2.RECEIPT_LOCKED)
        server.report_receipts = [[], [locked]]
        worker = app.worker(concurrency=5)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        sent = peer.deliver("t", *[b""] * 5)
        await until(lambda: len(peer.completed()) == 5, "all were sent")
        worker.stop()
        await asyncio.wait_for(running, 60)
        reports = [[one.id for one in report.outcomes] for report in server.reports]
        if refusal == "shutting_down":  # this server takes nothing more, and there is no other one
            assert not reports
            assert "outcomes_not_reported jobs=5 " in caplog.text
        else:
            assert [len(report) for report in reports] == [2, 2, 1, 1]
            assert reports[3] == reports[1][1:]  # the locked one, when all others have been reported
            assert {raw for report in reports for raw in report} == set(sent)
            assert "outcomes_not_reported" not in caplog.text
