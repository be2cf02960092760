"""What people write on a command line: spans, points in time, numbers, payloads. A sentence answers whatever it is."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_FORMS = "write 250ms, 30s, 5m, 2h or 1d"
_DIGITS_MAX = 18


def span(text: str, *, field: str) -> timedelta:
    """`30s`, `5m`, `2h`, `1d`, `250ms`, or plain seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", text.strip())
    if found is None:
        raise InvalidInput(field, f"is not a span, got {shown(text)}", hint=_FORMS)
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"])
    except OverflowError:
        raise InvalidInput(field, f"is longer than any calendar, got {shown(text)}", hint=_FORMS) from None


def moment(text: str, *, field: str) -> datetime:
    """An ISO date and time with a zone: `2026-12-24T18:00:00+01:00` or `…Z`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            field,
            f"is not a time, got {shown(text)}",
            hint="write 2026-12-24T18:00:00Z, or with an offset such as +01:00",
        ) from None
    if at.tzinfo is None:
        raise InvalidInput(
            field, f"has no time zone, got {shown(text)}", hint="add Z for UTC, or an offset such as +01:00"
        )
    return at


def span_or_moment(text: str, *, field: str) -> timedelta | datetime:
    """Either of the two: a time has a T or a dash."""
    return moment(text, field=field) if re.search("[-T]", text) else span(text, field=field)


def number(text: str) -> int | None:
    """A whole number, or None if that is not one (or longer than any that means something here)."""
    return int(text) if re.fullmatch(rf"[+-]?[0-9]{{1,{_DIGITS_MAX}}}", text) else None


def seconds(value: float, *, field: str) -> timedelta:
    """A number of seconds that a clock can count; NaN and infinity are none."""
    try:
        return timedelta(seconds=value)
    except (ValueError, OverflowError):
        raise InvalidInput(field, f"must be a number of seconds, got {shown(value)}") from None


def level_of(text: str) -> int:
    """A log level by its name."""
    levels = logging.getLevelNamesMapping()
    found = levels.get(text.upper())
    if found is None:
        raise InvalidInput(
            "--log-level", f"is not a level, got {shown(text)}", hint="write DEBUG, INFO, WARNING or ERROR"
        )
    return found


def priority(text: str) -> int | str:
    """A number, or the name of a tier, which the SDK knows."""
    found = number(text)
    return text if found is None else found


def payload(text: str, *, field: str = "payload", raw: bool = False) -> bytes:
    """JSON as given, in `@file`, or on standard input (`-`); `raw`: those bytes as they are, JSON or not.

    Nothing at all is an empty object.
    """
    source, body = "", (text or "{}").encode("utf-8", "surrogateescape")
    if text in ("-", "@-"):
        source, body = "standard input ", sys.stdin.buffer.read()
    elif text.startswith("@"):
        path = Path(text[1:])
        try:
            source, body = f"{path} ", path.read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a file name"
            raise InvalidInput(field, f"{shown(str(path))} cannot be read: {reason}") from None
    if not raw and (problem := _not_json(body)):
        raise InvalidInput(
            field, f"{source}is not JSON ({problem})", hint="quote it, or pass --raw to send other bytes"
        )
    return body


def _not_json(body: bytes) -> str:
    """Where it stops to be JSON; nothing if it never does."""
    try:
        json.loads(body.decode())  # UTF-8 and nothing else: handlers read no other
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    except RecursionError:
        return "it is nested too deep"
    except ValueError as error:  # a number of more digits than Python reads
        return str(error)
    return ""
