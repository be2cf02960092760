"""The checks beside the limits: each returns the value in its one accepted form, or raises a typed error.

Every check takes `object`: values arrive from wires, command lines and untyped callers. The error names the field, the
limit and the kind of value it got, and shows at most some 80 characters of it: what is refused may be a secret in the
wrong place, or a megabyte of it.

Two exceptions to "refuse": `clean_text` mends what a worker says about a failure, because losing the outcome would be
worse than losing a NUL; and waits are rounded up to whole milliseconds, the unit in which they are stored and sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from headgate.domain import limits
from headgate.domain.errors import InvalidInput, TooLarge

MILLISECOND: Final = timedelta(milliseconds=1)
_SHOWN_MAX: Final = 80

_TOPIC = re.compile(limits.TOPIC_PATTERN)
_TENANT = re.compile(limits.TENANT_PATTERN)
_HEADER_NAME = re.compile(limits.HEADER_NAME_PATTERN)
# C0 and C1 controls, line and paragraph separators, bidirectional controls (they make a name read as another one),
# and surrogates (they have no UTF-8 form). An explicit list: `str.isprintable` changes with the Unicode tables of the
# Python release, and refuses the joiners inside emoji.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # what a PostgreSQL text cannot hold

_TOPIC_RULE: Final = (
    f"use 1 to {limits.TOPIC_MAX_CHARS} of A-Z a-z 0-9 . _ : / - beginning with a letter or digit, without '..' or '//'"
)
_TENANT_RULE: Final = f"use 1 to {limits.TENANT_MAX_CHARS} of a-z 0-9 - beginning with a letter or digit"
_HEADER_RULE: Final = (
    f"use 1 to {limits.HEADER_NAME_MAX_CHARS} of A-Z a-z 0-9 . _ : / - beginning with a letter or digit"
)


def shown(value: object) -> str:
    """Describe a refused value by at most some 80 characters of it, whatever it is; quotes tell text from numbers."""
    match value:
        case None:
            return "None"
        case bool():
            return str(value)
        case int():
            # Python refuses to print integers of more than 4,300 digits, and they are unreadable.
            return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
        case float() | timedelta():
            return str(value)
        case datetime():
            return value.replace(tzinfo=None).isoformat()
        case str():
            quoted = repr(value[:_SHOWN_MAX])
            if len(value) <= _SHOWN_MAX and len(quoted) <= _SHOWN_MAX:
                return quoted
            return f"text of {len(value)} characters {quoted[: _SHOWN_MAX - 20]}…"
        case bytes() | bytearray() | memoryview():
            return f"{type(value).__name__} of length {len(value)}"
        case _:
            return f"a value of type {type(value).__name__[:_SHOWN_MAX]}"  # its repr is not ours to trust


# --- kinds ----------------------------------------------------------------------------------------------------------


def check_integer(value: object, *, field: str, low: int, high: int) -> int:
    """Accept an int in low..high. A bool is not an int here, and 3.0 is not 3."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(field, f"must be a whole number from {low} to {high}, got {shown(value)}")
    return int(value)


def check_flag(value: object, *, field: str) -> bool:
    """Accept True or False and no other value that counts as one of them."""
    if not isinstance(value, bool):
        raise InvalidInput(field, f"must be a bool, got {shown(value)}")
    return value


def check_text(value: object, *, field: str, high: int, low: int = 1, hint: str = "") -> str:
    """Accept low..high characters of text on one line, without control or bidirectional characters."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str of {low} to {high} characters, got {shown(value)}", hint=hint)
    if len(value) > high:
        raise TooLarge(field, size=len(value), limit=high, unit="characters", hint=hint)
    if len(value) < low:
        raise InvalidInput(field, f"must have {low} to {high} characters, got {shown(value)}", hint=hint)
    if unfit := _UNFIT.search(value):
        raise InvalidInput(
            field,
            f"must have {low} to {high} characters and no control character, bidirectional control or lone surrogate; "
            f"got U+{ord(unfit[0]):04X} at position {unfit.start()}",
            hint=hint,
        )
    return value


def check_bytes(value: object, *, field: str, high: int) -> bytes:
    """Accept bytes of at most `high` bytes; text has to be encoded by the caller."""
    if not isinstance(value, bytes):
        raise InvalidInput(
            field,
            f"must be bytes, 0 to {high} of them, got {shown(value)}",
            hint="encode it first, for example as JSON",
        )
    if len(value) > high:
        raise TooLarge(field, size=len(value), limit=high, hint="store it elsewhere and send a reference")
    return value


def to_ms(span: timedelta) -> int:
    """Whole milliseconds, rounded up: a wait is never cut short, and a short one never becomes none at all."""
    return -(-span // MILLISECOND)


def check_span(value: object, *, field: str, low: timedelta, high: timedelta) -> timedelta:
    """Accept a timedelta in low..high, rounded up to whole milliseconds."""
    return to_ms(_span(value, field=field, low=low, high=high)) * MILLISECOND


def _span(value: object, *, field: str, low: timedelta, high: timedelta) -> timedelta:
    if isinstance(value, timedelta) and low <= value <= high:
        return value
    from headgate.domain.units import exact  # which imports this module

    if isinstance(value, timedelta):
        raise InvalidInput(field, f"must be from {exact(low)} to {exact(high)}, got {exact(value)}")
    raise InvalidInput(field, f"must be a timedelta from {exact(low)} to {exact(high)}, got {shown(value)}")


# --- names ----------------------------------------------------------------------------------------------------------


def check_topic(value: object, *, field: str = "topic") -> str:
    """Accept a topic name; `limits.TOPIC_PATTERN` says why these characters."""
    if isinstance(value, str) and len(value) <= limits.TOPIC_MAX_CHARS and _is_topic(value):
        return value
    name = check_text(value, field=field, high=limits.TOPIC_MAX_CHARS, hint=_TOPIC_RULE)
    raise InvalidInput(field, f"is not a topic name, got {shown(name)}", hint=_TOPIC_RULE)


@lru_cache(maxsize=4096)  # every submit and every frame asks, mostly about the same few
def _is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and not any(part in name for part in limits.TOPIC_FORBIDDEN)


def check_tenant(value: object, *, field: str = "tenant") -> str:
    """Accept a tenant name: one DNS label in lower case."""
    name = check_text(value, field=field, high=limits.TENANT_MAX_CHARS, hint=_TENANT_RULE)
    if not _TENANT.fullmatch(name):
        raise InvalidInput(field, f"is not a tenant name, got {shown(name)}", hint=_TENANT_RULE)
    return name


def check_worker_id(value: object, *, field: str = "worker_id") -> str:
    """Accept what a worker calls itself: any readable line."""
    return check_text(value, field=field, high=limits.WORKER_ID_MAX_CHARS)


# --- numbers and times ----------------------------------------------------------------------------------------------


def check_priority(value: object, *, field: str = "priority") -> int:
    """Accept any int32; higher runs first, negative is legal. Tier names are for `priority_of_tier`."""
    return check_integer(value, field=field, low=limits.PRIORITY_MIN, high=limits.PRIORITY_MAX)


def priority_of_tier(value: object, *, field: str = "priority") -> int:
    """Turn a tier's name into its number."""
    if not isinstance(value, str) or value not in limits.PRIORITY_TIERS:
        raise InvalidInput(field, f"must be one of {', '.join(limits.PRIORITY_TIERS)}, got {shown(value)}")
    return limits.PRIORITY_TIERS[value]


def parse_priority(text: str) -> int:
    """Parse a number, whose range is checked by what takes it, or the name of a tier."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else priority_of_tier(text)


def check_max_attempts(value: object, *, field: str = "max_attempts") -> int:
    """Accept how many paid runs a job may have."""
    return check_integer(value, field=field, low=1, high=limits.MAX_ATTEMPTS_LIMIT)


def check_delay(value: object, *, field: str = "delay") -> timedelta:
    """Accept a wait of 0 to 5 years."""
    return check_span(value, field=field, low=timedelta(0), high=limits.DELAY_MAX_MS * MILLISECOND)


def check_lease(value: object, *, field: str = "lease") -> timedelta:
    """Accept how long a claim may stay silent."""
    return check_span(value, field=field, low=limits.LEASE_MIN, high=limits.LEASE_MAX)


def check_ageing_step(value: object, *, field: str = "ageing_step") -> timedelta:
    """Accept how long a job must wait to catch up with one unit of priority; kept to the microsecond, as ranks are."""
    return _span(value, field=field, low=limits.AGEING_STEP_MIN, high=limits.AGEING_STEP_MAX)


def check_time_limit(value: object, *, field: str = "time_limit") -> timedelta:
    """Accept how long one attempt may take; 0 means no limit."""
    return check_span(value, field=field, low=timedelta(0), high=limits.DELAY_MAX_MS * MILLISECOND)


def check_aware(value: object, *, field: str) -> datetime:
    """Accept a point in time that says which zone it is in."""
    if not isinstance(value, datetime):
        raise InvalidInput(field, f"must be a datetime with a time zone, got {shown(value)}")
    if value.utcoffset() is None:
        raise InvalidInput(
            field, f"must carry a time zone, got naive {shown(value)}", hint="for example datetime.now(UTC)"
        )
    return value


def check_run_at(value: object, *, now: datetime | None = None, field: str = "run_at") -> datetime:
    """Accept a due time from the year 2000 to 5 years after `now`, and give it in UTC.

    Without `now` only the lower end is checked, for values built where no clock may be read.
    """
    moment = check_aware(value, field=field)
    span = f"from {limits.RUN_AT_EARLIEST:%Y-%m-%d} to 5 years ahead"
    if moment < limits.RUN_AT_EARLIEST or (now is not None and moment - now > limits.DELAY_MAX_MS * MILLISECOND):
        raise InvalidInput(field, f"must be {span}, got {shown(moment)}")
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # 9999-12-31 west of Greenwich has no UTC form
        raise InvalidInput(field, f"must be {span}, got {shown(moment)}") from None


def check_deadline(
    value: object,
    *,
    due: datetime | timedelta | None = None,
    now: datetime | None = None,
    field: str = "deadline",
) -> datetime | timedelta:
    """Accept a span of up to 5 years, or a time as of `run_at`, in UTC; `due` is the job's run_at or delay.

    Without `now` it is not known whether a time has passed, nor which of a span and a time comes first.
    """
    if isinstance(value, timedelta):
        deadline: datetime | timedelta = check_span(
            value, field=field, low=MILLISECOND, high=limits.DELAY_MAX_MS * MILLISECOND
        )
    elif isinstance(value, datetime):
        deadline = check_run_at(value, now=now, field=field)
    else:
        raise InvalidInput(field, f"must be a datetime with a time zone or a timedelta, got {shown(value)}")
    if isinstance(deadline, datetime) and now is not None and deadline <= now:
        raise InvalidInput(field, f"has passed, got {shown(deadline)}", hint="give a later one, or none")
    if due is not None and not _is_before(due, deadline, now):
        raise InvalidInput(field, "must be after the time the job is due (run_at or delay)", hint="give a later one")
    return deadline


def _is_before(one: datetime | timedelta, other: datetime | timedelta, now: datetime | None) -> bool:
    if isinstance(one, datetime) and isinstance(other, datetime):
        return one < other
    if isinstance(one, timedelta) and isinstance(other, timedelta):
        return one < other
    if now is None:
        return True
    return (now + one if isinstance(one, timedelta) else one) < (now + other if isinstance(other, timedelta) else other)


# --- what travels with a job ----------------------------------------------------------------------------------------


def check_payload(value: object, *, field: str = "payload") -> bytes:
    """Accept a job's opaque body, 0 bytes to 1 MiB."""
    return check_bytes(value, field=field, high=limits.PAYLOAD_MAX_BYTES)


def check_result(value: object, *, field: str = "result") -> bytes:
    """Accept what a job gave back, 0 bytes to 1 MiB."""
    return check_bytes(value, field=field, high=limits.RESULT_MAX_BYTES)


def check_tags(value: object, *, field: str = "tags") -> tuple[str, ...]:
    """Accept up to 20 tags; a repeated one counts once, at its first place."""
    # A str is a sequence of str: "mail" would silently become the tags m, a, i, l.
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidInput(field, f"must be a list of at most {limits.TAGS_MAX} str, got {shown(value)}")
    if len(value) > limits.TAGS_MAX:
        raise TooLarge(field, size=len(value), limit=limits.TAGS_MAX, unit="tags")
    checked = (check_text(tag, field=f"{field}[{at}]", high=limits.TAG_MAX_CHARS) for at, tag in enumerate(value))
    return tuple(dict.fromkeys(checked))


def check_headers(value: object, *, field: str = "headers") -> Mapping[str, str]:
    """Accept up to 32 headers of 8 KiB in all, and give an unchangeable copy.

    Values are single lines: a header may be handed on in HTTP, where a line break would start another header.
    """
    if not isinstance(value, Mapping):
        raise InvalidInput(field, f"must map at most {limits.HEADERS_MAX} str to str, got {shown(value)}")
    if len(value) > limits.HEADERS_MAX:
        raise TooLarge(field, size=len(value), limit=limits.HEADERS_MAX, unit="headers")
    copy: dict[str, str] = {}
    total = 0
    for raw_name, raw_text in value.items():
        name = check_text(raw_name, field=f"{field} name", high=limits.HEADER_NAME_MAX_CHARS, hint=_HEADER_RULE)
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidInput(f"{field} name", f"is not a header name, got {shown(name)}", hint=_HEADER_RULE)
        text = check_text(raw_text, field=f"{field}[{name}]", low=0, high=limits.HEADERS_TOTAL_MAX_BYTES)
        total += len(name) + len(text.encode())
        copy[name] = text
    if total > limits.HEADERS_TOTAL_MAX_BYTES:
        raise TooLarge(field, size=total, limit=limits.HEADERS_TOTAL_MAX_BYTES)
    return MappingProxyType(copy)


def check_key(value: object, *, field: str = "key") -> str:
    """Accept an idempotency key."""
    return check_text(value, field=field, high=limits.KEY_MAX_CHARS)


def check_limit_key(value: object, *, field: str = "limit_key") -> str:
    """Accept the key by which a topic limits, orders or shares: a customer, an account."""
    return check_text(value, field=field, high=limits.KEY_MAX_CHARS)


def check_key_window(value: object, *, field: str = "key_window") -> timedelta:
    """Accept how long an idempotency key keeps a second job away."""
    return check_span(value, field=field, low=limits.KEY_WINDOW_MIN, high=limits.KEY_WINDOW_MAX)


# --- batches --------------------------------------------------------------------------------------------------------


def check_claim_size(value: object, *, field: str = "count") -> int:
    """Accept how many jobs one claim may take."""
    return check_integer(value, field=field, low=1, high=limits.CLAIM_MAX)


def check_page_size(value: object, *, field: str = "limit") -> int:
    """Accept how many rows one page of a listing may have."""
    return check_integer(value, field=field, low=1, high=limits.PAGE_MAX)


# --- what operators and workers say ---------------------------------------------------------------------------------


def check_reason(value: object, *, field: str = "reason") -> str:
    """Accept the reason that an operator gives, if any: it is kept for the audit."""
    return check_text(value, field=field, low=0, high=limits.REASON_MAX_CHARS)


def clean_text(text: str, limit: int) -> str:
    """Make any str storable in at most `limit` characters; never fails.

    For texts from workers. A NUL or a lone surrogate becomes U+FFFD; what is cut off at the end is counted.
    """
    limit = max(limit, 0)
    if len(text) > limit:
        kept = limit - len(_more(len(text)))
        text = text[:kept] + _more(len(text) - kept) if kept > 0 else text[:limit]
    return _UNSTORABLE.sub("\ufffd", text)


def _more(count: int) -> str:
    return f"… [{count} more characters]"
