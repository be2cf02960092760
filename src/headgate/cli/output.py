"""What commands print: one table writer, one JSON writer, one form for times and durations.

Tables have plain columns without colours, in a fixed order, so that scripts can cut them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, date, datetime, timedelta


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table; `right` lists the columns aligned to the right."""
    text = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in text) for column in range(len(head))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in text
    ]


def print_lines(lines: Iterable[str]) -> None:
    """Print each line."""
    for line in lines:
        print(line)


def as_json(value: object) -> str:
    """Return JSON for programs: times in ISO format, durations in seconds, bytes as text."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def age(at: datetime | None) -> str:
    """Return the time since `at` in its two largest units: `2m 11s`."""
    if at is None:
        return "-"
    seconds = max(0, int((datetime.now(UTC) - at).total_seconds()))
    for unit, size, lesser, small in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit} {seconds % size // small:02}{lesser}"
    return f"{seconds}s"


def duration(span: timedelta) -> str:
    """Return a duration in its largest unit: `1.5h`."""
    seconds = max(0.0, span.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.1f}s"


def days(span: timedelta) -> str:
    """Return a duration in days: `1 day`, `1.5 days`."""
    count = span / timedelta(days=1)
    return f"{count:g} day{'' if count == 1 else 's'}"


def utc(at: datetime | None) -> str:
    """Return a time in UTC to the second; nothing for None."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def utc_milliseconds(at: datetime | None) -> str:
    """Return a time in UTC to the millisecond; nothing for None."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def short(text: str, width: int) -> str:
    """Return one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def count_text(total: int, *, exact: bool) -> str:
    """Return a count, marked when counting stopped at a bound."""
    return f"{total:,}" if exact else f"more than {total - 1:,}"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, date):  # a datetime is one too
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
