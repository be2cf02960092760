"""Lists on a terminal: plain columns, no colours, the same order every time, so that scripts can cut them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines of columns under a head; `right` names the columns that hold numbers."""
    text = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[place]) for row in text) for place in range(len(head))]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in text
    ]


def as_json(value: Any) -> str:
    """A dataclass, or a list of them, for programs: times as ISO, ids as text."""
    plain = [asdict(one) for one in value] if isinstance(value, list) else asdict(value)
    return json.dumps(plain, default=_plain, ensure_ascii=False)


def age(at: datetime | None) -> str:
    """How long ago, in the two largest units: `2m 11s`."""
    if at is None:
        return "-"
    seconds = max(0, int((datetime.now(UTC) - at).total_seconds()))
    for unit, size, lesser, small in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit} {seconds % size // small:02}{lesser}"
    return f"{seconds}s"


def short(text: str, width: int) -> str:
    """One line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if isinstance(value, UUID) else repr(value)
