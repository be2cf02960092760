"""Figures over time, and what fails now."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import QueryParameter

from headgate.api.http.codec import Output, answers, counts_of
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.bulk import DeadGroupOut, dead_group
from headgate.api.http.routing import get
from headgate.control.stats import FAILING_DEFAULT, FAILING_MAX
from headgate.domain.stats import DEFAULT_WINDOW, WINDOWS, Flows, Interval, Latency
from headgate.domain.validation import to_ms

TAG = ["stats"]
OfTopic = Annotated[str, QueryParameter(description="Of this topic; empty: of all topics.")]


class LatencyOut(msgspec.Struct, kw_only=True):
    """How long jobs took; estimated from histograms, as histogram_quantile of Prometheus does."""

    count: int
    p50_s: float
    p99_s: float


class IntervalOut(Output, kw_only=True):
    """What happened in one interval."""

    at_us: Annotated[int, msgspec.Meta(description="Its beginning.")]
    recorded: Annotated[bool, msgspec.Meta(description="False: no server was running, and nothing is known.")] = False
    submitted: int = 0
    started: int = 0
    completed: int = 0
    retried: Annotated[int, msgspec.Meta(description="Attempts that ended with a later retry.")] = 0
    failed: Annotated[int, msgspec.Meta(description="Attempts that ended with a retry, or made the job dead.")] = 0
    dead: int = 0
    cancelled: int = 0
    depth: Annotated[int, msgspec.Meta(description="Pending jobs at its end.")] = 0
    oldest_due_s: Annotated[
        float | None,
        msgspec.Meta(
            description="The longest that a due job had waited; 0: none waited. Of all topics, without paused ones."
        ),
    ] = None
    pickup: LatencyOut | None = None
    run: LatencyOut | None = None


class StatsOut(Output, kw_only=True):
    """Intervals without a hole, oldest first; the last one is under way."""

    now_us: int
    since: str
    step_ms: int
    intervals: list[IntervalOut]
    counts: Annotated[dict[str, int], msgspec.Meta(description="Jobs by state now.")]
    topic: str = ""
    pickup: Annotated[LatencyOut | None, msgspec.Meta(description="From due to started, of all intervals.")] = None
    run: Annotated[LatencyOut | None, msgspec.Meta(description="From started to the end, of all intervals.")] = None
    partial: Annotated[bool, msgspec.Meta(description="The token permits more topics than are counted here.")] = False


class FailingOut(msgspec.Struct, kw_only=True):
    """Largest group first, of the newest events of jobs."""

    since_us: int
    groups: list[DeadGroupOut]
    looked_at: int
    exact: Annotated[bool, msgspec.Meta(description="False: there are further failures or groups.")]


@get("/v1/stats", uses="StatsService/GetStats", tags=TAG)
async def get_stats(
    request: ApiRequest,
    since: Annotated[str, QueryParameter(description=f"One of {', '.join(WINDOWS)}.")] = DEFAULT_WINDOW,
    topic: OfTopic = "",
) -> StatsOut:
    """Read throughput, depth and latencies by interval."""
    found = await request.cases.stats.series(request.caller, since=since, topic=topic)
    return answers.of(
        StatsOut,
        found,
        since=found.window.name,
        step_ms=to_ms(found.window.step),
        intervals=[_interval(one) for one in found.intervals],
        counts=counts_of(found.counts),
        pickup=_latency(found.pickup),
        run=_latency(found.run),
    )


@get("/v1/failing", uses="StatsService/ListFailing", tags=TAG)
async def list_failing(
    request: ApiRequest,
    topic: OfTopic = "",
    limit: Annotated[
        int, QueryParameter(ge=1, le=FAILING_MAX, description="Maximum number of groups.")
    ] = FAILING_DEFAULT,
) -> FailingOut:
    """Group the failed attempts of the last hour by topic and error."""
    found = await request.cases.stats.failing(request.caller, topic=topic, limit=limit)
    return answers.of(FailingOut, found, groups=[dead_group(one) for one in found.groups])


def _interval(one: Interval) -> IntervalOut:
    return answers.of(
        IntervalOut,
        one,
        one.flows or Flows(),
        recorded=one.flows is not None,
        oldest_due_s=None if one.oldest_due is None else one.oldest_due.total_seconds(),
        pickup=_latency(one.pickup),
        run=_latency(one.run),
    )


def _latency(found: Latency | None) -> LatencyOut | None:
    return None if found is None else LatencyOut(count=found.count, p50_s=found.p50, p99_s=found.p99)
