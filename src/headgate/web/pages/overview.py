"""The first page: is it healthy, what is failing, and what to do; and the one for an empty installation."""

from __future__ import annotations

from typing import Final

from litestar.params import FromQuery

from headgate.domain.bulk import masked_group
from headgate.domain.states import State
from headgate.domain.stats import DEFAULT_WINDOW, WINDOWS, Series
from headgate.web import charts
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
WORKER: Final = """from headgate import Headgate

hg = Headgate()


@hg.job("greet")
def greet(name: str) -> str:
    return f"Hello, {name}!"
"""


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


@page("/getting-started", uses="AdminService/Status")
async def getting_started(request: PageRequest) -> Html:
    """A worker and a job to copy, and a sign as soon as they have arrived."""
    status = await request.cases.admin.status(request.caller)
    workers = sum(one.workers for one in status.instances)
    jobs = sum(sum(one.counts.values()) for one in status.topics)
    completed = sum(one.counts.get(State.COMPLETED, 0) for one in status.topics)
    return request.render(
        "start/index.html",
        fragment="start/_steps.html",
        worker_code=WORKER.strip(),
        workers=workers,
        jobs=jobs,
        completed=completed,
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
