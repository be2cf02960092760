"""What commands print: one table, one block of fields, one JSON form, one form for times and durations.

Colours and cut lines are for terminals only. In a pipe every value is complete, and columns have a fixed order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar

from headgate.cli.yaml_text import yaml_lines
from headgate.domain.units import exact as exact

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], object]]
"""Heading and value of each column."""
NARROWEST: Final = 20
"""On a terminal, the last column is cut to what fits, but not below this width if other columns can be left out."""
KEPT: Final = 4
"""Columns that stay on a narrow terminal: the first ones and the last."""

_GREEN, _RED, _YELLOW, _BLUE, _MAGENTA, _CYAN, _GREY = 32, 31, 33, 34, 35, 36, 90
_COLOURS: Final = {
    **dict.fromkeys(("completed", "done", "active", "sealed"), _GREEN),
    **dict.fromkeys(("dead", "failed", "lease_expired", "expired"), _RED),
    **dict.fromkeys(("retrying", "paused", "quiet", "stopping", "nacked"), _YELLOW),
    **dict.fromkeys(("running", "open"), _BLUE),
    **dict.fromkeys(("scheduled", "snoozed"), _CYAN),
    "blocked": _MAGENTA,
    **dict.fromkeys(("cancelled", "abandoned", "ended"), _GREY),
}
_UNCUT: Final = ContextVar("_UNCUT", default=False)
_NUMBER: Final = re.compile(r"-|-?(0|[1-9][0-9,]*)(\.[0-9]+)?")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


# ---------------------------------------------------------------------- lists and single objects


def print_list(
    items: Sequence[T],
    output: str,
    columns: Columns[T],
    *,
    name: Callable[[T], object],
    empty: str,
    fields: Callable[[T], object] = lambda item: item,
    more: Columns[T] | None = None,
) -> None:
    """Print a list in one of the formats; `empty` says what there is none of, `more` are columns of `wide`."""
    match output:
        case "json":
            print(as_json([fields(item) for item in items], indent=2))
        case "ndjson":
            print_lines(as_json(fields(item)) for item in items)
        case "yaml":
            print_lines(as_yaml([fields(item) for item in items]))
        case "name":
            print_lines(str(name(item)) for item in items)
        case _ if not items:
            print_lines([empty])
        case "wide":
            print_lines(table(items, {**columns, **(more or {})}, wide=True))
        case _:
            print_lines(table(items, columns))


def print_one(item: object, output: str, text: Callable[[], Iterable[str]], *, name: object = None) -> None:
    """Print one object in one of the formats; `text` returns the lines for people.

    `name` may be several lines, or empty: then the format `name` prints nothing.
    """
    match output:
        case "json" | "ndjson":
            print(as_json(item, indent=2 if output == "json" else None), flush=True)
        case "yaml":
            print_lines(["---", *as_yaml(item)])
        case "name" if name is not None:
            print_lines(str(name).splitlines())
        case _:
            with tables_as_in(output):
                print_lines(text())


@contextmanager
def tables_as_in(output: str) -> Iterator[None]:
    """Cut no table in the block, if the format is `wide`: also those that are parts of a larger text."""
    before = _UNCUT.set(output == "wide")
    try:
        yield
    finally:
        _UNCUT.reset(before)


def for_people(output: str) -> bool:
    """Whether a format is read by people: then there may be lines around the list."""
    return output in ("table", "wide")


def table(items: Iterable[T], columns: Columns[T], *, wide: bool = False) -> list[str]:
    """Return the lines of a table; numbers are aligned to the right.

    On a terminal that is too narrow, times are shown by their distance only, columns before the last one are left out,
    and the last one is cut. A line below the table says how many columns are not shown. `wide` prevents all that.
    """
    head, values = list(columns), [[value(item) for value in columns.values()] for item in items]
    rows, widths = _cells(head, values)
    hidden = 0
    if sys.stdout.isatty() and not (wide or _UNCUT.get()):
        screen = shutil.get_terminal_size().columns
        if _narrowest(widths) > screen:
            rows, widths = _cells(head, values, brief=True)
        while _narrowest(widths) > screen and len(head) > KEPT:
            hidden += 1
            for cells in (head, *rows):
                del cells[-2]
            del widths[-2]
        _cut(widths, screen)
    right = {
        at
        for at in range(len(head))
        if all(_NUMBER.fullmatch(row[at]) for row in rows) and any(row[at] != "-" for row in rows)
    }
    lines = [_row(head, widths, right), *(_row(row, widths, right, paint=painted) for row in rows)]
    if hidden:
        lines.append(f"({hidden} columns do not fit on this terminal; -o wide has all of them)")
    return lines


def _narrowest(widths: Sequence[int]) -> int:
    """The width of a table whose last column is cut."""
    return sum(widths[:-1]) + min(widths[-1], NARROWEST) + 2 * (len(widths) - 1)


def _cut(widths: list[int], screen: int) -> None:
    """Make a table fit: cut its last column, then those before it, but not the first, which names the row."""
    for at in range(len(widths) - 1, 0, -1):
        excess = sum(widths) + 2 * (len(widths) - 1) - screen
        if excess > 0:
            widths[at] = max(widths[at] - excess, min(widths[at], NARROWEST // 2))


def _cells(
    head: Sequence[str], values: Sequence[Sequence[object]], *, brief: bool = False
) -> tuple[list[list[str]], list[int]]:
    """The texts of a table, and the width of each column."""
    rows = [[_cell(value, brief=brief) for value in row] for row in values]
    return rows, [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]


def _row(
    row: Sequence[str],
    widths: Sequence[int],
    right: set[int],
    *,
    paint: Callable[[str], str] = lambda text: text,
) -> str:
    cells = []
    for at, (text, width) in enumerate(zip(row, widths, strict=True)):
        cell = short(text, width)
        blank = " " * (width - len(cell))
        cells.append(blank + paint(cell) if at in right else paint(cell) + blank)
    return "  ".join(cells).rstrip()


def details(title: str, fields: Iterable[tuple[str, object]]) -> list[str]:
    """Return a title, and a line for each field that is not empty; further lines of a value are indented as well."""
    lines = [title]
    for label, value in fields:
        first, *more = printable(str(value)).splitlines() or [""]
        if first or more:
            lines += [f"  {label:<9} {first}".rstrip(), *(f"            {line}".rstrip() for line in more)]
    return lines


def print_lines(lines: Iterable[str]) -> None:
    """Print each line."""
    for line in lines:
        print(line)
    sys.stdout.flush()


def as_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON for programs: times in ISO format, durations in seconds, bytes as text."""
    return json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)


def as_yaml(value: object) -> list[str]:
    """Return the lines of the same as YAML."""
    return [*yaml_lines(json.loads(as_json(value)))]


# ---------------------------------------------------------------------- texts


def painted(text: str) -> str:
    """Return the name of a state in its colour, on a terminal that has colours; any other text as it is."""
    colour = _COLOURS.get(text) if coloured() else None
    return text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"


def coloured() -> bool:
    """Whether to use colours: on a terminal, unless NO_COLOR is set or the terminal has none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    r"""Return the text without control characters that could change a terminal: `\x1b` for ESC. Line ends stay."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))


def short(text: str, width: int) -> str:
    """Return the text, cut to at most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def one_line(text: str) -> str:
    """Return the text on one line."""
    return printable(" ".join(text.split()))


def count_text(total: int, *, exact: bool) -> str:
    """Return a count, marked when counting stopped at a bound."""
    return f"{total:,}" if exact else f"more than {total - 1:,}"


def _cell(value: object, *, brief: bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return relative(value) if brief else when(value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else one_line("-" if value is None else str(value)) or "-"


# ---------------------------------------------------------------------- times


def now() -> datetime:
    """The time that relative forms are counted from."""
    return datetime.now(UTC)


def when(at: datetime | None, *, milliseconds: bool = False) -> str:
    """Return a time in ISO format, and how long ago it was or how soon it is: `2026-11-16T12:04:00Z (2m 11s ago)`."""
    return "" if at is None else f"{iso(at, milliseconds=milliseconds)} ({relative(at)})"


def relative(at: datetime) -> str:
    """Return how long ago a time was, or how soon it is: `2m 11s ago`, `in 42s`."""
    ahead = at - now()
    seconds = round(abs(ahead).total_seconds())
    span = f"{seconds}s" if seconds < 60 else duration(timedelta(seconds=seconds))
    return "now" if not seconds else f"in {span}" if ahead > timedelta(0) else f"{span} ago"


def iso(at: datetime, *, milliseconds: bool = False) -> str:
    """Return a time in ISO format, in UTC."""
    text = at.astimezone(UTC).isoformat(timespec="milliseconds" if milliseconds else "seconds")
    return text.replace("+00:00", "Z")


def duration(span: timedelta) -> str:
    """Return a duration in its two largest units: `2m 11s`; below ten seconds with a decimal: `0.3s`."""
    exact = max(0.0, span.total_seconds())
    if exact < 9.95:
        return f"{exact:.1f}s"
    seconds = round(exact)
    for unit, size, lesser, small in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit} {seconds % size // small:02}{lesser}"
    return f"{seconds}s"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")  # exact: `resume --since` takes it
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
