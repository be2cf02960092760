"""How the services of an instance, and the whole server, stop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from headgate.dispatch.session import WorkerSession
from headgate.domain.errors import InternalError, OutcomeUnknown, ShuttingDown
from headgate.domain.identity import Identity, Scope
from headgate.domain.outcomes import Completed
from headgate.domain.states import Receipt, State
from headgate.server import Server, ServerOptions, instance
from headgate.store.connect import Connection
from tests.support.dispatch_waits import SOON, settle_down
from tests.support.dispatching import Instance
from tests.support.queue import Clock
from tests.support.watched_store import Hold, failing_with

# ---------------------------------------------------------------------- stopping


@pytest.mark.req("E4", "B3")
@pytest.mark.parametrize("session_ends", [False, True])
async def test_a_stop_during_a_claim_deals_or_returns_what_it_gets(one: Instance, session_ends: bool) -> None:
    hold = one.store.after["claim"] = Hold()
    jobs = await one.submit(3)
    worker = await one.worker(slots=3)
    await hold.reached()
    one.claimer.stop()
    if session_ends:
        worker.lose()
    assert not one.tasks["claims"].done()  # it waits for what the database says
    hold.release()
    assert await one.died("claims") is None
    await one.flushed()
    states = {(await one.job(job)).state for job in jobs}
    assert states == {State.PENDING if session_ends else State.RUNNING}
    if not session_ends:
        assert list((await worker.take()).ids) == jobs


@pytest.mark.req("E4")
async def test_a_claimer_that_is_killed_during_its_claim_leaves_the_jobs_to_their_lease(
    one: Instance, db: Connection
) -> None:
    clock = await Clock.install(db)
    hold = one.store.after["claim"] = Hold()
    (job,) = await one.submit()
    await one.worker(slots=3)
    await hold.reached()
    one.tasks["claims"].cancel()
    assert await one.died("claims") is None
    assert one.free() == 3  # no credit is lost
    await clock.advance(seconds=61)
    assert (await one.ticker.run_once()).reaped == 1
    assert (await one.job(job)).state is State.RETRYING


async def test_a_cancelled_writer_leaves_no_caller_waiting(one: Instance) -> None:
    hold = one.store.before["settle"] = Hold()
    await one.submit(2)
    worker = await one.worker(slots=2)
    delivery = await worker.take()
    in_flight = worker.settle((delivery.ids[0], 1, Completed()))
    await hold.reached()
    queued = worker.settle((delivery.ids[1], 1, Completed()))
    one.tasks["outcomes"].cancel()
    await one.died("outcomes")
    for answer in (in_flight, queued):
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(answer, 60)
    with pytest.raises(ShuttingDown):
        worker.settle((delivery.ids[0], 1, Completed()))


@pytest.mark.req("B5")
async def test_a_bug_on_the_way_of_one_outcome_costs_only_that_one(
    one: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await one.submit(20)
    worker = await one.worker(slots=20)
    await worker.take()
    poison = ids[7]
    settle = one.store.settle

    async def stumble(rows: Any) -> Any:
        if poison in {job_id for part in rows._done.values() for job_id in part.ids}:
            raise KeyError("a bug")
        return await settle(rows)

    one.store.settle = stumble  # type: ignore[method-assign]
    ends = [(job, worker.session.held[job][0], Completed()) for job in ids]
    told = await asyncio.wait_for(worker.settle(*ends), SOON.total_seconds())
    assert {place: type(answer) for place, answer in told.items()} == {7: InternalError}
    assert set(worker.session.held) == {poison}
    assert (await one.states()) == {State.RUNNING: 1, State.COMPLETED: 19}
    assert "settle_failed rows=20" in caplog.text
    assert "Traceback" in caplog.text
    one.store.settle = settle  # type: ignore[method-assign]
    assert (await worker.report(poison, 1, Completed())).receipt is Receipt.APPLIED


@pytest.mark.req("B5")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_bug_in_a_flush_of_submits_fails_its_callers_and_the_next_one_is_written(
    one: Instance, when: str
) -> None:
    hooks = one.store.before if when == "before" else one.store.after
    hooks["submit"] = failing_with(AttributeError("a bug"))
    with pytest.raises(InternalError, match=r"AttributeError.*send the same again"):
        await one.submit()
    assert (await one.states()).total() == (0 if when == "before" else 1)
    await one.submit(3)
    assert (await one.states()).total() == (3 if when == "before" else 4)
    assert not one.tasks["submits"].done()


# ---------------------------------------------------------------------- the whole server, as far as it stops


@pytest.fixture
def relaxed() -> Iterator[None]:
    """A server tunes the collector for itself; the other tests are not to live with that."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.fixture
async def server(database: str, relaxed: None) -> AsyncIterator[Server]:
    one = Server(
        ServerOptions(database_url=database, port=0, dev=True, grace=timedelta(0), name="one", tick_seconds=3600)
    )
    await one.start()
    yield one
    await asyncio.wait_for(one.stop(drain=False), 60)


@pytest.mark.req("E10", "B2", "E5")
async def test_a_server_whose_claimer_is_dead_still_stops_and_stops_twice_at_once(
    server: Server, db: Connection
) -> None:
    server.services._tasks["claims"].cancel()
    await connect_by_hand(server)
    await asyncio.wait_for(asyncio.gather(server.stop(drain=False), server.stop(drain=False)), 60)
    async with Instance(server.options.database_url, name="two", running=False) as two:
        await two.submit(3)
        await settle_down()
        assert (await two.states()) == {State.PENDING: 3}


@pytest.mark.req("B4")
async def test_a_stop_is_bounded_when_a_claim_hangs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "STOP_SECONDS", 0.1)
    hold = Hold()

    async def claim(_: object) -> None:
        await hold()

    server.store.claim = claim  # type: ignore[method-assign, assignment]
    await connect_by_hand(server)
    await hold.reached()
    began = time.monotonic()
    await asyncio.wait_for(server.stop(drain=False), 60)
    assert time.monotonic() - began < 8  # ten seconds, were it the usual bound


async def test_the_order_of_stopping_loses_no_outcome(server: Server, db: Connection) -> None:
    """Claims end, sessions are asked to drain, what they report meanwhile is written, renewals end last."""
    one = Instance(server.options.database_url, name="beside", running=False)
    one.store, one.sessions, one.demands = server.store, server.sessions, server.demands  # type: ignore[assignment]
    one.outcomes, one.submitter = server.outcomes, server.submitter
    (job, later) = await one.submit(2)
    worker = await one.worker(slots=1)
    delivery = await worker.take()
    assert list(delivery.ids) == [job]
    order: list[str] = []
    grpc_stop, renewer_stop = server.listeners._grpc.stop, server.renewer.stop  # type: ignore[union-attr]

    async def draining(grace: float | None) -> None:
        order.append("draining")
        assert server.services._tasks["claims"].done()
        assert (await worker.hear()).drain_seconds == 0
        worker.complete(delivery)  # the worker's last word
        worker.ready(1)
        worker.lose()
        await grpc_stop(grace)

    def stopping_renewals() -> None:
        server.renewer.stop = renewer_stop  # type: ignore[method-assign]
        order.append("renewals")
        assert server.services._tasks["outcomes"].done()
        renewer_stop()

    server.listeners._grpc.stop = draining  # type: ignore[union-attr, method-assign]
    server.renewer.stop = stopping_renewals  # type: ignore[method-assign]
    await asyncio.wait_for(server.stop(drain=False), 60)
    assert order == ["draining", "renewals"]
    assert await db.fetchval("SELECT state FROM headgate.archive WHERE id = $1", job) == State.COMPLETED
    assert await db.fetchval("SELECT state FROM headgate.jobs WHERE id = $1", later) == State.PENDING


async def connect_by_hand(server: Server) -> None:
    """A session with credit, without a wire."""
    identity = Identity(tenant="default", subject="test", scopes=frozenset(Scope))
    session = WorkerSession(identity, await server.store.tenant_no("default"), "w", time.monotonic, 60_000)
    session.mark_seen()
    server.sessions.open(session)
    (topic,) = await server.store.topics("default", ["mail"])
    server.demands.grant(session, [topic.no], 60_000, 1)
