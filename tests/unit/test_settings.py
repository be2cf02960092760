"""Settings are read from the environment once, and a bad one is named without showing its value."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli import REFUSING, main
from headgate.domain.errors import InvalidSetting
from headgate.ops.settings import Settings


def test_nothing_set_means_the_embedded_database() -> None:
    assert Settings.from_environ({}) == Settings()
    assert Settings.from_environ({"HEADGATE_DATABASE_URL": " ", "HEADGATE_DATA": ""}) == Settings()


def test_what_is_set_is_taken() -> None:
    found = Settings.from_environ(
        {"HEADGATE_DATABASE_URL": "postgresql://a/b", "HEADGATE_DATA": "data", "HOME": "/nowhere"}
    )
    assert found == Settings(database_url="postgresql://a/b", data=Path.cwd() / "data")


def test_a_folder_in_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="HEADGATE_DATA: starts with the home folder of an unknown user"):
        Settings.from_environ({"HEADGATE_DATA": "~nobody-of-that-name/data"})


def test_migrations_go_past_the_pooler_when_they_can() -> None:
    assert Settings(database_url="a").url_for_migrations == "a"
    assert Settings(database_url="a", direct_database_url="b").url_for_migrations == "b"


@pytest.mark.parametrize("name", ["HEADGATE_DATABASE_URL", "HEADGATE_DIRECT_DATABASE_URL"])
def test_a_url_of_another_kind_is_refused_without_showing_it(name: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name}: does not start with postgresql://") as caught:
        Settings.from_environ({name: "mysql://root:s3cret@h/x"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "command", ["--version", "--help", *(f"{name} --help" for name in ("status", "worker", "job"))]
)
def test_every_command_reports_a_misspelt_variable(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that read settings of the server refuse it instead; see tests/catalogue/test_config.py."""
    monkeypatch.setenv("HEADGATE_TOKN", "secret")
    assert main(command.split()) == 0
    warning = "warning: HEADGATE_TOKN: is not a known setting; did you mean HEADGATE_TOKEN?\n"
    assert capsys.readouterr().err == warning


@pytest.mark.parametrize("command", [name for name in REFUSING if name != "serve"])
def test_a_command_that_reads_settings_refuses_a_misspelt_variable_once(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_DATABSE_URL", "postgresql://a/b")
    assert main([command]) == 78
    error = "error: HEADGATE_DATABSE_URL: is not a known setting; did you mean HEADGATE_DATABASE_URL?\n"
    assert capsys.readouterr().err == error
