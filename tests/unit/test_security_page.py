"""SECURITY.md: whatever an attacker cannot do is shown by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
ROWS = re.findall(r"^\| (?!cannot|---)(.+) \| (.+) \|$", PAGE, flags=re.MULTILINE)


def test_the_page_covers_every_kind_of_peer() -> None:
    actors = (
        "A stranger",
        "A token holder",
        "A tenant's administrator",
        "A system administrator",
        "An application's database role",
        "A server's",
        "A handler",
        "An operator",
    )
    titles = re.findall(r"^### (.+)$", PAGE, flags=re.MULTILINE)
    for actor in actors:
        assert any(title.startswith(actor) for title in titles), actor
    assert len(ROWS) > 15


@pytest.mark.parametrize(("claim", "shown"), ROWS)
def test_every_claim_names_a_test_that_exists(claim: str, shown: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown)
    assert named, claim
    for file, name in named:
        assert re.search(rf"^\s*(async )?def {name}\(", (ROOT / file).read_text(), flags=re.MULTILINE), (file, name)


def test_the_lowest_grpcio_is_the_one_that_is_tested() -> None:
    floor = re.search(r'"grpcio>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    locked = re.search(r"^grpcio==([\d.]+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    assert floor is not None
    assert locked is not None
    assert floor[1] == locked[1]
