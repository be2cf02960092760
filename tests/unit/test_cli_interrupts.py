"""Ctrl-C and the end of input, at moments that a command does not expect."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server import HEADGATE, clean_environ

INTERRUPTED = """
import sys


class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupted())
from headgate.cli import main

sys.exit(main(["version"]))
"""


@pytest.mark.parametrize("module", ["cyclopts", "headgate.cli.version"])
def test_ctrl_c_while_a_command_starts_shows_no_traceback(module: str) -> None:
    code = INTERRUPTED.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


ASKS = """
import asyncio
from headgate.cli.confirming import confirm
from headgate.cli.errors import print_error
from headgate.domain.errors import Refused


async def command():
    try:
        confirm(lambda: ["3 jobs match."], "table")
    except Refused as error:
        print_error(str(error))


asyncio.run(command())
"""


@contextmanager
def asked(
    *command: str | Path, until: bytes, environ: dict[str, str] | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """A command on a terminal that has asked its question; at the end of the block it has ended, with its screen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # its terminal, so that it gets the signals
    )
    os.close(theirs)
    screen = b""
    try:
        while until not in screen:
            screen += os.read(ours, 4096)
        said: list[bytes] = []
        yield ours, said
        try:
            while part := os.read(ours, 4096):
                screen += part
        except OSError:  # the other end is closed
            pass
        said += [screen, str(process.wait(30)).encode()]
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)


def test_one_ctrl_c_ends_a_question() -> None:
    with asked(sys.executable, "-c", ASKS, until=b"[y/N] ") as (keyboard, said):
        os.write(keyboard, b"\x03")
    assert said[1] == b"-2"  # by the signal: here no `main` makes 130 of it
    assert b"Refused" not in said[0]


def test_the_end_of_input_answers_a_question_with_no() -> None:
    with asked(sys.executable, "-c", ASKS, until=b"[y/N] ") as (keyboard, said):
        os.write(keyboard, b"\x04")
    assert said[0].decode().splitlines()[-1] == "error: nothing was changed"


def test_the_end_of_input_instead_of_a_token_saves_nothing(tmp_path: Path) -> None:
    environ = {**clean_environ(), "XDG_CONFIG_HOME": str(tmp_path)}
    login = (HEADGATE, "profile", "login", "prod", "--url", "127.0.0.1:1")
    with asked(*login, until=b"Token for prod", environ=environ) as (keyboard, said):
        os.write(keyboard, b"\x04")
    assert said[0].decode().splitlines()[-1] == "error: no token was given, and nothing was saved"
    assert said[1] == b"4"
    assert list(tmp_path.iterdir()) == []
