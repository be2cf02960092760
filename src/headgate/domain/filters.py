"""Filters as values: fields, operators, terms, and how a filter is written. `filter_parser` reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Final
from uuid import UUID

from headgate.domain.errors import InvalidInput
from headgate.domain.states import State
from headgate.domain.validation import MILLISECOND

TEXT_MAX_CHARS: Final = 4_000
TERMS_MAX: Final = 50
VALUES_MAX: Final = 100
PATH_MAX: Final = 10
WILDCARDS_MAX: Final = 10
"""Of one value."""
PATTERNS_MAX: Final = 20
"""Values of one filter that have a wildcard, or that are looked for within an error: each costs every job a search."""
SPAN_MAX: Final = timedelta(days=3650)
GROUP_CHARS: Final = 12
SPAN_UNITS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
"""In milliseconds."""
PLAIN: Final = re.compile(r"[^\s,\"*\\<>]+")
"""A value that needs no quotes."""


class InvalidFilter(InvalidInput):
    """A filter cannot be read; `position` is where, counted from 0."""

    code = "invalid_filter"

    def __init__(self, problem: str, *, position: int = 0, hint: str = "") -> None:
        super().__init__("filter", f"at character {position + 1}: {problem}", hint=hint)
        self.position = position


class Field(StrEnum):
    """What a term may ask about."""

    ID = "id"
    STATE = "state"
    TOPIC = "topic"
    TAG = "tag"
    WORKER = "worker"
    PRIORITY = "priority"
    ATTEMPTS = "attempts"
    ERROR = "error"
    ERROR_GROUP = "error_group"
    CREATED = "created"
    DUE = "due"
    STARTED = "started"
    FINISHED = "finished"
    SCHEDULE = "schedule"
    KEY = "key"
    UNIQUE = "unique"
    ARGS = "args"


class Op(StrEnum):
    """How a term compares."""

    IS = ""
    ABOVE = ">"
    FROM = ">="
    BELOW = "<"
    TO = "<="

    @property
    def opposite(self) -> Op:
        """The comparison that holds exactly when this one does not."""
        return _OPPOSITES[self]


_OPPOSITES: Final = {Op.ABOVE: Op.TO, Op.TO: Op.ABOVE, Op.FROM: Op.BELOW, Op.BELOW: Op.FROM, Op.IS: Op.IS}


def wildcard_problem(parts: tuple[str, ...]) -> str:
    if len(parts) - 1 <= WILDCARDS_MAX:
        return ""
    return f"has {len(parts) - 1} wildcards; the limit is {WILDCARDS_MAX}"


@dataclass(frozen=True, slots=True)
class Glob:
    """A text with holes: the literal parts between its wildcards. One part means no wildcard."""

    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        if problem := wildcard_problem(self.parts):
            raise InvalidInput("pattern", problem)

    @property
    def is_plain(self) -> bool:
        """True when it has no wildcard, so that only one text fits."""
        return len(self.parts) == 1

    def matches(self, text: str) -> bool:
        """Whether the whole text fits.

        Each part is searched once, from where the one before it ended. The first place that fits is the best one, since
        it leaves the most text to the parts that follow: nothing is ever tried again.
        """
        first, last = self.parts[0], self.parts[-1]
        if self.is_plain:
            return text == first
        at, end = len(first), len(text) - len(last)
        if at > end or not text.startswith(first) or not text.endswith(last):
            return False
        for part in self.parts[1:-1]:
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True

    def __str__(self) -> str:
        return "*".join(quoted(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Ago:
    """A moment by its distance from now."""

    span: timedelta

    def __str__(self) -> str:
        left, text = self.span // MILLISECOND, ""
        for unit, size in SPAN_UNITS.items():
            if left >= size:
                text += f"{left // size}{unit}"
                left %= size
        return text or "0s"


TIMES: Final = frozenset({Field.CREATED, Field.DUE, Field.STARTED, Field.FINISHED})
Value = State | Glob | Ago | datetime | UUID | int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One condition: any of the values, or with an operator the one; `path` leads into the payload (args only)."""

    field: Field
    values: tuple[Value, ...]
    op: Op = Op.IS
    negated: bool = False
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = ".".join((self.field.value, *self.path))
        return f"{'-' if self.negated else ''}{name}:{self.op}{','.join(map(_written, self.values))}"


@dataclass(frozen=True, slots=True)
class JobFilter:
    """What a list or an operation is about: all of the terms. No term at all means every job."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def of(self, field: Field) -> tuple[Term, ...]:
        """The terms about one field."""
        return tuple(term for term in self.terms if term.field is field)

    @property
    def states(self) -> frozenset[State]:
        """The states that the terms leave open."""
        left = frozenset(State)
        for term in self.of(Field.STATE):
            named = frozenset(value for value in term.values if isinstance(value, State))
            left = left - named if term.negated else left & named
        return left

    @property
    def is_counted(self) -> bool:
        """Whether the rollups know how many jobs match: it asks about topics and states only."""
        return all(term.field in (Field.STATE, Field.TOPIC) for term in self.terms)

    def without(self, field: Field) -> JobFilter:
        """This filter without its terms about a field."""
        return JobFilter(tuple(term for term in self.terms if term.field is not field))

    def also(self, *terms: Term) -> JobFilter:
        """This filter, and these terms in front."""
        return JobFilter((*terms, *self.terms))


def moment_of(value: Value, *, now: datetime) -> datetime:
    """The moment a time value means."""
    if isinstance(value, Ago):
        return now - value.span
    if not isinstance(value, datetime):
        raise TypeError(f"no time: {value!r}")
    return value


def body_matches(term: Term, body: object) -> bool:
    """Whether a decoded JSON payload has one of the term's values at the term's path; numbers compare as numbers."""
    for step in term.path:
        if isinstance(body, Mapping) and step in body:
            body = body[step]
        elif isinstance(body, list) and step.isdecimal() and int(step) < len(body):
            body = body[int(step)]
        else:
            return term.negated
    return any(_same(value, body) for value in term.values) is not term.negated


def _same(value: Value, found: object) -> bool:
    text = str(value)
    match found:
        case bool():
            return text == ("true" if found else "false")
        case None:
            return text == "null"
        case str():
            return text == found
        case int() | float():
            try:
                return Decimal(text) == Decimal(str(found))
            except InvalidOperation:
                return False
        case _:
            return False


def quoted(text: str) -> str:
    # A glob's empty part, before or after its wildcard, needs no quotes; `_written` gives them to an empty value.
    if not text or PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _written(value: Value) -> str:
    match value:
        case State():
            return value.label
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case str():
            return quoted(value) or '""'
        case _:
            return str(value) or '""'
