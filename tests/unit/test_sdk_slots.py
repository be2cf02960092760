"""Handlers in processes have all that others have, and what does not end costs no more than it must."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest

from headgate import Headgate, InvalidInput
from headgate.sdk.addresses import addresses_of
from headgate.sdk.connection import Connection
from headgate.sdk.worker import Worker, forced_exit, process_slots, protocol, stuck_slots, time_limits
from headgate.sdk.worker.stream import WorkerStream
from tests.support import sdk_app
from tests.support.fake_server import FakeServer, WorkerPeer, fake_server, until
from tests.unit.sdk_working import Gate
from tests.unit.sdk_working import working as working_at


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@asynccontextmanager
async def working(*topics: str, **options: Any) -> AsyncIterator[tuple[WorkerPeer, Worker]]:
    async with fake_server() as server:
        tasks = {topic: sdk_app.hg.tasks[topic] for topic in topics}
        given = {"concurrency": 4, "processes": 2, "cancel_grace": 0.1, "grace": 10, **options}
        worker = Worker(Connection(addresses_of(server.address), token=""), tasks, **given)  # type: ignore[misc]
        running = asyncio.create_task(worker.run())
        try:
            yield await server.worker(), worker
        finally:
            worker.stop()
            worker.stop()
            await asyncio.wait_for(running, 60)


def progress(peer: WorkerPeer) -> list[int]:
    return [one.progress.done for beat in peer.frames("beat") for one in beat.progress]


def failures(peer: WorkerPeer) -> dict[bytes, tuple[str, str]]:
    return {one.id: (one.failed.type, one.failed.message) for one in peer.others() if one.HasField("failed")}


async def test_a_process_handler_has_progress_extension_logger_headers_and_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with working("report") as (peer, _):
        payload = json.dumps({"path": str(tmp_path / "note")}).encode()
        (raw,) = peer.deliver("report", payload, headers={"trace": "t-1"})
        await until(lambda: progress(peer), "its progress came over")
        assert progress(peer) == [1]
        await until(lambda: any(beat.extensions for beat in peer.frames("beat")), "its wish came over")
        record = await until(
            lambda: next((one for one in caplog.records if one.name == "headgate.job.report"), None), "it logged"
        )
        assert record is not None
        assert "with t-1" in record.getMessage()
        assert vars(record)["topic"] == "report"
        assert not any(one.name == "some.library" for one in caplog.records)
        peer.say(cancel=peer.held(raw))
        await until(lambda: raw in peer.completed() or peer.others(), "it ended")
        if raw in peer.completed():  # its token came first, and it returned in order
            result = json.loads(peer.completed()[raw])
            assert (result["told"], result["flag"], result["pid"] != os.getpid()) == (True, True, True)
        else:
            assert failures(peer)[raw][0] == "Cancelled"


@pytest.mark.req("O21")
async def test_tasks_threads_and_processes_share_the_slots_and_the_same_credit() -> None:
    async with fake_server() as server:
        app = Headgate(server.address)

        @app.job("task")
        async def here(n: int) -> tuple[int, int, str]:
            return sdk_app.whereabouts(n)

        app.register("thread", sdk_app.whereabouts)
        app.register("process", sdk_app.whereabouts, run_in="process")
        worker = app.worker(concurrency=3, prefetch=0, processes=1, grace=5)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        try:
            assert (peer.credit, sorted(peer.topics)) == (3, ["process", "task", "thread"])
            ran: dict[str, list[Any]] = {}
            for done, kind in enumerate(("task", "thread", "process"), 1):
                (raw,) = peer.deliver(kind, b'{"n":%d}' % done)
                await until(lambda raw=raw: raw in peer.completed(), f"the {kind} is done")
                ran[kind] = json.loads(peer.completed()[raw])
                assert peer.credit == 3 + done  # one slot each, free again with its outcome
        finally:
            worker.stop()
            await asyncio.wait_for(running, 60)
        mine = os.getpid()
        assert ran["task"] == [1, mine, threading.main_thread().name]
        assert (ran["thread"][:2], ran["thread"][2] != threading.main_thread().name) == ([2, mine], True)
        assert (ran["process"][0], ran["process"][1] != mine) == (3, True)


@pytest.mark.parametrize("ears", ["good", "deaf"])
async def test_a_cancelled_process_handler_is_interrupted_and_ended_if_it_does_not_stop(
    ears: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ears == "deaf":
        monkeypatch.setattr(process_slots, "UNWIND_SECONDS", 2.0)
    async with working("deafen", "square", processes=1) as (peer, _):
        note = tmp_path / "note"
        (raw,) = peer.deliver("deafen", json.dumps({"path": str(note), "ears": ears}).encode())
        await until(lambda: progress(peer), "it runs")
        pid = progress(peer)[0]
        peer.say(cancel=peer.held(raw))
        await until(lambda: raw in failures(peer), "it was cancelled")
        assert failures(peer)[raw][0] == "Cancelled"
        assert note.read_text() == "interrupted"
        if ears == "deaf":
            assert "by force" in failures(peer)[raw][1]
            await until(lambda: not alive(pid), "its process is gone")
        (again,) = peer.deliver("square", b'{"n":2}')
        await until(lambda: again in peer.completed(), "the slot works")
        assert (json.loads(peer.completed()[again])["pid"] == pid) == (ears != "deaf")


@pytest.mark.req("W22")
async def test_a_process_that_dies_fails_its_job_with_the_reason_and_no_other(tmp_path: Path) -> None:
    async with working("crash", "deafen", processes=2) as (peer, _):
        (other,) = peer.deliver("deafen", json.dumps({"path": str(tmp_path / "note"), "ears": "good"}).encode())
        await until(lambda: progress(peer), "another runs")
        pid = progress(peer)[0]
        expected = {
            "kill": ("ProcessDied", "SIGKILL (was the machine out of memory?)"),
            "segfault": ("ProcessDied", "SIGSEGV"),
            "exit": ("ProcessDied", "exit code 3"),
            "leave": ("SystemExit", "leave"),
        }
        for how, (kind, words) in expected.items():
            (raw,) = peer.deliver("crash", json.dumps({"how": how}).encode())
            await until(lambda raw=raw: raw in failures(peer), f"{how} is reported")
            assert failures(peer)[raw][0] == kind
            assert words in failures(peer)[raw][1]
        (raw,) = peer.deliver("crash", b'{"how":"pool"}')
        await until(lambda: raw in peer.completed(), "a handler may have a pool of its own")
        assert alive(pid)
        assert other not in failures(peer)


@contextmanager
def worker_process(address: str, *arguments: str, leaving: float = 6) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.sdk_app", *arguments],
        env={**os.environ, "HEADGATE_URL": address, "LEAVING_SECONDS": str(leaving)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def in_a_child(server: FakeServer, tmp_path: Path) -> tuple[WorkerPeer, bytes, int]:
    peer = await server.worker()
    (raw,) = peer.deliver("deafen", json.dumps({"path": str(tmp_path / "note"), "ears": "deaf"}).encode())
    await until(lambda: progress(peer), "it runs in a child")
    return peer, raw, progress(peer)[0]


async def test_the_children_of_a_killed_worker_end_with_it(tmp_path: Path) -> None:
    async with fake_server() as server:
        with worker_process(server.address, "30", "deafen") as process:
            _, _, pid = await in_a_child(server, tmp_path)
            assert alive(pid)
            process.send_signal(signal.SIGKILL)
            await until(lambda: not alive(pid), "the child is gone")


@pytest.mark.req("W23")
async def test_a_drain_leaves_no_child_behind_and_hands_the_job_back(tmp_path: Path) -> None:
    async with fake_server() as server:
        with worker_process(server.address, "0.2", "deafen") as process:
            peer, raw, pid = await in_a_child(server, tmp_path)
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate, timeout=60)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors, errors
            assert not alive(pid)
            assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [(raw, "abandon")]


# --- time limits -----------------------------------------------------------------------------------------------------


@pytest.mark.req("O15")
@pytest.mark.parametrize("topic", ["limited-async", "limited-process"])
async def test_a_handler_over_its_time_limit_is_stopped_and_its_attempt_fails(topic: str) -> None:
    async with working(topic, processes=1) as (peer, _):
        (raw,) = peer.deliver(topic, b'{"ears":"good"}')
        await until(lambda: raw in failures(peer), "its time is over")
        assert failures(peer)[raw][0] == "TimeLimitExceeded"
        assert failures(peer)[raw][1] == (
            f"the handler of {topic} ran longer than its time limit of {sdk_app.hg.tasks[topic].time_limit:g} s"
        )


PAST = "the deadline of the job, 2023-11-14T22:13:20.000000Z, has passed, and "


@pytest.mark.parametrize("topic", ["linger", "deafen"])
async def test_a_handler_is_stopped_at_the_deadline_of_its_job_and_that_is_final(topic: str, tmp_path: Path) -> None:
    async with working(topic, "square", processes=1) as (peer, _):
        (ready,) = peer.deliver("square", b'{"n":2}')
        await until(lambda: ready in peer.completed(), "its process has started")
        body = {"path": str(tmp_path / "seen"), "ears": "good"} if topic == "deafen" else {}
        raw = b""
        for deadline_in_ms in (300, 3_000, 20_000):  # a busy machine may not start the handler before its deadline
            (raw,) = peer.deliver(topic, json.dumps(body).encode(), deadline_in_ms=deadline_in_ms)
            await until(lambda raw=raw: raw in failures(peer), "its deadline has passed")
            if failures(peer)[raw][1] != PAST + "it was not started":
                break
        assert failures(peer)[raw] == ("deadline_exceeded", PAST + "its handler was stopped")
        assert all(one.failed.permanent for one in peer.others())


async def test_whichever_of_deadline_and_time_limit_comes_first_ends_the_attempt() -> None:
    async with working("limited-async") as (peer, _):
        (soon,) = peer.deliver("limited-async", b'{"ears":"good"}', deadline_in_ms=50)
        (late,) = peer.deliver("limited-async", b'{"ears":"good"}', deadline_in_ms=60_000)
        await until(lambda: {soon, late} <= failures(peer).keys(), "both have ended")
        assert (failures(peer)[soon][0], failures(peer)[late][0]) == ("deadline_exceeded", "TimeLimitExceeded")


async def test_a_thread_past_its_deadline_fails_its_attempt_and_keeps_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "UNWIND_SECONDS", 0.1)
    async with working("unlimited-thread", concurrency=1, prefetch=1) as (peer, _):
        release, tries = tmp_path / "release", 0
        body = json.dumps({"path": str(release)}).encode()
        running = waiting = b""
        for deadline_in_ms in (1_500, 6_000, 20_000):  # a busy machine may not start the handler before its deadline
            tries += 1
            running, waiting = peer.deliver("unlimited-thread", body, body, deadline_in_ms=deadline_in_ms)
            await until(
                lambda both={running, waiting}: both <= failures(peer).keys(), "the deadline of both has passed"
            )
            if failures(peer)[running][1] != PAST + "it was not started":
                break
        assert failures(peer)[running] == ("deadline_exceeded", PAST + "its handler was stopped")
        assert failures(peer)[waiting] == ("deadline_exceeded", PAST + "it was not started")
        await until(lambda: "after=deadline" in caplog.text, "it is logged, by another thread")
        release.touch()
        await until(lambda: peer.credit >= 2 + 2 * tries, "both places are free again")
        assert not peer.completed()


async def test_a_deadline_that_passes_inside_the_slot_says_that_the_job_was_not_started(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "UNWIND_SECONDS", 0.1)
    async with working("linger", concurrency=1, prefetch=5) as (peer, _):
        (running,) = peer.deliver("linger", b"{}")
        waiting = peer.deliver("linger", *[b"{}"] * 5, deadline_in_ms=50)
        await until(lambda: failures(peer).keys() >= set(waiting), "the deadline of all that wait has passed")
        expected = ("deadline_exceeded", PAST + "it was not started")
        assert [failures(peer)[raw] for raw in waiting] == [expected] * 5
        assert "did_not_stop" not in caplog.text
        assert running not in failures(peer)


async def test_a_job_that_has_ended_is_kept_by_no_timer_of_its_deadline_or_time_limit() -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("gated", gate.__call__, time_limit=86_400)
        async with working_at(app, server) as (worker, peer):
            (raw,) = peer.deliver("gated", b"{}", deadline_in_ms=86_400_000)
            await until(lambda: gate.begun, "it runs")
            ledger = cast("WorkerStream", worker._stream).protocol.ledger
            job, timers = ledger.held[raw], ledger._timers
            assert ((job, "deadline") in timers, (job, "limit") in timers) == (True, True)
            gate.open.set()
            await until(lambda: raw in peer.completed(), "it has ended")
            assert ((job, "deadline") in timers, (job, "limit") in timers) == (False, False)
            assert not any(job in args for _, _, args in timers._calls.values())
            assert not ledger.timed


async def test_a_success_that_comes_as_the_time_is_over_counts() -> None:
    async with working("limited-async") as (peer, _):
        (raw,) = peer.deliver("limited-async", b'{"ears":"late"}')
        await until(lambda: peer.completed().get(raw) == b'"just in time"', "its result was sent")


async def test_a_thread_over_its_time_limit_fails_its_attempt_and_keeps_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "UNWIND_SECONDS", 0.1)
    async with working("limited-thread", concurrency=2, prefetch=0) as (peer, _):
        await until(lambda: peer.credit == 2, "it asked for two")
        release = tmp_path / "release"
        (raw,) = peer.deliver("limited-thread", json.dumps({"path": str(release)}).encode())
        await until(lambda: raw in failures(peer), "its time is over")
        assert failures(peer)[raw][0] == "TimeLimitExceeded"
        await until(lambda: "slot is lost until the handler returns" in caplog.text, "it is logged, by another thread")
        assert peer.credit == 2  # nothing is asked for in the place of what still runs
        release.touch()
        await until(lambda: peer.credit == 3, "its slot is free again")
        assert raw not in peer.completed()


def test_a_time_limit_is_checked_when_it_is_given() -> None:
    for wrong in (0, "x", True):
        with pytest.raises(InvalidInput, match="time_limit"):
            Headgate().job("x", time_limit=wrong)(lambda: None)  # type: ignore[arg-type]


# --- nothing ends any more -------------------------------------------------------------------------------------------


async def test_stuck_slots_are_said_once_beats_go_on_and_a_drain_ends_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(stuck_slots, "STOPPING_SECONDS", 0.3)
    monkeypatch.setattr("headgate.sdk.worker.stop_sequence.UNWIND_SECONDS", 0.5)
    monkeypatch.setattr("headgate.sdk.worker.slots.GIVE_UP_SECONDS", 0.5)
    app = Headgate("127.0.0.1:1")
    release, begun_async, begun_thread = asyncio.Event(), asyncio.Event(), threading.Event()

    @app.job("deaf-async")
    async def deaf() -> None:
        begun_async.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    @app.job("deaf-thread")
    def deaf_too(path: str) -> str:
        begun_thread.set()
        return str(sdk_app.limited_thread.function(path))

    async with fake_server() as server:
        server.beat_seconds = 1
        monkeypatch.setattr("headgate.sdk.worker.beats.silence_limit", lambda _: 60.0)  # of the server: it has none
        worker = Worker(
            Connection(addresses_of(server.address), token=""), app.tasks, concurrency=2, grace=0.3, cancel_grace=0.1
        )
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        (one,) = peer.deliver("deaf-async", b"{}")
        (two,) = peer.deliver("deaf-thread", json.dumps({"path": str(tmp_path / "release")}).encode())
        await asyncio.wait_for(begun_async.wait(), 60)
        await until(begun_thread.is_set, "the thread runs as well: what has not begun would only be cancelled")
        peer.say(cancel=peer.held(one, two))
        await until(lambda: "all_slots_stuck" in caplog.text, "it is said")
        beats = len(peer.frames("beat"))
        await until(lambda: len(peer.frames("beat")) > beats, "it goes on beating")
        said = [record.getMessage() for record in caplog.records if "all_slots_stuck" in record.getMessage()]
        assert len(said) == 1
        assert "slots=2 " in said[0]
        assert "deaf-" in said[0]
        worker.stop()
        begun = asyncio.get_running_loop().time()
        await asyncio.wait_for(running, 60)
        took = asyncio.get_running_loop().time() - begun
        assert took < 20, took
        assert {one.WhichOneof("kind") for one in peer.others()} == {"abandon"}
        assert worker.left_behind == 1
        assert 'did_not_stop handlers="deaf-async: 1, deaf-thread: 1" ' in caplog.text
        release.set()
        (tmp_path / "release").touch()


async def test_a_worker_process_ends_though_an_async_handler_never_does() -> None:
    """One ignores its cancellation, another one blocks the loop: side by side, since each takes a few seconds."""

    async def scenario(*, blocks: bool) -> None:
        async with fake_server() as server:
            with worker_process(server.address, "0.2", "limited-async,block", leaving=0.5) as process:
                peer = await server.worker()
                if blocks:
                    (raw,) = peer.deliver("block", b'{"seconds":600}')
                    await until(lambda: any(beat.progress for beat in peer.frames("beat")), "it blocks the loop")
                else:
                    (raw,) = peer.deliver("limited-async", b'{"ears":"deaf"}')
                    await until(lambda: raw in failures(peer), "its time is over")
                process.send_signal(signal.SIGTERM)
                _, errors = await asyncio.to_thread(process.communicate, timeout=60)
                assert "did_not_stop" in errors
                assert "exits although a handler still runs" in errors
                assert process.returncode == 1, errors
                if blocks:
                    assert [(one.id, one.WhichOneof("kind")) for one in peer.others()] == [(raw, "abandon")]

    await asyncio.gather(scenario(blocks=True), scenario(blocks=False))


async def test_a_worker_process_ends_on_sigterm_though_no_one_reads_what_it_logs() -> None:
    async with fake_server() as server:
        with worker_process(server.address, "0.2", "quick", leaving=0.5) as process:
            assert process.stderr is not None
            size = fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
            peer = await server.worker()
            # An argument that does not fit fails with a line of about 200 characters.
            peer.deliver("quick", *[b'{"none":1}'] * 64)
            await until(lambda: len(failures(peer)) == 64, "all have failed")
            await until(lambda: _unread(process) > size - 500, "the pipe is full")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 1


def _unread(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    return int.from_bytes(fcntl.ioctl(process.stderr, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_the_process_exits_if_a_stop_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: SimpleQueue[int] = SimpleQueue()
    monkeypatch.setattr(forced_exit, "LEAVING_SECONDS", 0.01)
    monkeypatch.setattr(forced_exit, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr("os._exit", exits.put)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    app = Headgate("127.0.0.1:1")
    app.register("mail", print)
    worker = app.worker(grace=1)
    worker.stop()
    assert not worker.overdue
    with forced_exit.forced_exit_after(threading.Event(), overdue=lambda: worker.overdue):
        assert worker._stop_asked_at is not None
        worker._stop_asked_at -= 60
        assert exits.get(timeout=60) == 1
