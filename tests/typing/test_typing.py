"""The types of the SDK, as a strict type checker sees them from a user's code: here, and in all documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.documented import ROOT, documented, write_documented

HERE = Path(__file__).parent
ACCEPTED = sorted(HERE.glob("accepted*.py"))
ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[a-z-]+)\]$", re.MULTILINE)
# Pages show how to use libraries that are not installed for the tests, such as Sentry's.
NOT_OURS = re.compile(r'module named "(?!headgate).*\[import-not-found\]')
WANTED = re.compile(r"# E: (?P<code>[a-z-]+)")

Errors: TypeAlias = Mapping[str, Mapping[int, str]]
"""File name -> line -> code."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    """What mypy finds in all of them: one run, since most of its time is spent on our own code."""
    folder = tmp_path_factory.mktemp("documented")
    files = [*ACCEPTED, HERE / "refused.py", *write_documented(folder)]
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unreachable", "--no-error-summary", *map(str, files)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not said.stderr, said.stderr
    found: defaultdict[str, dict[int, str]] = defaultdict(dict)
    sys.stdout.write(said.stdout)  # shown with a failure
    for one in ERROR.finditer(said.stdout):
        if not NOT_OURS.search(one[0]):
            found[Path(one["file"]).name][int(one["line"])] = one["code"]
    assert found, said.stdout
    return found


def test_code_that_is_right_type_checks(errors: Errors) -> None:
    assert {path.name: errors[path.name] for path in ACCEPTED if path.name in errors} == {}


def test_code_that_is_wrong_does_not_and_nothing_else_is_complained_about(errors: Errors) -> None:
    lines = (HERE / "refused.py").read_text().splitlines()
    wanted = {at: mark["code"] for at, line in enumerate(lines, 1) if (mark := WANTED.search(line))}
    assert errors["refused.py"] == wanted


def test_every_documented_line_type_checks(errors: Errors) -> None:
    names = documented()
    assert {"readme_page.py", "workers_page.py", "testing_page.py", "app.py", "test_app.py"} <= names.keys()
    assert {name: errors[name] for name in names if name in errors} == {}
