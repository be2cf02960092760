"""The completion scripts, typed at the real shells. A shell that is not installed is named in the report of the run."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from headgate.cli import main
from tests.support.waiting import until

LINES = {
    "headgate resu": "resume",
    "headgate job disc": "discard",
    "headgate audit --lim": "--limit",
    "headgate status -o nd": "ndjson",
}
"""What is typed before the tab key, and the word that it completes to."""
START = """
fpath=({folder} $fpath)
autoload -Uz compinit && compinit -u -D
show() {{ print -r -- "$BUFFER" >> {folder}/shown; BUFFER=''; zle reset-prompt }}
zle -N show; bindkey '^X' show
PS1='ready> '
"""


def program(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed, so its completion is not tested: apt-get install {shell}")
    return found


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@contextmanager
def terminal(command: list[str], environ: dict[str, str]) -> Iterator[int]:
    """A program on a terminal of its own; yields the other end."""
    ours, its = pty.openpty()
    os.set_blocking(ours, False)
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environ, start_new_session=True)
    os.close(its)
    try:
        yield ours
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)


@pytest.mark.parametrize("sourced", [False, True], ids=["in fpath", "sourced"])
def test_zsh_completes_commands_options_and_choices(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, *, sourced: bool
) -> None:
    zsh, shown = program("zsh"), tmp_path / "shown"
    file = tmp_path / ("completion.zsh" if sourced else "_headgate")
    file.write_text(script("zsh", capsys))
    (tmp_path / ".zshrc").write_text(START.format(folder=tmp_path) + (f"source {file}\n" if sourced else ""))
    shown.touch()
    printed = b""
    environ = {"PATH": "/usr/bin:/bin", "TERM": "dumb", "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    with terminal([zsh, "-d", "-i"], environ) as keys:

        def read() -> bytes:
            nonlocal printed
            with suppress(BlockingIOError):
                printed += os.read(keys, 65536)
            return printed

        def shows(count: int) -> bool:
            read()  # a full terminal would stop it
            return len(shown.read_text().splitlines()) == count

        until(lambda: b"ready> " in read(), "zsh is ready")
        for number, line in enumerate(LINES, 1):
            os.write(keys, f"{line}\t\x18".encode())
            until(partial(shows, number), f"{line} is completed")
    expected = [f"{line.rpartition(' ')[0]} {word}" for line, word in LINES.items()]
    assert [line.rstrip() for line in shown.read_text().splitlines()] == expected, printed.decode()


def test_fish_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fish = program("fish")
    (tmp_path / "headgate.fish").write_text(script("fish", capsys))
    for line, word in LINES.items():
        done = subprocess.run(
            [fish, "--no-config", "-c", f'source {tmp_path}/headgate.fish; complete -C "{line}"'],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert [found.split("\t")[0] for found in done.stdout.splitlines()] == [word], line
