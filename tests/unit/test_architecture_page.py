"""docs/architecture.md and CONTRIBUTING.md: every function and file they name exists. Decisions have numbers."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/headgate"
PAGES = (ROOT / "docs/architecture.md", ROOT / "CONTRIBUTING.md")
NAMED = sorted({name for page in PAGES for name in re.findall(r"`([\w/]+\.py::\w+)`", page.read_text())})
FILES = sorted({name for page in PAGES for name in re.findall(r"`([\w./-]+/[\w.-]+\.\w+)`", page.read_text())})


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((SOURCE / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_map_has_all_its_lists() -> None:
    titles = re.findall(r"^## (.+)$", PAGES[0].read_text(), flags=re.MULTILINE)
    assert {"The life of a job", "A pause", "A schedule fires", "A renewal", "An expiry"} <= set(titles)
    assert len(NAMED) > 40


@pytest.mark.parametrize("name", NAMED)
def test_every_named_function_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert (SOURCE / file).is_file(), file
    assert function in functions_of(file)


@pytest.mark.parametrize("name", FILES)
def test_every_named_file_exists(name: str) -> None:
    assert (ROOT / name).exists() or (SOURCE / name).exists()


def test_every_decision_has_a_number_of_its_own() -> None:
    records = sorted((ROOT / "docs/adr").glob("*.md"))
    numbers = [int(path.name[:4]) for path in records]
    assert numbers == list(range(1, len(numbers) + 1)), "none is missing"
    assert [int(re.findall(r"\d+", path.read_text())[0]) for path in records] == numbers
