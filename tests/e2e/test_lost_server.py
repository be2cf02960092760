"""A server that is not there is reported at once: by commands, by the client, and when Ctrl-C is pressed."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.cli import main
from tests.support.server import HEADGATE, LoggedProcess, clean_environ
from tests.support.stalls import Stalls

GONE = "127.0.0.1:1"
ENDS_SECONDS = 2.5
APP = """
from headgate import Headgate

hg = Headgate()


@hg.job("greet")
def greet(name: str) -> str:
    return name
"""
REFUSED = (
    f"error: cannot reach a Headgate server at {GONE} (connection refused); start one with `headgate dev`, or set "
    "HEADGATE_URL to the address of another"
)


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address that takes connections and never says anything."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize(
    "command",
    [("status",), ("submit", "mail", "{}"), ("topic", "list"), ("job", "list"), ("pause", "--tenant")],
    ids=lambda command: command[0],
)
def test_a_refused_loopback_fails_within_a_second_with_the_command_that_starts_a_server(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every command reports a misspelt variable."""
    monkeypatch.setenv("HEADGATE_TOKN", "secret")
    main([*command, "--url", GONE])  # its modules are imported at the first use, which a busy disk makes slow
    capsys.readouterr()
    with Stalls() as stalls:
        began = time.monotonic()
        assert main([*command, "--url", GONE]) == 5
        seconds = time.monotonic() - began
    assert seconds - stalls.longest < 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "warning: HEADGATE_TOKN: is not a known setting; did you mean HEADGATE_TOKEN?",
        REFUSED,
    ]


def test_ctrl_c_ends_a_command_that_waits_for_a_server(deaf: str, tmp_path: Path) -> None:
    """`make bench` measures that it takes less than a second. Without its guards it takes 5 s (submit) or 3 to 10 s
    (worker), so this bound tells the two apart on a busy machine, where an interpreter may need a second to end."""
    (tmp_path / "app.py").write_text(APP)
    environ = {**clean_environ(), "HEADGATE_URL": deaf, "PYTHONPATH": str(tmp_path)}

    def run(name: str, *command: str | Path) -> LoggedProcess:
        return LoggedProcess(name, command, folder=tmp_path, environ=environ)

    with (
        run("status", HEADGATE, "status") as status,
        run("submit", HEADGATE, "submit", "greet", '{"name": "Ada"}') as submit,
        run("worker", sys.executable, "-m", "headgate.cli", "worker", "app:hg") as worker,
    ):
        for process in (status, submit):
            process.saw(rf"^warning: no answer from {deaf} \(.*no answer yet\); ")
        worker.saw(rf"no_answer server={deaf} ")
        for process, code in ((status, 130), (submit, 130), (worker, 0)):
            began = time.monotonic()
            process.signal(signal.SIGINT)
            assert process.wait() == code, process.shown()
            assert time.monotonic() - began < ENDS_SECONDS, process.shown()
