"""Settings of a topic as text: one form for `headgate topic set`, for files, for the dashboard and for lists."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Final

from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.errors import InvalidInput
from headgate.domain.payload_schemas import checked_schema
from headgate.domain.retention import KEEP_RULES, check_keep
from headgate.domain.topic_limits import Rate
from headgate.domain.units import duration, exact, size
from headgate.domain.validation import check_priority, parse_priority, shown

_MILLISECOND: Final = timedelta(milliseconds=1)
_NUMBERS: Final = ("max_running", "max_running_per_key", "max_backlog", "max_attempts", "max_consumers")
_RATES: Final = ("rate", "key_rate")
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_FLAGS: Final = ("ordered_by_key", "fair_by_key")


def setting_of(name: str, value: object, *, field: str) -> object:
    """Parse the value of a setting: a text as `topic set` accepts it, or a number, a truth value, an object.

    None, as `none`, is no value. Raises InvalidInput.
    """
    none = value is None or value == "none"
    if name == "time_limit" and none:
        return timedelta(0)  # and not "no rule", which would be what the handler declares
    if name == "priority":
        return 0 if none else check_priority(parse_priority(_text(value)))
    if none:
        return None
    if name in _NUMBERS:
        return _number(value, field=field)
    if name in _RATES:
        return rate_of(_text(value), field=field)
    if name in _FLAGS:
        return _flag(value, field=field)
    if name == "retry":
        return policy_of(_text(value), field=field)
    if name == "payload_schema":
        return checked_schema(value, field=field)
    if name == "max_payload_bytes":
        return size(_text(value), field=field) if isinstance(value, str) else _number(value, field=field)
    if name == "dead_letter_topic":
        return _text(value)
    span = duration(_text(value), field=field)
    return check_keep(span, field=field) if name in KEEP_RULES else span


def rate_of(text: str, *, field: str) -> Rate:
    """Parse `100/1s`, or `100/1s:20` with a burst of 20."""
    found = re.fullmatch(r"([0-9]{1,18})/([^:]+)(?::([0-9]{1,18}))?", text)
    if found is None:
        raise InvalidInput(
            field, f"is not a rate, got {shown(text)}", hint="use 100/1s, or 100/1s:20 with a burst of 20"
        )
    return Rate(count=int(found[1]), period=duration(found[2], field=field), burst=int(found[3]) if found[3] else None)


def policy_of(text: str, *, field: str = "--retry") -> RetryPolicy:
    """Parse `kind:base`, `kind:base:cap`, or `explicit:delay:delay:…`."""
    kind, *spans = text.split(":")
    kinds = {one.name.lower(): one for one in BackoffKind}
    if kind not in kinds or not spans or (kind != "explicit" and len(spans) > 2):
        raise InvalidInput(
            field,
            f"is not a retry policy, got {shown(text)}",
            hint=f"use KIND:BASE[:CAP] with KIND one of {', '.join(kinds)} (explicit: all delays)",
        )
    delays = [duration(one, field=field) for one in spans]
    if kind == "explicit":
        return RetryPolicy.explicit(*delays)
    base, *cap = (one // timedelta(milliseconds=1) for one in delays)
    default = RetryPolicy()
    return RetryPolicy(kind=kinds[kind], base_ms=base, cap_ms=cap[0] if cap else max(base, default.cap_ms))


def value_text(name: str, value: object) -> str:
    """Return the value of a setting for people."""
    match value:
        case str() if name == "payload_schema":
            return f"JSON Schema, {len(value.encode()):,} bytes"
        case _:
            return exact_text(value)


def exact_text(value: object) -> str:
    """Return the value of a setting as `setting_of` accepts it, without loss."""
    match value:
        case RetryPolicy():
            spans = value.delays_ms or (value.base_ms, value.cap_ms)
            spans = spans[:1] if value.kind is BackoffKind.FIXED else spans
            return f"{value.kind.name.lower()}:{':'.join(_span(timedelta(milliseconds=ms)) for ms in spans)}"
        case Rate():
            burst = "" if value.burst is None else f":{value.burst}"
            return f"{value.count}/{_span(value.period)}{burst}"
        case timedelta():
            return _span(value) if value else "none"
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case _:
            return str(value)


def document_value(name: str, value: object) -> object:
    """Return the value of a setting as a file has it: numbers, truth values and schemas are themselves."""
    if name == "payload_schema" and isinstance(value, str):
        return json.loads(value)
    return value if isinstance(value, bool | int) else exact_text(value)


def _span(span: timedelta) -> str:
    if span % _MILLISECOND:
        return f"{span.total_seconds():.6f}".rstrip("0") + "s"
    return exact(span)


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _number(value: object, *, field: str) -> int:
    text = _text(value)
    if isinstance(value, bool) or not _WHOLE.fullmatch(text):
        raise InvalidInput(field, f"is not a whole number, got {shown(value)}", hint="none removes the limit")
    return int(text)


def _flag(value: object, *, field: str) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("yes", "no"):
        raise InvalidInput(field, f"must be yes or no, got {shown(value)}")
    return value == "yes"
