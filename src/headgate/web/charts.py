"""Charts of a series: what is drawn, and the table that says the same without a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Literal

from headgate.domain.stats import Flows, Interval, Latency, Series, joined
from headgate.web.filters import NONE, duration, number
from headgate.web.rendering import url

Unit = Literal["count", "seconds"]
Value = float | int | None
ROWS_MAX: Final = 24
"""Rows of a table: intervals are put together until there are no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: its value of each interval. None is a gap. Stacked ones are columns, each on top of those before it."""

    name: str
    colour: str
    value: Callable[[Interval], Value]
    fill: bool = False
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    at: datetime
    values: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over the same times."""

    title: str
    unit: Unit
    series: Series
    lines: Sequence[Line]
    nothing: str
    note: str = ""
    filter: str | None = None
    """The filter of the jobs that a range of the chart links to, besides the time; None: no link."""

    @property
    def now(self) -> datetime:
        """When it was read, by the database's clock."""
        return self.series.now

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(line.value(one) is None for line in self.lines for one in self.series.intervals)

    @property
    def summary(self) -> str:
        """The last value of each line, for those who cannot see it."""
        newest = self.series.intervals[::-1]
        values = [next((v for one in newest if (v := line.value(one)) is not None), None) for line in self.lines]
        return ", ".join(f"{line.name} {self._text(v)}" for line, v in zip(self.lines, values, strict=True))

    @property
    def json(self) -> str:
        """What the script draws; escaped as the value of an attribute."""
        found: dict[str, object] = {
            "times": [int(one.at.timestamp()) for one in self.series.intervals],
            "unit": self.unit,
            "lines": [
                {
                    "name": line.name,
                    "colour": line.colour,
                    "fill": line.fill,
                    "stacked": line.stacked,
                    "values": [line.value(one) for one in self.series.intervals],
                }
                for line in self.lines
            ],
        }
        if self.filter is not None:
            found["jobs"] = {"path": url("jobs"), "filter": self.filter}
        return json.dumps(found, separators=(",", ":"))

    @property
    def rows(self) -> list[Row]:
        """The table, newest first."""
        found = joined(self.series.intervals, ROWS_MAX)
        return [Row(one.at, [self._text(line.value(one)) for line in self.lines]) for one in reversed(found)]

    def _text(self, value: Value) -> str:
        if value is None:
            return NONE
        return duration(value) if self.unit == "seconds" else number(value)


def throughput(series: Series) -> Chart:
    """Attempts that ended in each interval, stacked by how they ended; and what was submitted."""
    flows: tuple[tuple[str, str, Callable[[Flows], int]], ...] = (
        ("Completed", "--chart-3", lambda one: one.completed),
        # `failed` counts both, and stacked columns must count each attempt once.
        ("Failed and retried", "--chart-4", lambda one: one.retried),
        ("Failed for good", "--chart-2", lambda one: one.failed - one.retried),
        ("Submitted", "--chart-1", lambda one: one.submitted),
    )

    def value(count: Callable[[Flows], int], one: Interval) -> Value:
        return None if one.flows is None else count(one.flows)

    return Chart(
        title="Throughput",
        note=f"completed and failed attempts, and submitted jobs, in {duration(series.window.step)}",
        unit="count",
        series=series,
        lines=[
            Line(name=name, colour=colour, value=partial(value, count), stacked=name != "Submitted")
            for name, colour, count in flows
        ],
        nothing="Nothing was recorded in this time.",
        filter=_filter(series),
    )


def depth(series: Series) -> Chart:
    """How many jobs were pending at the end of each interval."""
    return Chart(
        title="Depth",
        note="pending jobs",
        unit="count",
        series=series,
        lines=[Line(name="Pending", colour="--chart-1", value=lambda one: one.depth, fill=True)],
        nothing="Nothing was recorded in this time.",
        filter=_filter(series),
    )


def oldest_due(series: Series) -> Chart:
    """The longest that a due job had waited in each interval."""
    return Chart(
        title="Oldest due job",
        note="longest wait" if series.topic else "longest wait, without paused topics",
        unit="seconds",
        series=series,
        lines=[
            Line(
                name="Waited",
                colour="--chart-2",
                value=lambda one: None if one.oldest_due is None else _short(one.oldest_due.total_seconds()),
                fill=True,
            )
        ],
        nothing="Nothing was recorded in this time.",
        filter=_filter(series),
    )


def latency(series: Series, kind: Literal["pickup", "run"] = "pickup") -> Chart:
    """p50 and p99 of waiting or running times."""

    def value(which: Literal["p50", "p99"], one: Interval) -> Value:
        found: Latency | None = getattr(one, kind)
        return None if found is None else _short(getattr(found, which))

    return Chart(
        title="Pickup latency" if kind == "pickup" else "Run time",
        note="from due to started" if kind == "pickup" else "of an attempt",
        unit="seconds",
        series=series,
        lines=[
            Line(name="p50", colour="--chart-1", value=partial(value, "p50")),
            Line(name="p99", colour="--chart-2", value=partial(value, "p99")),
        ],
        nothing="No job was started in this time." if kind == "pickup" else "No attempt has ended in this time.",
    )


def _filter(series: Series) -> str:
    return f"topic:{series.topic}" if series.topic else ""


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")
