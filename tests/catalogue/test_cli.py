"""Every case that can be made on a command line: its exit code, one line on stderr, nothing on stdout, no trace.

The command runs in this process (a process of its own costs a second each; tests/integration/test_cli.py has those).
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from headgate.cli import main
from tests.catalogue.conftest import OURS, Env
from tests.catalogue.rows import CASES
from tests.catalogue.table import Case, World
from tests.support.server import HEADGATE, ServerProcess, clean_environ

ROWS = sorted({case.row for case in CASES if case.cli is not None})
LONGEST = 600


@pytest.fixture
def at_the_server(unharmed: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADGATE_URL", unharmed.address)
    monkeypatch.setenv("HEADGATE_TOKEN", OURS)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("row", ROWS)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    row: int, at_the_server: None, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = []
    for case in (one for one in CASES if one.row == row and one.cli is not None):
        stdin = SimpleNamespace(buffer=io.BytesIO(case.stdin), isatty=lambda: False, read=lambda: "")
        monkeypatch.setattr("sys.stdin", stdin)
        code = main(_line(case, world))
        out, err = capsys.readouterr()
        said = case.says if case.cli_says is None else case.cli_says
        missing = [word for word in said if word not in err]
        if (code, out) != (case.exits, "") or missing or not err.startswith("error: ") or err.count("\n") != 1:
            wrong.append(f"{case.name}: exit {code}, without {missing}, said {err[:600]!r} and printed {out[:100]!r}")
        elif len(err) > LONGEST or "Traceback" in err or OURS in err:
            wrong.append(f"{case.name}: not fit to be shown: {err[:900]!r}")
    assert not wrong, "\n" + "\n".join(wrong)


def _line(case: Case, world: World) -> list[str]:
    assert case.cli is not None
    return list(case.cli(world) if callable(case.cli) else case.cli)


def test_a_token_no_one_knows_is_exit_4(
    at_the_server: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("a-token-not-in-the-file", ""):
        monkeypatch.setenv("HEADGATE_TOKEN", token)
        for line in (["status"], ["submit", "mail"], ["job", "list"]):
            assert main(line) == 4, line
            out, err = capsys.readouterr()
            # A failed login is answered late, by design: a wait of a second is reported before.
            lines = [line for line in err.splitlines() if not line.startswith("warning: no answer from ")]
            assert (out, len(lines)) == ("", 1)
            assert "HEADGATE_TOKEN" in lines[0]
            assert not token or token not in err


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port where something answers that is not Headgate."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_who_does_not_answer_is_exit_5_with_the_address(
    deaf: int, env: Env, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No one there, another service, and TLS spoken to a port without it. Only servers seen before are waited for."""
    monkeypatch.setattr("headgate.sdk.client.calls._TRANSIENT", ())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()[1]
        for url, says in (
            (f"127.0.0.1:{nobody}", "headgate dev"),
            (f"127.0.0.1:{deaf}", ""),
            (f"https://{env.server.address}", "without https://"),
        ):
            assert main(["status", "--url", url]) == 5, capsys.readouterr()
            out, err = capsys.readouterr()
            assert (out, err.count("\n")) == ("", 1)
            assert url in err
            assert says in err


def test_narrow_poor_and_closed_terminals_are_no_reason_to_crash(env: Env) -> None:
    environ = {**clean_environ(), "HEADGATE_URL": env.server.address, "HEADGATE_TOKEN": OURS}
    poor = {**environ, "LC_ALL": "C", "LANG": "C", "NO_COLOR": "1", "COLUMNS": "20", "PYTHONUTF8": "0", "TERM": "dumb"}
    for line in (["job", "list"], ["--help"]):
        ran = subprocess.run([HEADGATE, *line], env=poor, capture_output=True, timeout=60, check=False)
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert b"\x1b[" not in ran.stdout
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [HEADGATE, "job", "list"], env=environ, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (ran.returncode, ran.stderr) == (1, b"error: cannot write the output: No space left on device\n")
    closed = subprocess.run(
        ["/bin/sh", "-c", f"{HEADGATE} job list >&-"], env=environ, stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
