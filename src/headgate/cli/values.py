"""What people write on a command line: spans, points in time, payloads."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path

from headgate.domain.errors import InvalidInput

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def span(text: str, *, field: str) -> timedelta:
    """`30s`, `5m`, `2h`, `1d`, `250ms`, or plain seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", text.strip())
    if found is None:
        raise InvalidInput(field, f'"{text}" is not a span', hint="write 250ms, 30s, 5m, 2h or 1d")
    return timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"])


def moment(text: str, *, field: str) -> datetime:
    """An ISO date and time with a zone: `2026-12-24T18:00:00+01:00` or `…Z`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(field, f'"{text}" is not a time', hint="write 2026-12-24T18:00:00Z") from None
    if at.tzinfo is None:
        raise InvalidInput(field, f'"{text}" has no time zone', hint="add Z for UTC, or an offset such as +01:00")
    return at


def priority(text: str) -> int | str:
    """A number, or the name of a tier, which the SDK knows."""
    return int(text) if text.lstrip("+-").isdigit() else text


def payload(text: str, *, field: str = "payload") -> bytes:
    """JSON as given, `@file` for a file's bytes, `-` for standard input; nothing at all is an empty object."""
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            return path.read_bytes()
        except OSError as error:
            raise InvalidInput(field, f"{path} cannot be read: {error.strerror}") from None
    try:
        json.loads(text or "{}")
    except ValueError as error:
        detail = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidInput(field, f"is not JSON ({detail})", hint="quote it, or pass @file or -") from None
    return (text or "{}").encode()
