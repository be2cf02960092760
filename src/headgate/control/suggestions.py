"""Suggestions while a filter is typed, and names of topics for forms.

Words come from the language. Names of topics and schedules are all there are; other values are those of the newest
jobs. Every answer covers only the caller's tenant and the topics that its token permits, and no secret values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from headgate.control.ports import SuggestionStore
from headgate.domain.filter_suggestions import (
    SAMPLE_BODIES,
    SAMPLE_JOBS,
    SHOWN_MAX,
    Suggestion,
    Suggestions,
    of_values,
    typed_at,
)
from headgate.domain.filter_suggestions import words as words_of
from headgate.domain.filters import PATH_MAX, Field
from headgate.domain.fingerprint import group_of
from headgate.domain.identity import Identity, Scope
from headgate.domain.redaction import MASK, Redaction

_VALUE_MAX_CHARS: Final = 80
"""Longer values are no suggestions."""
_BODY_MAX_BYTES: Final = 4_096
"""Larger payloads are not looked into for suggestions."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
"""What can stand in a path of a filter."""
_LIST_ITEMS: Final = 3
"""Of a list in a payload, so many items are looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSuggestions:
    """Suggestions for one caller after the other; each reads a bounded number of jobs."""

    store: SuggestionStore
    redaction: Redaction = field(default_factory=Redaction)

    async def at(self, caller: Identity, filter_: str, caret: int) -> Suggestions:
        """What can stand where the caret is."""
        caller.require(Scope.READ)
        typed = typed_at(filter_, caret)
        known = words_of(typed)
        tenant, topics = caller.tenant, caller.topics
        match typed.field:
            case Field.TOPIC:
                names = await self.store.topic_names(tenant, containing=typed.text, topics=topics)
                return Suggestions(start=typed.start, words=of_values(typed, names))
            case Field.SCHEDULE:
                names = await self.store.schedule_names(tenant, containing=typed.text, topics=topics)
                return Suggestions(start=typed.start, words=of_values(typed, names))
            case Field.TAG | Field.WORKER:
                jobs = await self.store.newest_jobs(tenant, topics=topics, failed=False)
                found = Counter(
                    value for job in jobs for value in (job.tags if typed.field is Field.TAG else [job.worker]) if value
                )
                return Suggestions(start=typed.start, words=of_values(typed, _common(found)), sampled=SAMPLE_JOBS)
            case Field.ERROR | Field.ERROR_GROUP:
                jobs = await self.store.newest_jobs(tenant, topics=topics, failed=True)
                errors = [job.last_error or "" for job in jobs]
                words = self._errors(errors) if typed.field is Field.ERROR else self._groups(errors)
                fitting = of_values(typed, [one.text for one in words], notes={one.text: one.note for one in words})
                return Suggestions(start=typed.start, words=fitting, sampled=SAMPLE_JOBS)
            case Field.ARGS:
                leaves = await self._leaves(caller)
                values = Counter(text for path, text in leaves if path == typed.path and text != MASK)
                return Suggestions(start=typed.start, words=of_values(typed, _common(values)), sampled=SAMPLE_BODIES)
            case None if typed.text.startswith("args."):
                paths = Counter(".".join(("args", *path)) for path, _ in await self._leaves(caller))
                words = [Suggestion(text=f"{path}:") for path in _common(paths) if path.startswith(typed.text)]
                return Suggestions(start=typed.start, words=words[:SHOWN_MAX], sampled=SAMPLE_BODIES)
            case _:
                return Suggestions(start=typed.start, words=known)

    async def topics(self, caller: Identity, text: str) -> list[str]:
        """Names of topics that contain a text."""
        caller.require(Scope.READ)
        return await self.store.topic_names(caller.tenant, containing=text, topics=caller.topics)

    async def _leaves(self, caller: Identity) -> list[tuple[tuple[str, ...], str]]:
        """Paths and values in the newest payloads that a filter can name; values of secret keys are masked."""
        bodies = await self.store.newest_payloads(caller.tenant, topics=caller.topics)
        return [leaf for body in bodies if len(body) <= _BODY_MAX_BYTES for leaf in _leaves(self.redaction.shown(body))]

    def _errors(self, errors: list[str]) -> list[Suggestion]:
        """The types of errors, the most common first."""
        mask = self.redaction.masked_text  # first: a part of a secret is still one
        found = Counter(mask(error.partition(":")[0])[:_VALUE_MAX_CHARS] for error in errors if error)
        return [Suggestion(text=kind, note=f"{count:,}×") for kind, count in found.most_common()]

    def _groups(self, errors: list[str]) -> list[Suggestion]:
        found = Counter((kind.id, kind.title) for error in errors for kind in [group_of(error)])
        return [
            Suggestion(text=group, note=f"{count:,}× {self.redaction.masked_text(title)[:_VALUE_MAX_CHARS]}")
            for (group, title), count in found.most_common()
        ]


def _common(found: Counter[str]) -> list[str]:
    return [value for value, _ in found.most_common() if len(value) <= _VALUE_MAX_CHARS]


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The values of a payload that a filter can name: their path, and how they are written."""
    match value:
        case dict() if len(path) < PATH_MAX:
            for name, inner in value.items():
                if _NAME.fullmatch(str(name)):
                    yield from _leaves(inner, (*path, str(name)))
        case list() if len(path) < PATH_MAX:
            for index, inner in enumerate(value[:_LIST_ITEMS]):
                yield from _leaves(inner, (*path, str(index)))
        case bool() if path:
            yield path, "true" if value else "false"
        case None if path:
            yield path, "null"
        case str() | int() | float() if path:
            yield path, str(value)
        case _:
            return
