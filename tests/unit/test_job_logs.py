"""Log lines of jobs on the side of the worker: which are taken, when they are sent, and what is dropped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Encryption, Headgate, InvalidInput, Job
from headgate.domain.job_logs import (
    LineBuffer,
    LogLevel,
    LogLine,
    StoredLine,
    cut_line,
    log_line,
    parse_cursor,
    with_gaps,
)
from headgate.domain.timestamps import from_unix_us
from headgate.sdk.worker import job_logs
from headgate.sdk.worker.held_job import HeldJob
from headgate.wire import worker_pb2
from tests.support.fake_server import WorkerPeer, fake_server, until
from tests.support.worker_protocol import Driver, held, make_protocol, raw_ids
from tests.unit.sdk_working import working, working_worker
from tests.unit.test_sdk_job_context import worker_of

log = logging.getLogger("app.mail")


# ---------------------------------------------------------------------- bounds


def line(seq: int, text: str = "said") -> LogLine:
    return LogLine(seq, 1, 2, "app", text)


def test_of_many_lines_the_first_and_the_newest_are_kept() -> None:
    buffer = LineBuffer()
    buffer.extend(line(seq) for seq in range(1, 10_001))
    assert [one.seq for one in buffer.lines()] == [*range(1, 51), *range(9_851, 10_001)]
    assert (len(buffer), buffer.size) == (200, 200 * len("said"))


def test_of_large_lines_no_more_than_64_kib_are_kept() -> None:
    buffer = LineBuffer()
    buffer.extend(line(seq, "ü" * 1_500) for seq in range(1, 1_001))
    assert buffer.size <= 65_536
    assert [one.seq for one in buffer.lines()] == [*range(1, 6), *range(985, 1_001)]


@pytest.mark.parametrize("text", ["x" * 1_000_000, "ü" * 9_000, "\U0001f600" * 1_100, "\ud800" * 5_000])
def test_a_long_line_is_cut_with_a_mark_and_fits(text: str) -> None:
    cut = cut_line(text)
    assert len(cut.encode()) <= 4_096
    assert cut.endswith("more characters]")


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600"])
def test_of_a_long_text_with_line_breaks_the_end_is_kept_and_what_is_missing_is_counted_once(letter: str) -> None:
    text = f"broken\n{letter * 50_000}\nValueError: the end"
    cut = cut_line(text)
    assert len(cut.encode()) <= 4_096
    assert cut.startswith("broken\n")
    assert cut.endswith("\nValueError: the end")
    (mark,) = [line for line in cut.splitlines() if line.startswith("… [")]
    kept = len(cut) - len(f"\n{mark}\n")
    assert mark == f"… [{len(text) - kept} characters left out]"
    assert cut_line(cut) == cut  # by the server, again


def test_the_count_of_a_long_line_is_of_all_that_is_missing() -> None:
    kept, _, mark = cut_line("x" * 1_000_000).partition("…")
    assert mark == f" [{1_000_000 - len(kept)} more characters]"


def test_a_line_of_four_kib_is_kept_as_it_is() -> None:
    assert cut_line("x" * 4_096) == "x" * 4_096


@pytest.mark.parametrize(
    "text",
    ["\x1b[1;31mred\x1b[0m", "\x1b]0;title\x07red", "\x1b]8;;http://x\x1b\\red\x1b]8;;\x1b\\", "\x1b[2Jred\x1bM"],
)
def test_sequences_for_terminals_are_removed(text: str) -> None:
    assert log_line(1, 5, 2, "", text, now_us=0).text == "red"


@pytest.mark.parametrize(("seq", "level"), [(0, 2), (2**31, 2), (1, 0), (1, 6)])
def test_a_line_without_a_number_or_a_level_is_refused(seq: int, level: int) -> None:
    with pytest.raises(InvalidInput):
        log_line(seq, 5, level, "", "", now_us=0)


def test_a_gap_in_the_numbers_is_the_count_of_what_was_left_out() -> None:
    def stored(epoch: int, seq: int) -> StoredLine:
        return StoredLine(attempt=1, epoch=epoch, seq=seq, at=from_unix_us(1), level=LogLevel.INFO, logger="", text="")

    found = with_gaps([stored(1, 2), stored(1, 3), stored(2, 1), stored(2, 9)], after=(1, 1))
    assert [one.left_out for one in found] == [0, 0, 0, 7]


@pytest.mark.parametrize("text", ["x", "1", "1.", ".1", "1.x", "-1.1", "1.1.1", "9" * 60 + ".1", "٣.1", f"{2**60}.1"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="after"):
        parse_cursor(text)


@pytest.mark.parametrize(("number", "level"), [(0, 1), (9, 1), (10, 1), (25, 2), (30, 3), (50, 5), (99, 5)])
def test_levels_between_two_count_as_the_lower_one(number: int, level: int) -> None:
    assert LogLevel.of_logging(number) == level


# ---------------------------------------------------------------------- frames


def started(driver: Driver, count: int = 1) -> list[HeldJob]:
    driver.connect()
    driver.send()
    return driver.deliver(*raw_ids(count))


def say(driver: Driver, job: HeldJob, *texts: str) -> None:
    for text in texts:
        driver.protocol.logs.add(job, 30, "app", 7, text)
    driver.protocol.logs.wait_for_more(driver.now)


def texts(frames: list[worker_pb2.WorkerFrame]) -> list[list[str]]:
    """By job of each frame."""
    return [[one.text for one in job.lines] for frame in frames for job in frame.logs]


def test_a_job_that_logs_nothing_has_no_part_in_any_frame() -> None:
    driver = Driver(make_protocol())
    (job,) = started(driver)
    driver.pass_time(5)
    driver.finish(job)
    driver.send()
    assert [frame for frame in driver.sent if frame.logs] == []
    assert "logs" not in driver.protocol.timers


def test_lines_of_many_jobs_are_sent_together_after_a_second() -> None:
    driver = Driver(make_protocol())
    first, second = started(driver, 2)
    say(driver, first, "one", "two")
    driver.pass_time(0.9)
    say(driver, second, "three")
    assert not driver.protocol.may_send(driver.now)
    assert driver.send() == []
    driver.pass_time(0.2)
    assert driver.protocol.may_send(driver.now)
    (frame,) = driver.send()
    assert not frame.HasField("beat")
    assert texts([frame]) == [["one", "two"], ["three"]]
    assert [(one.id, one.epoch, one.attempt) for one in frame.logs] == [(first.raw_id, 1, 1), (second.raw_id, 1, 1)]
    assert not driver.protocol.may_send(driver.now)


def test_numbers_continue_over_frames_and_begin_anew_in_the_next_attempt() -> None:
    driver = Driver(make_protocol())
    (job,) = started(driver)
    for text in ("one", "two"):
        say(driver, job, text)
        driver.pass_time(1)
        driver.send()
    driver.finish(job)
    (outcomes,) = driver.outcomes()
    driver.acknowledge(outcomes.seq)
    (again,) = driver.deliver(job.raw_id, epoch=2)
    say(driver, again, "three")
    driver.pass_time(1)
    driver.send()
    lines = [(one.epoch, line.seq) for frame in driver.sent for one in frame.logs for line in one.lines]
    assert lines == [(1, 1), (1, 2), (2, 1)]


def test_the_last_lines_are_in_the_frame_of_the_outcome() -> None:
    driver = Driver(make_protocol())
    job, other = started(driver, 2)
    say(driver, job, "last")
    say(driver, other, "still running")
    driver.finish(job)
    (frame,) = [frame for frame in driver.send() if frame.HasField("outcomes")]
    assert texts([frame]) == [["last"]]  # the other one waits for its second
    driver.pass_time(1)
    assert texts(driver.send()) == [["still running"]]


def test_lines_of_a_job_that_was_lost_are_not_sent() -> None:
    driver = Driver(make_protocol())
    job, other = started(driver, 2)
    say(driver, job, "stale")
    say(driver, other, "mine")
    driver.receive(lost=held(job))
    say(driver, job, "staler")
    driver.pass_time(1)
    assert texts(driver.send()) == [["mine"]]
    assert not driver.protocol.logs.attempts.keys() - {other}


def test_lines_of_a_job_that_was_lost_leave_their_room_to_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "MOST_BYTES", 2_000)
    driver = Driver(make_protocol())
    job, other = started(driver, 2)
    say(driver, job, "x" * 2_000)
    driver.receive(lost=held(job))
    driver.pass_time(1)
    driver.send()
    say(driver, other, "mine")
    driver.pass_time(1)
    assert texts(driver.send()) == [["mine"]]


def test_a_job_that_is_delivered_again_does_not_get_the_lines_of_its_first_run() -> None:
    driver = Driver(make_protocol())
    (job,) = started(driver)
    say(driver, job, "stale")
    (again,) = driver.deliver(job.raw_id, epoch=2)
    say(driver, again, "mine")
    driver.pass_time(1)
    (frame,) = driver.send()
    assert [(one.epoch, [line.text for line in one.lines]) for one in frame.logs] == [(2, ["mine"])]


def test_while_no_server_is_connected_lines_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "MOST_BYTES", 2_000)
    driver = Driver(make_protocol())
    first, second = started(driver, 2)
    driver.disconnect()
    say(driver, first, *["x" * 100] * 50)
    say(driver, second, "y")
    driver.pass_time(5)
    driver.connect()
    driver.send()
    (sent,) = [frame.logs for frame in driver.sent if frame.logs]
    assert [len(one.lines) for one in sent] == [20]  # the others were dropped …
    say(driver, first, "z")
    say(driver, second, "z")
    driver.pass_time(1)
    (frame,) = driver.send()
    assert [(one.lines[0].seq, one.lines[0].text) for one in frame.logs] == [(51, "z"), (2, "z")]  # … and counted


def test_more_than_a_frame_carries_follows_in_the_next_ones() -> None:
    driver = Driver(make_protocol(slots=40))
    jobs = started(driver, 40)
    for job in jobs:
        say(driver, job, *["x" * 4_000] * 16)
    driver.pass_time(1)
    frames = [frame for frame in driver.send() if frame.logs]
    assert len(frames) == 3
    assert max(frame.ByteSize() for frame in frames) < 1_100_000
    assert sum(len(frame.logs) for frame in frames) == 40


def test_a_frame_carries_no_more_lines_than_the_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "FRAME_LINES", 100)
    driver = Driver(make_protocol())
    for job in started(driver, 4):
        say(driver, job, *["x"] * 60)
    driver.pass_time(1)
    assert [[len(one) for one in texts([frame])] for frame in driver.send()] == [[60, 60], [60, 60]]


def test_last_lines_of_more_jobs_than_a_frame_carries_follow_at_once() -> None:
    driver = Driver(make_protocol(slots=40))
    jobs = started(driver, 40)
    for job in jobs:
        say(driver, job, *["x" * 4_000] * 16)
    driver.finish(*jobs)
    frames = driver.send()
    assert sum(len(frame.logs) for frame in frames) == 40


def test_lines_of_ended_jobs_are_before_those_of_running_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame has their outcomes; after these the server ignores lines."""
    monkeypatch.setattr(job_logs, "FRAME_JOBS", 2)
    driver = Driver(make_protocol())
    first, second, third = started(driver, 3)
    for job in (first, second, third):
        say(driver, job, f"of {job.raw_id!r}")
    driver.pass_time(1)
    driver.finish(third, second)
    (frame, rest) = [frame for frame in driver.send() if frame.logs]
    assert {one.id for one in frame.logs} == {*frame.outcomes.ids} == {second.raw_id, third.raw_id}
    assert [one.id for one in rest.logs] == [first.raw_id]


def test_a_line_that_is_logged_while_another_one_is_added_is_taken_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a `__del__` that the garbage collector calls when memory is allocated, or by a signal handler."""
    driver = Driver(make_protocol())
    (job,) = started(driver)

    def collecting(*fields: Any) -> LogLine:
        if fields[-1] == "outer":
            driver.protocol.logs.add(job, 30, "app", 7, "inner")
        return LogLine(*fields)

    monkeypatch.setattr(job_logs, "LogLine", collecting)
    thread = threading.Thread(target=say, args=(driver, job, "outer", "last"), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it waits for itself"
    driver.pass_time(1)
    (frame,) = driver.send()
    assert [(one.seq, one.text) for one in frame.logs[0].lines] == [(1, "outer"), (2, "inner"), (3, "last")]
    assert driver.protocol.logs._size == 0


def test_a_line_that_is_logged_while_a_frame_is_written_goes_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(make_protocol())
    job, other = started(driver, 2)
    message = job_logs._message

    def collecting(*parts: Any) -> worker_pb2.JobLines:
        for one in (job, other):  # one that has logged, and one that has not
            driver.protocol.logs.add(one, 30, "app", 7, "inner")
        monkeypatch.setattr(job_logs, "_message", message)
        return message(*parts)

    monkeypatch.setattr(job_logs, "_message", collecting)
    say(driver, job, "outer")
    driver.pass_time(1)
    thread = threading.Thread(target=driver.send, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it waits for itself"
    driver.finish(job, other)
    driver.send()
    assert texts(driver.sent) == [["outer"], ["inner"], ["inner"]]


def test_while_the_lock_is_held_no_more_than_a_few_lines_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "QUEUED_LINES", 3)
    driver = Driver(make_protocol())
    (job,) = started(driver)
    with driver.protocol.logs._lock:
        say(driver, job, *"abcde")
    driver.pass_time(1)
    assert texts(driver.send()) == [["a", "b", "c"]]


def test_lines_after_the_end_of_a_job_leave_nothing_behind() -> None:
    """A task that a handler has left behind logs on."""
    driver = Driver(make_protocol())
    (job,) = started(driver)
    driver.finish(job)
    (outcomes,) = driver.outcomes()
    driver.acknowledge(outcomes.seq)
    say(driver, job, "late")
    driver.pass_time(1)
    assert driver.send() == []
    assert not driver.protocol.logs.attempts


# ---------------------------------------------------------------------- what is taken


def logged(peer: WorkerPeer) -> dict[bytes, list[tuple[str, str]]]:
    """By job: logger and text of the lines that a server got."""
    found: dict[bytes, list[tuple[str, str]]] = {}
    for frame in list(peer.received):
        for job in frame.logs:
            found.setdefault(job.id, []).extend((line.logger, line.text) for line in job.lines)
    return found


@pytest.fixture
def info() -> Iterator[None]:
    before = log.level
    log.setLevel(logging.INFO)
    yield
    log.setLevel(before)


@pytest.mark.parametrize(
    ("topic", "lines"),
    [
        ("on-loop", {"on the loop", "in a thread of it", "in a task of it"}),
        ("in-thread", {"in a thread"}),
        ("in-process", {"in a process"}),
    ],
)
@pytest.mark.usefixtures("info")
async def test_lines_of_handlers_of_every_kind_come_with_their_outcome(
    topic: str, lines: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)  # of a process, the level of this one counts
    async with fake_server() as server:
        worker = worker_of(server, topic)
        worker._log_level = logging.INFO
        async with working_worker(worker, server) as peer:
            log.info("outside of jobs")
            (raw,) = peer.deliver(topic, b"{}")
            await until(lambda: raw in peer.completed(), "it ran")
            found = logged(peer)
    assert found.keys() == {raw}
    assert {text for _, text in found[raw]} >= lines
    assert {name for name, _ in found[raw]} == {"app.mail"}


async def ran(app: Headgate, topic: str = "mail", **options: Any) -> list[tuple[str, str]]:
    """What a server gets of the log of one job."""
    async with fake_server() as server:
        app._connection.addresses = Headgate(server.address)._connection.addresses
        async with working(app, server, **options) as (_, peer):
            (raw,) = peer.deliver(topic, b"{}")
            await until(lambda: raw in peer.completed() or peer.others(), "it ran")
            return logged(peer).get(raw, [])


def app_that(*said: tuple[int, str, tuple[object, ...]]) -> Headgate:
    app = Headgate("127.0.0.1:1")

    @app.job("mail")
    async def mail(job: Job) -> None:
        for level, text, arguments in said:
            log.log(level, text, *arguments)

    return app


async def test_by_default_warnings_are_taken_and_the_rest_is_not() -> None:
    log.setLevel(logging.DEBUG)
    app = app_that((20, "info", ()), (30, "take %s", ("care",)), (40, "broken", ()))
    assert await ran(app) == [("app.mail", "take care"), ("app.mail", "broken")]
    log.setLevel(logging.NOTSET)


async def test_a_record_factory_of_the_application_stays_and_nothing_is_taken_twice() -> None:
    ours, made = logging.getLogRecordFactory(), list[str]()

    def theirs(*args: Any, **more: Any) -> logging.LogRecord:
        record = ours(*args, **more)
        made.append(record.getMessage())
        return record

    assert await ran(app_that((30, "before", ()))) == [("app.mail", "before")]
    ours = logging.getLogRecordFactory()
    logging.setLogRecordFactory(theirs)
    try:
        assert await ran(app_that((30, "after", ()))) == [("app.mail", "after")]
    finally:
        logging.setLogRecordFactory(ours)
    assert "after" in made


async def test_off_takes_nothing() -> None:
    assert await ran(app_that((50, "on fire", ())), job_logs="off") == []


def test_a_level_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidInput, match="job_logs: must be one of DEBUG, INFO"):
        app_that().worker(job_logs="LOUD")


async def test_values_of_secret_names_are_masked_before_they_leave_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADGATE_REDACT", "pin")
    app = app_that((30, "login password=%s pin=1234 user=ana", ("hunter2",)), (30, "to https://a:b@host/x", ()))
    assert [text for _, text in await ran(app)] == ["login password=••• pin=••• user=ana", "to https://a:•••@host/x"]


async def test_a_traceback_is_part_of_the_line_with_its_end() -> None:
    app = Headgate("127.0.0.1:1")

    @app.job("mail")
    def mail() -> None:
        try:
            raise ValueError("x" * 9_000 + " the end")
        except ValueError:
            log.exception("it broke")

    ((_, text),) = await ran(app)
    assert text.startswith("it broke\n")
    assert text.endswith(" the end")
    assert len(text.encode()) <= 4_096


async def test_a_record_whose_arguments_do_not_fit_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    app = app_that((30, "%d of %d", ("one",)), (30, "then", ()))
    assert [text for _, text in await ran(app)] == ["then"]


async def test_a_handler_that_logs_all_the_time_is_neither_slowed_nor_followed_by_an_endless_log() -> None:
    app = app_that(*((30, "line %d", (n,)) for n in range(3_000)))
    found = await ran(app)
    assert len(found) == 200
    assert found[0][1] == "line 0"
    assert found[-1][1] == "line 2999"


@pytest.mark.parametrize("errors", [True, False])
async def test_jobs_of_an_application_that_encrypts_errors_send_no_lines(errors: bool) -> None:
    app = app_that((30, "the plain text", ()))
    app.tasks["mail"].encryption = Encryption({"k": b"k" * 32}, write="k", errors=errors)
    assert [text for _, text in await ran(app)] == ([] if errors else ["the plain text"])
