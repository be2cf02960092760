"""What commands print: whole values in a pipe, cut and coloured on a terminal, and nothing that could change one."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TypeVar

import pytest

from headgate.cli import listing, output, values
from headgate.cli.output import Columns, duration, exact, print_list, print_one, printable, table, when

T = TypeVar("T")
NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
COLUMNS: Columns[tuple[str, int, str]] = {
    "NAME": lambda one: one[0],
    "COUNT": lambda one: one[1],
    "STATE": lambda one: "dead",
    "ERROR": lambda one: one[2],
}
LONG = "boom " * 60


class Terminal(io.StringIO):
    """Standard output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals have 80 columns and colours."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def on_terminal(items: Sequence[T], columns: Columns[T]) -> list[str]:
    with redirect_stdout(Terminal()):
        return table(items, columns)


def test_numbers_are_on_the_right_and_a_pipe_gets_every_value_whole() -> None:
    head, first, second = table([("mail", 12_345, LONG), ("m", 7, "")], COLUMNS)
    assert head == "NAME   COUNT  STATE  ERROR"
    assert first == f"mail  12,345  dead   {LONG.strip()}"
    assert second == "m          7  dead   -"


@pytest.mark.usefixtures("colours")
def test_a_terminal_gets_lines_that_fit_and_states_in_colour() -> None:
    _, first = on_terminal([("mail", 7, LONG)], COLUMNS)
    plain = first.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert (len(plain), plain[-1]) == (80, "…")
    assert "\x1b[31mdead\x1b[0m" in first


@pytest.mark.usefixtures("colours")
def test_a_narrow_terminal_gets_the_distance_of_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "now", lambda: NOW)
    columns: Columns[str] = {
        "NAME": lambda name: name,
        "AT": lambda _: NOW - timedelta(hours=2),
        "ERROR": lambda _: LONG,
    }
    assert on_terminal(["x" * 40], columns)[1].startswith(f"{'x' * 40}  2h 00m ago  boom")
    assert on_terminal(["x" * 20], columns)[1].startswith(f"{'x' * 20}  2026-11-16T10:00:00Z (2h 00m ago)  boom")
    assert "2026-11-16T10:00:00Z (2h 00m ago)" in table(["x" * 40], columns)[1]


@pytest.mark.usefixtures("colours")
def test_columns_that_do_not_fit_on_a_terminal_are_left_out_and_counted() -> None:
    job = SimpleNamespace(
        id="0198" * 9,
        topic="send-email",
        state="retrying",
        priority=0,
        attempt=3,
        max_attempts=20,
        created_at=NOW,
        worker="worker-eu-1",
        last_error=LONG,
    )
    lines = on_terminal([job], listing.COLUMNS)
    plain = [re.sub(r"\x1b\[\d+m", "", line) for line in lines]
    assert max(map(len, plain)) <= 80, plain
    assert plain[0].split() == ["ID", "TOPIC", "STATE", "ERROR"]
    assert plain[1].startswith("0198" * 9 + "  send-email  retrying  boom")
    assert plain[-1] == "(4 columns do not fit on this terminal; -o wide has all of them)"
    job.last_error = ""
    assert re.sub(r"\x1b\[\d+m", "", on_terminal([job], listing.COLUMNS)[0]).split()[:5] == [
        *("ID", "TOPIC", "STATE", "PRIORITY"),
        "ERROR",
    ]
    assert table([job], listing.COLUMNS)[0].split() == list(listing.COLUMNS), "a pipe gets all of them"


@pytest.mark.usefixtures("colours")
def test_every_list_fits_on_a_terminal_of_80_columns() -> None:
    """Whatever its values are: the first column names the row and is never cut, so a name can be too long for it."""
    wide: Columns[int] = {f"COLUMN-{n}": lambda _, n=n: "x" * (36 if n == 0 else 30) for n in range(9)}
    assert max(map(len, on_terminal([1, 2], wide))) <= 80


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
@pytest.mark.usefixtures("colours")
def test_colours_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert "\x1b" not in "".join(on_terminal([("mail", 7, "")], COLUMNS))


def test_text_of_jobs_cannot_control_the_terminal() -> None:
    (_, row) = table([("mail", 1, "a\x1b]0;owned\x07\nb\x9b2J")], COLUMNS)
    assert row.endswith("a\\x1b]0;owned\\x07 b\\x9b2J")
    assert printable("one\ntwo\r\nthree\x1b[2J") == "one\ntwo\nthree\\x1b[2J"


def test_a_list_has_four_formats_and_an_empty_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(kind: str, *items: tuple[str, int, str]) -> str:
        print_list(items, kind, COLUMNS, name=lambda one: one[0], empty="no things")
        return capsys.readouterr().out

    items = [("a", 1, "x"), ("b", 2, "y")]
    assert json.loads(shown("json", *items)) == [["a", 1, "x"], ["b", 2, "y"]]
    assert [json.loads(line) for line in shown("ndjson", *items).splitlines()] == [["a", 1, "x"], ["b", 2, "y"]]
    assert shown("name", *items) == "a\nb\n"
    assert shown("table", *items).splitlines()[0] == "NAME  COUNT  STATE  ERROR"
    assert [shown(kind) for kind in ("table", "json", "ndjson", "name")] == ["no things\n", "[]\n", "", ""]


def test_one_object_has_four_formats(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(kind: str) -> str:
        print_one({"at": NOW, "span": timedelta(seconds=90)}, kind, lambda: ["for people"], name="it")
        return capsys.readouterr().out

    plain = {"at": "2026-11-16T12:00:00Z", "span": 90.0}
    assert json.loads(shown("json")) == json.loads(shown("ndjson")) == plain
    assert [shown(kind).count("\n") for kind in ("json", "ndjson")] == [4, 1]
    assert (shown("name"), shown("table")) == ("it\n", "for people\n")


def test_the_names_of_nothing_are_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_one({}, "name", lambda: ["for people"], name="")
    assert capsys.readouterr().out == ""
    print_one({}, "name", lambda: ["for people"])  # what has no name is shown as it is
    assert capsys.readouterr().out == "for people\n"


@pytest.mark.parametrize(
    ("ahead", "text"),
    [
        (timedelta(0), "2026-11-16T12:00:00Z (now)"),
        (-timedelta(seconds=131), "2026-11-16T11:57:49Z (2m 11s ago)"),
        (timedelta(hours=26), "2026-11-17T14:00:00Z (in 1d 02h)"),
    ],
)
def test_a_time_is_in_iso_format_with_its_distance(
    monkeypatch: pytest.MonkeyPatch, ahead: timedelta, text: str
) -> None:
    monkeypatch.setattr(output, "now", lambda: NOW)
    assert when(NOW + ahead) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (0.34, "0.3s"),
        (9.9, "9.9s"),
        (9.96, "10s"),
        (59.7, "1m 00s"),
        (3_661, "1h 01m"),
        (90_000, "1d 01h"),
    ],
)
def test_a_measured_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize("text", ["0s", "250ms", "1500ms", "30s", "90s", "5m", "36h", "7d", "365d"])
def test_the_duration_of_a_setting_is_printed_as_options_accept_it(text: str) -> None:
    assert exact(values.duration(text, field="x")) == text
    assert exact(timedelta(minutes=120)) == "2h"
    assert exact(timedelta(microseconds=999)) == "0.000999s"


def test_wide_shows_tables_within_a_text_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `headgate status`: its tables say that -o wide has the columns that do not fit."""
    columns = {f"COLUMN {number}": str for number in range(9)}
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    def shown(output_: str) -> str:
        output.print_one({}, output_, lambda: ["title", *output.table(["value"], columns)])
        return capsys.readouterr().out

    assert "columns do not fit" in shown("table")
    assert all(heading in shown("wide") for heading in columns)
    assert "do not fit" in shown("table")
