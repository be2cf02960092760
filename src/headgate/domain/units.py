"""Durations and sizes as text: `30s`, `5m`, `256KiB`. One parser for command lines, variables and files."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown

_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(ms|s|m|h|d)?")
_DURATION_FORMS: Final = "use 250ms, 30s, 5m, 2h or 1d"
_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,18})\s*(B|KiB|MiB|GiB|TiB)?")
_SIZE_FORMS: Final = "use 512B, 256KiB, 4MiB or 1GiB"


def duration(text: str, *, field: str) -> timedelta:
    """Parse `30s`, `5m`, `2h`, `1d`, `250ms`, or plain seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(field, f"is not a duration, got {shown(text)}", hint=_DURATION_FORMS)
    try:
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2] or "s"])
    except OverflowError:
        raise InvalidInput(field, f"is out of range, got {shown(text)}", hint=_DURATION_FORMS) from None


def size(text: str, *, field: str) -> int:
    """Parse `512B`, `256KiB`, `4MiB`, `1GiB`, or plain bytes. KB and MB are refused: their meaning differs."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(field, f"is not a size, got {shown(text)}", hint=_SIZE_FORMS)
    return int(found[1]) * _BYTES[found[2] or "B"]


def duration_text(span: timedelta) -> str:
    """As `exact`, but `60s` rather than `1m`: the tables of the settings."""
    return "60s" if span == timedelta(minutes=1) else exact(span)


def size_text(count: int) -> str:
    """A size in its largest whole unit, as `size` reads it."""
    for unit, factor in reversed(_BYTES.items()):
        if count >= factor and not count % factor:
            return f"{count // factor}{unit}"
    return f"{count}B"


def exact(span: timedelta) -> str:
    """The duration of a setting in its largest whole unit, as options accept it: `250ms`, `30s`, `5m`, `36h`, `7d`."""
    milliseconds, below = divmod(span, timedelta(milliseconds=1))
    if below:  # no setting, but it may be refused as one
        return f"{span.total_seconds():f}s"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if milliseconds % size == 0 and (milliseconds or unit == "s"):
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
