"""What is taken of the records of handlers: masked, then cut, and without an effect on the code that logs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Headgate, Job
from headgate.sdk.job_context import current_job
from headgate.sdk.job_log_capture import MASKED_CHARS, add_line, capture_job_logs, structlog_lines
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.process_child import LOG_TEXT_MAX_BYTES, _Forwarder
from headgate.sdk.worker.process_pipe import Log
from tests.unit.test_job_logs import log, ran

Said = list[tuple[int, str, str]]


class Reports:
    """Keeps level, logger and text of lines."""

    log_level = 20

    def __init__(self) -> None:
        self.said: Said = []

    def logged(self, job: Job, level: int, logger: str, at_us: int, text: str) -> None:
        assert abs(at_us / 1e6 - time.time()) < 60
        self.said.append((level, logger, text))


def job_of(reports: Reports) -> HeldJob:
    return HeldJob(b"x" * 16, 1, "mail", b"", 1, 20, 0, 0, 0, "acme", reports)  # type: ignore[arg-type]


@pytest.fixture
def said() -> Iterator[Said]:
    """The lines of a job that runs here."""
    reports, before = Reports(), logging.getLogRecordFactory()
    capture_job_logs()
    token = current_job.set(job_of(reports))
    yield reports.said
    current_job.reset(token)
    logging.setLogRecordFactory(before)


# ---------------------------------------------------------------------- secrets


@pytest.mark.parametrize("length", [4_000, 20_000])
def test_a_secret_that_is_longer_than_what_is_kept_of_a_traceback_is_masked(length: int, said: Said) -> None:
    value = "hunter2" * (length // 7)  # not in the line that raises: the traceback has that line
    try:
        raise ValueError(f"login failed\n{'frame ' * 2_000}\npassword={value} user=ana")
    except ValueError:
        log.exception("it broke")
    ((_, _, text),) = said
    assert "hunter2" not in text
    assert text.endswith("password=••• user=ana")
    assert "characters left out]" in text


def test_of_a_text_that_is_too_long_to_be_masked_the_ends_are_and_the_rest_is_counted(said: Said) -> None:
    log.error("pin\n%s\n%s", "x" * 1_000_000, f"token='{'s e c ' * 900}'")
    ((_, _, text),) = said
    assert "s e c" not in text
    assert text.endswith("token=•••")
    (mark,) = [line for line in text.splitlines() if line.startswith("… [")]
    assert 1_000_000 > int(mark.split()[1].strip("[")) > 1_000_000 - MASKED_CHARS


def test_a_structlog_processor_passes_events_on(said: Said) -> None:
    event = {"event": "sent", "to": "ana", "token": "abc", "job_id": "1", "level": "info", "size": 3}
    assert structlog_lines(None, "info", event) is event
    structlog_lines(None, "debug", {"event": "quiet"})
    structlog_lines(None, "exception", {"event": "broken", "logger": "app", "exception": "Traceback …\nE: x"})
    structlog_lines(None, "warn", {"event": "careful"})
    structlog_lines(None, "msg", {"event": "said"})
    current_job.set(None)  # type: ignore[arg-type]
    structlog_lines(None, "error", {"event": "outside"})
    assert said == [
        (20, "structlog", "sent to=ana token=••• size=3"),
        (40, "app", "broken\nTraceback …\nE: x"),
        (30, "structlog", "careful"),
        (20, "structlog", "said"),
    ]


def test_fields_of_structlog_are_masked_by_their_names_and_quoted(said: Said) -> None:
    fields = {
        "password": "my long secret",
        "user": {"name": "Ana", "pass_phrase": b"a b c"},
        "note": 'token="a b" sent',
    }
    structlog_lines(None, "info", {"event": "login failed", **fields})
    assert [text for _, _, text in said] == [
        "login failed password=••• user=\"{'name': 'Ana', 'pass_phrase': '•••'}\" note=\"token=••• sent\""
    ]


# ---------------------------------------------------------------------- nothing raises


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("not as text")


def test_a_record_that_a_handler_makes_itself_is_made(said: Said) -> None:
    record = logging.makeLogRecord({"msg": "made by hand", "levelno": 40, "levelname": "ERROR"})
    assert record.getMessage() == "made by hand"
    assert said == []


def test_a_value_that_cannot_be_written_does_not_fail_the_code_that_logs(said: Said) -> None:
    event = {"event": "sent", "to": Unwritable()}
    assert structlog_lines(None, "error", event) is event
    assert said == []


def test_a_line_that_cannot_be_passed_on_does_not_fail_the_code_that_logs(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(Reports, "logged", closed)
    log.error("late")
    add_line(job_of(Reports()), 40, "app", float("nan"), "of a process, at no time")


async def test_a_process_that_a_handler_has_forked_adds_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a copy of the lock, perhaps a locked one, and of the loop."""
    app, worker = Headgate("127.0.0.1:1"), os.getpid()

    @app.job("mail")
    def mail() -> None:
        log.warning("before")
        monkeypatch.setattr(os, "getpid", lambda: worker + 1)
        log.warning("in the child")
        monkeypatch.undo()
        log.warning("after")

    assert [text for _, text in await ran(app)] == ["before", "after"]


# ---------------------------------------------------------------------- processes


def test_a_record_of_a_process_keeps_the_end_of_its_traceback(said: Said) -> None:
    sent: list[Log] = []

    class Child:
        def send(self, message: Log) -> None:
            sent.append(message)

    forwarder: Any = _Forwarder(Child())  # type: ignore[arg-type]
    log.addHandler(forwarder)
    try:
        raise ValueError("x" * 50_000 + " the end")
    except ValueError:
        log.exception("it broke")
    finally:
        log.removeHandler(forwarder)
    text = str(sent[0].fields["msg"])
    assert len(text.encode()) <= LOG_TEXT_MAX_BYTES
    assert text.startswith("it broke\nTraceback")
    assert text.endswith(" the end")
    reports = Reports()
    add_line(job_of(reports), 40, "app", time.time(), text)  # as the worker's process does
    here, there = said[0][2], reports.said[0][2]
    assert here.splitlines()[0] == there.splitlines()[0] == "it broke"
    assert here[-1_000:] == there[-1_000:]
