"""Find the Headgate objects of a project and their topics by reading its code, which is not imported.

For suggestions only: what cannot be read for sure is left out.
"""

from __future__ import annotations

import ast
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

FILES_MAX: Final = 300
FILE_BYTES_MAX: Final = 500_000
_NOT_CODE: Final = frozenset({"node_modules", "build", "dist", "venv", "env", "tests", "test"})
_EXAMPLES: Final[dict[str, object]] = {
    "str": "example",
    "int": 1,
    "float": 1.5,
    "bool": True,
    "None": None,
    "Any": "example",
    "object": "example",
    "list": [],
    "Sequence": [],
    "tuple": [],
    "set": [],
    "dict": {},
    "Mapping": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A handler: its topic, and arguments that it accepts; None if they cannot be guessed."""

    topic: str
    arguments: dict[str, object] | None

    @property
    def command(self) -> str:
        """A command line that submits a job it can run."""
        payload = f" {shlex.quote(json.dumps(self.arguments))}" if self.arguments else ""
        return f"headgate submit {shlex.quote(self.topic)}{payload} --wait 30s"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundApp:
    """A Headgate object with at least one handler, as `headgate worker` names it."""

    target: str
    topics: tuple[FoundTopic, ...]


def find_apps(folder: Path) -> list[FoundApp]:
    """The Headgate objects of the modules in a folder and in its packages, nearest first."""
    parsed = [(module, tree) for module, path in _modules(folder) if (tree := _parsed(path)) is not None]
    made = {name for _, tree in parsed for name in _made_here(tree)}
    return [
        FoundApp(target=f"{module}:{name}", topics=topics)
        for module, tree in parsed
        for name in sorted(made & (_made_here(tree) | _imported(tree)))
        if (topics := tuple(_topics(tree, name)))
    ]


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    def files() -> Iterator[tuple[str, Path]]:
        for path in sorted(folder.glob("*.py")):
            yield path.stem, path
        for package in sorted(folder.glob("*/")):
            name = package.name
            if name.isidentifier() and name not in _NOT_CODE and not name.startswith(("_", ".")):
                for path in sorted(package.glob("*.py")):
                    yield (name if path.stem == "__init__" else f"{name}.{path.stem}"), path

    return islice(files(), FILES_MAX)


def _parsed(path: Path) -> ast.Module | None:
    try:
        if path.stem.startswith("test_") or os.stat(path).st_size > FILE_BYTES_MAX:
            return None
        text = path.read_text()
        # Most files of a project do not use Headgate: parsing takes a hundred times as long as this.
        return ast.parse(text) if ".job(" in text or "Headgate(" in text else None
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


def _made_here(tree: ast.Module) -> set[str]:
    """The names at the top of a module to which a new Headgate is assigned."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=called)):
                pass
            case _:
                continue
        if _last_name(called) == "Headgate":
            names.add(name)
    return names


def _imported(tree: ast.Module) -> set[str]:
    return {one.asname or one.name for node in tree.body if isinstance(node, ast.ImportFrom) for one in node.names}


def _topics(tree: ast.Module, app: str) -> Iterator[FoundTopic]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="job"), args=[ast.Constant(value=str(topic)), *_]
                ) if name == app:
                    yield FoundTopic(topic=topic, arguments=_arguments(node.args))


def _arguments(given: ast.arguments) -> dict[str, object] | None:
    """A value for every parameter that needs one, by its annotation."""
    positional = [*given.posonlyargs, *given.args]
    required = positional[: len(positional) - len(given.defaults)]
    required += [one for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    arguments: dict[str, object] = {}
    for one in required:
        kind = _kind(one.annotation)
        if kind == "Job":
            continue
        if kind not in _EXAMPLES:
            return None
        arguments[one.arg] = _EXAMPLES[kind]
    return arguments


def _kind(annotation: ast.expr | None) -> str:
    """The name in _EXAMPLES, or "Job", that stands for an annotation; "" for others."""
    match annotation:
        case None:
            return "Any"
        case ast.Constant(value=None):
            return "None"
        case ast.Constant(value=str(text)):
            try:
                return _kind(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return ""
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            kinds = (_kind(left), _kind(right))
            return next((kind for kind in kinds if kind in _EXAMPLES), "")
        case ast.Subscript(value=value):
            # A tuple of a fixed length and what else has parameters: only containers that may be empty.
            return kind if (kind := _last_name(value)) in ("list", "Sequence", "set", "dict", "Mapping") else ""
        case _:
            return _last_name(annotation)


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
