"""The page on the terminal view and profiles: its screen is what `headgate top` shows, and its commands run."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.support import cli_screens, top_screen
from tests.support.canned_server import CannedServer
from tests.support.shell import Shell

_COMMAND = re.compile(r"^\$ headgate ([^#\n]*)", re.MULTILINE)


def test_the_screen_on_the_page_is_what_the_view_shows() -> None:
    again = "the page and the view differ; `make screens` writes the page"
    assert f"```\n{top_screen.screen(cli_screens.ANSWERS)}```\n" in top_screen.PAGE.read_text(), again


def test_the_commands_on_the_page_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HEADGATE_URL", "HEADGATE_TOKEN", "HEADGATE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shell, ran = Shell(capsys), []
    with CannedServer(cli_screens.ANSWERS) as server:
        monkeypatch.setattr("sys.stdin", io.StringIO("test-token\n"))
        assert shell("profile", "login", "test", "--url", server.address).code == 0
        for line in _COMMAND.findall(top_screen.PAGE.read_text()):
            words, _, given = line.replace("https://queue.example:7070", server.address).partition("<")
            monkeypatch.setattr("sys.stdin", io.StringIO("prod-token\n" if given else ""))
            said = shell(*words.split())
            if words.startswith("top"):
                assert "needs a terminal" in said.err, said.err  # its options are known
            else:
                assert said.code == 0, f"{line}: {said.err}"
            ran.append(words.split()[0])
    assert (ran.count("top"), ran.count("profile"), ran.count("job")) == (3, 5, 1)
