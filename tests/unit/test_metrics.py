"""Metrics as text: definitions and documentation agree, processes are merged, readings of the database are rare."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.domain.errors import StoreUnavailable
from headgate.domain.histogram import ROWS, STATEMENT_SECONDS, Histogram
from headgate.domain.queue_state import QueueState, TableRows
from headgate.domain.states import OutcomeKind, State
from headgate.domain.tallies import OTHER, Tallies
from headgate.ops.metric_names import METRICS, PICKUP, RUN, Kind, table
from headgate.ops.metric_siblings import Siblings
from headgate.ops.metrics import READING_SECONDS, Metrics, Sources
from tests.support.dispatch_waits import ManualClock

PAGE = Path(__file__).parents[2] / "docs/operations/metrics.md"
STATE = QueueState(
    jobs={
        ("a", "mail"): {State.PENDING: 3, State.DEAD: 1},
        ("b", "mail"): {State.PENDING: 4},
        ("c", "mail"): {State.PENDING: 0},
        OTHER: {State.PENDING: 9},
    },
    oldest_due_seconds={("a", "mail"): 1.5, ("b", "mail"): 7.5, ("c", "mail"): 0.5},
    tables={"jobs": TableRows(live=10, dead=2)},
    oldest_transaction_seconds=11.5,
    xmin_age=12,
    retention_days_waiting=13,
    retention_lag_seconds=14.5,
    instances=2,
    webhooks_pending=15,
    webhooks_oldest_due_seconds=16.5,
)


class Source:
    """Stands in for a server."""

    def __init__(self, *, show_tenants: bool = False) -> None:
        self.tallies = Tallies(label_of={1: ("a", "mail"), 2: ("a", 'odd "name"\n\\'), 3: ("b", "mail")}.get)
        self.reads: list[tuple[list[str], int]] = []
        self.error: Exception | None = None
        self.on_read: Callable[[], object] = lambda: None
        lane = SimpleNamespace(seconds=Histogram(STATEMENT_SECONDS), waits=1, connects=2, is_open=True, in_use=False)
        writer = SimpleNamespace(sizes=Histogram(ROWS), rows_refused=3, waiting_rows=4)
        self.sources = Sources(
            tallies=self.tallies,
            lanes={"submit": lane},
            writers={"submit": writer},
            claims=Histogram(ROWS),
            sessions=lambda: (6, 7, 8),
            login_failures=lambda: 9,
            loop_lag_ms=lambda: 250.0,
            service_failures=Counter(ticks=1),
            webhook_attempts={"delivered": 3},
            ready=lambda: True,
            queue_state=self.read,
            version="1.2.3",
            topics_max=100,
            show_tenants=show_tenants,
        )

    async def read(self, topics: Sequence[str], topics_max: int) -> QueueState:
        self.reads.append((list(topics), topics_max))
        self.on_read()
        if self.error is not None:
            raise self.error
        return STATE


def values(text: bytes) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """All samples, by name and labels; the parser refuses what Prometheus would."""
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name} {sample.labels} is there twice"
            found[sample.name][labels] = sample.value
    return found


def key(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


async def test_all_values_of_a_process_are_shown_with_its_number() -> None:
    source = Source()
    source.tallies.submitted([1, 1, 2])
    source.tallies.claimed([1], [0], 3_000)
    source.tallies.settled([(1, 1, 1.0)], OutcomeKind.COMPLETED, 1.5)
    source.tallies.refused_submits["overloaded"] += 4
    source.tallies.receipts["stale"] += 2
    text, content_type = await Metrics(source.sources, process=3).page("")
    found = values(text)
    assert content_type.startswith("text/plain")
    assert found["headgate_jobs_submitted_total"][key(topic="mail", process="3")] == 2
    assert found["headgate_jobs_submitted_total"][key(topic='odd "name"\n\\', process="3")] == 1
    assert found["headgate_pickup_seconds_bucket"][key(topic="mail", process="3", le="0.002")] == 0
    assert found["headgate_pickup_seconds_bucket"][key(topic="mail", process="3", le="0.005")] == 1
    assert found["headgate_pickup_seconds_sum"][key(topic="mail", process="3")] == pytest.approx(0.003)
    assert found["headgate_run_seconds_count"][key(topic="mail", process="3")] == 1
    assert found["headgate_submits_refused_total"][key(code="overloaded", process="3")] == 4
    assert found["headgate_loop_lag_seconds"][key(process="3")] == 0.25
    assert found["headgate_worker_credit"][key(process="3")] == 7
    assert found["process_resident_memory_bytes"][key(process="3")] > 1_000_000
    assert "version" in dict(next(iter(found["headgate_build_info"])))


async def test_each_value_is_shown_under_its_own_name() -> None:
    found = values((await Metrics(Source().sources).page(""))[0])
    for labels, expected in (
        (
            {"process": "1"},
            {"login_failures_total": 9, "worker_sessions": 6, "worker_credit": 7, "jobs_held": 8},
        ),
        (
            {"process": "1", "lane": "submit"},
            {
                "flush_waiting_rows": 4,
                "flush_refused_rows_total": 3,
                "database_waits_total": 1,
                "database_connects_total": 2,
                "database_connection_open": 1,
                "database_connection_busy": 0,
            },
        ),
        (
            {},
            {
                "database_oldest_transaction_seconds": 11.5,
                "database_xmin_age": 12,
                "retention_days_waiting": 13,
                "retention_lag_seconds": 14.5,
                "instances": 2,
                "webhook_deliveries_pending": 15,
                "webhook_oldest_due_seconds": 16.5,
            },
        ),
        ({"table": "jobs"}, {"table_dead_rows": 2, "table_live_rows": 10}),
    ):
        assert {name: found[f"headgate_{name}"][key(**labels)] for name in expected} == expected


async def test_times_that_jobs_wait_and_run_are_shown_in_seconds() -> None:
    source = Source()
    source.tallies.claimed([1], [1_000_000], 3_500_000)
    source.tallies.settled([(0, 1, 10.0)], OutcomeKind.COMPLETED, 14.0)
    found = values((await Metrics(source.sources).page(""))[0])
    of = {"topic": "mail", "process": "1"}
    for name, seconds in ((PICKUP.name, 2.5), (RUN.name, 4.0)):
        assert found[f"{name}_sum"][key(**of)] == pytest.approx(seconds)
        buckets = {
            float(dict(labels)["le"]): n for labels, n in found[f"{name}_bucket"].items() if of.items() <= labels
        }
        assert (buckets[2.0], buckets[5.0], buckets[float("inf")]) == (0, 1, 1)


async def test_openmetrics_is_served_on_request() -> None:
    text, content_type = await Metrics(Source().sources).page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


async def test_topics_of_one_name_are_added_up_unless_tenants_are_shown() -> None:
    merged = values((await Metrics(Source().sources).page(""))[0])
    assert merged["headgate_queue_jobs"][key(topic="mail", state="pending")] == 7
    assert merged["headgate_queue_jobs"][key(topic="other", state="pending")] == 9
    assert merged["headgate_queue_oldest_due_seconds"] == {key(topic="mail"): 7.5}
    source = Source(show_tenants=True)
    source.tallies.submitted([1, 3, 3])
    apart = values((await Metrics(source.sources).page(""))[0])
    assert apart["headgate_queue_jobs"][key(tenant="b", topic="mail", state="pending")] == 4
    assert apart["headgate_jobs_submitted_total"][key(tenant="b", topic="mail", process="1")] == 2


async def test_a_tenant_sees_its_own_topics_only() -> None:
    source = Source()
    source.tallies.submitted([1, 3, 3, 9])
    found = values((await Metrics(source.sources).page("", tenant="b"))[0])
    assert found["headgate_jobs_submitted_total"] == {key(topic="mail", process="1"): 2}
    assert (
        sum(found["headgate_queue_jobs"].values())
        == found["headgate_queue_jobs"][key(topic="mail", state="pending")]
        == 4
    )
    assert found["headgate_queue_oldest_due_seconds"] == {key(topic="mail"): 7.5}
    # A state without jobs is shown: without a sample, dashboards keep the last one for some minutes.
    assert found["headgate_queue_jobs"][key(topic="mail", state="dead")] == 0


async def test_the_database_is_read_rarely_and_for_longer_apart_if_that_is_slow() -> None:
    source, clock = Source(), ManualClock()
    source.tallies.submitted([1])
    metrics = Metrics(source.sources, now=clock)
    for _ in range(3):
        await metrics.page("")
    assert source.reads == [(["mail"], 100)]
    clock.advance(READING_SECONDS)
    source.on_read = lambda: clock.advance(1)
    await metrics.page("")
    assert len(source.reads) == 2
    clock.advance(49)
    await metrics.page("")
    assert len(source.reads) == 2, "a reading of a second is kept for 50"
    clock.advance(1)
    await metrics.page("")
    assert len(source.reads) == 3


@pytest.mark.parametrize("error", [StoreUnavailable("away"), TimeoutError()], ids=["away", "slow"])
async def test_a_database_that_is_away_is_shown_and_the_last_values_stay(error: Exception) -> None:
    source, clock = Source(), ManualClock()
    metrics = Metrics(source.sources, now=clock)
    source.error = error
    found = values((await metrics.page(""))[0])
    assert found["headgate_database_up"] == {key(): 0}
    assert "headgate_queue_jobs" not in found, "nothing is known, which is not the same as none"
    source.error = None
    clock.advance(READING_SECONDS)
    await metrics.page("")
    source.error = error
    clock.advance(READING_SECONDS)
    found = values((await metrics.page(""))[0])
    assert found["headgate_database_up"] == {key(): 0}
    assert found["headgate_queue_jobs"][key(topic="mail", state="dead")] == 1
    assert found["headgate_database_reading_age_seconds"] == {key(): READING_SECONDS}


async def test_whichever_process_is_scraped_answers_for_all_of_its_port(tmp_path: Path) -> None:
    first, second = (Metrics(Source().sources, process=number) for number in (1, 2))
    one, two = (
        Siblings(tmp_path, process=number, processes=3, samples=metrics.of_process)
        for number, metrics in ((1, first), (2, second))
    )
    await one.start()
    await two.start()
    (tmp_path / "3.sock").write_text("left by a killed process")
    found = values((await first.page("", await one.others()))[0])
    assert found["headgate_process_up"] == {key(process="1"): 1, key(process="2"): 1, key(process="3"): 0}
    assert found["headgate_worker_sessions"] == {key(process="1"): 6, key(process="2"): 6}
    assert len(found["process_cpu_seconds_total"]) == 2
    assert len(found["headgate_database_up"]) == 1, "what is read from the database is there once"
    await one.stop()
    await two.stop()
    assert not list(tmp_path.glob("[12].sock"))


async def test_other_processes_answer_a_tenant_with_its_own_topics_only(tmp_path: Path) -> None:
    source = Source()
    source.tallies.submitted([1, 3])
    pair = [
        Siblings(tmp_path, process=number, processes=2, samples=Metrics(source.sources, process=number).of_process)
        for number in (1, 2)
    ]
    (tmp_path / "1.sock").write_text("left by a killed process")
    for one in pair:
        await one.start()
    ((_, labels, count),) = (await pair[1].others("b"))[0]["headgate_jobs_submitted"]
    assert (labels, count) == ({"topic": "mail", "process": "1"}, 1)
    for one in pair:
        await one.stop()


async def test_names_follow_the_rules_of_prometheus_and_every_metric_is_filled() -> None:
    source = Source()
    source.tallies.refused_submits["overloaded"] += 1
    source.tallies.receipts["stale"] += 1
    families = {
        family.name: family
        for family in text_string_to_metric_families((await Metrics(source.sources).page(""))[0].decode())
    }
    for one in METRICS:
        assert re.fullmatch(r"headgate_[a-z_]+", one.name)
        assert not one.name.endswith("_total"), "the suffix is added"
        assert one.text.endswith(".")
        samples = families[one.name].samples
        assert samples, f"{one.name} has no sample"
        labels = set(samples[0].labels) - {"le"}
        assert labels == set(one.label_names), one.name
        assert families[one.name].type == one.kind
        if one.kind is Kind.HISTOGRAM:
            assert samples[0].labels["le"]


def test_the_documentation_has_the_table_of_all_metrics() -> None:
    assert table() in PAGE.read_text(), "run: python -m tools.metrics_table, which rewrites the table"
