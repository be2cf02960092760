"""`headgate …` in this process: a process for each command would take a second."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from headgate.cli import main


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


class Shell:
    """Runs command lines, with the environment as the test has made it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Said:
        self._capsys.readouterr()
        code = main(arguments)
        return Said(code, *self._capsys.readouterr())
