"""The first page: is it healthy, what is failing, and what to do."""

from __future__ import annotations

from typing import Final

from litestar.params import FromQuery

from headgate.domain.bulk import masked_group
from headgate.domain.states import State
from headgate.domain.stats import DEFAULT_WINDOW, WINDOWS, Series
from headgate.web import charts
from headgate.web.pages.getting_started import WORKER
from headgate.web.request import Html, PageRequest
from headgate.web.routing import page

_SPARKS: Final = {
    State.RUNNING: "started",
    State.RETRYING: "retried",
    State.COMPLETED: "completed",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
}
"""States whose card shows how many jobs came to it in each interval; that of pending jobs shows how many there were."""


@page("/", uses="AdminService/Status")
async def overview(request: PageRequest, since: FromQuery[str] = "") -> Html:
    """All of it."""
    summary = await request.cases.overview.summary(request.caller, since=since)
    return request.render(
        "overview/index.html",
        fragment="overview/_content.html",
        summary=summary,
        failing=[]
        if summary.failing is None
        else [masked_group(one, request.cases.redaction) for one in summary.failing.groups],
        cards=[(state, summary.counts[state], spark_of(summary.series, state)) for state in State],
        windows=list(WINDOWS),
        since=since or DEFAULT_WINDOW,
        charts=_charts(summary.series),
        worker_code=WORKER.strip(),
        workers=len(summary.workers),
        jobs=sum(summary.counts.values()),
        completed=summary.counts[State.COMPLETED],
    )


def _charts(series: Series | None) -> list[charts.Chart]:
    if series is None:
        return []
    return [
        charts.throughput(series),
        charts.latency(series),
        charts.depth(series),
        charts.oldest_due(series),
    ]


def spark_of(series: Series | None, state: State) -> list[int]:
    """The values of a small line; empty where there are none."""
    if series is None:
        return []
    if state is State.PENDING:
        return [one.depth or 0 for one in series.intervals]
    name = _SPARKS.get(state)
    if name is None:
        return []
    return [0 if one.flows is None else getattr(one.flows, name) for one in series.intervals]
