"""A figure, its bound, and whether it holds: the tables of the long lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

MOST, LEAST = "at most", "at least"


@dataclass(frozen=True, slots=True)
class Row:
    """One bound."""

    name: str
    value: float
    way: str
    bound: float

    @property
    def holds(self) -> bool:
        return self.value <= self.bound if self.way == MOST else self.value >= self.bound


def show(title: str, found: Mapping[str, object], rows: Sequence[Row], console: Console) -> bool:
    """Print the figures and the verdicts; True if all hold."""
    figures = Table(title=f"{title}: figures")
    figures.add_column("figure")
    figures.add_column("value")
    for name, value in found.items():
        figures.add_row(name, str(value))
    console.print(figures)
    verdicts = Table(title=f"{title}: bounds")
    for heading in ("figure", "measured", "bound", "verdict"):
        verdicts.add_column(heading)
    for row in rows:
        verdicts.add_row(row.name, f"{row.value}", f"{row.way} {row.bound}", "holds" if row.holds else "BROKEN")
    console.print(verdicts)
    return all(row.holds for row in rows)
