"""Answers made from records of the domain. REST and gRPC name a field as the record does, with the unit of a time.

    created_us       created_at, in microseconds since 1970
    since_us         since, in microseconds since 1970
    min_interval_ms  min_interval, in milliseconds, rounded up
    everything else  the same name

What has another name or another form is given by the adapter. What is None is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

from headgate.domain.timestamps import unix_us
from headgate.domain.validation import to_ms

Answer = TypeVar("Answer")
Form: TypeAlias = Callable[[Any], object]
_SPELT: Final = {"us": ("{}_at", "{}"), "ms": ("{}",)}
"""How a field is spelt in the domain, by its unit."""


class _Forms(dict[type, Form | None]):
    """How values stand in an answer, by their type; that of a base counts for the types that derive from it."""

    def __missing__(self, kind: type) -> Form | None:
        self[kind] = form = next(self[base] for base in kind.__mro__ if base in self)
        return form


class Answers:
    """Makes the answers of one protocol: the names of the fields of an answer, and the forms of its values."""

    def __init__(self, names_of: Callable[[Any], Iterable[str]], forms: Mapping[type, Form]) -> None:
        self._names_of = names_of
        self._forms = _Forms({object: None, datetime: unix_us, timedelta: to_ms, **forms})
        self._plans: dict[tuple[object, ...], list[tuple[str, int, str]]] = {}

    def of(self, kind: Callable[..., Answer], /, *records: object, **others: object) -> Answer:
        """An answer with the fields of these records; `others` has those that no record has in the same form."""
        return self._made(kind, records, others, part=False)

    def part_of(self, kind: Callable[..., Answer], record: object, /, **others: object) -> Answer:
        """An answer with those of its fields that this record has: a job of a list, which is less than a job."""
        return self._made(kind, (record,), others, part=True)

    def _made(
        self, kind: Callable[..., Answer], records: tuple[object, ...], others: dict[str, object], *, part: bool
    ) -> Answer:
        known = (kind, *map(type, records), *others)
        plan = self._plans.get(known)
        if plan is None:
            plan = self._plans[known] = [*self._plan(kind, records, others, part=part)]
        forms = self._forms
        for name, index, attribute in plan:
            value = getattr(records[index], attribute)
            if value is not None:
                form = forms[type(value)]
                others[name] = value if form is None else form(value)
        return kind(**others)

    def _plan(
        self, kind: object, records: tuple[object, ...], others: Mapping[str, object], *, part: bool
    ) -> Iterator[tuple[str, int, str]]:
        """The record and the attribute of each field. TypeError for one that nothing has, but in a part."""
        for name in self._names_of(kind):
            if name in others:
                continue
            stem, _, unit = name.rpartition("_")
            spelt = [*(one.format(stem) for one in _SPELT.get(unit, ())), name]
            found = [(index, one) for index, record in enumerate(records) for one in spelt if hasattr(record, one)]
            if found:
                yield name, *found[0]
            elif not part:
                raise TypeError(f"nothing has the field {name} of {kind}")
