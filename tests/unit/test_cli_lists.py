"""Lists of commands: filters by name, and `--watch`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.cli import app, lists, main
from headgate.cli.lists import NameFilter, show_list
from headgate.cli.options import Shown, Watch
from headgate.cli.output import Columns
from headgate.domain.filters import Field, InvalidFilter
from tests.unit.test_cli_commands import LOCAL, arguments, commands

READS = [[("a", 1), ("b", 1)], [("a", 1), ("b", 2)], [("a", 1), ("b", 2)], [("a", 1), ("b", 2), ("c", 1)]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Watches a list that is read four times, until Ctrl-C."""

    def with_client(_server: object, use: Callable[[Any], Awaitable[None]]) -> None:
        asyncio.run(use(None))  # type: ignore[arg-type]

    monkeypatch.setattr(lists, "with_client", with_client)

    def run(output: str) -> None:
        left = iter(READS)

        async def read(_hg: object) -> list[tuple[str, int]]:
            try:
                return next(left)
            except StopIteration:
                raise KeyboardInterrupt from None

        with pytest.raises(KeyboardInterrupt):
            show_list(
                Shown(watch=Watch(watch=True, interval="200ms"), output=output),
                read,
                {"NAME": lambda one: one[0], "N": lambda one: one[1]},
                name=lambda one: one[0],
                empty="none",
            )

    return run


def test_a_pipe_gets_what_is_new_or_has_changed(
    watched: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    watched("json")
    assert capsys.readouterr().out.splitlines() == ['["a", 1]', '["b", 1]', '["b", 2]', '["c", 1]']
    watched("name")
    assert capsys.readouterr().out.split() == ["a", "b", "b", "c"]


def test_a_terminal_gets_the_whole_list_with_every_read(
    watched: Callable[[str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    watched("table")
    screens = capsys.readouterr().out.split(lists.CLEAR)[1:]
    assert [len(screen.splitlines()) for screen in screens] == [4, 4, 4, 5]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("topic list --watch --interval 100ms", "--interval: must be from 200ms to 1h, got '100ms'"),
        ("top --interval 2h", "--interval: must be from 200ms to 1h, got '2h'"),
        ("topic list --filter worker:w", 'filter: at character 1: "worker" does not apply to this list; use topic'),
        ("workers list --filter state:dead", 'filter: at character 1: "state" does not apply to this list; use worker'),
        ("schedule list --filter nightly", "filter: at character 1: "),
    ],
)
def test_a_wrong_interval_or_filter_is_refused_before_a_server_is_called(
    capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {words}")


def test_a_filter_by_name_has_wildcards_several_values_and_negation() -> None:
    def matches(text: str, worker: str, *topics: str) -> bool:
        chosen = NameFilter(text, Field.WORKER, Field.TOPIC)
        return chosen.matches({Field.WORKER: (worker,), Field.TOPIC: topics})

    assert matches("", "w-1")
    assert matches("worker:w-*", "w-1")
    assert not matches("worker:w-*", "x-1")
    assert matches("topic:mail,billing", "w-1", "resize", "billing")
    assert not matches("-topic:mail*", "w-1", "resize", "mail.eu")
    assert matches("worker:w-* topic:mail*", "w-1", "mail.eu")
    with pytest.raises(InvalidFilter):
        matches("created:>1h", "w-1")


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_a_list_of_no_entries_is_refused_before_a_server_is_called(
    limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list that the client cuts would be empty, or without its last entries."""
    limited = [path for path, command in commands(app) if path[-1] == "list" and "--limit" in arguments(command)]
    assert {("key", "list"), ("topic", "list"), ("workers", "list"), ("job", "list")} <= {*limited}
    for path in limited:
        assert main([*path, "--limit", limit]) == 2, path
        assert capsys.readouterr().err.startswith("error: --limit: must be a whole number from 1 "), path


def test_every_list_of_a_server_can_be_watched_and_limited(capsys: pytest.CaptureFixture[str]) -> None:
    lists_of_servers = [path for path, _ in commands(app) if path[-1] == "list" and path not in LOCAL]
    assert len(lists_of_servers) > 8
    missing = []
    for path in lists_of_servers:
        assert main([*path, "--help"]) == 0
        text = capsys.readouterr().out
        missing += [(path, option) for option in ("--watch", "--limit", "--profile", "--output") if option not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("part", "limit", "shown"),
    [("", 2, ["Ana", "ben"]), ("AN", 9, ["Ana", "dan"]), ("an", 1, ["Ana"]), ("hidden-c", 9, ["cleo"]), ("x", 9, [])],
)
def test_a_list_is_filtered_by_all_columns_and_then_cut(
    part: str, limit: int, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lists, "with_client", lambda _, use: asyncio.run(use(None)))

    async def read(_hg: object) -> list[str]:
        return ["Ana", "ben", "cleo", "dan"]

    columns: Columns[str] = {"NAME": lambda one: one}
    more: Columns[str] = {"MORE": lambda one: f"hidden-{one}"}
    show_list(Shown(output="name"), read, columns, name=str, empty="none", more=more, part=part, limit=limit)
    assert capsys.readouterr().out.split() == shown
