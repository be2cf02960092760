"""JSON of strangers: a name that occurs twice is an error, and so is deep nesting."""

from __future__ import annotations

import json
from typing import Any

from headgate.domain.validation import shown


class DuplicateName(ValueError):
    """An object has two members of one name: which of them counts would depend on the reader."""


def parse_value(text: str | bytes) -> object:
    """Parse a JSON value; raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; raises ValueError."""
    found = parse_value(text)
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return found


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise DuplicateName(f"the name {shown(name)} occurs twice in one object")
        found[name] = value
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
