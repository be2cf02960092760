"""Parsers of command-line values: durations, times, numbers, payloads. Invalid text raises InvalidInput."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import priority_of_tier, shown

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_FORMS = "use 250ms, 30s, 5m, 2h or 1d"
_DIGITS_MAX = 18


def duration(text: str, *, field: str) -> timedelta:
    """Parse `30s`, `5m`, `2h`, `1d`, `250ms`, or plain seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", text.strip())
    if found is None:
        raise InvalidInput(field, f"is not a duration, got {shown(text)}", hint=_FORMS)
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"])
    except OverflowError:
        raise InvalidInput(field, f"is out of range, got {shown(text)}", hint=_FORMS) from None


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


def seconds(value: float, *, field: str) -> timedelta:
    """Convert a number of seconds; NaN, infinity and values out of range raise InvalidInput."""
    try:
        return timedelta(seconds=value)
    except (ValueError, OverflowError):
        raise InvalidInput(field, f"must be a number of seconds, got {shown(value)}") from None


def level_of(text: str) -> int:
    """Parse the name of a log level."""
    levels = logging.getLevelNamesMapping()
    found = levels.get(text.upper())
    if found is None:
        raise InvalidInput(
            "--log-level", f"is not a log level, got {shown(text)}", hint="use DEBUG, INFO, WARNING or ERROR"
        )
    return found


def priority(text: str) -> int:
    """Parse a number, whose range the SDK checks, or the name of a tier."""
    found = number(text)
    return priority_of_tier(text) if found is None else found


def payload(text: str, *, field: str = "payload", raw: bool = False) -> bytes:
    """Return the payload given as JSON, in `@file`, or on standard input (`-`); `raw` accepts bytes that are not JSON.

    An empty text is an empty object.
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
            field, f"{source}is not JSON ({problem})", hint="quote it, or pass --raw to send it unchanged"
        )
    return body


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
