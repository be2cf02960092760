"""Figures over time: percentiles, depths, windows, versions of hints."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headgate.dispatch.latencies import LatencyRecorder
from headgate.domain.errors import InvalidInput, StoreUnavailable
from headgate.domain.hints import HintKind, Versions
from headgate.domain.histogram import WAITS_US, Histogram, quantile
from headgate.domain.stats import Flows, Interval, Latency, TopicLatencies, depths, joined, window_of
from headgate.domain.tallies import Tallies


def test_a_quantile_lies_on_a_straight_line_within_its_bucket() -> None:
    bounds = (10, 20, 40)
    assert quantile(bounds, [0, 10, 0, 0], 0.5) == 15
    assert quantile(bounds, [5, 5, 0, 0], 0.5) == 10
    assert quantile(bounds, [5, 0, 5, 0], 0.5) == 10, "half of them lie below the empty bucket"
    assert quantile(bounds, [0, 0, 4, 0], 0.99) == pytest.approx(39.8)
    assert quantile(bounds, [0, 0, 0, 7], 0.5) == 40, "above the last bound: that bound"
    assert quantile(bounds, [0, 0, 0, 0], 0.5) == 0
    assert Latency.of([0] * (len(WAITS_US) + 1)) is None


def test_depths_go_back_from_what_is_pending_now() -> None:
    assert depths(7, [3, -1, 5]) == [3, 2, 7]
    assert depths(0, []) == []


def test_joined_intervals_add_flows_end_with_their_depth_and_keep_the_slowest() -> None:
    def interval(minute: int, flows: Flows | None, depth: int | None, p99: float) -> Interval:
        latency = Latency(count=1, p50=p99 / 2, p99=p99)
        return Interval(at=datetime(2026, 1, 1, 12, minute, tzinfo=UTC), flows=flows, depth=depth, pickup=latency)

    given = [
        interval(0, None, None, 1),
        interval(1, Flows(submitted=2), 9, 8),
        interval(2, Flows(submitted=3), 4, 2),
        interval(3, None, None, 4),
        interval(4, None, None, 1),
    ]
    first, second = joined(given, 2)
    assert (first.at, first.flows, first.depth) == (given[0].at, Flows(submitted=5), 4)
    assert first.pickup == Latency(count=3, p50=4, p99=8)
    assert (second.at, second.flows, second.depth, second.run) == (given[3].at, None, None, None)
    assert joined(given, 5) == given
    assert joined([], 5) == []


def test_an_unknown_window_is_refused_with_those_there_are() -> None:
    assert window_of("").name == "1h"
    with pytest.raises(InvalidInput, match="since: must be one of 15m, 1h, 6h, 24h, 7d, got"):
        window_of("2h")


def test_versions_survive_a_reconnect_and_nonsense_says_that_all_has_changed() -> None:
    now = Versions({HintKind.JOBS: 12, HintKind.SETTINGS: 3})
    assert Versions.parse(str(now)) == now
    assert now.changed(Versions({HintKind.JOBS: 11, HintKind.SETTINGS: 3})) == [HintKind.JOBS]
    for text in ("", "jobs", "jobs-x", "jobs-1." * 90, "jobs-" + "9" * 30, "\x00", "jobs-1\n"):
        assert now.changed(Versions.parse(text)) == [HintKind.JOBS, HintKind.SETTINGS], text


class Store:
    def __init__(self) -> None:
        self.written: list[TopicLatencies] = []
        self.down = False

    async def record(self, counts: list[TopicLatencies]) -> None:
        if self.down:
            raise StoreUnavailable("down")
        self.written += counts


def _tallies() -> Tallies:
    return Tallies(topics_max=2, label_of=lambda no: ("acme", f"t{no}"))


async def test_latencies_are_written_once_also_after_an_outage() -> None:
    store, tallies = Store(), _tallies()
    recorder = LatencyRecorder(store, tallies)  # type: ignore[arg-type]
    assert await recorder.run_once() == 0, "an idle instance is silent"
    tallies.claimed([1, 1], [0, 0], 1_500)
    assert await recorder.run_once() == 1
    assert await recorder.run_once() == 0
    store.down = True
    tallies.claimed([1], [0], 1_500)
    with pytest.raises(StoreUnavailable):
        await recorder.run_once()
    store.down = False
    tallies.claimed([1], [0], 1_500)
    await recorder.run_once()
    total = Histogram(WAITS_US)
    for one in store.written:
        total.counts = [a + b for a, b in zip(total.counts, one.pickup, strict=True)]
    assert total.counts == next(iter(dict(tallies.by_topic()).values())).pickup.counts
    assert sum(total.counts) == 4


async def test_topics_beyond_the_bound_are_not_written() -> None:
    store, tallies = Store(), _tallies()
    for topic_no in (1, 2, 3, 4):
        tallies.claimed([topic_no], [0], 10)
    assert await LatencyRecorder(store, tallies).run_once() == 2  # type: ignore[arg-type]
    assert {one.topic_no for one in store.written} == {1, 2}
