"""What a run of the lane found: a line for each check as it ends, and one table when all is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HEADINGS = ("part", "check", "acknowledged", "lost", "still", "figure", "verdict")
_NUMBERS = frozenset({"acknowledged", "lost", "still"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One check of the lane."""

    name: str
    good: bool
    text: str
    acknowledged: int | None = None
    """Jobs whose submit was answered, on this cluster so far."""
    lost: int | None = None
    """Those of them that are not there any more."""
    still: float | None = None
    """Seconds in which no submit was answered or no handler began, whichever is longer."""

    figure: str = ""
    """What was measured, where that is the point."""

    def __str__(self) -> str:
        return f"{'ok  ' if self.good else 'FAIL'} {self.name}: {self.text}"


def table(parts: Mapping[str, Sequence[Report]], seconds: Mapping[str, float]) -> str:
    """A row for each check, and one with the verdict on each part."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for part, reports in parts.items():
        for report in reports:
            jobs = "" if report.acknowledged is None else f"{report.acknowledged:,}"
            lost = "" if report.lost is None else f"{report.lost:,}"
            still = "" if report.still is None else f"{report.still:.1f} s"
            rows.append((part, report.name, jobs, lost, still, report.figure, verdict([report])))
        rows.append(
            (part, f"= {len(reports)} checks in {seconds[part]:.0f} s", "", "", "", "", verdict(reports).upper())
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADINGS))]
    lines = [
        "  ".join(_aligned(word, *column) for word, column in zip(row, _columns(widths), strict=True)) for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def verdict(reports: Sequence[Report]) -> str:
    """In one word; nothing found is nothing proven."""
    return "ok" if reports and all(report.good for report in reports) else "FAILED"


def _columns(widths: Sequence[int]) -> list[tuple[int, bool]]:
    return [(width, name in _NUMBERS) for width, name in zip(widths, _HEADINGS, strict=True)]


def _aligned(word: str, width: int, to_the_right: bool) -> str:
    return word.rjust(width) if to_the_right else word.ljust(width)
