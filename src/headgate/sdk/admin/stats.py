"""Figures over time: `hg.admin.stats` and `hg.admin.failing`."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headgate.domain.states import State
from headgate.domain.stats import Failing, Flows, Interval, Latency, Series, window_of
from headgate.domain.validation import check_topic
from headgate.sdk.admin.dead import group_of
from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import stats_pb2 as pb

GET: Final = Method("StatsService/GetStats", pb.GetStatsRequest, pb.GetStatsResponse)
FAILING: Final = Method("StatsService/ListFailing", pb.ListFailingRequest, pb.ListFailingResponse)


async def stats(connection: Connection, *, topic: str, since: str) -> Series:
    """The series of a topic; an empty one: of all topics."""
    window = window_of(since)
    request = pb.GetStatsRequest(topic=check_topic(topic) if topic else "", since=window.name)
    found = await connection.call(GET, request)
    return record(
        Series,
        found,
        window=window,
        intervals=[_interval(one) for one in found.intervals],
        counts={State(one.state - 1): one.count for one in found.counts},
        pickup=_latency(found.pickup),
        run=_latency(found.run),
    )


async def failing(connection: Connection, *, topic: str, limit: int) -> Failing:
    """What fails now."""
    request = pb.ListFailingRequest(topic=check_topic(topic) if topic else "", limit=limit)
    found = await connection.call(FAILING, request)
    return record(Failing, found, groups=[group_of(one) for one in found.groups])


def _interval(one: pb.Interval) -> Interval:
    return record(
        Interval,
        one,
        flows=record(Flows, one) if one.recorded else None,
        depth=one.depth if one.recorded else None,
        oldest_due=timedelta(seconds=one.oldest_due_s) if one.HasField("oldest_due_s") else None,
        pickup=_latency(one.pickup),
        run=_latency(one.run),
    )


def _latency(found: pb.LatencyInfo) -> Latency | None:
    return Latency(count=found.count, p50=found.p50_s, p99=found.p99_s) if found.count else None
