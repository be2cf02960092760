"""The README, word by word: the wheel in an empty environment outside the clone, and every console line of it run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from headgate.cli.init import starter
from tests.support.database import temporary_folder
from tests.support.ports import lasting_port
from tests.support.server import LoggedProcess, clean_environ
from tests.support.wheel import EmptyEnvironment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What the README starts with `&`, and what each prints when the next line can be typed.
READY = {"headgate dev": r"^ready in ", "headgate worker": r""}
PORT = 7070
# Run by other tests: the demo by tests/e2e/test_demo.py, and this is one of the tests.
MAKE = {"make demo": "-m examples.demo", "make test": "-m pytest"}


@dataclass(frozen=True)
class Line:
    """One command of a console block, and what the README shows below it."""

    command: str
    shown: str


def console_lines() -> list[Line]:
    """Every line of every console block, in order."""
    lines: list[Line] = []
    for block in re.findall(r"^```console\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL):
        assert block.startswith("$ ")
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            lines.append(Line(re.sub(r"\s+# .*$", "", command).strip(), shown))
    return lines


@pytest.fixture
def folder() -> Iterator[Path]:
    """Outside the clone, with a short path, and open for the account that PostgreSQL runs under."""
    made = temporary_folder()
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def _processes_with(text: str) -> list[str]:
    """The command lines of this machine that contain a text; a worker with --reload has a child."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_text(errors="replace").replace("\0", " "))
    return [line for line in found if text in line]


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


class Reader:
    """Types what the README says, into one terminal."""

    def __init__(self, env: EmptyEnvironment) -> None:
        self.env, self.here = env, ROOT
        self.environ = clean_environ()
        self.background: list[LoggedProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self.background):
            with process:  # killed if it does not end by itself
                process.terminate()
        assert _processes_with(str(self.env.folder)) == []

    def type(self, line: Line) -> None:
        """Run one line, and compare what it prints with what is shown."""
        if line.command in MAKE:
            planned = subprocess.run(
                ["make", "-n", line.command.split()[1]],  # noqa: S607 - as a user does
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            )
            assert MAKE[line.command] in planned.stdout
        elif line.command.startswith("cd "):
            self.here = self.here / line.command.removeprefix("cd ")
        elif line.command.endswith("&"):
            self._start(line.command.removesuffix("&").strip())
        else:
            self._run(line)

    def _run(self, line: Line) -> None:
        done = self.env.run("sh", "-c", line.command, cwd=self.here, environ=self.environ)
        assert done.returncode == 0, (line.command, done.stdout, done.stderr, self.logged())
        if line.shown:
            assert done.stdout == line.shown, line.command

    def _start(self, command: str) -> None:
        name, ready = next((start, pattern) for start, pattern in READY.items() if command.startswith(start))
        program, *arguments = shlex.split(command)
        if name == "headgate dev" and not _is_free(PORT):  # a server of the developer's own: only the port differs
            arguments += ["--port", str(port := lasting_port())]
            self.environ["HEADGATE_URL"] = f"127.0.0.1:{port}"
        process = LoggedProcess(
            name.replace(" ", "-"),
            [self.env.bin / program, *arguments],
            folder=self.here,
            environ=self.env.environ(self.environ),
        )
        self.background.append(process)
        process.saw(ready)

    def logged(self) -> str:
        """What the processes in the background printed."""
        return "\n".join(process.shown() for process in self.background)


def test_every_console_line_works_in_an_empty_environment_outside_the_clone(folder: Path) -> None:
    lines = console_lines()
    assert [line.command for line in lines if line.command in MAKE] == list(MAKE)
    began = time.monotonic()
    # From the project's file: what is installed here may be older than that.
    extras = [text for declared in PROJECT["optional-dependencies"].values() for text in declared]
    env = EmptyEnvironment(folder / "env", [*PROJECT["dependencies"], *extras])
    assert not {"headgate", "pytest", "mypy"} & set(env.linked)
    with Reader(env) as reader:
        for line in lines:
            if line.command.startswith("headgate init"):
                reader.here = folder / "project"  # from here on outside the clone
                reader.here.mkdir()
            reader.type(line)
        reader.type(Line("headgate schedule run clean-up", ""))
        reader.background[-1].saw("nothing to clean up")
        where = env.run("python", "-c", "import headgate; print(headgate.__file__)", cwd=folder, environ={**os.environ})
        assert Path(where.stdout.strip()).is_relative_to(folder), where
        assert (reader.here / ".headgate" / "postgres" / "pgdata").is_dir(), "headgate dev keeps its data there"
    sys.stdout.write(f"{len(lines)} lines in {time.monotonic() - began:.1f} s\n")
    check_wheel(ROOT / "dist" / f"headgate-{PROJECT['version']}-py3-none-any.whl")


def check_wheel(wheel: Path) -> None:
    """It has the types, the wire contract and the files of `headgate init`, and no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"headgate/proto/headgate/v1/{path.name}" for path in (ROOT / "proto/headgate/v1").iterdir()} <= names
    assert {"headgate/py.typed", "headgate/cli/starter/app.py.txt", "headgate/cli/starter/test_app.py.txt"} <= names
    assert not [name for name in names if name.startswith(("tests/", "examples/", "bench/"))]


def test_the_readme_names_every_extra_and_shows_the_file_that_init_writes() -> None:
    for extra in PROJECT["optional-dependencies"]:
        assert f"| `headgate[{extra}]` |" in README
    (code,) = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert code == re.sub(r'^""".*?"""\n\n', "", starter("app.py"), count=1, flags=re.DOTALL)


def test_every_local_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
