"""docs/promises.md: every promise names tests, and whatever it names exists."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from headgate.store.database import Database

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/promises.md"
NUMBER_OF_PROMISES = 15
# Where the long lanes live: a target that the page names must be there as soon as its code is.
LANES = {
    "bench-long": "bench/long.py",
    "explain": "tests/integration/claim_pages/test_claims.py",
    "failover": "tests/failover/__main__.py",
    "faults": "tests/fault/lab/__main__.py",
    "mutants": "tests/fault/lab/mutants.py",
    "overload": "bench/overload.py",
    "soak": "bench/soak.py",
}


def promises() -> dict[str, str]:
    """Title -> text of each numbered section."""
    parts = re.split(r"^## (\d+\. .+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


PROMISES = promises()


@cache
def functions_of(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


@cache
def marked_faults() -> frozenset[str]:
    """Faults that ordinary tests bring about: those with `@pytest.mark.req("F31")`."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for arguments in re.findall(r"mark\.req\(([^)]*)\)", path.read_text()):
            found.update(re.findall(r'"(F\d+)"', arguments))
    return frozenset(found)


def numbers(kind: str, text: str) -> set[str]:
    """What stands behind `Faults:` or `Invariants:`."""
    return {number for line in re.findall(rf"{kind}: ([^.]*)\.", text) for number in re.findall(r"\b[FI]\d+\b", line)}


def test_there_are_as_many_promises_as_we_make() -> None:
    assert [int(title.split(".")[0]) for title in PROMISES] == list(range(1, NUMBER_OF_PROMISES + 1))


@pytest.mark.parametrize("title", PROMISES)
def test_a_promise_has_limits_and_names_tests_that_exist(title: str) -> None:
    text = PROMISES[title]
    assert "**Limits.**" in text
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text.partition("**Proof.**")[2])
    assert named, "no test proves it"
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []


def test_every_test_is_named_in_a_form_that_is_checked() -> None:
    assert len(re.findall(r"::test_", PAGE.read_text())) == sum(
        len(re.findall(r"^- `tests/[\w/]+\.py::test_\w+`$", text, re.MULTILINE)) for text in PROMISES.values()
    )


def test_every_fault_that_is_named_is_brought_about() -> None:
    named = set().union(*(numbers("Faults", text) for text in PROMISES.values()))
    assert named
    catalogue = importlib.import_module("tests.fault.lab.scenarios").all_scenarios()
    known = {re.sub(r"[a-z]$", "", number) for number in catalogue} | marked_faults()  # F31b is a variant of F31
    assert named - known == set()


def test_every_invariant_that_is_named_is_checked() -> None:
    named = set().union(*(numbers("Invariants", text) for text in PROMISES.values()))
    assert named
    assert named - set(importlib.import_module("tests.fault.lab.checker").INVARIANTS) == set()


def test_every_command_that_is_named_can_be_made() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {target.strip() for target in re.findall(r"`make\s([a-z-]+)`", PAGE.read_text())}
    assert named == set(LANES)
    for target in named:
        if (ROOT / LANES[target]).exists():
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("docs/promises.md", "holds at most {} connections"),
        ("docs/howto/operate.md", "up to {} database connections"),
        ("docs/operations/high-availability.md", "up to {} for each headgate server"),
        ("docs/operations/high-availability.md", "a server keeps up to {} sessions open"),
    ],
)
def test_the_pages_say_how_many_connections_an_instance_opens(page: str, text: str) -> None:
    words = {17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty", 21: "twenty-one"}
    most = words[Database("postgresql://nowhere/headgate").connections]
    assert text.format(most) in " ".join((ROOT / page).read_text().split())
