"""Pause and resume of everything, a tenant, a topic: what stops, what continues, and who is notified when."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

import asyncpg
import pytest

from headgate.dispatch.tick_times import TICK_SECONDS
from headgate.domain.errors import HeadgateError, StoreUnavailable
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.states import EventKind, State
from headgate.domain.views import Pause, Status, Target, TargetKind
from headgate.server import ServerOptions
from headgate.store import control, leases
from headgate.store.connect import Connection
from tests.support.admin import ANA, EVERYTHING, MAIL, TARGETS, Desk
from tests.support.dispatch_waits import settle_down, soon
from tests.support.dispatch_workers import completing
from tests.support.dispatching import Instance, listening
from tests.support.epochs import epochs_of
from tests.support.queue import Clock, Queue
from tests.support.waiting import until_async
from tests.support.watched_store import Hold, failing_with

IDLE_TICKS = 3
SLOW_MACHINE = 1.5
"""Seconds that a machine with other things to do may add: less than three ticks of two seconds would take."""


async def row_of(instance: Instance, target: Target) -> tuple[int, int]:
    """The key of a target's row."""
    tenant_no = await instance.store.tenant_no("acme")
    (mail,) = await instance.topic_nos("mail")
    return {"everything": (0, 0), "tenant": (tenant_no, 0), "topic mail": (tenant_no, mail)}[str(target)]


def of(status: Status, target: Target) -> Pause:
    (found,) = [pause for pause in status.pauses if pause.target == target]
    return found


# ---------------------------------------------------------------------- what stops, and what does not


@pytest.mark.req("Z1", "Z2", "Z3", "Z20")
@TARGETS
async def test_while_a_target_is_paused_none_of_its_jobs_starts_and_a_resume_runs_them_in_order(
    one: Instance, target: Target
) -> None:
    desk = Desk(one)
    low = await one.submit(1, delay=timedelta(hours=1))  # the topic exists, and has nothing to do
    await desk.pause(target, "maintenance")
    worker = await one.worker(slots=1, handler=completing())
    low = await one.submit(3)
    high = await one.submit(3, priority=10)
    await settle_down()
    one.demands.wake_all()
    await one.ticker.run_once()
    await settle_down()
    states = await one.states()
    assert (states[State.PENDING], states[State.RUNNING], states[State.COMPLETED]) == (6, 0, 0), "all landed, none ran"
    assert worker.session.ended is None
    assert worker.tracker.runs == []
    assert await desk.resume(target)
    await one.reach(6, State.COMPLETED)
    assert [run.id for run in worker.tracker.runs] == [*high, *low], "through the ordinary claim, best first"


@pytest.mark.req("Z1", "Z4", "Z21")
@TARGETS
async def test_what_was_claimed_before_a_pause_ends_normally_and_a_failure_waits_for_its_retry(
    one: Instance, target: Target
) -> None:
    desk = Desk(one)
    ok, bad = await one.submit(2)
    worker = await one.worker(slots=5)
    await worker.take()
    await desk.pause(target)
    await worker.report(ok, 1, Completed(result=b"done"))
    await worker.report(bad, 1, Failed(error=ErrorInfo(type="ValueError", message="boom")))
    assert (await one.job(ok)).state is State.COMPLETED
    assert (await one.job(bad)).state is State.RETRYING
    async with one.store.lane("upkeep").use() as db:
        await db.execute("UPDATE headgate.jobs SET run_at = run_at - interval '1 hour'")
    await one.ticker.run_once()
    assert (await one.job(bad)).state is State.PENDING, "due, and not started"
    await desk.resume(target)
    assert (await worker.take()).ids == (bad,)


@pytest.mark.req("Z5")
@TARGETS
async def test_leases_are_renewed_during_a_pause(stepped: Instance, db: Connection, target: Target) -> None:
    clock = await Clock.install(db)
    queue = Queue(db)
    (job,) = await queue.add()
    await queue.claim(lease=timedelta(seconds=60))
    await Desk(stepped).pause(target)
    await clock.advance(seconds=40)
    tenant_no = await queue.tenant_no()
    held = leases.Held(tenant_no=tenant_no, ids=[job], epochs=await epochs_of(db, [job]), lease_ms=60_000)
    assert await leases.renew(db, [held]) == {}, "nothing out of the ordinary"
    assert (await stepped.job(job)).lease_until == clock.now + timedelta(seconds=60)


@pytest.mark.req("Z6")
@TARGETS
async def test_the_watchdog_reaps_during_a_pause_and_nothing_it_reaps_runs(
    stepped: Instance, db: Connection, target: Target
) -> None:
    clock = await Clock.install(db)
    queue = Queue(db)
    (again,) = await queue.add()
    (last,) = await queue.add(max_attempts=1)
    await queue.claim(lease=timedelta(seconds=60))
    await Desk(stepped).pause(target)
    await clock.advance(seconds=61)
    await stepped.worker(slots=5)
    assert (await stepped.ticker.run_once()).reaped == 2
    assert (await stepped.job(again)).state is State.RETRYING
    assert (await stepped.job(last)).state is State.DEAD
    await clock.advance(hours=1)
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 0
    assert (await stepped.job(again)).state is State.PENDING


@pytest.mark.req("Z7")
@TARGETS
async def test_what_is_timed_falls_due_during_a_pause_and_queues(
    stepped: Instance, db: Connection, target: Target
) -> None:
    """Jobs submitted for a later time; what recurring schedules make are rows like these."""
    clock = await Clock.install(db)
    desk = Desk(stepped)
    (timed,) = await stepped.submit(delay=timedelta(minutes=1))
    await desk.pause(target)
    await stepped.worker(slots=5)
    await clock.advance(minutes=1)
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 0
    assert (await stepped.job(timed)).state is State.PENDING
    await desk.resume(target)
    assert await stepped.claimer.run_once() == 1


@pytest.mark.req("O5", "Z24")
async def test_a_paused_topic_costs_other_topics_nothing_and_is_left_out_of_the_claim(stepped: Instance) -> None:
    desk = Desk(stepped)
    await stepped.submit(3)
    await stepped.submit(3, "sms")
    await desk.pause(MAIL)
    await stepped.worker("both", "mail", "sms", slots=10)
    assert await stepped.claimer.run_once() == 3
    assert stepped.store.asked[-1].topic_nos == tuple(await stepped.topic_nos("sms"))
    await desk.pause(Target(kind=TargetKind.TOPIC, topic="sms"))
    claims = stepped.store.calls["claim"]
    stepped.demands.wake_all()
    assert await stepped.claimer.run_once() == 0
    assert stepped.store.calls["claim"] == claims, "with all topics paused nothing is asked"


@pytest.mark.req("Z22")
@TARGETS
async def test_a_pause_touches_no_job_and_is_no_state_of_one(stepped: Instance, db: Connection, target: Target) -> None:
    await stepped.submit(500)
    rows = "SELECT id, xmin::text, ctid::text, state FROM headgate.jobs ORDER BY id"
    before = await db.fetch(rows)
    desk = Desk(stepped)
    await desk.pause(target)
    assert await db.fetch(rows) == before
    await desk.resume(target)
    assert await db.fetch(rows) == before
    assert not any("pause" in word.label for word in (*State, *EventKind))


# ---------------------------------------------------------------------- the gate


@pytest.mark.req("Z10")
async def test_the_check_is_a_look_into_memory_and_the_rows_are_read_once_a_tick(stepped: Instance) -> None:
    for number in range(50):
        await stepped.worker(f"w{number}", slots=4)
    await stepped.submit(20)
    await Desk(stepped).pause(EVERYTHING)
    await stepped.ticker.run_once()  # it also reads the topic that was just made
    await stepped.store.count_statements()
    for _ in range(200):
        stepped.demands.wake_all()
        assert await stepped.claimer.run_once() == 0
    assert await stepped.store.sent() == 0, "200 wakes of 50 sessions, and not one statement"
    for _ in range(3):
        await stepped.ticker.run_once()
    assert await stepped.store.sent() == 3, "one statement a tick, whatever is connected"
    assert TICK_SECONDS == 1.0


@pytest.mark.req("Z11")
async def test_the_global_row_is_seeded_open_and_cannot_have_a_twin(db: Connection) -> None:
    seeded = await db.fetch("SELECT tenant_no, topic_no, paused, reason, paused_at FROM headgate.dispatch_control")
    assert [tuple(row) for row in seeded] == [(0, 0, False, "", None)]
    with pytest.raises(asyncpg.UniqueViolationError):
        await db.execute("INSERT INTO headgate.dispatch_control (paused) VALUES (false)")


@pytest.mark.req("Z13")
async def test_a_gate_without_pauses_is_open(stepped: Instance) -> None:
    assert stepped.gate.paused == frozenset()
    assert not stepped.gate.is_paused(1, 1)
    await stepped.submit(1)
    await stepped.worker(slots=1)
    assert await stepped.claimer.run_once() == 1


@pytest.mark.req("Z15", "T24")
@pytest.mark.parametrize("paused", [True, False])
async def test_a_refresh_that_fails_is_logged_and_keeps_the_last_value(
    database: str, db: Connection, caplog: pytest.LogCaptureFixture, paused: bool
) -> None:
    caplog.set_level(logging.WARNING, "headgate.dispatch")
    async with Instance(database, tick_seconds=0.02) as one:
        desk = Desk(one)
        await one.submit(1, delay=timedelta(hours=1))
        if paused:
            await desk.pause(MAIL)
        value = one.gate.paused
        assert bool(value) is paused
        one.store.before["tick"] = failing_with(*[StoreUnavailable("the database is away")] * 10_000)
        await soon(lambda: "tick_failed" in caplog.text, "the failure is logged")  # so no earlier tick is under way
        # The row says otherwise from now on, but every refresh fails: no one can know.
        await db.execute("UPDATE headgate.dispatch_control SET paused = NOT paused, reason = '', paused_at = now()")
        before = one.store.calls["tick"]
        await soon(lambda: one.store.calls["tick"] >= before + 2, "a refresh has failed since")
        assert one.gate.paused == value
        one.store.before.clear()
        await soon(lambda: one.gate.paused != value, "the first refresh that succeeds brings the new value")


@pytest.mark.req("Z16")
@TARGETS
async def test_the_serving_instance_follows_a_verb_at_once_and_after_the_write(
    stepped: Instance, db: Connection, target: Target
) -> None:
    desk = Desk(stepped)
    await stepped.submit(2)
    await stepped.worker(slots=1)
    row = await row_of(stepped, target)
    # While the row cannot be written, the gate does not move.
    lock = db.transaction()
    await lock.start()
    await db.execute("LOCK TABLE headgate.dispatch_control IN SHARE ROW EXCLUSIVE MODE")
    pausing = asyncio.create_task(desk.pause(target))
    await until_async(lambda: _waiting(stepped), "the write waits")
    assert stepped.gate.paused == frozenset()
    await lock.rollback()
    await pausing
    assert stepped.gate.paused == {row}
    assert stepped.ticker.ticks == 0, "no refresh was needed"
    assert await stepped.claimer.run_once() == 0
    assert stepped.store.calls["claim"] == 0
    await desk.resume(target)
    assert stepped.gate.paused == frozenset()
    assert await stepped.claimer.run_once() == 1
    assert stepped.ticker.ticks == 0


async def _waiting(instance: Instance) -> bool:
    async with instance.store.lane("upkeep").use() as db:  # a transaction sees one picture of all activity
        found = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND state = 'active'"
        return bool(await db.fetchval(found))


@pytest.mark.req("Z17", "T25")
@TARGETS
@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_verb_that_cannot_be_written_leaves_gate_row_and_audit_and_tells_the_caller(
    stepped: Instance, db: Connection, target: Target, verb: str
) -> None:
    desk = Desk(stepped)
    row = await row_of(stepped, target)
    if verb == "resume":
        await desk.pause(target)
    gate = stepped.gate.paused
    audited = await db.fetchval("SELECT count(*) FROM headgate.audit")
    # The audit is the last thing a verb writes, so its row for the target was written, and must be undone.
    await db.execute("ALTER TABLE headgate.audit ADD CONSTRAINT full_up CHECK (false) NOT VALID")
    with pytest.raises(HeadgateError):
        await (desk.pause(target) if verb == "pause" else desk.resume(target))
    assert stepped.gate.paused == gate == (frozenset() if verb == "pause" else {row})
    assert await db.fetchval("SELECT count(*) FROM headgate.audit") == audited
    status = await desk.verbs.status(ANA)
    assert any(pause.paused for pause in status.pauses) is (verb == "resume")
    await stepped.ticker.run_once()
    assert stepped.gate.paused == gate, "and the rows say the same"


async def test_a_tick_that_was_under_way_during_a_verb_does_not_undo_it(stepped: Instance) -> None:
    desk = Desk(stepped)
    await stepped.submit(1)
    hold = stepped.store.after["tick"] = Hold()  # it has read the rows, and has not said so yet
    ticking = asyncio.create_task(stepped.ticker.run_once())
    await hold.reached()
    await desk.pause(EVERYTHING)
    hold.release()
    await ticking
    assert stepped.gate.paused == {(0, 0)}


@TARGETS
async def test_one_refresh_is_enough_for_another_instance(one: Instance, database: str, target: Target) -> None:
    await one.submit(1, delay=timedelta(hours=1))  # a topic exists once it has had a job
    async with Instance(database, name="two", running=False) as two:
        await two.ticker.run_once()
        assert two.gate.paused == set()
        await Desk(one).pause(target)
        await two.ticker.run_once()
        assert two.gate.paused == {await row_of(one, target)}
        await Desk(one).resume(target)
        await two.ticker.run_once()
        assert two.gate.paused == set()


@pytest.mark.req("Z9")
async def test_an_instance_with_the_usual_settings_reads_pauses_every_second(one: Instance, database: str) -> None:
    period = ServerOptions(database_url=database).tick_seconds
    assert period <= 1
    async with Instance(database, name="two", tick_seconds=period) as two:  # it listens to no notifications
        await soon(lambda: two.ticker.ticks, "it has ticked")
        first, began = two.ticker.ticks, time.monotonic()
        await soon(lambda: two.ticker.ticks >= first + IDLE_TICKS, "it ticks with nothing to do")
        assert time.monotonic() - began <= IDLE_TICKS + SLOW_MACHINE
        for verb, paused in ((Desk(one).pause, {(0, 0)}), (Desk(one).resume, set())):
            await verb(EVERYTHING)
            began = time.monotonic()
            await soon(lambda paused=paused: two.gate.paused == paused, "the other instance has read it")
            assert time.monotonic() - began <= 1 + SLOW_MACHINE


@TARGETS
async def test_the_other_instances_follow_within_a_refresh_and_claim_nothing_even_before(
    one: Instance, database: str, target: Target
) -> None:
    await one.submit(1, delay=timedelta(hours=1))
    row = await row_of(one, target)
    async with (
        Instance(database, name="two", tick_seconds=0.3) as two,
        Instance(database, name="three", tick_seconds=0.3) as three,
    ):
        all_workers = [await instance.worker(slots=5, handler=completing()) for instance in (two, three)]
        await soon(lambda: two.ticker.ticks and three.ticker.ticks, "both have ticked")
        await Desk(one).pause(target)
        ticks = {instance: instance.ticker.ticks for instance in (two, three)}
        await one.submit(5)
        for instance in (two, three):
            instance.demands.wake_all()  # they may ask before they know: the claim itself refuses
        # One may have been under way, and have read before the pause; the next one knows.
        await soon(lambda: all(i.ticker.ticks >= before + 2 for i, before in ticks.items()), "both have ticked")
        assert two.gate.paused == three.gate.paused == {row}
        assert [worker.tracker.runs for worker in all_workers] == [[], []]
        assert (await one.states())[State.PENDING] == 5
        await Desk(one).resume(target)
        await one.reach(5, State.COMPLETED)


async def test_a_notification_makes_the_other_instances_look_at_once(one: Instance, database: str) -> None:
    async with Instance(database, name="two") as two:  # its tick is an hour away
        await soon(lambda: two.ticker.ticks, "it has ticked")
        two.start("notifications", two.store.listen(two.wakes.follow))
        await until_async(lambda: listening(one), "two listens")
        await one.ticker.run_once()
        assert one.wakes.others == 1
        await Desk(one).pause(EVERYTHING)
        await soon(lambda: two.gate.paused == {(0, 0)}, "it has heard")
        await Desk(one).resume(EVERYTHING)
        await soon(lambda: not two.gate.paused, "and again")


@pytest.mark.req("O7")
async def test_an_instance_without_a_database_dispatches_nothing(stepped: Instance) -> None:
    """No refresh reaches it and its gate stays open, but a claim needs the same database."""
    await stepped.submit(2)
    worker = await stepped.worker(slots=2)
    stepped.store.before["claim"] = stepped.store.before["tick"] = failing_with(*[StoreUnavailable("away")] * 4)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await stepped.claimer.run_once()
        with pytest.raises(StoreUnavailable):
            await stepped.ticker.run_once()
    assert worker.session.held == {}


async def test_the_pause_of_a_topic_is_its_own_or_the_one_that_reaches_furthest(db: Connection) -> None:
    queue = Queue(db)
    tenant, mail = await queue.tenant_no(), (await queue.topic("mail")).no
    other = Queue(queue.db, tenant="other")
    clock = await Clock.install(queue.db)

    async def found(topic: str = "mail") -> tuple[int, int] | None:
        one = await control.pause_of(queue.db, tenant, topic)
        return None if one is None else (one.tenant_no, one.topic_no)

    assert await found() is None
    await control.pause(queue.db, (await other.tenant_no(), (await other.topic("mail")).no))
    assert await found() is None, "the topic of another tenant"
    await control.pause(queue.db, (tenant, 0))
    assert (await found(), await found("unknown")) == ((tenant, 0), (tenant, 0))
    await control.pause(queue.db)
    assert await found() == (0, 0)
    await control.pause(queue.db, (tenant, mail), until=clock.now + timedelta(hours=1))
    assert await found() == (tenant, mail)
    await clock.advance(hours=2)
    assert await found() == (0, 0), "its own is over"
