"""Third-party packages of each layer: declared in its extra, and only those that it may import (ADR 30)."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest

from headgate.cli.errors import missing_extra_text

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src/headgate"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# By layer, the longest path first: the extras that bring what it may import. The dependencies of the client always are.
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "cli/top": ("top",),
    "cli": (),
    "domain": (),
    "embedded": (),
    "sdk": ("encryption", "tracing"),
    "testing": ("embedded", "server"),
    "wire": (),
    **dict.fromkeys(("api", "control", "dispatch", "store", "web"), ("server",)),
    **dict.fromkeys(("ops", "server"), ("server", "tracing")),
    "": (),
}
USERS: Final = {("testing", "pytest")}
"""Fixtures are imported by the pytest of the user."""


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[;<>=!~]", requirement, maxsplit=1)[0]).lower()


def declared(*extras: str) -> set[str]:
    """The distributions that the client and these extras declare."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    return {name_of(one) for found in lists for one in found}


@cache
def distributions() -> dict[str, set[str]]:
    """By name of an import: the distributions that have it."""
    return {name: {name_of(one) for one in found} for name, found in packages_distributions().items()}


def imported(file: Path) -> set[str]:
    """The third-party packages that a module imports, also within functions and for type checkers."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module)
    return {name.partition(".")[0] for name in names} - {*sys.stdlib_module_names, "headgate"}


def by_layer() -> dict[str, set[str]]:
    """The third-party packages that each layer imports."""
    found: dict[str, set[str]] = {layer: set() for layer in EXTRAS}
    for file in SOURCE.rglob("*.py"):
        path = file.relative_to(SOURCE).as_posix()
        layer = next(layer for layer in EXTRAS if path.startswith(f"{layer}/") or not layer)
        found[layer] |= imported(file)
    return found


FOUND: Final = by_layer()


@pytest.mark.parametrize("layer", EXTRAS, ids=lambda layer: layer or "headgate")
def test_what_a_layer_imports_is_declared_for_it(layer: str) -> None:
    known = declared(*EXTRAS[layer])
    undeclared = {
        name for name in FOUND[layer] if (layer, name) not in USERS and not distributions().get(name, set()) & known
    }
    assert undeclared == set()


def test_rules_import_the_standard_library_only_but_for_what_the_decision_names() -> None:
    assert FOUND["domain"] == set()
    assert FOUND["control"] == {"joserfc", "jsonschema_rs", "msgspec"}
    assert FOUND["dispatch"] == set()


def test_only_the_store_imports_a_postgresql_driver() -> None:
    drivers = {"asyncpg", "psycopg", "psycopg2", "pg8000", "sqlalchemy", "django"}
    importing = {file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py") if imported(file) & drivers}
    assert importing
    assert {path for path in importing if not path.startswith("store/")} == set()


def test_every_missing_package_of_the_server_is_reported_with_its_extra() -> None:
    client = declared()
    of_server = {name for layer, extras in EXTRAS.items() if "server" in extras for name in FOUND[layer]}
    packages = {name for name in of_server if distributions()[name] & declared("server") - client}
    assert len(packages) >= 12
    unreported = {
        name
        for name in packages
        if 'pip install "headgate[server]"' not in missing_extra_text(ModuleNotFoundError(name=f"{name}.part"))
    }
    assert unreported == set()


def test_a_missing_package_of_the_terminal_view_is_reported_with_its_extra() -> None:
    packages = {name for name in FOUND["cli/top"] if not distributions()[name] & declared()}
    assert packages == {"rich", "textual"}
    for name in packages:
        text = missing_extra_text(ModuleNotFoundError(name=name))
        assert f'{name} is not installed; pip install "headgate[top]"' in text
