"""Parsers of command-line values: durations, times, numbers, payloads. Invalid text raises InvalidInput."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from headgate.domain.errors import InvalidInput
from headgate.domain.units import duration as duration
from headgate.domain.validation import shown

_DIGITS_MAX = 18


def timestamp(text: str, *, field: str) -> datetime:
    """Parse an ISO date and time with a zone: `2026-12-24T18:00:00+01:00` or `…Z`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            field,
            f"is not a time, got {shown(text)}",
            hint="use 2026-12-24T18:00:00Z, or an offset such as +01:00",
        ) from None
    if at.tzinfo is None:
        raise InvalidInput(
            field, f"has no time zone, got {shown(text)}", hint="add Z for UTC, or an offset such as +01:00"
        )
    return at


def duration_or_timestamp(text: str, *, field: str) -> timedelta | datetime:
    """Parse either of the two: a time contains a T or a dash."""
    return timestamp(text, field=field) if re.search("[-T]", text) else duration(text, field=field)


def number(text: str) -> int | None:
    """Parse a whole number; None if it is not one, or has more than 18 digits."""
    return int(text) if re.fullmatch(rf"[+-]?[0-9]{{1,{_DIGITS_MAX}}}", text) else None


def payload(text: str, *, field: str = "payload", raw: bool = False) -> bytes:
    """Return the payload given as JSON, in `@file`, or on standard input (`-`); `raw` accepts bytes that are not JSON.

    An empty text is an empty object.
    """
    source, body = "", (text or "{}").encode("utf-8", "surrogateescape")
    if text == "-" or text.startswith("@"):
        source, body = _read(text.removeprefix("@"), field=field)
    if not raw and (problem := _not_json(body)):
        raise InvalidInput(
            field, f"{source}is not JSON ({problem})", hint="quote it, or pass --raw to send it unchanged"
        )
    return body


def headers(given: Sequence[str], *, field: str) -> dict[str, str]:
    """Read `NAME=VALUE`, once for each name."""
    found: dict[str, str] = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not separator or not name:
            raise InvalidInput(field, f"must be NAME=VALUE, got {shown(one)}")
        if name in found:
            raise InvalidInput(field, f"has the name {shown(name)} twice")
        found[name] = value
    return found


def payload_lines(name: str, *, raw: bool = False) -> list[bytes]:
    """Return the payloads of a file, or of standard input (`-`): one per line. Empty lines are left out."""
    source, body = _read(name.removeprefix("@"), field="--file")
    lines = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    for number, line in lines if not raw else ():
        if problem := _not_json(line):
            raise InvalidInput(
                "--file", f"{source}line {number} is not JSON ({problem})", hint="pass --raw to send lines unchanged"
            )
    return [line for _, line in lines]


def _read(name: str, *, field: str) -> tuple[str, bytes]:
    """Return how a source is named in an error, and its bytes."""
    if name == "-":
        return "standard input ", sys.stdin.buffer.read()
    path = Path(name)
    try:
        return f"{path} ", path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise InvalidInput(field, f"{shown(str(path))} cannot be read: {reason}") from None


def _not_json(body: bytes) -> str:
    """Return where the text is not valid JSON; empty if it is valid."""
    try:
        json.loads(body.decode())  # UTF-8 only: handlers read nothing else
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:  # a number with more digits than Python accepts
        return str(error)
    return ""
