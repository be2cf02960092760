"""Lists of a server: read, filtered by name, printed once or again and again (`--watch`)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from headgate.cli.connection import with_client
from headgate.cli.options import Shown
from headgate.cli.output import Columns, as_json, for_people, iso, now, print_lines, print_list, tables_as_in
from headgate.domain.filter_parser import parse
from headgate.domain.filters import Field, Glob, InvalidFilter, Term
from headgate.sdk import Headgate

T = TypeVar("T")
CLEAR: Final = "\x1b[H\x1b[2J"


def show_list(
    shown: Shown,
    read: Callable[[Headgate], Awaitable[Sequence[T]]],
    columns: Columns[T] | Callable[[], Columns[T]],
    *,
    name: Callable[[T], object],
    empty: str,
    fields: Callable[[T], object] = lambda item: item,
    more: Columns[T] | None = None,
    notes: Callable[[Sequence[T]], Iterable[str]] = lambda _: (),
    part: str = "",
    limit: int | None = None,
) -> None:
    """Read a list and print it; `notes` are lines below it, for people. Columns can depend on what was read.

    Only entries that contain `part` in a column are printed, and of these at most `limit`.

    With `--watch`, a terminal gets the whole list with every read, a pipe the entries that are new or have changed.
    """
    watch, output = shown.watch, shown.output
    pause = watch.pause.total_seconds()

    def show(items: Sequence[T], format_: str) -> None:
        chosen = columns() if callable(columns) else columns
        print_list(items, format_, chosen, name=name, empty=empty, fields=fields, more=more)
        if for_people(format_):
            with tables_as_in(format_):
                print_lines(notes(items))

    async def chosen(hg: Headgate) -> Sequence[T]:
        found = await read(hg)
        if part:
            texts = [*(columns() if callable(columns) else columns).values(), *(more or {}).values()]
            found = [item for item in found if any(part.lower() in str(text(item)).lower() for text in texts)]
        return found[:limit]

    async def act(hg: Headgate) -> None:
        if not watch.watch:
            show(await chosen(hg), output)
            return
        whole = for_people(output) and sys.stdout.isatty()
        format_ = "ndjson" if output == "json" else output  # a document has an end
        before: set[str] | None = None
        while True:
            items = await chosen(hg)
            texts = [as_json(fields(item)) for item in items]
            if whole:
                print(f"{CLEAR}{iso(now())}   every {watch.interval}, Ctrl-C ends")
                show(items, format_)
            else:
                changed = [item for item, text in zip(items, texts, strict=True) if text not in (before or ())]
                if changed or before is None:
                    show(changed, format_)
            before = set(texts)
            await asyncio.sleep(pause)

    with_client(shown.server, act)


class NameFilter:
    """The filter language for lists of other things than jobs: the terms by name that such an entry has."""

    def __init__(self, text: str, *fields: Field) -> None:
        """Raises InvalidFilter, also for a field that entries of the list do not have."""
        self._terms = parse(text).terms
        for term in self._terms:
            if term.field not in fields:
                named = " and ".join(field.value for field in fields)
                hint = f"use {named}" if named else "give a part of the text, without a field"
                raise InvalidFilter(f'"{term.field.value}" does not apply to this list', hint=hint)

    def matches(self, names: Mapping[Field, Sequence[str]]) -> bool:
        """Whether an entry with these names is selected."""
        return all(_matches(term, names[term.field]) for term in self._terms)


def _matches(term: Term, names: Sequence[str]) -> bool:
    found = any(
        value.matches(name) if isinstance(value, Glob) else value == name for value in term.values for name in names
    )
    return found != term.negated
