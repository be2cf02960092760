"""Suggestions while a filter is typed: which part of it is being typed, and the words that can stand there.

Words come from the filter language. Values (topics, tags, workers, …) come from what is stored: the caller reads those
and passes them to `of_values`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headgate.domain import limits
from headgate.domain.filters import TEXT_MAX_CHARS, TIMES, Field, quoted
from headgate.domain.states import State

SHOWN_MAX: Final = 12
SAMPLE_JOBS: Final = 1_000
"""Values are those of this many of the newest jobs."""
SAMPLE_BODIES: Final = 100
"""Names and values of `args` are those of this many of the newest payloads."""

_FIELD_NOTES: Final[Mapping[Field, str]] = MappingProxyType(
    {
        Field.STATE: "pending, running, dead, …",
        Field.TOPIC: "name of the topic, * for any text",
        Field.TAG: "a tag, exactly",
        Field.ERROR: "a part of the last error",
        Field.ERROR_GROUP: "similar errors, see dead letters",
        Field.CREATED: "submit time: >2h is the last two hours",
        Field.FINISHED: "end of the job",
        Field.STARTED: "start of the latest attempt",
        Field.DUE: "due time",
        Field.PRIORITY: "a number or a tier",
        Field.ATTEMPTS: "attempts so far",
        Field.WORKER: "last worker, * for any text",
        Field.ARGS: "a value in the JSON payload",
        Field.SCHEDULE: "schedule that made the job",
        Field.KEY: "idempotency key",
        Field.UNIQUE: "unique key, of live and finished jobs",
        Field.ID: "job id",
    }
)
_TIME_WORDS: Final = (">15m", ">1h", ">24h", ">7d", "<1h", "<24h")
_TIME_NOTES: Final = MappingProxyType({">": "later than that long ago", "<": "earlier than that long ago"})
_TERM: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*"?|\S)+')


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """The part of a filter that ends at the caret. `field` None: the name of a field is being typed.

    `start` is where a suggestion is put; it replaces the text from there to the caret.
    """

    start: int
    field: Field | None = None
    path: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """`text` replaces what is typed; `note` explains it."""

    text: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestions:
    """What can stand at the caret. `sampled`: the values are those of this many of the newest jobs; 0: of all."""

    start: int
    words: list[Suggestion]
    sampled: int = 0


def typed_at(filter_: str, caret: int) -> Typed:
    """What is being typed. Never fails: a filter is wrong most of the time while it is typed."""
    before = filter_[: min(max(caret, 0), TEXT_MAX_CHARS)]
    start, term = len(before), ""
    for found in _TERM.finditer(before):
        if found.end() == len(before):
            start, term = found.start(), found[0]
    if term.startswith("-"):
        start, term = start + 1, term[1:]
    name, colon, value = term.partition(":")
    field, *path = name.split(".")
    if not colon or field not in list(Field):
        return Typed(start=start, text=name)
    start += len(name) + 1
    # The last value of several, behind its operator.
    cut = _last_comma(value)
    operator = re.match(r"[<>]=?", value[cut:]) if Field(field) not in TIMES else None
    cut += operator.end() if operator else 0
    return Typed(start=start + cut, field=Field(field), path=tuple(path), text=value[cut:].lstrip('"'))


def words(typed: Typed) -> list[Suggestion]:
    """What the language itself knows for this place; empty where only stored values can stand."""
    match typed.field:
        case None:
            names = [
                Suggestion(text="args." if field is Field.ARGS else f"{field}:", note=note)
                for field, note in _FIELD_NOTES.items()
            ]
            return _fitting(names, typed.text)
        case Field.STATE:
            return _fitting([Suggestion(text=state.label) for state in State], typed.text)
        case Field.PRIORITY:
            tiers = [Suggestion(text=name, note=f"{number:+}") for name, number in limits.PRIORITY_TIERS.items()]
            return _fitting(tiers, typed.text)
        case Field.ATTEMPTS:
            return _fitting([Suggestion(text="1"), Suggestion(text="3"), Suggestion(text="10")], typed.text)
        case field if field in TIMES:
            times = [Suggestion(text=word, note=_TIME_NOTES[word[0]]) for word in _TIME_WORDS]
            return _fitting(times, typed.text)
        case _:
            return []


def of_values(typed: Typed, values: Iterable[str], *, notes: Mapping[str, str] | None = None) -> list[Suggestion]:
    """Stored values that contain what is typed, in the order given, as they are written in a filter."""
    found = dict.fromkeys(values)
    return _fitting(
        [Suggestion(text=quoted(value) or '""', note=(notes or {}).get(value, "")) for value in found], typed.text
    )


def _fitting(candidates: Iterable[Suggestion], text: str) -> list[Suggestion]:
    """Those that begin with the text, then those that contain it; case does not count."""
    wanted = text.lower()
    begins, contains = [], []
    for one in candidates:
        plain = one.text.lstrip('"').lower()
        if plain.startswith(wanted):
            begins.append(one)
        elif wanted in plain:
            contains.append(one)
    return [*begins, *contains][:SHOWN_MAX]


def _last_comma(value: str) -> int:
    """Where the last value of a list begins; a comma in quotes separates nothing."""
    place, in_quotes, escaped = 0, False, False
    for index, char in enumerate(value):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = in_quotes
        elif char == '"':
            in_quotes = not in_quotes
        elif char == "," and not in_quotes:
            place = index + 1
    return place
