"""The filter language: one parser for SDK, CLI, REST and dashboard.

    state:dead,cancelled topic:mail* -tag:vip priority:>=5 error:"timed out" created:>2h args.user.id:42

Terms are joined by "and", the values of one term by "or"; a leading `-` turns a term round. A bare `*` stands for any
text in topic, worker and error; within quotes everything is itself (`\\"` and `\\\\` for those two).

A time is a date (midnight UTC), a moment with its zone, or a span, which means the moment that long ago. `>` always
means later: `created:>2h` is the last two hours, `created:<2h` all that is older, as `created:<2026-01-01` is.

Everything is bounded, because filters come from strangers and are stored: the text, its terms, their values, and how
many of those are patterns. Matching a pattern takes time in proportion to the text, never more (see `Glob.matches`).

`parse` never guesses: what it does not understand is an `InvalidFilter` with the place and, where there is one, the
word that was probably meant. `str(filter)` is the canonical text, and parses back to the same filter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final
from uuid import UUID

from headgate.domain import limits
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.filters import (
    GROUP_CHARS,
    PATH_MAX,
    PATTERNS_MAX,
    SPAN_MAX,
    SPAN_UNITS,
    TERMS_MAX,
    TEXT_MAX_CHARS,
    TIMES,
    VALUES_MAX,
    Ago,
    Field,
    Glob,
    InvalidFilter,
    JobFilter,
    Op,
    Term,
    Value,
    quoted,
    wildcard_problem,
)
from headgate.domain.ids import parse_job_id
from headgate.domain.states import State
from headgate.domain.validation import MILLISECOND, check_text, shown

_SPAN: Final = re.compile(r"(?:\d{1,12}(?:ms|w|d|h|m|s))+")
_SPAN_PART: Final = re.compile(r"(\d+)(ms|w|d|h|m|s)")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_-]+)*")
_INT: Final = re.compile(r"[+-]?\d{1,12}")
_GROUP: Final = re.compile(rf"[0-9a-f]{{{GROUP_CHARS}}}")
_OPS: Final = (Op.FROM, Op.TO, Op.ABOVE, Op.BELOW)
_COMPARED: Final = frozenset({Field.PRIORITY, Field.ATTEMPTS, Field.CREATED, Field.DUE, Field.STARTED, Field.FINISHED})
_GLOBBED: Final = frozenset({Field.TOPIC, Field.WORKER, Field.ERROR})
# What other systems call it.
_OTHER_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "queue": "topic",
        "kind": "topic",
        "status": "state",
        "tags": "tag",
        "attempt": "attempts",
        "retries": "attempts",
        "submitted": "created",
        "enqueued": "created",
        "run_at": "due",
        "completed": "finished",
        "ended": "finished",
        "claimed": "started",
        "message": "error",
        "payload": "args",
        "fingerprint": "error_group",
        "idempotency_key": "key",
        "unique_key": "unique",
        "cron": "schedule",
    }
)
_OTHER_STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "failed": "dead",
        "discarded": "dead",
        "queued": "pending",
        "ready": "pending",
        "available": "pending",
        "active": "running",
        "executing": "running",
        "delayed": "scheduled",
        "retryable": "retrying",
        "retry": "retrying",
        "waiting": "blocked",
        "succeeded": "completed",
        "success": "completed",
        "done": "completed",
        "canceled": "cancelled",
    }
)


@dataclass(frozen=True, slots=True)
class _Raw:
    """A value as written: its literal parts between bare wildcards, and where it stands."""

    parts: tuple[str, ...]
    position: int

    @property
    def text(self) -> str:
        return "*".join(self.parts)


def parse(text: object) -> JobFilter:
    """Read a filter; an empty text matches every job. Raises InvalidFilter, or TooLarge for an endless one."""
    if not isinstance(text, str):
        raise InvalidInput("filter", f"must be a str, got {shown(text)}")
    if len(text) > TEXT_MAX_CHARS:
        raise TooLarge("filter", size=len(text), limit=TEXT_MAX_CHARS, unit="characters")
    if (unfit := re.search("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]", text)) is not None:
        raise InvalidFilter(f"a control character, U+{ord(unfit[0]):04X}", position=unfit.start())
    terms: list[Term] = []
    patterns = 0
    place = _skip_space(text, 0)
    while place < len(text):
        if len(terms) == TERMS_MAX:
            raise InvalidFilter(f"more than {TERMS_MAX} terms", position=place)
        start = place
        term, place = _read_term(text, place)
        terms.append(term)
        patterns += sum(isinstance(value, Glob) and _is_searched(term.field, value) for value in term.values)
        if patterns > PATTERNS_MAX:
            raise InvalidFilter(
                f"more than {PATTERNS_MAX} values with a wildcard or of error",
                position=start,
                hint="use several filters",
            )
        if place < len(text) and not text[place].isspace():
            raise InvalidFilter(f'unexpected "{text[place]}"', position=place, hint="separate terms by a space")
        place = _skip_space(text, place)
    return JobFilter(tuple(terms))


def topic_term(text: object) -> Term:
    """The term for a topic that is given by itself, outside of a filter: a `*` is a wildcard, all else is literal."""
    name = check_text(text, field="topic", high=limits.TOPIC_MAX_CHARS)
    parts = tuple(_folded(name.split("*")))
    if problem := wildcard_problem(parts):
        raise InvalidInput("topic", problem)
    return Term(field=Field.TOPIC, values=(Glob(parts),))


def _is_searched(field: Field, value: Glob) -> bool:
    return field is Field.ERROR or not value.is_plain


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _read_term(text: str, place: int) -> tuple[Term, int]:
    negated = text[place] == "-"
    start = place + negated
    word = _WORD.match(text, start)
    if word is None or word.end() >= len(text) or text[word.end()] != ":":
        raise _no_field(text, start)
    name, *path = word[0].split(".")
    field = _field(name, tuple(path), start)
    place = word.end() + 1
    op = next((op for op in _OPS if text.startswith(op, place)), Op.IS)
    if op is not Op.IS and field not in _COMPARED:
        raise InvalidFilter(f'{word[0]} cannot be compared by "{op}"', position=place, hint=f"write {word[0]}:value")
    place += len(op)
    raws: list[_Raw] = []
    while True:
        raw, place = _read_value(text, place, word[0])
        raws.append(raw)
        if len(raws) > VALUES_MAX:
            raise InvalidFilter(f"more than {VALUES_MAX} values", position=raw.position)
        if place >= len(text) or text[place] != ",":
            break
        place += 1
    if op is not Op.IS and len(raws) > 1:
        raise InvalidFilter(f'"{op}" takes one value', position=raws[1].position, hint="write two terms")
    if op is Op.IS and field in TIMES:
        raise InvalidFilter(
            f"{field} needs a comparison",
            position=raws[0].position,
            hint=f"{field}:>2h is the last two hours, {field}:<2026-01-01 all before that day",
        )
    if negated and field is Field.KEY:
        raise InvalidFilter("key cannot be turned round", position=start, hint="ask for a key, or leave it out")
    values = tuple(dict.fromkeys(_value(field, raw) for raw in raws))
    return Term(field=field, values=values, op=op, negated=negated, path=tuple(path)), place


def _no_field(text: str, place: int) -> InvalidFilter:
    word = re.match(r"[^\s:]+", text[place:])
    found = word[0] if word else text[place : place + 1]
    if text[place + len(found) : place + len(found) + 1] == ":":
        return InvalidFilter(f"{shown(found)} is no field", position=place, hint=_there_are())
    return InvalidFilter(
        f"{shown(found)} has no field", position=place, hint=f"write error:{quoted(found[:40])} or topic:…"
    )


def _there_are() -> str:
    return f"there are {', '.join(field for field in Field if field is not Field.ARGS)} and args.NAME"


def _field(name: str, path: tuple[str, ...], position: int) -> Field:
    known: list[str] = list(Field)
    if name not in known:
        close = get_close_matches(name.lower(), [*known, *_OTHER_WORDS], n=1, cutoff=0.6)
        meant = _OTHER_WORDS.get(name.lower()) or (_OTHER_WORDS.get(close[0], close[0]) if close else "")
        hint = f'did you mean "{meant}"?' if meant else _there_are()
        raise InvalidFilter(f'there is no "{name[:40]}"', position=position, hint=hint)
    field = Field(name)
    if path and field is not Field.ARGS:
        raise InvalidFilter(f"{field} has no parts", position=position, hint=f"write {field}:value")
    if field is Field.ARGS and not path:
        raise InvalidFilter("args needs a name", position=position, hint="for example args.user.id:42")
    if len(path) > PATH_MAX:
        raise InvalidFilter(f"a path of more than {PATH_MAX} steps", position=position)
    return field


def _read_value(text: str, place: int, name: str) -> tuple[_Raw, int]:
    """Quoted and bare pieces in any mixture; only a bare `*` is a wildcard."""
    start, parts = place, [""]
    while place < len(text) and text[place] != "," and not text[place].isspace():
        if text[place] == '"':
            piece, place = _read_quoted(text, place)
            parts[-1] += piece
        elif text[place] == "*":
            parts.append("")
            place += 1
        else:
            parts[-1] += text[place]
            place += 1
    if place == start:
        raise InvalidFilter(f"{name} has no value", position=start, hint=f"write {name}:value")
    return _Raw(tuple(parts), start), place


def _read_quoted(text: str, place: int) -> tuple[str, int]:
    start, piece = place, ""
    place += 1
    while place < len(text):
        if text[place] == '"':
            return piece, place + 1
        if text[place] == "\\":
            if text[place + 1 : place + 2] not in ("\\", '"'):
                raise InvalidFilter('"\\" stands before a quote or another "\\" only', position=place)
            place += 1
        piece += text[place]
        place += 1
    raise InvalidFilter("a quote is not closed", position=start)


def _value(field: Field, raw: _Raw) -> Value:
    if len(raw.parts) > 1 and field not in _GLOBBED:
        raise InvalidFilter(
            f"{field} takes no wildcard", position=raw.position, hint="it is looked up exactly; quote a * that is meant"
        )
    if not raw.text and field is not Field.ARGS and field is not Field.WORKER:
        raise InvalidFilter(f"{field} has an empty value", position=raw.position)
    return _READERS[field](raw)


def _state(raw: _Raw) -> State:
    for state in State:
        if raw.text == state.label:
            return state
    words = [state.label for state in State]
    close = get_close_matches(raw.text.lower(), [*words, *_OTHER_STATES], n=1, cutoff=0.6)
    meant = _OTHER_STATES.get(raw.text.lower()) or (_OTHER_STATES.get(close[0], close[0]) if close else "")
    hint = f'did you mean "{meant}"?' if meant else f"there are {', '.join(words)}"
    raise InvalidFilter(f"{shown(raw.text)} is no state", position=raw.position, hint=hint)


def _priority(raw: _Raw) -> int:
    if raw.text in limits.PRIORITY_TIERS:
        return limits.PRIORITY_TIERS[raw.text]
    return _integer(raw, limits.PRIORITY_MIN, limits.PRIORITY_MAX, ", ".join(limits.PRIORITY_TIERS))


def _attempts(raw: _Raw) -> int:
    return _integer(raw, 0, limits.MAX_ATTEMPTS_LIMIT, "")


def _integer(raw: _Raw, low: int, high: int, words: str) -> int:
    if _INT.fullmatch(raw.text) is None or not low <= int(raw.text) <= high:
        raise InvalidFilter(
            f"{shown(raw.text)} is no number from {low} to {high}",
            position=raw.position,
            hint=f"or one of {words}" if words else "",
        )
    return int(raw.text)


def _time(raw: _Raw) -> Ago | datetime:
    text = raw.text
    try:
        if _SPAN.fullmatch(text):
            span = sum(int(number) * SPAN_UNITS[unit] for number, unit in _SPAN_PART.findall(text)) * MILLISECOND
            if span > SPAN_MAX:
                raise InvalidFilter(f"{text} is more than {SPAN_MAX.days} days", position=raw.position)
            return Ago(span)
        if _DATE.fullmatch(text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        if _MOMENT.fullmatch(text):
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                raise InvalidFilter(
                    f"{text} has no time zone", position=raw.position, hint=f"write {text}Z for UTC, or an offset"
                )
            return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidFilter):
            raise
        raise InvalidFilter(f"{shown(text)} is no time ({error})", position=raw.position) from None
    raise InvalidFilter(
        f"{shown(text)} is no time",
        position=raw.position,
        hint="write a span (30s, 5m, 2h, 1d), a date (2026-12-24) or a moment (2026-12-24T18:00:00Z)",
    )


def _id(raw: _Raw) -> UUID:
    try:
        return UUID(int=parse_job_id(raw.text).int)
    except InvalidInput as error:
        raise InvalidFilter(f"{shown(raw.text)} is no job id", position=raw.position, hint=error.problem) from None


def _group(raw: _Raw) -> str:
    if _GROUP.fullmatch(raw.text) is None:
        raise InvalidFilter(
            f"{shown(raw.text)} is no error group",
            position=raw.position,
            hint=f"it has {GROUP_CHARS} hex digits; `headgate dead list` shows them",
        )
    return raw.text


def _glob(raw: _Raw) -> Glob:
    parts = tuple(_folded(raw.parts))
    if problem := wildcard_problem(parts):
        raise InvalidFilter(f"the value {problem}", position=raw.position, hint="quote a * that stands for itself")
    return Glob(parts)


def _folded(parts: Iterable[str]) -> Iterable[str]:
    """Two wildcards side by side are one."""
    kept = list(parts)
    for place, part in enumerate(kept):
        if part or place in (0, len(kept) - 1):
            yield part


def _exact(raw: _Raw) -> str:
    return raw.text


_READERS: Final[Mapping[Field, Callable[[_Raw], Value]]] = MappingProxyType(
    {
        Field.ID: _id,
        Field.STATE: _state,
        Field.TOPIC: _glob,
        Field.TAG: _exact,
        Field.WORKER: _glob,
        Field.PRIORITY: _priority,
        Field.ATTEMPTS: _attempts,
        Field.ERROR: _glob,
        Field.ERROR_GROUP: _group,
        Field.CREATED: _time,
        Field.DUE: _time,
        Field.STARTED: _time,
        Field.FINISHED: _time,
        Field.SCHEDULE: _exact,
        Field.KEY: _exact,
        Field.UNIQUE: _exact,
        Field.ARGS: _exact,
    }
)
