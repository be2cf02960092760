"""What a worker logs of itself and of each attempt, at a scripted server and at none."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
from collections import deque

import pytest

from headgate import Abandon, Fail, Headgate, Job, Nack, Snooze
from headgate.domain.release import version
from headgate.sdk import background_calls
from headgate.sdk.addresses import Address
from headgate.sdk.background_calls import BackgroundCalls
from headgate.sdk.errors import NotConnected
from headgate.sdk.worker import attempt_log, stop_sequence
from headgate.sdk.worker.attempt_log import Settled
from headgate.sdk.worker.connection_log import ConnectionLog
from headgate.wire import jobs_pb2
from tests.support.fake_server import FakeServer, WorkerPeer, fake_server, until
from tests.support.waiting import until as wait_until
from tests.support.worker_protocol import Driver, make_protocol, raw_ids
from tests.unit.sdk_working import Gate, working

AT = 1_700_000_012_345_678
AT_TEXT = "2023-11-14T22:13:32.345Z"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="headgate.worker")
    return caplog


def records(log: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [one for one in list(log.records) if one.getMessage().split(" ")[0] == event]


async def record(log: pytest.LogCaptureFixture, event: str) -> logging.LogRecord:
    await until(lambda: records(log, event), f"{event} is logged")
    (found,) = records(log, event)
    return found


async def answer(server: FakeServer, peer: WorkerPeer, state: int = 0, *, run_at_us: int = 0, code: int = 0) -> None:
    """Answer the first frame of outcomes as the server would."""
    frames = await until(lambda: peer.frames("outcomes"), "the outcome is sent")
    peer.receipts(frames[0].seq, jobs_pb2.Receipt(code=code, state=state, run_at_us=run_at_us))
    server.answers_outcomes = True


def explode(name: str) -> None:
    raise ValueError(f"no such user: {name}")


async def test_the_start_names_version_server_topics_and_slots(log: pytest.LogCaptureFixture) -> None:
    async with fake_server() as server:
        app = Headgate(server.address)
        app.register("plain", lambda n=0: n)
        app.register("also", Gate())
        async with working(app, server, worker_id="w-1"):
            started = await record(log, "worker_started")
            assert started.levelno == logging.INFO
            assert started.getMessage() == (
                f'worker_started version={version()} worker=w-1 server={server.address} topics="plain,also" '
                "concurrency=4 threads=4 processes=0"
            )
        stopped = await record(log, "worker_stopped")
        assert "worker=w-1" in stopped.getMessage()


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_a_failed_attempt_is_a_warning_with_the_next_try_and_the_frames_of_the_user(
    log: pytest.LogCaptureFixture, kind: str
) -> None:
    async with fake_server() as server:
        server.answers_outcomes = False
        app = Headgate(server.address)

        async def on_the_loop(job: Job) -> None:
            explode("ada")

        def in_a_thread(job: Job) -> None:
            explode("ada")

        app.register("mail", on_the_loop if kind == "loop" else in_a_thread)
        app.middleware(_through)
        async with working(app, server) as (_, peer):
            (raw,) = peer.deliver("mail", b"", attempt=3)
            await answer(server, peer, jobs_pb2.STATE_RETRYING, run_at_us=AT)
            failed = await record(log, "job_failed")
    assert failed.levelno == logging.WARNING
    assert re.fullmatch(
        rf"job_failed topic=mail job_id=\S+ attempt=3/20 error=\"ValueError: no such user: ada\" retry_at={AT_TEXT} "
        r"seconds=\d+\.\d{3}",
        failed.getMessage(),
    )
    assert (failed.topic, failed.attempt, failed.max_attempts) == ("mail", 3, 20)  # type: ignore[attr-defined]
    assert failed.job_id.replace("-", "") == raw.hex()  # type: ignore[attr-defined]
    text = logging.Formatter().format(failed)  # as any formatter prints it
    assert 'raise ValueError(f"no such user: {name}")' in text
    assert text.count('explode("ada")') == 1
    assert re.findall(r'File "(.*?)"', text) == [__file__, __file__]


def _through(job: Job):  # type: ignore[no-untyped-def]
    yield


async def test_a_dead_job_is_an_error(log: pytest.LogCaptureFixture) -> None:
    async with fake_server() as server:
        server.answers_outcomes = False
        app = Headgate(server.address)
        app.register("mail", lambda job: explode("ada"))
        async with working(app, server) as (_, peer):
            peer.deliver("mail", b"", attempt=20)
            await answer(server, peer, jobs_pb2.STATE_DEAD)
            dead = await record(log, "job_dead")
    assert dead.levelno == logging.ERROR
    assert 'attempt=20/20 error="ValueError: no such user: ada"' in dead.getMessage()
    assert "explode" in str(dead.exc_text)
    assert not records(log, "job_failed")


@pytest.mark.parametrize(
    ("verdict", "state", "event", "level", "words"),
    [
        (Nack(3, "rate limited"), jobs_pb2.STATE_RETRYING, "job_nacked", logging.INFO, '"rate limited" retry_at=2023'),
        (Nack(3, "rate limited"), jobs_pb2.STATE_DEAD, "job_dead", logging.ERROR, 'error="Nack: rate limited"'),
        (Snooze(3), jobs_pb2.STATE_SCHEDULED, "job_snoozed", logging.INFO, f"run_at={AT_TEXT}"),
        (Abandon(), jobs_pb2.STATE_PENDING, "job_abandoned", logging.DEBUG, "attempt=1/20"),
        (Fail("no"), jobs_pb2.STATE_CANCELLED, "job_cancelled", logging.INFO, "attempt=1/20"),
        (Fail("no", permanent=True), jobs_pb2.STATE_DEAD, "job_dead", logging.ERROR, 'error="Fail: no"'),
    ],
)
async def test_each_verdict_has_its_event_and_level(
    log: pytest.LogCaptureFixture, verdict: Exception, state: int, event: str, level: int, words: str
) -> None:
    def handler(job: Job) -> None:
        raise verdict

    async with fake_server() as server:
        server.answers_outcomes = False
        app = Headgate(server.address)
        app.register("mail", handler)
        async with working(app, server) as (_, peer):
            peer.deliver("mail", b"")
            await answer(server, peer, state, run_at_us=AT)
            found = await record(log, event)
    assert found.levelno == level
    assert words in found.getMessage()
    assert found.exc_text is None


async def test_started_and_completed_are_logged_at_debug_with_the_duration(log: pytest.LogCaptureFixture) -> None:
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("mail", gate)
        async with working(app, server) as (_, peer):
            peer.deliver("mail", b"")
            started = await record(log, "job_started")
            assert not records(log, "job_completed")
            gate.open.set()
            completed = await record(log, "job_completed")
    assert {started.levelno, completed.levelno} == {logging.DEBUG}
    assert re.search(r"topic=mail job_id=\S+ attempt=1/20 seconds=\d+\.\d{3}$", completed.getMessage())


async def test_completions_are_not_looked_at_when_no_one_logs_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="headgate.worker")
    driver = Driver(make_protocol())
    driver.connect()
    driver.finish(*driver.deliver(*raw_ids(3)))
    (sent,) = driver.outcomes()
    driver.protocol.receive(_receipts(sent.seq), driver.now)
    assert driver.protocol.actions.settled == []


def _receipts(seq: int):  # type: ignore[no-untyped-def]
    from headgate.wire import worker_pb2

    return worker_pb2.ServerFrame(receipts=worker_pb2.Receipts(seq=seq))


async def test_a_failure_that_is_never_acknowledged_is_logged_when_the_worker_ends(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_sequence, "HURRIED_FLUSH_SECONDS", 0.05)
    async with fake_server() as server:
        server.answers_outcomes = False
        app = Headgate(server.address)
        app.register("mail", lambda job: explode("ada"))
        worker = app.worker(concurrency=1, grace=0)
        running = asyncio.create_task(worker.run())
        peer = await server.worker()
        peer.deliver("mail", b"")
        await until(lambda: peer.frames("outcomes"), "it is sent")
        running.cancel()
        await asyncio.wait((running,))
    (failed,) = records(log, "job_failed")
    assert "retry_at=unknown" in failed.getMessage()
    assert "explode" in str(failed.exc_text)


async def test_the_error_of_a_handler_whose_lease_was_lost_is_logged(log: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.protocol.ledger.lose(job)
    outcome = jobs_pb2.Outcome(failed=jobs_pb2.Failed(type="ValueError", message="no such user"))
    driver.protocol.ledger.finish(job, outcome, driver.now)
    assert driver.protocol.ledger.unreported == [(job, outcome)]
    driver.protocol.finish(deque(), driver.now)
    assert driver.protocol.actions.settled == [Settled(job, outcome, None)]
    assert driver.protocol.ledger.unreported == []


async def test_a_drain_names_the_jobs_and_the_time_left_and_repeats_it(log: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    first, second = driver.deliver(*raw_ids(2))
    driver.protocol.stop_sequence.begin(30.0, driver.now)
    driver.act()
    (draining,) = records(log, "draining")
    assert 'jobs=2 topics="plain: 2" longest_seconds=0 seconds_left=30' in draining.getMessage()
    driver.finish(first)
    driver.pass_time(stop_sequence.DRAINING_SECONDS)
    assert 'jobs=1 topics="plain: 1" longest_seconds=5 seconds_left=25' in records(log, "draining")[-1].getMessage()
    driver.finish(second)
    driver.pass_time(60)
    assert len(records(log, "draining")) == 2


async def test_a_second_request_to_stop_says_what_it_does(log: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    driver.deliver(*raw_ids(2))
    driver.protocol.stop_sequence.begin(30.0, driver.now)
    driver.act()
    for _ in range(2):
        driver.protocol.stop_sequence.hurry(driver.now)
        driver.act()
    (hurried,) = records(log, "stopping_at_once")
    assert hurried.levelno == logging.WARNING
    assert "jobs=2" in hurried.getMessage()
    assert "handlers are cancelled" in hurried.getMessage()
    assert len(driver.stopped) == 2


async def test_a_second_request_to_stop_leaves_a_moment_to_clean_up(log: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    cleans_up, runs_on = driver.deliver(*raw_ids(2))
    driver.protocol.stop_sequence.begin(30.0, driver.now)
    driver.act()
    driver.pass_time(1.0)
    driver.protocol.stop_sequence.hurry(driver.now)
    driver.act()
    assert records(log, "did_not_stop") == []
    driver.finish(cleans_up)
    driver.pass_time(stop_sequence.UNWIND_SECONDS)
    (left,) = records(log, "did_not_stop")
    assert "plain: 1" in left.getMessage()
    assert runs_on in driver.stopped
    assert records(log, "handlers_not_finished") == []  # `stopping_at_once` has said it


async def test_a_grace_that_is_over_is_logged_with_the_time_that_has_passed(log: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    driver.deliver(*raw_ids(1))
    driver.protocol.stop_sequence.begin(3.0, driver.now)
    driver.act()
    driver.pass_time(3.0)
    (line,) = records(log, "handlers_not_finished")
    assert "handlers=1 seconds=3 " in line.getMessage()


def test_a_lost_connection_is_logged_once_then_at_growing_intervals(log: pytest.LogCaptureFixture) -> None:
    lines = ConnectionLog()
    address = Address("127.0.0.1:7070")
    lines.connected(address, instance="a-1", version="1", now=0.0)
    for second in range(1, 102):
        lines.failed(address, NotConnected("connection refused"), now=float(second))
    lines.connected(address, instance="a-1", version="1", now=102.0)
    assert len(records(log, "stream_lost")) == 1
    summaries = [record.getMessage() for record in records(log, "still_not_connected")]
    assert [text.partition("seconds=")[2].partition(" ")[0] for text in summaries] == ["10", "40", "70", "100"]
    assert "after_seconds=101 attempts=101" in records(log, "connected")[-1].getMessage()


def test_a_worker_that_was_never_connected_does_not_say_that_its_stream_is_lost(log: pytest.LogCaptureFixture) -> None:
    lines = ConnectionLog()
    for second in range(3):
        lines.failed(Address("127.0.0.1:7070"), NotConnected("connection refused"), now=float(second))
    assert len(records(log, "not_connected")) == 1
    assert records(log, "stream_lost") == []


def test_output_that_blocks_delays_no_caller_and_drops_are_counted(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_calls, "WAITING_MAX", 3)
    blocked, made = threading.Event(), list[int]()
    calls = BackgroundCalls("headgate-test")
    begun = threading.Event()

    def block() -> None:
        begun.set()
        blocked.wait(60)

    calls.put(block)
    assert begun.wait(60)
    for number in range(5):
        calls.put(made.append, number)
    assert calls.close(0) > 0
    blocked.set()
    wait_until(lambda: records(log, "calls_dropped"), "the thread has caught up")
    assert made == [0, 1, 2]
    assert "count=2" in records(log, "calls_dropped")[0].getMessage()


def test_a_call_that_raises_ends_neither_the_thread_nor_the_calls_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    calls, made = BackgroundCalls("headgate-test"), list[int]()
    for broken in (lambda: explode("ada"), lambda: sys.exit(3), lambda: explode("bob")):
        calls.put(broken)
        calls.put(made.append, len(made))
    assert calls.close(60) == 0
    assert len(made) == 3
    errors = capsys.readouterr().err
    assert "headgate-test: a call has failed" in errors
    assert errors.count("no such user") == 1 + errors.count('f"no such user')  # the first error only


def test_fields_of_a_record_factory_of_the_application_stay(log: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    before = logging.getLogRecordFactory()

    def factory(*args: object, **more: object) -> logging.LogRecord:
        record = before(*args, **more)
        record.topic = "of the application"
        return record

    logging.setLogRecordFactory(factory)
    try:
        attempt_log.log.warning("job_failed topic=%s", "plain", job=job)
    finally:
        logging.setLogRecordFactory(before)
    (failed,) = records(log, "job_failed")
    assert (failed.topic, failed.attempt) == ("of the application", 1)  # type: ignore[attr-defined]


class Blocked(logging.Handler):
    """Output that blocks at its first line on an attempt; meanwhile it holds its lock, as any handler does."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.released = threading.Event(), threading.Event()
        self._test = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Not the lines of the test's own thread, which has to release it."""
        return record.thread != self._test

    def emit(self, record: logging.LogRecord) -> None:
        if "job_failed" in record.getMessage():
            self.begun.set()
            self.released.wait(120)


async def test_a_worker_stops_although_the_output_of_its_log_blocks(log: pytest.LogCaptureFixture) -> None:
    output = Blocked()
    ended: list[bool] = []
    async with fake_server() as server:
        app, gate = Headgate(server.address), Gate()
        app.register("mail", lambda job: explode("ada"))
        app.register("wait", gate)
        logging.getLogger("headgate.worker").addHandler(output)
        try:
            async with working(app, server) as (worker, peer):

                def release() -> None:
                    ended.append(worker.ended.wait(30))
                    output.released.set()

                releasing = threading.Thread(target=release, daemon=True)
                peer.deliver("wait", b"")
                await until(lambda: gate.begun, "a handler runs, so the stop logs what it waits for")
                peer.deliver("mail", b"")
                await until(output.begun.is_set, "the output blocks")
                releasing.start()
            releasing.join(60)
        finally:
            output.released.set()
            logging.getLogger("headgate.worker").removeHandler(output)
    assert ended == [True]
    await until(lambda: records(log, "stopping_at_once"), "the line is written, once it can be")
