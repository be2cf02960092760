"""Values as people read them: times, durations, numbers, sizes, JSON. Used as filters in templates."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from markupsafe import Markup

from headgate.domain.timestamps import unix_us

NONE: Final = "–"
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LARGE: Final = (("B", 1_000_000_000), ("M", 1_000_000), ("k", 10_000))
SHORT_MAX: Final = 24
"""Characters of a name that stays on one line where there is room."""
PART_MAX: Final = 28
"""Characters of a name without a place where it may break."""
_PARTS: Final = re.compile(r"[^._/:@?&=-]*[._/:@?&=-]+|[^._/:@?&=-]+")
_NOW: Final = timedelta(seconds=1)


def moment(value: datetime | None, now: datetime | None = None, *, missing: str = NONE) -> Markup | str:
    """A time as `<time>`: relative text, the absolute one in its title. static/js/times.js keeps the text current."""
    if value is None:
        return missing
    at = value.astimezone(UTC)
    exact = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, title, relative(at, now))


def relative(value: datetime, now: datetime | None = None) -> str:
    """`3 m ago`, `in 2 h`, `now`. A clock that is a little ahead of the database gives no negative age."""
    gap = value - (now or datetime.now(UTC))
    if abs(gap) < _NOW:
        return "now"
    return f"in {duration(gap)}" if gap > timedelta(0) else f"{duration(-gap)} ago"


def duration(value: timedelta | float | None) -> str:
    """`1.8 s`, `2 m 11 s`, `14 h 2 m`, `3 d 4 h`: two units at most."""
    if value is None:
        return NONE
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 0:
        seconds = 0.0
    if seconds < 0.001:
        return "0 s" if not seconds else "< 1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole, parts = int(seconds), list[str]()
    for unit, size in _UNITS:
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def number(value: float | None) -> str:
    """`1,204`, `0.4`: with separators."""
    if value is None:
        return NONE
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 0.1 else f"{value:.2g}"


def short(value: float | None) -> str:
    """`1,204`, `≈41.2k`, `5M`: for cards; `≈` where digits are left out. The title next to it has the whole number."""
    if value is None:
        return NONE
    for unit, size in _LARGE:
        if abs(value) >= size:
            base = 1_000 if unit == "k" else size
            rounded = f"{value / base:.1f}"
            return ("" if float(rounded) * base == value else "≈") + rounded.removesuffix(".0") + unit
    return number(value)


def byte_size(value: int | None) -> str:
    """`640 B`, `1.5 KiB`, `12 MiB`."""
    if value is None:
        return NONE
    size = float(value)
    for unit in _BYTES:
        if abs(size) < 1024 or unit == _BYTES[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return NONE


def percent(part: float, whole: float) -> str:
    """`0.4 %`; a dash where there is no whole."""
    if not whole:
        return NONE
    value = 100 * part / whole
    if value and value < 0.1:
        return "< 0.1 %"
    return f"{value:.1f}".removesuffix(".0") + " %"


def plural(count: int, word: str, words: str = "") -> str:
    """`1 job`, `2 jobs`."""
    return f"{number(count)} {word if count == 1 else words or word + 's'}"


def as_json(value: Any) -> str:
    """JSON as text for a `<pre>`; autoescape makes it a text node."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def data_json(value: Any) -> Markup:
    """JSON for `<script type="application/json">`: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, default=str, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def sparkline(values: Sequence[float], width: int = 100, height: int = 24) -> str:
    """The `points` of an SVG polyline; empty where there is nothing to draw."""
    if len(values) < 2:
        return ""
    high, step = max(max(values), 1e-9), width / (len(values) - 1)
    inner = height - 2
    return " ".join(f"{at * step:.1f},{1 + inner - inner * value / high:.1f}" for at, value in enumerate(values))


def breakable(text: str) -> Markup:
    """A name that may break after its dots, hyphens and the like, and nowhere else unless a part of it is very long.

    A short one breaks only where a table is too narrow for it: see `.short` in static/headgate.css.
    """
    name = Markup("<wbr>").join(part for piece in _PARTS.findall(text) for part in _cut(piece))
    return Markup('<span class="short">{}</span>').format(name) if len(text) <= SHORT_MAX else name


def _cut(piece: str) -> list[str]:
    return [piece[at : at + PART_MAX] for at in range(0, len(piece), PART_MAX)]


def first_line(text: str, most: int = 160) -> str:
    """The first line of a text, cut."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 1]}…"


def as_us(value: datetime | None) -> str:
    """A time for a hidden field, exact: the form names what the page has shown."""
    return "" if value is None else str(unix_us(value))


FILTERS: Final[Mapping[str, Any]] = {
    "moment": moment,
    "relative": relative,
    "duration": duration,
    "number": number,
    "short": short,
    "bytes": byte_size,
    "percent": percent,
    "plural": plural,
    "as_json": as_json,
    "data_json": data_json,
    "sparkline": sparkline,
    "breakable": breakable,
    "first_line": first_line,
    "us": as_us,
}
