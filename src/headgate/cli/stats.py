"""`headgate stats`: throughput, failures, depth, waits and latencies over time, and what fails now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli.connection import redaction_of, with_client
from headgate.cli.dead import GROUPS
from headgate.cli.options import DEFAULT_SERVER, Output, Server
from headgate.cli.output import Columns, duration, print_one, table, when
from headgate.domain.bulk import masked_group
from headgate.domain.stats import (
    DEFAULT_WINDOW,
    SERIES_TOPICS_MAX,
    WINDOWS,
    Failing,
    Interval,
    Latency,
    Series,
    joined,
    window_of,
)
from headgate.sdk import Headgate

SHOWN: Final = 15
"""Lines of the table: intervals are put together until there are no more."""
FLOWS: Final = ("submitted", "completed", "failed", "retried", "dead")
COLUMNS: Final[Columns[Interval]] = {
    "FROM": lambda one: one.at,
    **{
        name.upper(): lambda one, name=name: "-" if one.flows is None else getattr(one.flows, name)  # type: ignore[misc]
        for name in FLOWS
    },
    "DEPTH": lambda one: "-" if one.depth is None else one.depth,
    "OLDEST": lambda one: "-" if one.oldest_due is None else duration(one.oldest_due),
    "PICKUP p99": lambda one: "-" if one.pickup is None else seconds(one.pickup.p99),
    "RUN p99": lambda one: "-" if one.run is None else seconds(one.run.p99),
}


def stats_command(
    topic: Annotated[str, Parameter(help="Of this topic only.")] = "",
    *,
    since: Annotated[str, Parameter(help=f"How far back: {', '.join(WINDOWS)}.")] = DEFAULT_WINDOW,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show what was submitted, completed and failed over time, how long jobs waited and ran, and what fails now."""
    window_of(since, field="--since")

    async def act(hg: Headgate) -> tuple[Series, Failing]:
        return await hg.admin.stats(topic, since=since), await hg.admin.failing(topic)

    series, failing = with_client(server, act)
    redaction = redaction_of(server)
    failing = replace(failing, groups=[masked_group(one, redaction) for one in failing.groups])
    print_one({"stats": series, "failing": failing}, output, partial(lines, series, failing), name=series.topic)


def lines(series: Series, failing: Failing) -> Iterator[str]:
    """The figures as text."""
    yield from table(joined(series.intervals, SHOWN), COLUMNS)
    total = series.total
    yield f"last {series.window.name}: " + ", ".join(f"{name} {getattr(total, name):,}" for name in FLOWS)
    yield f"pickup {_latency(series.pickup)}; run {_latency(series.run)}"
    if series.partial:
        yield f"of the first {SERIES_TOPICS_MAX} topics that the token permits"
    yield ""
    if failing.groups:
        yield f"failing since {when(failing.since)}:"
        yield from table(failing.groups, GROUPS)
    else:
        yield f"no failures since {when(failing.since)}"
    if not failing.exact:
        yield f"of the newest {failing.looked_at:,} events only; there are more"


def _latency(found: Latency | None) -> str:
    return "-" if found is None else f"p50 {seconds(found.p50)}, p99 {seconds(found.p99)}"


def seconds(value: float) -> str:
    """A short time for people."""
    return f"{value * 1000:,.0f} ms" if value < 10 else duration(timedelta(seconds=value))
