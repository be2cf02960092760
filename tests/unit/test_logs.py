"""Log lines: what comes from outside forges no field and no line, whichever call logs it."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.cli.client_warnings import sentence
from headgate.domain.log_fields import REQUEST_ID, VALUE_MAX_CHARS, quoted
from headgate.domain.log_redaction import MaskSecrets
from headgate.domain.redaction import Redaction
from headgate.ops import logs
from headgate.ops.logs import FORMAT, JsonFormatter, LineFormatter
from headgate.sdk.log_quoting import LOGGERS

SOURCE = Path(__file__).parents[2] / "src/headgate"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
HOSTILE = 'w" tenant=other level=CRITICAL\r\n2026-01-01 00:00:00 ERROR headgate forged=1\u2028forged=2 \x1b[2K\u202e'
_MAY_LOG = re.compile(r"\b(?:log|logger|logging)\s*\.")
_CONVERSION = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?([a-zA-Z%])")
_KEY = re.compile(r"(?<![^\s(])([a-z_]+)=")
_EVENT = re.compile(r'[a-z][a-z_]*(?: [a-z][a-z_]*=(?:%[-+ #0]*\d*(?:\.\d+)?[sdfg][a-z]*|"[^"%]*"|[\w.-]+))*')
_FIELD = re.compile(r'([a-z][a-z_]*)=("(?:[^"\\]|\\.)*"|\S+)')


class Call(NamedTuple):
    where: str
    message: ast.expr
    arguments: list[ast.expr]


def calls(path: Path) -> list[Call]:
    """Every call in a file that logs."""
    found: list[Call] = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log" | "logger" | "logging"), attr=level),
                args=[message, *rest],
            ) if level in LEVELS:
                found.append(Call(f"{path.relative_to(SOURCE)}:{node.lineno}", message, rest))
    return found


# Collected in every process of a test run, so nothing is parsed for it.
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if _MAY_LOG.search(path.read_text())]
of_every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


def line(message: str, *given: object, name: str = "headgate.test") -> str:
    record = logging.LogRecord(name, logging.INFO, "", 0, message, given, None)
    return LineFormatter("%(message)s").format(record)


def keys(text: str) -> list[str]:
    """The keys of the fields of a line: what stands outside of quotes, and before a "="."""
    return _KEY.findall(re.sub(r'"(?:[^"\\]|\\.)*"', '""', text))


def test_there_are_calls_to_look_at() -> None:
    assert sum(len(calls(path)) for path in FILES) > 60


@of_every_file
def test_no_log_call_lets_foreign_text_forge_a_field_or_a_line(path: Path) -> None:
    """The text is a literal, and whatever is put into it is quoted."""
    for call in calls(path):
        assert isinstance(call.message, ast.Constant), f"{call.where}: give the parts of the text as arguments"
        message = str(call.message.value)
        for argument in call.arguments:  # one that has fields of its own would be quoted as a whole
            if isinstance(argument, ast.JoinedStr):
                parts = [part.value for part in argument.values if isinstance(part, ast.Constant)]
                assert not any("=" in str(part) for part in parts), call.where
        kinds = [kind for kind in _CONVERSION.findall(message) if kind != "%"]
        assert "r" not in kinds, f"{call.where}: %r puts quotes of its own around quotes"
        assert '"%s"' not in message, f"{call.where}: quotes are put where they are needed"
        written = line(message, *(HOSTILE if kind == "s" else 7 for kind in kinds))
        assert written.splitlines() == [written], call.where
        assert "\x1b" not in written, call.where
        assert "\u202e" not in written, call.where
        assert keys(written) == keys(_CONVERSION.sub("0", message)), call.where


@of_every_file
def test_every_call_is_an_event_name_and_key_value_pairs(path: Path) -> None:
    """`event key=value key="quoted value"`: a line parses without knowledge of the event."""
    for call in calls(path):
        assert isinstance(call.message, ast.Constant), call.where
        assert _EVENT.fullmatch(str(call.message.value)), call.where


def test_a_written_line_parses() -> None:
    text = line('tokens_unreadable effect="the previous tokens stay valid" error=%s seconds=%.1f', 'a "b" c=d', 0.5)
    event, _, fields = text.partition(" ")
    found = {key: json.loads(value) if value[0] == '"' else value for key, value in _FIELD.findall(fields)}
    assert event == "tokens_unreadable"
    assert found == {"effect": "the previous tokens stay valid", "error": 'a "b" c=d', "seconds": "0.5"}


def test_plain_values_are_written_as_they_are() -> None:
    assert line("session_opened worker=%s held=%d lag=%.1f", "w-eu/1:a@b", 3, 0.25) == (
        "session_opened worker=w-eu/1:a@b held=3 lag=0.2"
    )
    assert line("x a=%s b=%s c=%s", "", None, True) == 'x a="" b=None c=True'
    assert line("x error=%s", ValueError('no "such" \\ thing')) == r'x error="no \"such\" \\ thing"'
    assert line("ready") == "ready"


def test_a_long_value_is_cut() -> None:
    assert len(str(quoted("x" * 1_000_000))) < VALUE_MAX_CHARS + 50


def test_the_lines_of_a_traceback_and_of_other_loggers_are_indented() -> None:
    """An exception's text may be a stranger's, and so may what a library logs: no line of them looks like a record."""
    try:
        raise ValueError("bad\n2026-01-01 00:00:00 ERROR headgate forged=1")
    except ValueError:
        record = logging.LogRecord("headgate.x", logging.ERROR, "", 0, "settle_failed", (), sys.exc_info())
    first, *rest = LineFormatter(FORMAT).format(record).split("\n")
    assert first.endswith("ERROR headgate.x settle_failed")
    assert any("forged=1" in one for one in rest)
    assert all(one.startswith("  ") for one in rest)
    assert line("a\nb %s", "c=d", name="asyncio") == "a\n  b c=d"


def test_what_a_handler_logs_is_left_as_it_is() -> None:
    assert line("%s for %s", "following you", "0.1 s", name="headgate.job.follow") == "following you for 0.1 s"


def test_other_handlers_see_the_record_as_it_was() -> None:
    record = logging.LogRecord("headgate.x", logging.INFO, "", 0, "a=%s", ("b c",), None)
    LineFormatter(FORMAT).format(record)
    assert record.args == ("b c",)


def test_the_fields_of_a_job_follow_what_its_handler_logs() -> None:
    record = logging.LogRecord("app.mail", logging.INFO, "", 0, "sent %s\nto all", ("it",), None)
    vars(record).update(job_id="0199", topic="mail", attempt=2)
    text = LineFormatter("%(message)s").format(record)
    assert text == "sent it job_id=0199 topic=mail attempt=2\n  to all"
    ours = logging.LogRecord("headgate.worker", logging.INFO, "", 0, "job_failed job_id=%s", ("0199",), None)
    vars(ours).update(job_id="0199", topic="mail", attempt=2)
    assert LineFormatter("%(message)s").format(ours) == "job_failed job_id=0199"  # it has them already


def test_lines_of_a_request_have_its_id() -> None:
    record = logging.LogRecord("headgate.admin", logging.WARNING, "", 0, "paused target=%s", ("topic mail",), None)
    token = REQUEST_ID.set("abc-1")
    try:
        assert LineFormatter("%(message)s").format(record) == 'paused target="topic mail" request_id=abc-1'
        assert json.loads(JsonFormatter().format(record))["request_id"] == "abc-1"
    finally:
        REQUEST_ID.reset(token)
    assert LineFormatter("%(message)s").format(record) == 'paused target="topic mail"'


def test_levels_have_colours_on_a_terminal_only() -> None:
    record = logging.LogRecord("headgate.x", logging.WARNING, "", 0, "slow", (), None)
    assert LineFormatter("%(levelname)s %(message)s", colour=True).format(record) == "\x1b[33mWARNING\x1b[0m slow"
    assert LineFormatter("%(levelname)s %(message)s").format(record) == "WARNING slow"


def as_json(message: str, *given: object, name: str = "headgate.test", **extra: object) -> dict[str, object]:
    record = logging.LogRecord(name, logging.INFO, "", 0, message, given, None)
    vars(record).update(extra)
    written = JsonFormatter().format(record)
    assert written.splitlines() == [written]
    found: dict[str, object] = json.loads(written)
    return found


@of_every_file
def test_json_has_the_event_and_each_field_of_every_call(path: Path) -> None:
    for call in calls(path):
        assert isinstance(call.message, ast.Constant), call.where
        message = str(call.message.value)
        kinds = [kind for kind in _CONVERSION.findall(message) if kind != "%"]
        found = as_json(message, *(HOSTILE if kind == "s" else 7 for kind in kinds))
        assert found["event"] == message.split(" ")[0], call.where
        assert list(found) == ["time", "level", "logger", "event", *keys(message)], call.where


def test_json_keeps_types_and_adds_extra_fields_and_the_traceback() -> None:
    found = as_json(
        'job_failed attempt=%s seconds=%.3f effect="it is retried"', "3/20", 0.12345, attempt=3, max_attempts=20
    )
    assert found["attempt"] == 3  # of the record: a number, not a text
    assert (found["max_attempts"], found["seconds"], found["effect"]) == (20, 0.12345, "it is retried")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(found["time"]))
    mine = as_json("sent %s", "a=b\n", name="app.mail", job_id="0199", topic="mail", attempt=1)
    assert (mine["message"], mine["job_id"], mine["topic"], mine["attempt"]) == ("sent a=b\n", "0199", "mail", 1)
    assert "event" not in mine
    assert "job_id" not in as_json("sent", name="app.mail", job_id="", topic="", attempt=0)
    assert as_json("odd", name="app.mail", level="high", value=float("nan"), thing={1})["level_"] == "high"


def test_json_has_the_time_in_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with monkeypatch.context() as abroad:
            abroad.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            assert as_json("sent", name="app.mail", created=1_767_225_599.25)["time"] == "2025-12-31T23:59:59.250Z"
    finally:
        time.tzset()


def test_json_has_the_traceback_in_the_same_line() -> None:
    try:
        raise ValueError("bad\nline")
    except ValueError:
        record = logging.LogRecord("headgate.x", logging.ERROR, "", 0, "settle_failed", (), sys.exc_info())
    found = json.loads(JsonFormatter(process=2).format(record))
    assert found["traceback"].endswith("ValueError: bad\nline")
    assert (found["process"], found["level"]) == (2, "ERROR")
    record.stack_info = "Stack (most recent call last):\n  File …"
    assert json.loads(JsonFormatter().format(record))["stack"] == record.stack_info
    made = logging.LogRecord("headgate.worker", logging.ERROR, "", 0, "job_dead", (), None)
    made.exc_text = "Traceback of a handler"
    assert json.loads(JsonFormatter().format(made))["traceback"] == "Traceback of a handler"
    assert LineFormatter("%(message)s").format(made) == "job_dead\n  Traceback of a handler"


@pytest.mark.parametrize(("style", "kind"), [("text", LineFormatter), ("json", JsonFormatter)])
def test_the_format_is_chosen_once_for_all_loggers(
    style: logs.LogFormat, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[logging.Handler] = []
    monkeypatch.setattr(logging, "basicConfig", lambda *, handlers, level: made.extend(handlers))
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    monkeypatch.setattr(logging.getLogger("grpc"), "level", logging.NOTSET)
    logs.configure("DEBUG", format=style, filters=[logging.Filter("headgate")])
    assert isinstance(made[0].formatter, kind)
    assert [type(one) for one in made[0].filters] == [logging.Filter, MaskSecrets]
    assert logging.getLogger("grpc").level == logging.INFO  # its own DEBUG lines are about its event loops


def test_names_that_an_operator_adds_are_masked_in_the_lines_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[logging.StreamHandler[io.StringIO]] = []
    monkeypatch.setattr(logging, "basicConfig", lambda *, handlers, level: made.extend(handlers))
    monkeypatch.setattr(logging.getLogger("grpc"), "level", logging.NOTSET)
    logs.configure("INFO", redaction=Redaction.of(["pin"]))
    made[0].setStream(written := io.StringIO())
    made[0].handle(logging.LogRecord("headgate.x", logging.INFO, "", 0, "failed error=%s", ("pin=12 token=a",), None))
    assert written.getvalue().endswith('failed error="pin=••• token=•••"\n')


def test_only_one_place_says_how_lines_are_written() -> None:
    configured = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"logging\.(basicConfig|StreamHandler|Formatter)\b", path.read_text())
    ]
    assert configured == ["ops/logs.py"]


def test_the_quotes_of_an_sdk_line_do_not_depend_on_the_formatter(caplog: pytest.LogCaptureFixture) -> None:
    """An application configures its own log, and pytest shows what it captured."""
    logging.getLogger("headgate.client").warning("no_answer server=%s error=%s jobs=%d", "a:1", "it is gone", 2)
    (record,) = caplog.records
    assert logging.Formatter("%(message)s").format(record) == 'no_answer server=a:1 error="it is gone" jobs=2'
    assert LineFormatter("%(message)s").format(record) == 'no_answer server=a:1 error="it is gone" jobs=2'
    written = json.loads(JsonFormatter().format(record))
    assert (written["server"], written["error"], written["jobs"]) == ("a:1", "it is gone", 2)
    assert sentence(record) == "no answer from a:1 (it is gone)"


def test_the_sdk_quotes_the_values_of_all_its_loggers() -> None:
    text = "".join(path.read_text() for path in (SOURCE / "sdk").rglob("*.py"))
    assert set(re.findall(r'^log = .*(?:getLogger|io_logger)\("([\w.]+)"\)', text, re.MULTILINE)) == set(LOGGERS)
