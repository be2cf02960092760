"""Charts: gaps stay gaps, the table says what the lines say, names of users are data."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from headgate.domain.states import State
from headgate.domain.stats import WINDOWS, Flows, Interval, Latency, Series
from headgate.web import charts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def series(name: str = "1h", topic: str = "") -> Series:
    window = WINDOWS[name]
    count = int(window.span / window.step)
    intervals = [
        Interval(
            at=NOW - (count - n) * window.step,
            flows=None if n < 3 else Flows(submitted=2, completed=1, failed=1 + n % 2, retried=n % 2),
            depth=None if n < 3 else n,
            oldest_due=None if n < 3 else timedelta(seconds=n % 10),
            pickup=Latency(count=1, p50=0.01, p99=float(n)) if n > 10 else None,
        )
        for n in range(count)
    ]
    return Series(now=NOW, window=window, topic=topic, intervals=intervals, counts={State.PENDING: 1})


@pytest.mark.parametrize("name", WINDOWS)
def test_a_table_has_at_most_24_rows_that_add_up_to_the_chart(name: str) -> None:
    given = series(name)
    chart = charts.throughput(given)
    assert len(chart.rows) <= charts.ROWS_MAX
    assert chart.rows[0].at > chart.rows[-1].at, "newest first"
    total = given.total
    for column, count in enumerate((total.completed, total.retried, total.failed - total.retried, total.submitted)):
        shown = sum(int(row.values[column].replace(",", "")) for row in chart.rows if row.values[column] != "–")
        assert shown == count


def test_a_gap_is_null_in_the_chart_and_a_dash_in_the_table() -> None:
    given = series("15m")
    chart = charts.throughput(given)
    drawn = json.loads(chart.json)
    assert [line["values"][:4] for line in drawn["lines"]][3] == [None, None, None, 2]
    assert chart.rows[-1].values == ["–"] * 4
    assert json.loads(charts.latency(given).json)["lines"][1]["values"][9:] == [None, None, 11.0, 12.0, 13.0, 14.0]
    assert charts.latency(given, "run").is_empty
    assert charts.depth(given).rows[0].values == ["14"]


def test_lines_differ_in_name_and_colour_and_a_range_links_to_the_jobs_of_the_topic() -> None:
    chart = charts.throughput(series(topic="mail"))
    lines = json.loads(chart.json)["lines"]
    assert len({line["colour"] for line in lines}) == len({line["name"] for line in lines}) == 4
    assert json.loads(chart.json)["jobs"] == {"path": "/ui/jobs", "filter": "topic:mail"}
    assert chart.summary == "Completed 1, Failed and retried 1, Failed for good 1, Submitted 2"
    assert NOW - chart.series.intervals[-1].at == timedelta(minutes=1)


def test_each_attempt_is_counted_once_in_a_stack() -> None:
    given = series()
    lines = json.loads(charts.throughput(given).json)["lines"]
    stack = [line["values"] for line in lines if line["stacked"]]
    for index, one in enumerate(given.intervals):
        if one.flows is not None:
            assert sum(values[index] for values in stack) == one.flows.completed + one.flows.failed


def test_the_oldest_due_job_of_joined_intervals_is_the_oldest_of_them() -> None:
    chart = charts.oldest_due(series())
    assert json.loads(chart.json)["lines"][0]["values"][:5] == [None, None, None, 3.0, 4.0]
    assert chart.rows[13].values == ["9 s"], "of 8, 9 and 0 seconds"
    assert "paused" in chart.note
    assert "paused" not in charts.oldest_due(series(topic="mail")).note
