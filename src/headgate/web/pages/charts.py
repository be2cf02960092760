"""Charts of all topics or of one: throughput, depth, waits, latencies, and what fails now."""

from __future__ import annotations

from litestar.params import FromQuery

from headgate.domain.bulk import masked_group
from headgate.domain.stats import DEFAULT_WINDOW, SERIES_TOPICS_MAX, WINDOWS
from headgate.web import charts
from headgate.web.request import Html, PageRequest
from headgate.web.routing import page


@page("/charts", uses="StatsService/GetStats")
async def show_charts(
    request: PageRequest,
    since: FromQuery[str] = DEFAULT_WINDOW,
    topic: FromQuery[str] = "",
) -> Html:
    """All charts of a window."""
    stats = request.cases.stats
    series = await stats.series(request.caller, since=since, topic=topic)
    failing = await stats.failing(request.caller, topic=topic)
    return request.render(
        "charts/index.html",
        fragment="charts/_charts.html",
        series=series,
        failing=failing,
        groups=[masked_group(one, request.cases.redaction) for one in failing.groups],
        topics_max=SERIES_TOPICS_MAX,
        windows=list(WINDOWS),
        throughput=charts.throughput(series),
        depth=charts.depth(series),
        oldest=charts.oldest_due(series),
        pickup=charts.latency(series, "pickup"),
        run=charts.latency(series, "run"),
    )
