"""Metrics of a real server: what jobs do is counted by topic, whichever way they come and go."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from headgate.domain.histogram import WAITS_US
from headgate.domain.states import State
from headgate.domain.tallies import OTHER
from headgate.server import Server, ServerOptions
from headgate.store.connect import Connection
from headgate.store.queue_state import QUEUE_STATE, QueueStateStore
from headgate.store.upkeep import HOT_TABLES, fold_flows
from headgate.wire import worker_pb2
from tests.support.dispatching import Instance
from tests.support.explain import cost
from tests.support.prometheus import Scrape
from tests.support.queue import Queue
from tests.support.waiting import until_async
from tests.support.wire import Wire, completed, failed, nack

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy/observability"
RUNBOOKS = ROOT / "docs/operations/runbooks.md"


@pytest.fixture
async def server(database: str) -> AsyncIterator[Server]:
    one = Server(
        ServerOptions(
            database_url=database, port=0, dev=True, unsafe=True, grace=timedelta(0), name="one", metrics_topics=3
        )
    )
    await one.start()
    yield one
    await one.stop(drain=False)


async def scrape(server: Server) -> Scrape:
    text, _ = await server.metrics.page()
    return Scrape.of(text.decode())


async def work(wire: Wire) -> None:
    """Jobs of all kinds of ends, by a stream and by single calls."""
    await wire.submit_many("mail", [b"x"] * 5)
    async with wire.worker("w") as session:
        await session.ready(5, "mail")
        jobs = await session.take(5)
        assert not await session.complete(*jobs[:2])
        await session.report(failed(jobs[2]), nack(jobs[3], 60_000), failed(jobs[4], permanent=True))
        stale = jobs[0]._replace(epoch=jobs[0].epoch + 1)
        await session.report(completed(stale))
    await wire.submit("single", b"x", delay_ms=1)
    request = worker_pb2.ClaimRequest(worker_id="call", topics=["single"], count=1, wait_ms=20_000)
    (job,) = (await wire.call("Claim", request)).jobs
    await wire.call("ReportOutcome", worker_pb2.ReportOutcomeRequest(worker_id="call", outcomes=[completed(job)]))


async def test_what_jobs_do_is_counted_by_topic_whichever_way_they_go(server: Server) -> None:
    async with Wire(f"127.0.0.1:{server.port}") as wire:
        await work(wire)
        with pytest.raises(grpc.RpcError):
            await wire.submit("", b"x")
        found = await scrape(server)
    total = found.sum
    assert total("headgate_jobs_submitted_total", topic="mail") == 5
    assert total("headgate_jobs_claimed_total", topic="mail") == 5
    assert total("headgate_jobs_settled_total", topic="mail", outcome="completed") == 2
    assert total("headgate_jobs_settled_total", topic="mail", outcome="failed") == 2
    assert total("headgate_jobs_settled_total", topic="mail", outcome="nack") == 1
    assert total("headgate_jobs_dead_total", topic="mail") == 1
    assert sum(value for _, value in found.samples["headgate_outcomes_not_applied_total"]) == 1
    assert total("headgate_pickup_seconds_count", topic="mail") == 5
    assert total("headgate_run_seconds_count", topic="mail") == 5
    assert total("headgate_jobs_settled_total", topic="single", outcome="completed") == 1
    assert total("headgate_run_seconds_count", topic="single") == 1, "a single claim is remembered"
    assert total("headgate_submits_refused_total", code="invalid_input") == 1
    assert total("headgate_flush_rows_count", lane="submit") >= 2
    assert total("headgate_database_seconds_count", lane="settle") >= 2
    assert total("headgate_database_connection_open", lane="submit") == 1
    assert total("headgate_ready") == 1


async def test_leases_that_ended_without_renewal_are_counted_by_topic(server: Server, db: Connection) -> None:
    async with Wire(f"127.0.0.1:{server.port}") as wire:
        for topic in ("mail", "mail", "sms"):
            await wire.submit(topic, b"x")
            request = worker_pb2.ClaimRequest(worker_id="call", topics=[topic], count=1, wait_ms=20_000)
            await wire.call("Claim", request)
    await db.execute("UPDATE headgate.jobs SET lease_until = claimed_at")

    async def counted() -> bool:
        await server.ticker.run_once()
        if await db.fetchval("SELECT count(*) FROM headgate.jobs WHERE state = $1", State.RUNNING):
            return False  # a scrape costs much more than this look
        total = (await scrape(server)).sum
        name = "headgate_leases_lapsed_total"
        return (total(name, topic="mail"), total(name, topic="sms")) == (2, 1)

    await until_async(counted, "all leases are counted")


async def test_pickup_counts_from_the_due_time_of_a_delayed_job(stepped: Instance) -> None:
    """Not from the submit: that would count its delay as waiting."""
    await stepped.submit(1, delay=timedelta(milliseconds=1))
    async with stepped.store.lane("upkeep").use() as db:  # its delay was an hour
        await db.execute("UPDATE headgate.jobs SET created_at = created_at - interval '1 hour'")
    await stepped.submit(1)
    worker = await stepped.worker(slots=2)
    await stepped.ticker.run_once()
    claimed: list[Any] = []
    claim = stepped.store.claim

    async def watched(request: Any) -> Any:
        claimed.append(await claim(request))
        return claimed[-1]

    stepped.store.claim = watched  # type: ignore[method-assign]
    while sum(map(len, claimed)) < 2:
        await stepped.claimer.run_once()
    run_ats = [at for one in claimed for at in one.run_ats]
    created = [at for one in claimed for at in one.created_ats]
    assert sorted(at is None for at in run_ats) == [False, True], "NULL where it is the time of the submit"
    late = next(index for index, at in enumerate(run_ats) if at is not None)
    assert run_ats[late] - created[late] == timedelta(hours=1, milliseconds=1)
    pickup = stepped.claimer._tallies.by_label[OTHER].pickup
    assert (sum(pickup.counts), pickup.total < 600_000_000) == (2, True), "in microseconds: no hour is among them"
    worker.lose()


async def test_topics_beyond_the_limit_are_other_in_counters_and_in_depth(server: Server, db: Connection) -> None:
    async with Wire(f"127.0.0.1:{server.port}") as wire:
        for number in range(6):
            await wire.submit_many(f"t{number}", [b"x"] * (number + 1))
    await fold_flows(db)
    found = await scrape(server)
    labels = {labels["topic"] for labels, _ in found.samples["headgate_jobs_submitted_total"]}
    assert labels == {"t0", "t1", "t2", "other"}
    assert found.sum("headgate_jobs_submitted_total", topic="other") == 4 + 5 + 6
    assert found.sum("headgate_queue_jobs", state="pending") == sum(range(7))
    assert {labels["topic"] for labels, _ in found.samples["headgate_queue_jobs"]} == labels


async def test_the_reading_has_depth_age_and_what_holds_vacuum_back(stepped: Instance, db: Connection) -> None:
    queue = Queue(db)
    await queue.add(3, "mail")
    await queue.add(2, "image")
    await fold_flows(db)
    store = QueueStateStore(stepped.store)
    state = await store.queue_state(topics=[], topics_max=1)
    assert state.jobs == {("acme", "mail"): {State.PENDING: 3}, OTHER: {State.PENDING: 2}}
    assert set(state.oldest_due_seconds) == {("acme", "mail")}
    assert state.oldest_due_seconds["acme", "mail"] >= 0
    assert set(state.tables) == set(HOT_TABLES)
    shown = await store.queue_state(topics=["image"], topics_max=1)
    assert ("acme", "image") in shown.jobs, "a topic with counters of its own comes first"
    assert state.retention_days_waiting == 0


async def test_the_reading_costs_the_same_with_few_and_many_jobs(db: Connection) -> None:
    queue = Queue(db)
    await queue.add(10)
    await fold_flows(db)
    arguments = ([], 100, list(HOT_TABLES))
    await cost(db, QUEUE_STATE, *arguments)  # what functions read from the catalogue the first time
    few = await cost(db, QUEUE_STATE, *arguments)
    await queue.add(5_000)
    await fold_flows(db)
    many = await cost(db, QUEUE_STATE, *arguments)
    assert many.pages <= few.pages + 20, (few, many)


# ---------------------------------------------------------------------- dashboard and alerts

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_METRIC = re.compile(r"\b(headgate_[a-z_]+|process_[a-z_]+)\b")
_SELECTOR = re.compile(r"\b(headgate_[a-z_]+|process_[a-z_]+)\{([^}]*)\}")
_GROUP = re.compile(r"\b(?:by|on) \(([^)]*)\)")
_TARGET_LABELS = {"instance", "job"}
"""Added by Prometheus."""


def expressions() -> Iterator[tuple[str, str]]:
    """Where each is from, and its text."""
    board = json.loads((FILES / "grafana-dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"]
    for rule in rules():
        yield f"alert {rule['alert']}", rule["expr"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


async def test_dashboard_and_alerts_use_metrics_and_labels_that_a_server_has(server: Server, db: Connection) -> None:
    async with Wire(f"127.0.0.1:{server.port}") as wire:
        await work(wire)
        with pytest.raises(grpc.RpcError):
            await wire.submit("", b"x")
    server.services.failures["planted"] += 1
    await fold_flows(db)
    found = await scrape(server)
    used: set[str] = set()
    for where, text in expressions():
        names = set(_METRIC.findall(_STRINGS.sub('""', text)))
        assert names, where
        for name in names:
            assert name in found.samples, f"{where}: no metric {name}"
        labels = {label.strip() for group in _GROUP.findall(text) for label in group.split(",")} - {"le"}
        for name, selector in _SELECTOR.findall(text):
            mine = {part.split("=")[0].rstrip("!~").strip() for part in _STRINGS.sub("", selector).split(",")}
            missing = mine - found.labels(name) - _TARGET_LABELS
            assert not missing, f"{where}: {name} has no label {missing}"
        known = set().union(*(found.labels(name) for name in names)) | _TARGET_LABELS
        assert labels <= known, f"{where}: no label {labels - known} in {names}"
        used |= names
    assert len(used) > 25


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    text = RUNBOOKS.read_text()
    sections = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.+)$", text, re.M)
    }
    anchors = set()
    for rule in rules():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (ROOT / page) == RUNBOOKS
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        anchors.add(anchor)
    assert anchors == sections


def test_the_dashboard_has_panels_with_ids_titles_and_no_overlap() -> None:
    board = json.loads((FILES / "grafana-dashboard.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_bounds_of_waits_are_shown_as_seconds() -> None:
    assert [f"{bound * 1e-6:g}" for bound in WAITS_US[:3]] == ["0.001", "0.002", "0.005"]
