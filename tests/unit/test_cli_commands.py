"""All commands: each option has its help, the shared ones are the same everywhere, shells complete them."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from headgate.cli import app, errors, main, worker

FORMATS = ("table", "wide", "json", "ndjson", "yaml", "name")
DATABASE = {("dev",), ("doctor",), ("migrate",), ("restore-fence",), ("serve",)}
PROFILES = {("profile", name) for name in ("list", "login", "remove", "show", "use")}
LOCAL = {*DATABASE, *PROFILES, ("completion",), ("config", "show"), ("init",), ("version",)}
"""Commands that call no server."""
_SHOWN = {*PROFILES, ("config", "show"), ("doctor",), ("migrate",), ("restore-fence",), ("version",)}
SILENT = {*LOCAL - _SHOWN, ("worker",), ("top",), ("topic", "export"), ("export",)}
"""Commands that list and show nothing, or print a file (--format)."""


def commands(where: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """All commands below one, by their words."""
    for name in where:
        if not name.startswith("-"):
            below = where[name]
            if below.default_command is None:
                yield from commands(below, (*path, name))
            else:
                yield (*path, name), below


def arguments(command: App) -> dict[str, Any]:
    """The arguments of a command by their first name."""
    return {one.name: one for one in command.assemble_argument_collection() if one.parse and one.show}


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, ...], App]:
    """All commands. Not while tests are collected: that would import the server."""
    return dict(commands(app))


def test_every_command_and_every_option_has_a_help_text(found: dict[tuple[str, ...], App]) -> None:
    assert len(found) > 40
    assert {("job", "get"), ("batch", "list"), ("completion",), ("pause",)} <= found.keys()
    for path, command in found.items():
        assert command.help, path
        assert {name for name, one in arguments(command).items() if not one.parameter.help} == set(), path


def test_server_database_and_format_are_chosen_in_the_same_way_everywhere(found: dict[tuple[str, ...], App]) -> None:
    for path, command in found.items():
        given = arguments(command)
        names = {name for one in given.values() for name in one.names}
        assert ({"--url", "--token", "--profile"} <= names) == (path not in LOCAL), path
        assert ("--database-url" in names) == (path in {*DATABASE, ("key", "create")}), path
        assert ({"--output", "-o"} <= names) == (path not in SILENT), path
        if path not in SILENT:
            assert given["--output"].get_choices() == FORMATS, path


def test_the_reference_names_the_commands_without_a_format_and_without_a_server() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()

    def named(before: str, after: str) -> set[str]:
        return set(re.findall(r"`([^`]+)`", page.partition(before)[2].partition(after)[0]))

    assert named("`-o` is an option of all commands but", ". ") == {" ".join(path) for path in SILENT}
    assert named("options of all commands that call a server: all but", "[Conf") == {path[0] for path in LOCAL}


def test_every_list_can_be_filtered_limited_and_watched(found: dict[tuple[str, ...], App]) -> None:
    lists = [path for path in found if path[-1] == "list" and path not in PROFILES]
    assert len(lists) >= 11
    for path in [*lists, ("webhook", "deliveries")]:
        assert {"--filter", "--limit", "--watch", "--interval", "--output"} <= arguments(found[path]).keys(), path


def test_what_changes_many_jobs_or_deletes_can_be_confirmed_by_an_option(found: dict[tuple[str, ...], App]) -> None:
    many = [("job", verb) for verb in ("cancel", "redrive", "discard", "reprioritise", "move")]
    many += [("bulk", "start"), ("dead", "redrive"), ("dead", "discard"), ("topic", "drain"), ("topic", "move")]
    for path in many:
        assert {"--yes", "--dry-run"} <= arguments(found[path]).keys(), path
    for path in (("schedule", "delete"), ("webhook", "delete"), ("key", "revoke"), ("workers", "stop")):
        assert "--yes" in arguments(found[path]), path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("jbo list", 'unknown command "jbo"; did you mean "job"?'),
        ("job gte 1", 'unknown command "gte"; did you mean "get"?'),
        ("job get 1 --ful", "unknown option: --ful; did you mean --full?"),
        ("status --ouput json", "unknown option: --ouput; did you mean --output?"),
        ("enqueue hello", 'unknown command "enqueue"; did you mean "submit"?'),
        ("queue list", 'unknown command "queue"; did you mean "topic"?'),
        ("job retry 1", 'unknown command "retry"; did you mean "redrive"?'),
        ("job edit-retry 1", 'unknown command "edit-retry"; did you mean "redrive --payload"?'),
        ("topic pause mail", 'unknown command "pause"; did you mean "headgate pause"?'),
        ("topic puase mail", 'unknown command "puase"; did you mean "headgate pause"?'),
        ("enqueu hello", 'unknown command "enqueu"; did you mean "submit"?'),
        ("topic lits", 'unknown command "lits"; did you mean "list"?'),
        ("tail", 'unknown command "tail"; did you mean "events"?'),
        ("worker app.py:hg", 'app: "app.py" is a file, not a module; did you mean app:hg?'),
        ("worker src/app.py:hg", 'app: "src/app.py" is a file, not a module; did you mean src.app:hg?'),
    ],
)
def test_a_misspelt_word_gets_the_nearest_one(capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {words}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("worker", "give the app: headgate worker app:hg"),
        ("submit", "give the topic: headgate submit mail"),
        ("completion", "give the shell: headgate completion bash"),
        ("schedule put nightly", "give the topic: headgate schedule put NAME mail"),
        ("key create ops", "--scopes is required; see headgate key create --help"),
        ("bulk start cancel", "--filter is required; see headgate bulk start --help"),
        ("submit --key", 'command "submit" parameter --key requires an argument'),
        ("pause", "target: give a topic, --tenant or --everything, and one of them; for example: headgate pause mail"),
        ("resume a --tenant", "target: give a topic, --tenant or --everything, and one of them; for example: headgate"),
    ],
)
def test_a_missing_argument_is_named_as_it_is_given(capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {words}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("audit --limit many", 'invalid value for --limit: "many" is not a whole number'),
        ("submit a --max-attempts x", 'invalid value for --max-attempts: "x" is not a whole number'),
        ("serve --lease long", "--lease: is not a duration, got 'long'; use 250ms, 30s, 5m, 2h or 1d"),
        ("serve --port 70000", "--port: must be a whole number from 0 to 65535, got 70000"),
        ("submit a --delay zzz", "--delay: is not a duration, got 'zzz'; use 250ms, 30s, 5m, 2h or 1d"),
    ],
)
def test_a_wrong_value_is_refused_without_words_of_python(
    capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"error: {words}\n"


@cache  # it takes a second
def completion(shell: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["completion", shell]) == 0
    return printed.getvalue()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("headgate", "resu"), {"resume"}),
        (("headgate", "job", "re"), {"redrive", "reprioritise"}),
        (("headgate", "job", "get", "--wa"), {"--watch"}),
        (("headgate", "status", "-o", "nd"), {"ndjson"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bash_completes_commands_options_and_choices(typed: tuple[str, ...], expected: set[str]) -> None:
    words = " ".join(f"'{word}'" for word in typed)
    script = f"""{completion("bash")}
COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; COMPREPLY=()
$(complete -p headgate | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["/bin/bash"], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == expected


def test_words_of_other_systems_are_no_commands_and_lead_to_some(found: dict[tuple[str, ...], App]) -> None:
    known = {path[:depth] for path in found for depth in (1, 2)}
    for noun, words in errors._OTHER_WORDS.items():
        path = (noun,) if noun else ()
        for word, meant in words.items():
            assert (*path, word) not in known, (noun, word)
            target = (*(() if meant.startswith("headgate ") else path), *meant.removeprefix("headgate ").split())
            assert tuple(part for part in target if not part.startswith("-")) in known, (noun, word, meant)


def test_what_shows_one_thing_is_found_as_get_and_as_show(
    found: dict[tuple[str, ...], App], capsys: pytest.CaptureFixture[str]
) -> None:
    """`retention get` was answered with "did you mean set?"."""
    for noun in {path[0] for path in found if len(path) == 2}:
        for word, other in (("get", "show"), ("show", "get")):
            if (noun, word) not in found:
                assert main([noun, word]) == 2
                meant = other if (noun, other) in found else "list"
                assert capsys.readouterr().err == f'error: unknown command "{word}"; did you mean "{meant}"?\n'


def test_a_verb_for_workers_is_not_taken_for_an_application(capsys: pytest.CaptureFixture[str]) -> None:
    for word in worker.WORDS_OF_WORKERS:
        assert main(["worker", word]) == 2
        assert capsys.readouterr().err.endswith(f"did you mean headgate workers {word}?\n")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_all_commands(found: dict[tuple[str, ...], App], shell: str) -> None:
    script = completion(shell)
    assert script.startswith("#compdef headgate") == (shell == "zsh")
    for path in found:
        assert all(word in script for word in path), path


def test_a_reloading_worker_starts_its_child_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each child would start another one."""
    started: list[list[str]] = []
    monkeypatch.setattr(worker, "_watch", started.append)
    for option in ("--reload", "--reload=true"):
        arguments = ["worker", "app:hg", option, "--topics", "a"]
        monkeypatch.setattr("sys.argv", ["headgate", *arguments])
        worker.worker_command("app:hg", reload=True)
    assert started == [["worker", "app:hg", "--topics", "a"]] * 2
