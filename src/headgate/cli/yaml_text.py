"""YAML of what `-o json` prints: a writer for JSON values only, so that the client needs no library for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@-]*(?: [A-Za-z0-9_./@-]+)*")
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
"""Readers of YAML 1.1 take these for other values than texts."""
_UNPRINTABLE: Final = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def yaml_lines(value: object) -> Iterator[str]:
    """Return the lines of a document; `value` is what `json.loads` returns."""
    match value:
        case dict() if value:
            for key, below in value.items():
                first, *more = yaml_lines(below)
                name = _scalar(key)
                if _is_nested(below):
                    yield f"{name}:"
                    yield from (f"  {line}" for line in (first, *more))
                else:
                    yield f"{name}: {first}"
        case list() if value:
            for below in value:
                first, *more = yaml_lines(below)
                yield f"- {first}"
                yield from (f"  {line}" for line in more)
        case _:
            yield _scalar(value)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _scalar(value: object) -> str:
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return _UNPRINTABLE.sub(_escaped, json.dumps(value, ensure_ascii=False))
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")  # without a point, YAML 1.1 reads a text
    return text


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
