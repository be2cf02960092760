"""Errors of the user's own code are shown as they are, and never called a bug of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli import main
from headgate.cli.errors import users_traceback_text
from headgate.domain import validation

BROKEN = {
    "syntax": ("def f(:\n", "SyntaxError"),
    "raises": ("def f():\n    raise ValueError('of the user')\nf()\n", "ValueError: of the user"),
    "attribute": ("import os\nos.no_such_name\n", "AttributeError"),
    "missing": ("import a_module_that_is_missing\n", "No module named 'a_module_that_is_missing'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_an_app_that_cannot_be_imported_is_shown_with_its_own_traceback(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, says = BROKEN[kind]
    (tmp_path / f"broken_{kind}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["schedule", "sync", f"broken_{kind}:hg"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert f"broken_{kind}.py" in err
    assert "bug" not in err
    assert "headgate/cli" not in err
    assert "importlib" not in err


def test_an_app_that_does_not_exist_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "sync", "no_such_package.jobs:hg"]) == 2
    err = capsys.readouterr().err
    assert err.startswith('error: app: module "no_such_package.jobs" does not exist')
    assert err.count("\n") == 1


HEAD = "from headgate import Headgate\nhg = Headgate()\n"
REFUSED = {
    "address": ("from headgate import Headgate\nhg = Headgate('http://x/y')\n", 2, "url: is not an address"),
    "attempts": (HEAD + "@hg.job('a', max_attempts=0)\ndef a() -> None: ...\n", 3, "max_attempts: must be "),
    "twice": (
        HEAD + "@hg.job('a')\ndef a() -> None: ...\n@hg.job('a')\ndef b() -> None: ...\n",
        5,
        'topic: "a" is handled by',
    ),
    "option": (HEAD + "@hg.job('a', retries=3)\ndef a() -> None: ...\n", 3, "options: has no retries"),
    "annotation": (HEAD + "@hg.job('a')\ndef a(x: 'Missing') -> None: ...\n", 3, "Missing"),
    "parentheses": (HEAD + "@hg.job\ndef greet() -> None: ...\n", 3, 'topic: is missing; write @hg.job("greet")'),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_of_ours_at_import_shows_the_file_and_line_of_the_user(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line, says = REFUSED[kind]
    (tmp_path / f"refused_{kind}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["schedule", "sync", f"refused_{kind}:hg"]) == 1
    err = capsys.readouterr().err
    assert f'refused_{kind}.py", line {line}, in <module>' in err
    assert says in err.splitlines()[-1]
    assert err.count("  File ") == 1  # no frame of ours


def test_a_wrong_address_on_the_command_line_is_an_error_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schedule", "sync", "any:hg", "--url", "http://x/y"]) == 2
    assert capsys.readouterr().err.startswith("error: url: is not an address")


@pytest.mark.parametrize("command", [("status",), ("schedule", "sync", "any:hg"), ("worker", "any:hg")])
def test_a_wrong_address_of_the_environment_is_named_by_its_variable(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_URL", "127.0.0.1:port")
    assert main(command) == 78
    assert capsys.readouterr().err.startswith(
        "error: HEADGATE_URL: is not an address, got '127.0.0.1:port'; write host"
    )


def test_an_error_below_the_users_code_is_the_users_and_one_of_ours_is_not() -> None:
    def users() -> None:
        validation.check_topic(object.__new__(object), field=1 / 0)  # type: ignore[arg-type]

    with pytest.raises(ZeroDivisionError) as caught:
        users()
    assert users_traceback_text(caught.value).startswith("Traceback (most recent call last):\n")
    with pytest.raises(TypeError) as ours:
        validation.check_topic()  # type: ignore[call-arg]
    error = ours.value
    assert users_traceback_text(error.with_traceback(None)) == ""
