"""The worker against a scripted server: credit, slots, outcomes, beats, cancels."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading

import pytest

from headgate import Headgate, InvalidInput, Job
from headgate.domain import limits
from headgate.sdk.io_thread import io_thread
from headgate.sdk.worker import beats
from headgate.sdk.worker import ledger as ledger_module
from headgate.wire import jobs_pb2
from tests.support.fake_server import fake_server, on_io, until
from tests.unit.sdk_working import Gate, working


@pytest.mark.req("W1", "W6", "W8", "W10", "K2")
async def test_one_stream_carries_all_slots_and_credit_follows_the_outcomes() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)

        @app.job("double")
        async def double(n: int) -> int:
            return 2 * n

        async with working(app, server, prefetch=0) as (worker, peer):
            assert (peer.credit, peer.topics) == (4, ["double"])
            ids = peer.deliver("double", b'{"n":1}', b'{"n":2}', b'{"n":3}')
            await until(lambda: len(peer.completed()) == 3, "all are done")
            assert [peer.completed()[one] for one in ids] == [b"2", b"4", b"6"]
            assert peer.credit == 7
            assert len(server.workers) == 1
            await until(lambda: worker.receipts == {"applied": 3}, "the receipts are in")
            # An outcome and the credit of its slot travel together.
            for frame in peer.received:
                assert frame.HasField("outcomes") == (frame.HasField("ready") and not frame.ready.topics)


@pytest.mark.req("W18", "O13")
async def test_no_more_is_asked_for_than_there_are_slots() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server, concurrency=2, prefetch=1) as (_, peer):
            assert peer.credit == 3
            peer.deliver("wait", b"", b"", b"")
            await until(lambda: len(gate.begun) == 2, "two have begun")
            assert peer.credit == 3
            gate.open.set()
            await until(lambda: len(peer.completed()) == 3, "all are done")
            assert len(gate.begun) == 3
            await until(lambda: peer.credit == 6, "the credit is back")


async def test_slots_take_all_that_is_held_run_no_more_at_a_time_and_begin_nothing_that_was_cancelled() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server, concurrency=2, prefetch=6) as (worker, peer):
            ids = peer.deliver("wait", *[b""] * 8)
            await until(lambda: len(gate.begun) == 2, "two have begun")
            peer.say(cancel=peer.held(ids[4]))
            peer.say(lost=peer.held(ids[5]))
            assert worker._stream is not None
            held = worker._stream.protocol.ledger.held
            await until(lambda: held[ids[4]].cancel_requested and ids[5] not in held, "it has heard both")
            gate.open.set()
            await until(lambda: len(peer.completed()) == 6, "the others are done")
            assert gate.begun == [*ids[:4], *ids[6:]]
            (refused,) = peer.others()
            assert (refused.id, refused.failed.type) == (ids[4], "Cancelled")
            assert worker.receipts.get("applied", 0) <= 7


@pytest.mark.req("W19", "W8")
async def test_a_slow_job_holds_one_slot_and_delays_no_other_outcome() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("slow", gate)
        app.register("fast", lambda job: None)
        async with working(app, server) as (_, peer):
            peer.deliver("slow", b"")
            fast = peer.deliver("fast", b"", b"")
            await until(lambda: set(fast) <= peer.completed().keys(), "the fast ones are done")
            assert gate.ended == []
            gate.open.set()


@pytest.mark.req("W20", "W21")
async def test_a_handler_sees_the_fields_of_its_job() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        seen: list[Job] = []
        app.register("look", lambda job: seen.append(job))

        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver(
                "look",
                b"\x00\xff",
                epoch=3,
                attempt=2,
                headers={"trace": "abc"},
                schedule="nightly",
                deadline_in_ms=60_000,
            )
            await until(lambda: peer.completed(), "it is done")
            (job,) = seen
            assert (job.id.bytes, job.topic, job.payload, job.epoch, job.attempt) == (raw, "look", b"\x00\xff", 3, 2)
            assert (job.max_attempts, job.priority, job.tenant, job.headers) == (20, 0, "acme", {"trace": "abc"})
            assert (job.schedule, job.occurrence, job.deadline) == ("nightly", job.created_at, job.created_at)
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

        async with working(app, server) as (_, peer):
            peer.deliver("async", b'{"kind":"exit"}', b'{"kind":"value"}', b'{"kind":"object"}', b'{"kind":"ok"}')
            await until(lambda: len(peer.others()) == 3 and peer.completed(), "the four are done")
            peer.deliver("sync", b'{"kind":"exit"}', b'{"kind":"interrupt"}')
            await until(lambda: len(peer.others()) == 5, "the two are done")
            kinds = sorted(one.failed.type.rpartition(".")[2] for one in peer.others())
            assert kinds == ["KeyboardInterrupt", "PayloadError", "SystemExit", "SystemExit", "ValueError"]


@pytest.mark.req("O16", "W17", "O15")
async def test_beats_list_everything_held_while_a_handler_blocks_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_server() as server:
        app, release, begun = Headgate(server.address), threading.Event(), threading.Event()

        @app.job("block")
        async def block() -> None:
            begun.set()
            release.wait(20)  # what one must not do on an event loop

        monkeypatch.setattr("headgate.sdk.worker.beats.silence_limit", lambda _: 60.0)  # of the server: it has none
        worker = app.worker(concurrency=2, lease=1)
        thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
        thread.start()
        try:
            peer = await server.worker()
            ids = peer.deliver("block", b"{}", b"{}")
            await until(begun.is_set, "it blocks")
            await until(lambda: sum(set(beat.held.ids) == set(ids) for beat in peer.frames("beat")) >= 3, "it beats")
            assert len(server.workers) == 1
            release.set()
            await until(lambda: len(peer.completed()) == 2, "both are done")
        finally:
            release.set()
            worker.stop()
            await asyncio.to_thread(thread.join)


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

        async with working(app, server, cancel_grace=0.05) as (_, peer):
            ids = [peer.deliver(topic, b"{}")[0] for topic in ("polite", "thread", "unaware", "deaf")]
            await until(lambda: len(begun) == 4, "all run")
            peer.say(cancel=peer.held(*ids))
            await until(lambda: len(peer.others()) == 4, "all have ended")
            assert {one.failed.type for one in peer.others()} == {"Cancelled"}
            assert {one.id for one in peer.others()} == set(ids)


async def test_jobs_of_an_unknown_topic_are_returned_and_it_is_asked_for_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("known", lambda job: None)
        app.register("dropped", lambda job: None)
        worker = app.worker(concurrency=4)
        worker._tasks.pop("dropped")  # as if the server sent what no one here can do
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        assert peer.topics == ["known", "dropped"]
        with caplog.at_level(logging.WARNING):
            peer.deliver("dropped", b"", b"")
            await until(lambda: len(peer.others()) == 2, "they are back")
            peer.deliver("dropped", b"")
            await until(lambda: len(peer.others()) == 3, "it is back")
            await until(lambda: "no_handler topic=dropped" in caplog.text, "it is logged, by another thread")
        assert {one.WhichOneof("kind") for one in peer.others()} == {"abandon"}
        assert caplog.text.count("no_handler topic=dropped") == 1
        assert peer.topics == ["known"]
        worker.stop()
        await running


async def test_a_refused_result_becomes_a_failure() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: "big")
        server.answers_outcomes = False
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("t", b"")
            await until(lambda: peer.frames("outcomes"), "it was sent")
            server.answers_outcomes = True
            peer.receipts(1, jobs_pb2.Receipt(index=0, code=jobs_pb2.RECEIPT_INVALID, message="too large here"))
            await until(lambda: peer.others(), "it failed")
            assert (peer.others()[0].id, peer.others()[0].failed.message) == (raw, "too large here")


@pytest.mark.req("W14")
async def test_a_stale_receipt_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        async with working(app, server) as (worker, peer):
            peer.deliver("t", b"", b"")
            await until(lambda: len(peer.completed()) == 2, "both were sent")
            with caplog.at_level(logging.WARNING):
                for outcomes in peer.frames("outcomes"):
                    peer.receipts(outcomes.seq, jobs_pb2.Receipt(index=0, code=jobs_pb2.RECEIPT_STALE))
                await until(lambda: worker.receipts.get("stale"), "it is counted")
                await until(lambda: "receipt=stale" in caplog.text, "it is logged")


async def test_too_many_unanswered_outcomes_stop_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "UNACKNOWLEDGED_MAX", 2)
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("t", lambda job: None)
        server.answers_outcomes = False
        async with working(app, server, prefetch=0) as (_, peer):
            peer.deliver("t", b"", b"", b"", b"")
            await until(lambda: len(peer.completed()) == 4, "all were sent")
            assert peer.credit <= 4 + 1  # what was asked for before the bound was reached
            for outcomes in peer.frames("outcomes"):
                peer.receipts(outcomes.seq)
            await until(lambda: peer.credit == 8, "it asks again")


async def test_a_beat_carries_no_more_progress_and_extensions_than_the_server_takes_and_the_rest_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert beats.BEAT_MAX_JOBS <= limits.PROGRESS_MAX_JOBS
    monkeypatch.setattr(beats, "BEAT_MAX_JOBS", 2)
    monkeypatch.setattr("headgate.sdk.worker.beats.PROGRESS_SECONDS", 0.05)
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        running: list[Job] = []

        @app.job("t")
        async def step(job: Job) -> None:
            running.append(job)
            await gate.open.wait()

        async def all_at_once() -> None:
            for job in running:
                job.progress(1, 3)
                job.extend(120)

        async with working(app, server, concurrency=5) as (_, peer):
            ids = peer.deliver("t", *[b""] * 5)
            await until(lambda: len(running) == 5, "all run")
            await on_io(all_at_once())

            def arrived(part: str) -> list[list[bytes]]:
                return [[one.id for one in getattr(beat, part)] for beat in peer.frames("beat")]

            for part in ("progress", "extensions"):
                await until(lambda part=part: sum(map(len, arrived(part))) == 5, f"all {part} came")
                assert sorted(raw for beat in arrived(part) for raw in beat) == sorted(ids)
                assert max(map(len, arrived(part))) == 2
            gate.open.set()


@pytest.mark.req("W17")
async def test_progress_and_extensions_ride_on_a_beat() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()

        @app.job("t")
        async def step(job: Job) -> None:
            await job.progress(1, 3, "rendering")
            await job.extend(120)
            await gate.open.wait()

        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("t", b"", epoch=5)
            await until(lambda: [word for beat in peer.frames("beat") for word in beat.progress], "progress came")
            await until(lambda: [word for beat in peer.frames("beat") for word in beat.extensions], "extension came")
            words = [word for beat in peer.frames("beat") for word in beat.progress]
            assert (words[0].id, words[0].epoch, words[0].progress.done, words[0].progress.total) == (raw, 5, 1, 3)
            (wish,) = [word for beat in peer.frames("beat") for word in beat.extensions]
            assert wish.lease_seconds == 120
            assert all(raw in beat.held.ids for beat in peer.frames("beat"))
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

        async with working(app, server, concurrency=1, prefetch=9) as (_, peer):
            peer.deliver("async", *[b'{"n":5}'] * 5)
            peer.deliver("thread", *[b'{"n":5}'] * 5)
            await until(lambda: len(peer.completed()) == 10, "all are done")
            assert set(peer.completed().values()) == {b"0"}


async def test_many_handlers_that_do_not_wait_are_answered_in_few_frames() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)

        ran, release = 0, threading.Event()

        @app.job("t")
        async def nothing() -> None:
            nonlocal ran
            ran += 1
            if ran == 1:
                io_thread().loop.call_soon_threadsafe(release.wait, 60)  # nothing is sent while the others run

        async with working(app, server, concurrency=500) as (_, peer):
            peer.deliver("t", *[b"{}"] * 500)
            await until(lambda: ran == 500, "all ran")
            release.set()
            await until(lambda: len(peer.completed()) == 500, "all are done")
            assert len(peer.frames("outcomes")) <= 3


async def test_async_handlers_that_wait_run_side_by_side() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("wait", gate)
        async with working(app, server, concurrency=50) as (_, peer):
            peer.deliver("wait", *[b""] * 50)
            await until(lambda: len(gate.begun) == 50, "all run at once")
            gate.open.set()
            await until(lambda: len(peer.completed()) == 50, "all are done")


async def test_threads_run_side_by_side_up_to_the_concurrency() -> None:
    async with fake_server() as server:
        app, barrier = Headgate(server.address), threading.Barrier(4)
        app.register("meet", lambda job: barrier.wait(20) >= 0)
        async with working(app, server, concurrency=4) as (_, peer):
            for round_ in range(1, 4):
                peer.deliver("meet", b"", b"", b"", b"")
                await until(lambda done=4 * round_: len(peer.completed()) == done, "they met")
            names = [thread.name for thread in threading.enumerate() if thread.name.startswith("headgate-handler")]
            assert len(names) <= 4


def test_a_worker_refuses_what_it_cannot_do() -> None:
    app = Headgate("127.0.0.1:1")
    with pytest.raises(InvalidInput, match="no handler is registered"):
        app.worker()
    app.register("boom", lambda job: None)
    for options, says in [
        ({"topics": ["x"]}, "no handler is registered for; known: boom"),
        ({"topics": ["bom"]}, "did you mean 'boom'"),
        ({"concurrency": 0}, "concurrency"),
        ({"lease": 10**6}, "lease"),
        ({"colour": 1}, "colour"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            app.worker(**options)  # type: ignore[arg-type]
