"""The types of the SDK, as a strict type checker sees them from a user's code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[a-z-]+)\]$", re.MULTILINE)
WANTED = re.compile(r"# E: (?P<code>[a-z-]+)")


def errors_in(*names: str) -> dict[int, str]:
    """Line -> code of what mypy finds in these files."""
    options = ("--strict", "--warn-unreachable", "--no-error-summary")
    command = [sys.executable, "-m", "mypy", *options, *(str(HERE / name) for name in names)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent.parent)
    assert not told.stderr, told.stderr
    found = {int(one["line"]): one["code"] for one in ERROR.finditer(told.stdout) if one["file"].endswith(names)}
    assert bool(found) == (told.returncode != 0), told.stdout
    return found


def test_code_that_is_right_type_checks() -> None:
    assert errors_in("accepted.py", "accepted_testing.py") == {}


def test_code_that_is_wrong_does_not_and_nothing_else_is_complained_about() -> None:
    lines = (HERE / "refused.py").read_text().splitlines()
    wanted = {at: mark["code"] for at, line in enumerate(lines, 1) if (mark := WANTED.search(line))}
    assert errors_in("refused.py") == wanted
