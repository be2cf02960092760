"""Stop of a worker: it reaches the processes that were connected when it was asked, on any instance, and no others."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headgate.dispatch.session_rules import Hello
from headgate.dispatch.worker_calls import WorkerCalls
from headgate.domain.errors import NotFound, Refused, TooLarge
from headgate.domain.identity import PermissionDenied, Scope
from headgate.domain.limits import REPORTED_WORKERS_MAX
from headgate.domain.states import State
from headgate.domain.workers import WorkerState, WorkerStop, worker_state
from headgate.store import worker_stops
from headgate.store.connect import Connection
from tests.support.admin import OPERATOR, READER, Desk, someone
from tests.support.dispatch_waits import settle_down, soon
from tests.support.dispatch_workers import Worker, completing, waiting_for
from tests.support.dispatching import Instance
from tests.support.queue import Clock
from tests.support.waiting import until_async
from tests.support.watched_store import Hold

WORKING = someone(Scope.WORK)


def stops_of(worker: Worker) -> list[WorkerStop]:
    """What it was asked, in the order in which it was sent."""
    return [frame.stop for frame in worker.told if frame.stop is not None]


async def told(worker: Worker) -> list[WorkerStop]:
    """The same of a worker without a handler: all that waits for it is read."""
    while worker.session._parts:
        await worker.hear()
    return stops_of(worker)


async def test_a_worker_is_asked_once_gets_no_more_jobs_and_finishes_what_it_holds(database: str) -> None:
    async with Instance(database, tick_seconds=0.2) as one:
        desk, go = Desk(one), asyncio.Event()
        await one.submit(3)
        worker = await one.worker("ant", slots=1, handler=waiting_for(go))
        await soon(lambda: worker.tracker.now == 1, "it holds one")
        asked = await desk.verbs.stop_worker(OPERATOR, "ant", reason="memory leak")
        assert asked.sessions == 1
        (stop,) = await soon(lambda: stops_of(worker), "it is asked")
        assert (stop.who, stop.reason, stop.since) == ("ana", "memory leak", asked.since)
        (shown,) = (await desk.verbs.workers(READER)).workers
        assert (worker_state(shown), shown.stop, shown.quiet) == (WorkerState.STOPPING, stop, False)
        go.set()
        await one.reach(1, State.COMPLETED)
        await desk.verbs.quiet(OPERATOR, "ant")
        await desk.verbs.resume_worker(OPERATOR, "ant")  # does not take the stop back
        ticks = one.ticker.ticks
        await soon(lambda: one.ticker.ticks > ticks + 2, "some ticks")
        assert (len(worker.tracker.runs), len(stops_of(worker))) == (1, 1)
        assert (await one.states())[State.PENDING] == 2
        entries = (await desk.verbs.audit(READER)).entries
        assert [(one.actor, one.verb, one.target, one.reason) for one in entries][-1] == (
            *("ana", "stop_worker", "worker ant", "memory leak"),
        )


async def test_a_worker_on_another_instance_is_asked_without_a_notification(one: Instance, database: str) -> None:
    async with Instance(database, name="two", tick_seconds=0.2) as two:  # which listens to nothing: its ticks find it
        worker = await two.worker("ant", slots=5, handler=completing())
        there = Desk(two)
        assert await there.presence.run_once()
        assert (await Desk(one).verbs.stop_worker(OPERATOR, "ant", reason="leak")).sessions == 1
        (stop,) = await soon(lambda: stops_of(worker), "its instance has asked it")
        await until_async(there.presence.run_once, "its summary is written again")
        (shown,) = (await Desk(one).verbs.workers(READER)).workers
        assert (worker_state(shown), shown.instance) == (WorkerState.STOPPING, "two")
        assert (shown.stop, stop.who) == (stop, "ana")
        await one.submit(1)
        two.demands.wake_all()
        ticks = two.ticker.ticks
        await soon(lambda: two.ticker.ticks > ticks + 2, "some ticks")
        assert worker.tracker.runs == []


async def test_a_later_process_with_the_same_id_is_not_stopped(stepped: Instance, database: str) -> None:
    await stepped.ticker.run_once()
    await stepped.submit(1)
    before = await stepped.worker("ant", incarnation=1)
    await Desk(stepped).verbs.stop_worker(OPERATOR, "ant")
    await stepped.ticker.run_once()
    assert len(await told(before)) == 1
    before.lose()
    later = await stepped.worker("ant", slots=1, incarnation=2)
    await stepped.ticker.run_once()
    assert await told(later) == []
    assert await stepped.claimer.run_once() == 1
    async with Instance(database, name="two", running=False) as two:  # it knows of the stop from its first tick
        elsewhere = await two.worker("ant", incarnation=3)
        await two.ticker.run_once()
        assert two.sessions.stops
        assert await told(elsewhere) == []


async def test_a_tick_that_was_answered_late_does_not_make_a_later_process_an_earlier_one(stepped: Instance) -> None:
    await stepped.ticker.run_once()
    worker = await stepped.worker("ant")
    hold = stepped.store.after["tick"] = Hold()
    ticking = asyncio.create_task(stepped.ticker.run_once())
    await hold.reached()  # the database has said what its clock shows, and it is not read before …
    await Desk(stepped).verbs.stop_worker(OPERATOR, "ant")
    hold.release()
    await ticking
    stepped.store.after.clear()
    worker.lose()
    later = await stepped.worker("ant")  # … this one is connected
    assert await told(later) == []


async def test_a_process_that_connects_again_is_still_the_one_that_was_asked(stepped: Instance, database: str) -> None:
    await stepped.ticker.run_once()
    first = await stepped.worker("ant", incarnation=1)
    await Desk(stepped).verbs.stop_worker(OPERATOR, "ant", reason="leak")
    first.lose()
    async with Instance(database, name="two", running=False) as two:
        hello = Hello(worker_id="ant", incarnation=1, connected_ms=60_000)
        session, _ = await two.rules.open(WORKING, hello)
        assert session.stop is None, "the clock of the database is not known there yet"
        await two.ticker.run_once()
        assert session.stop is not None
        two.rules.close(session, "the wire broke")
        session, _ = await two.rules.open(WORKING, hello)
        assert session.stop is not None, "at once"
        assert session.quiet
        two.rules.close(session, "the wire broke")
        session, _ = await two.rules.open(WORKING, Hello(worker_id="ant", incarnation=1, connected_ms=2**64 - 1))
        assert session.stop is not None


async def test_asked_again_a_stop_is_also_for_the_process_that_came_between(stepped: Instance) -> None:
    desk = Desk(stepped)
    await stepped.ticker.run_once()
    first = await stepped.worker("ant")
    await desk.verbs.stop_worker(OPERATOR, "ant")
    first.lose()
    second = await stepped.worker("ant")
    await stepped.ticker.run_once()
    assert await told(second) == []
    await desk.verbs.stop_worker(OPERATOR, "ant", reason="this one, too")
    await stepped.ticker.run_once()
    assert [stop.reason for stop in await told(second)] == ["this one, too"]


async def test_a_stop_that_another_instance_asks_again_is_also_for_the_process_that_came_between(
    stepped: Instance, db: Connection
) -> None:
    tenant_no = await stepped.store.tenant_no("acme")

    async def until_asked(worker: Worker, reason: str) -> None:
        """When it connected is known but for the duration of a tick: a stop within that time is not for it."""

        async def is_asked() -> bool:
            await worker_stops.stop(db, tenant_no, "ant", reason=reason)
            await stepped.ticker.run_once()
            return bool(await told(worker))

        await until_async(is_asked, "it is asked to stop")
        assert [stop.reason for stop in await told(worker)] == [reason]

    await stepped.ticker.run_once()
    first = await stepped.worker("ant")
    await until_asked(first, "")
    first.lose()
    second = await stepped.worker("ant")
    await stepped.ticker.run_once()
    assert await told(second) == []
    await until_asked(second, "this one, too")


async def test_a_worker_that_is_not_connected_is_not_found(stepped: Instance) -> None:
    await stepped.worker("ant", tenant="other")
    with pytest.raises(NotFound, match='no connected worker "ant"'):
        await Desk(stepped).verbs.stop_worker(OPERATOR, "ant")
    with pytest.raises(PermissionDenied, match="all topics"):
        await Desk(stepped).verbs.stop_worker(someone(Scope.OPERATE, topics=["mail"]), "ant")
    assert not (await Desk(stepped).verbs.audit(READER)).entries


async def test_workers_without_frames_are_refused_and_nothing_is_written(stepped: Instance, db: Connection) -> None:
    await stepped.submit(1)
    calls = WorkerCalls(stepped.rules)
    claiming = asyncio.create_task(calls.claim(WORKING, "puller", ["mail"], wait_ms=0))
    await settle_down()
    await soon(lambda: stepped.demands.have_work, "it asks")
    await stepped.claimer.run_once()
    await claiming
    await calls.open_stream(WORKING, "plain", ["mail"], lease_seconds=0, max_in_flight=1)
    for worker in ("puller", "plain"):
        with pytest.raises(Refused, match=f"worker {worker} has no stream on which it can be asked .* make it quiet"):
            await Desk(stepped).verbs.stop_worker(OPERATOR, worker)
    assert await db.fetch("SELECT worker FROM headgate.worker_stops") == []
    assert not (await Desk(stepped).verbs.audit(READER)).entries


async def test_a_worker_that_another_instance_does_not_list_can_be_stopped(stepped: Instance, database: str) -> None:
    async with Instance(database, name="two", running=False) as two:
        workers = [await two.worker(f"w{number:03}") for number in range(REPORTED_WORKERS_MAX + 1)]
        assert await Desk(two).presence.run_once()
        assert (await Desk(stepped).verbs.stop_worker(OPERATOR, workers[-1].session.worker_id)).sessions == 0
        await two.ticker.run_once()
        assert len(await told(workers[-1])) == 1
        assert await told(workers[0]) == []


async def test_the_same_name_in_another_tenant_is_another_worker(stepped: Instance) -> None:
    await stepped.ticker.run_once()
    ours, theirs = await stepped.worker("ant"), await stepped.worker("ant", tenant="other")
    await Desk(stepped).verbs.stop_worker(someone(Scope.OPERATE, tenant="other"), "ant")
    await stepped.ticker.run_once()
    assert (len(await told(ours)), len(await told(theirs))) == (0, 1)


async def test_a_stop_is_forgotten_after_an_hour_and_costs_no_statement_meanwhile(
    stepped: Instance, db: Connection
) -> None:
    await stepped.worker("ant")
    await Desk(stepped).verbs.stop_worker(OPERATOR, "ant")
    await stepped.ticker.run_once()
    await stepped.store.count_statements()
    for _ in range(3):
        await stepped.ticker.run_once()
    assert await stepped.store.sent() == 3
    clock = await Clock.install(db)
    await clock.advance(minutes=61)
    await stepped.ticker.run_once()
    assert not stepped.sessions.stops
    await worker_stops.forget_stops(db)
    assert await db.fetch("SELECT worker FROM headgate.worker_stops") == []


async def test_the_stops_of_a_tenant_are_bounded(db: Connection, stepped: Instance) -> None:
    tenant_no = await stepped.store.tenant_no("acme")
    await db.execute(
        """INSERT INTO headgate.worker_stops (tenant_no, worker, since, until)
           SELECT $1, 'w' || n, headgate.clock_v1(), headgate.clock_v1() + $2::interval
             FROM generate_series(1, $3::int) AS n""",
        tenant_no,
        timedelta(hours=1),
        worker_stops.MOST,
    )
    await worker_stops.stop(db, tenant_no, "w1")  # again
    with pytest.raises(TooLarge, match="stops in an hour"):
        await worker_stops.stop(db, tenant_no, "another")
    await db.execute("UPDATE headgate.worker_stops SET until = headgate.clock_v1() WHERE worker = 'w2'")
    await worker_stops.stop(db, tenant_no, "another")  # that one's time is over
