"""StatsService: figures over time. Translates and delegates to control/stats.py."""

from __future__ import annotations

from typing import ClassVar

from headgate.api.grpc.auth import caller
from headgate.api.grpc.bulk_service import dead_group
from headgate.api.grpc.codec import answers, state_counts
from headgate.api.grpc.methods import Context
from headgate.control.stats import FAILING_DEFAULT, Stats
from headgate.domain.stats import Flows, Interval, Latency
from headgate.domain.validation import to_ms
from headgate.wire import stats_pb2 as pb


class StatsService:
    """GetStats, ListFailing."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["StatsService"]

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    async def get_stats(self, request: pb.GetStatsRequest, _call: Context) -> pb.GetStatsResponse:
        """Throughput, depth and latencies by interval."""
        found = await self._stats.series(caller(), since=request.since, topic=request.topic)
        return answers.of(
            pb.GetStatsResponse,
            found,
            since=found.window.name,
            step_ms=to_ms(found.window.step),
            intervals=[_interval(one) for one in found.intervals],
            counts=state_counts(found.counts),
            pickup=_latency(found.pickup),
            run=_latency(found.run),
        )

    async def list_failing(self, request: pb.ListFailingRequest, _call: Context) -> pb.ListFailingResponse:
        """What fails now."""
        found = await self._stats.failing(caller(), topic=request.topic, limit=request.limit or FAILING_DEFAULT)
        return answers.of(pb.ListFailingResponse, found, groups=[dead_group(one) for one in found.groups])


def _interval(one: Interval) -> pb.Interval:
    return answers.of(
        pb.Interval,
        one,
        one.flows or Flows(),
        recorded=one.flows is not None,
        oldest_due_s=None if one.oldest_due is None else one.oldest_due.total_seconds(),
        pickup=_latency(one.pickup),
        run=_latency(one.run),
    )


def _latency(found: Latency | None) -> pb.LatencyInfo | None:
    return None if found is None else pb.LatencyInfo(count=found.count, p50_s=found.p50, p99_s=found.p99)
