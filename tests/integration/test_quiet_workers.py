"""Workers: quiet ones get no jobs, and those of all instances are listed."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from headgate.dispatch.presence import WRITE_SECONDS
from headgate.dispatch.session import WorkerSession
from headgate.domain.errors import TooLarge
from headgate.domain.identity import PermissionDenied, Scope
from headgate.domain.limits import REPORTED_WORKERS_MAX
from headgate.domain.states import State
from headgate.store import quiet as quieting
from headgate.store.connect import Connection
from tests.support.admin import OPERATOR, READER, Desk, someone
from tests.support.dispatch_waits import ManualClock, settle_down, soon
from tests.support.dispatch_workers import completing, waiting_for
from tests.support.dispatching import Instance
from tests.support.queue import Clock
from tests.support.watched_store import Hold


async def test_a_quiet_worker_gets_no_more_jobs_and_finishes_what_it_holds(one: Instance) -> None:
    desk = Desk(one)
    go = asyncio.Event()
    await one.submit(3)
    quiet = await one.worker("ant", slots=1, handler=waiting_for(go))
    await soon(lambda: quiet.tracker.now == 1, "it holds one")
    await desk.verbs.quiet(OPERATOR, "ant", reason="memory leak")
    go.set()
    await one.reach(1, State.COMPLETED)
    await settle_down()
    assert len(quiet.tracker.runs) == 1
    assert (await one.states())[State.PENDING] == 2
    other = await one.worker("bee", slots=1, handler=completing())
    await one.reach(3, State.COMPLETED)
    assert len(other.tracker.runs) == 2
    await one.submit(1)
    await one.reach(4, State.COMPLETED)
    assert await desk.verbs.resume_worker(OPERATOR, "ant")
    other.lose()
    await one.submit(2)
    await one.reach(6, State.COMPLETED)
    assert len(quiet.tracker.runs) == 3, "its credit is what it was"
    assert not await desk.verbs.resume_worker(OPERATOR, "ant")
    assert [(entry.verb, entry.target, entry.reason) for entry in (await desk.verbs.audit(READER)).entries] == [
        ("resume_worker", "worker ant", ""),
        ("quiet", "worker ant", "memory leak"),
    ]


async def test_credit_of_a_worker_made_quiet_during_a_claim_is_kept(stepped: Instance) -> None:
    await stepped.submit(2)
    worker = await stepped.worker("ant", slots=5)
    hold = stepped.store.after["claim"] = Hold()
    claiming = asyncio.create_task(stepped.claimer.run_once())
    await hold.reached()
    tenant_no = await stepped.store.tenant_no("acme")
    stepped.gate.set_quiet([(tenant_no, "ant")])
    worker.ready(2)
    hold.release()
    assert await claiming == 2  # which go back
    stepped.store.after.clear()
    assert stepped.free() == 0
    await stepped.submit(9)
    stepped.demands.wake_all()
    assert await stepped.claimer.run_once() == 0
    stepped.gate.set_quiet([])
    assert stepped.free() == 7, "five that the claim had reserved, and two said meanwhile"
    assert await stepped.claimer.run_once() == 7
    stepped.gate.set_quiet([(tenant_no, "ant")])
    worker.lose()
    assert not stepped.demands.by_wanted, "one that ends while it is quiet leaves nothing behind"


async def test_a_claim_that_waits_while_its_worker_is_made_quiet_gets_no_job(stepped: Instance) -> None:
    tenant_no = await stepped.store.tenant_no("acme")
    session = WorkerSession(OPERATOR, tenant_no, "ant", time.monotonic, 60_000)
    stepped.sessions.begin_call(session)
    stepped.demands.ask(session, ["new"], 60_000, 1)
    stepped.gate.set_quiet([(tenant_no, "ant")])
    await stepped.submit(1, topic="new")
    stepped.demands.wake_all()
    assert await stepped.claimer.run_once() == 0
    stepped.gate.set_quiet([])
    assert await stepped.claimer.run_once() == 1


async def test_a_quiet_worker_is_quiet_on_every_instance_and_after_a_reconnect(one: Instance, database: str) -> None:
    async with (
        Instance(database, name="two", tick_seconds=0.2) as two,
        Instance(database, name="three", tick_seconds=0.2) as three,
    ):
        there = await two.worker("ant", slots=5, handler=completing())
        await Desk(one).verbs.quiet(OPERATOR, "ant")
        await soon(lambda: two.sessions.quiet_workers and three.sessions.quiet_workers, "all know")
        there.lose()
        again = await three.worker("ant", slots=5, handler=completing())
        await one.submit(2)
        three.demands.wake_all()
        ticks = three.ticker.ticks
        await soon(lambda: three.ticker.ticks > ticks + 2, "some ticks")
        assert again.tracker.runs == []
        await Desk(one).verbs.resume_worker(OPERATOR, "ant")
        await one.reach(2, State.COMPLETED)
        assert len(again.tracker.runs) == 2


async def test_being_quiet_ends_by_itself_and_costs_no_statement_meanwhile(stepped: Instance, db: Connection) -> None:
    clock = await Clock.install(db)
    desk = Desk(stepped)
    await stepped.submit(1)
    await stepped.worker("ant", slots=1)
    quiet = await desk.verbs.quiet(OPERATOR, "ant", span=timedelta(minutes=5))
    assert quiet.until - quiet.since == timedelta(minutes=5)
    await stepped.ticker.run_once()
    await stepped.store.count_statements()
    for _ in range(3):
        await stepped.ticker.run_once()
        assert await stepped.claimer.run_once() == 0
    assert await stepped.store.sent() == 3
    await clock.advance(minutes=5)
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 1
    await desk.verbs.quiet(OPERATOR, "bee")
    assert await db.fetch("SELECT worker FROM headgate.quiet_names") == [("bee",)], "what is over is forgotten"


async def test_the_same_name_in_another_tenant_is_another_worker(stepped: Instance) -> None:
    await Desk(stepped).verbs.quiet(someone(Scope.OPERATE, tenant="other"), "ant")
    await stepped.submit(1)
    await stepped.worker("ant", slots=1)
    assert await stepped.claimer.run_once() == 1
    with pytest.raises(PermissionDenied, match="all topics"):
        await Desk(stepped).verbs.quiet(someone(Scope.OPERATE, topics=["mail"]), "ant")


async def test_workers_of_all_instances_are_listed(one: Instance, database: str) -> None:
    desk = Desk(one)
    await one.submit(2)
    worker = await one.worker("ant", "mail", "sms", slots=3)
    await worker.take()
    await soon(lambda: one.free() == 1, "what the claim left is given back")
    await one.worker("foreign", slots=1, tenant="other")
    async with Instance(database, name="two") as two:
        await two.worker("bee", slots=4)
        await soon(lambda: two.store.got and two.free() == 4, "its first look is over")
        there = Desk(two)
        await there.verbs.quiet(OPERATOR, "bee")
        assert await there.presence.run_once()
        found = (await desk.verbs.workers(READER)).workers
        assert [
            (view.worker, view.instance, list(view.topics), view.holding, view.credit, view.quiet) for view in found
        ] == [
            ("ant", "one", ["mail", "sms"], 2, 1, False),
            ("bee", "two", ["mail"], 0, 4, True),
        ]
        assert [view.worker for view in (await desk.verbs.workers(someone(Scope.READ, topics=["sms"]))).workers] == [
            "ant"
        ]
        await one.worker("bee")  # it has come over
        assert [(view.worker, view.instance) for view in (await desk.verbs.workers(READER)).workers] == [
            ("ant", "one"),
            ("bee", "one"),
        ]
        await desk.presence.run_once()
        status = await desk.verbs.status(READER)
        assert [(view.name, view.workers) for view in status.instances] == [("one", 2), ("two", 1)]


async def test_two_processes_with_one_worker_id_on_two_instances_are_both_listed(one: Instance, database: str) -> None:
    desk = Desk(one)
    await one.worker("twin", incarnation=1)
    async with Instance(database, name="two") as two:
        await two.worker("twin", incarnation=2)
        assert await Desk(two).presence.run_once()
        found = [(view.worker, view.instance) for view in (await desk.verbs.workers(READER)).workers]
        assert found == [("twin", "one"), ("twin", "two")]
        await one.worker("twin", incarnation=2)  # the second comes over, and takes the place of the first
        assert [(view.worker, view.instance) for view in (await desk.verbs.workers(READER)).workers] == [
            ("twin", "one")
        ]


async def test_the_summary_is_one_bounded_row_and_an_idle_instance_writes_none(database: str, db: Connection) -> None:
    clock = ManualClock()
    async with Instance(database, running=False, now=clock) as one:
        desk = Desk(one)
        assert not await desk.presence.run_once(), "nobody is connected, as before"
        for number in range(REPORTED_WORKERS_MAX + 50):
            await one.worker(f"w{number:03}")
        assert await desk.presence.run_once()
        await one.worker("late")
        assert not await desk.presence.run_once(), "not more often than every few seconds"
        clock.advance(WRITE_SECONDS)
        assert await desk.presence.run_once()
        clock.advance(WRITE_SECONDS)
        assert not await desk.presence.run_once(), "nothing has changed"
        rows = await db.fetch("SELECT summary -> 'counts' #>> '{}', summary FROM headgate.instances")
        assert len(rows) == 1
        assert len(rows[0][1]) < 60_000
        async with Instance(database, name="two", running=False) as two:
            found = await Desk(two).verbs.workers(READER)
            assert (len(found.workers), found.more_workers) == (REPORTED_WORKERS_MAX, True)
            assert (await Desk(two).verbs.workers(READER, running=True)).more_workers
            assert not (await desk.verbs.workers(READER)).more_workers, "its own are all listed"
            status = await Desk(two).verbs.status(READER)
            assert status.instances[0].workers == REPORTED_WORKERS_MAX + 51, (
                "the number is true, even where names are left out"
            )


async def test_the_quiet_workers_of_a_tenant_are_bounded(db: Connection, stepped: Instance) -> None:
    tenant_no, hour = await stepped.store.tenant_no("acme"), timedelta(hours=1)
    await db.execute(
        """INSERT INTO headgate.quiet_names (tenant_no, worker, since, until)
           SELECT $1, 'w' || n, headgate.clock_v1(), headgate.clock_v1() + $2::interval
             FROM generate_series(1, $3::int) AS n""",
        tenant_no,
        hour,
        quieting.MOST,
    )
    await quieting.quiet(db, tenant_no, "w1", span=hour)  # again
    with pytest.raises(TooLarge, match="quiet workers"):
        await quieting.quiet(db, tenant_no, "another", span=hour)
    await db.execute("UPDATE headgate.quiet_names SET until = headgate.clock_v1() WHERE worker = 'w2'")
    await quieting.quiet(db, tenant_no, "another", span=hour)  # that one's time is over
