"""What commands print: one table, one block of fields, one JSON form, one form for times and durations.

Colours and cut lines are for terminals only. In a pipe every value is complete, and columns have a fixed order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], object]]
"""Heading and value of each column."""
NARROWEST: Final = 20
"""On a terminal, the last column is cut to what fits, but not below this width."""

_GREEN, _RED, _YELLOW, _BLUE, _MAGENTA, _CYAN, _GREY = 32, 31, 33, 34, 35, 36, 90
_COLOURS: Final = {
    **dict.fromkeys(("completed", "done", "active", "sealed"), _GREEN),
    **dict.fromkeys(("dead", "failed", "lapsed", "expired"), _RED),
    **dict.fromkeys(("retrying", "paused", "quiet", "nacked"), _YELLOW),
    **dict.fromkeys(("running", "open"), _BLUE),
    **dict.fromkeys(("scheduled", "snoozed"), _CYAN),
    "blocked": _MAGENTA,
    **dict.fromkeys(("cancelled", "abandoned", "ended"), _GREY),
}
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
) -> None:
    """Print a list in one of the four formats; `empty` says what there is none of."""
    match output:
        case "json":
            print(as_json([fields(item) for item in items], indent=2))
        case "ndjson":
            print_lines(as_json(fields(item)) for item in items)
        case "name":
            print_lines(str(name(item)) for item in items)
        case _:
            print_lines(table(items, columns) if items else [empty])


def print_one(item: object, output: str, text: Callable[[], Iterable[str]], *, name: object = None) -> None:
    """Print one object in one of the four formats; `text` returns the lines for people.

    `name` may be several lines, or empty: then the format `name` prints nothing.
    """
    match output:
        case "json" | "ndjson":
            print(as_json(item, indent=2 if output == "json" else None), flush=True)
        case "name" if name is not None:
            print_lines(str(name).splitlines())
        case _:
            print_lines(text())


def table(items: Iterable[T], columns: Columns[T]) -> list[str]:
    """Return the lines of a table; numbers are aligned to the right.

    On a terminal that is too narrow, times are shown by their distance only, and the last column is cut.
    """
    head, values = list(columns), [[value(item) for value in columns.values()] for item in items]
    rows, widths = _cells(head, values)
    if sys.stdout.isatty():
        screen = shutil.get_terminal_size().columns - 2 * (len(head) - 1)
        if sum(widths[:-1]) + min(widths[-1], NARROWEST) > screen:
            rows, widths = _cells(head, values, brief=True)
        widths[-1] = min(widths[-1], max(screen - sum(widths[:-1]), NARROWEST))
    right = {
        at
        for at in range(len(head))
        if all(_NUMBER.fullmatch(row[at]) for row in rows) and any(row[at] != "-" for row in rows)
    }
    return [_row(head, widths, right), *(_row(row, widths, right, paint=painted) for row in rows)]


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


def days(span: timedelta) -> str:
    """Return a duration in days: `1 day`, `1.5 days`."""
    count = span / timedelta(days=1)
    return f"{count:g} day{'' if count == 1 else 's'}"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return iso(value, milliseconds=True) if value.microsecond else iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
