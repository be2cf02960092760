"""Payloads and results as people see them: a JSON tree, a text, or bytes; masked, and bounded in size.

Templates print every part as a text node. A tree is a flat list of tokens, so that its depth costs no recursion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from headgate.domain.envelope import description, is_encrypted
from headgate.domain.redaction import MASK, Redaction

SHOWN_MAX_BYTES: Final = 65_536
"""A larger body is not shown, only its size and a link to download it."""
TOKENS_MAX: Final = 5_000
OPEN_MAX: Final = 200
"""Objects and lists with more items than this are folded at first."""
DEPTH_MAX: Final = 60
"""Deeper values are shown as text in one line."""
_HEX_BYTES: Final = 256
_ROW_BYTES: Final = 16

Kind = Literal["empty", "json", "text", "binary", "encrypted", "large"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A step of a tree: `open` and `close` of an object or a list, or a `leaf`. `key` None: an item of a list."""

    step: Literal["open", "close", "leaf"]
    key: str | None = None
    type: str = ""
    text: str = ""
    items: int = 0
    unfolded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A payload or a result. `masked`: values of secret keys are not shown."""

    kind: Kind
    size: int
    text: str = ""
    tree: Sequence[Token] = ()
    masked: bool = False

    @property
    def media_type(self) -> str:
        """What it is, in a word for people."""
        return {"json": "JSON", "text": "text", "binary": "bytes", "encrypted": "encrypted"}.get(self.kind, "")


def body_of(raw: bytes | None, redaction: Redaction, *, whole: bool = False) -> Body:
    """How a body is shown. `whole`: also a large one, which a reader has asked for."""
    if not raw:
        return Body(kind="empty", size=0)
    size = len(raw)
    if is_encrypted(raw):
        return Body(kind="encrypted", size=size, text=description(raw))
    if size > SHOWN_MAX_BYTES and not whole:
        return Body(kind="large", size=size)
    value = decoded(raw)
    if value is not NOT_JSON:
        shown = redaction.masked(value)
        tree = _bounded_tree(shown)
        masked = shown != value
        if tree is None:
            return Body(kind="text", size=size, text=pretty(shown), masked=masked)
        return Body(kind="json", size=size, tree=tree, text=pretty(shown), masked=masked)
    text = readable(raw)
    if text is None:
        return Body(kind="binary", size=size, text=hex_dump(raw[:_HEX_BYTES]))
    shown_text = redaction.masked_text(text)
    return Body(kind="text", size=size, text=shown_text, masked=shown_text != text)


NOT_JSON: Final = object()


def decoded(raw: bytes) -> object:
    """The JSON value, or NOT_JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return NOT_JSON


def readable(raw: bytes) -> str | None:
    """The text of bytes that are UTF-8 without control characters; None for others."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\r\t" for char in text) else None


def pretty(value: object) -> str:
    """JSON in lines, as people edit it."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _bounded_tree(value: object) -> list[Token] | None:
    """The tree; None if it has too many parts, or is nested too deep."""
    tokens: list[Token] = []
    for token in _tokens(value):
        if len(tokens) == TOKENS_MAX:
            return None
        tokens.append(token)
    return tokens


def _tokens(value: object) -> Iterator[Token]:
    work: list[tuple[str | None, object]] = [(None, value)]
    depth = 0
    while work:
        key, one = work.pop()
        if isinstance(one, _Close):
            depth -= 1
            yield Token(step="close", type=one.type)
        elif isinstance(one, dict | list) and one and depth < DEPTH_MAX:
            kind = "object" if isinstance(one, dict) else "list"
            yield Token(step="open", key=key, type=kind, items=len(one), unfolded=len(one) <= OPEN_MAX)
            depth += 1
            work.append((None, _Close(kind)))
            items: list[tuple[str | None, object]] = (
                [(str(name), inner) for name, inner in one.items()]
                if isinstance(one, dict)
                else [(None, inner) for inner in one]
            )
            work.extend(reversed(items))
        else:
            yield _leaf(key, one)


@dataclass(frozen=True, slots=True)
class _Close:
    type: str


def _leaf(key: str | None, value: object) -> Token:
    match value:
        case bool():
            return Token(step="leaf", key=key, type="boolean", text="true" if value else "false")
        case None:
            return Token(step="leaf", key=key, type="null", text="null")
        case str() if value == MASK:
            return Token(step="leaf", key=key, type="masked", text=MASK)
        case str():
            return Token(step="leaf", key=key, type="string", text=json.dumps(value, ensure_ascii=False))
        case int() | float():
            return Token(step="leaf", key=key, type="number", text=json.dumps(value))
        case _:
            return Token(step="leaf", key=key, type="object", text=json.dumps(value, ensure_ascii=False))


def hex_dump(raw: bytes) -> str:
    """Bytes in lines of 16: offset, hexadecimal, and what is printable of them."""
    lines = []
    for start in range(0, len(raw), _ROW_BYTES):
        row = raw[start : start + _ROW_BYTES]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{_ROW_BYTES * 3}} {shown}")
    return "\n".join(lines)
