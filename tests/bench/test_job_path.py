"""How many functions and files one job passes, from submit to its result.

Twice: all that run, by tools/job_path.py and its rule, and those that a reader has to know: the walk in
docs/architecture.md. A job passes every function of the walk.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.server import clean_environ

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/architecture.md").read_text()
MOST_FUNCTIONS, MOST_FILES = 247, 74
"""What has been reached, so that it does not grow unnoticed. Every check, property and nested function counts. Since
the first count (280 functions in 72 files) these came: counts for metrics (ADR 43: Tallies, Histogram, Claimer._count,
release and tally of writes), the ids of requests (request_id_in, is_request_id), rate limits and quotas
(RateLimits.take, TenantLimits.take, Rule.rate_class), credentials that are looked up (identity_of), connections of one
tenant (as_tenant, use_as), rules of topics (defaults_of, lease_ms_of, time_limit_ms, checks_payloads), encryption and
spans (_completed, _submit), refunds of rates (Submits._take), calls that outlive
a change of address (Calls._make, _close_unused). Lower these after a change that helps."""
WALK_FUNCTIONS, WALK_FILES = 45, 20
"""What a reader can keep in mind."""


@pytest.fixture(scope="module")
def walk() -> list[tuple[str, str]]:
    """File and name of each function, in the order of the page."""
    section = PAGE.partition("## The life of a job\n")[2].partition("\n### ")[0]
    return re.findall(r"`([\w/]+\.py)::(\w+)`", section)


def test_the_walk_of_a_reader_is_short_and_the_page_says_how_long(walk: list[tuple[str, str]]) -> None:
    functions, files = len(set(walk)), len({file for file, _ in walk})
    assert 30 < functions <= WALK_FUNCTIONS
    assert files <= WALK_FILES
    assert re.findall(r"(\d+) functions in (\d+) files", PAGE) == [
        (str(functions), str(files)),
        (str(MOST_FUNCTIONS), str(MOST_FILES)),
    ]


def test_a_job_passes_no_more_functions_and_files_than_recorded_and_all_of_the_walk(
    database: str, walk: list[tuple[str, str]]
) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tools.job_path", database],
        cwd=ROOT,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    found = re.search(r"^(\d+) functions in (\d+) files; (\d+) steps in (\d+) files$", shown.stdout, re.MULTILINE)
    assert found is not None, shown.stdout
    functions, files = int(found[1]), int(found[2])
    assert 100 < functions <= MOST_FUNCTIONS, shown.stdout
    assert 30 < files <= MOST_FILES, shown.stdout
    assert set(walk) <= passed(shown.stdout)


def passed(shown: str) -> set[tuple[str, str]]:
    """File and name of each function that was printed, without its class."""
    found: set[tuple[str, str]] = set()
    file = ""
    for line in shown.splitlines():
        if (heading := re.fullmatch(r"(\S+\.py): \d+", line)) is not None:
            file = heading[1]
        elif line.startswith("    "):
            found.add((file, line.removeprefix("    ").removeprefix(". ").rpartition(".")[2]))
    return found
