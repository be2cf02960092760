"""How a value is written in a log line: numbers and plain words unchanged, other text in quotes."""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from typing import Final

REQUEST_ID: Final[ContextVar[str]] = ContextVar("request_id", default="")
"""Names the request that is being answered: every line that is logged for it has it. Empty: none is."""
VALUE_MAX_CHARS: Final = 2_000
_PLAIN: Final = re.compile(r"[\w.:/@+#-]+")
# Characters that JSON does not escape but that change a terminal or end a line: C1 controls, line and paragraph
# separators, bidirectional controls, lone surrogates.
_UNFIT: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Quoted:
    """A value that any formatter writes in quotes where it needs them; `value` is the value itself."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(quoted(self.value))


def quoted(value: object) -> object:
    """Return a field value: numbers and plain words unchanged, other text quoted and limited in length."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Quoted):
        return str(value)
    text = limited(str(value))
    if _PLAIN.fullmatch(text):
        return text
    return escaped(json.dumps(text, ensure_ascii=False))


def limited(text: str) -> str:
    """Return the text, or its beginning and how much is missing."""
    if len(text) <= VALUE_MAX_CHARS:
        return text
    return f"{text[:VALUE_MAX_CHARS]}… [{len(text) - VALUE_MAX_CHARS} more characters]"


def escaped(text: str) -> str:
    """Return the text without characters that end a line or change a terminal."""
    return _UNFIT.sub(lambda one: f"\\u{ord(one[0]):04x}", text)
