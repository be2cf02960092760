"""What wakes the claimer: submits, ends, words of others, ticks; and the pause that stops it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from headgate.domain.errors import OutcomeUnknown, StoreBusy, StoreUnavailable
from headgate.domain.ids import TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Snooze
from headgate.domain.states import State
from headgate.domain.wakes import TopicReady, Wake
from headgate.store import control
from headgate.store.connect import Connection
from tests.support.dispatch_waits import SOON, soon
from tests.support.dispatch_workers import completing, slow, waiting_for
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue
from tests.support.watched_store import Hold, failing_with

AWAY = StoreUnavailable("the database is away")


# ---------------------------------------------------------------------- wakes and ticks


@pytest.mark.req("D9", "D25")
@pytest.mark.parametrize("tick_seconds", [0.05, 0.3])
async def test_the_tick_alone_starts_a_job_and_its_period_is_tunable(database: str, tick_seconds: float) -> None:
    async with Instance(database, wakes=False, tick_seconds=tick_seconds) as one:
        worker = await one.worker(slots=3, handler=completing())
        await soon(lambda: one.store.got and one.ticker.ticks, "it has looked in vain")
        ticks, began = one.ticker.ticks, time.monotonic()
        await one.submit(2)
        await one.reach(2, State.COMPLETED)
        assert one.ticker.ticks > ticks
        assert worker.tracker.times.total() == 2
        await soon(lambda: one.ticker.ticks >= ticks + 3, "three ticks")
        assert time.monotonic() - began >= 2 * tick_seconds * 0.9


@pytest.mark.req("D25")
async def test_another_instance_finds_a_job_without_a_notification(one: Instance, database: str) -> None:
    async with Instance(database, name="two", tick_seconds=0.05) as two:
        worker = await two.worker(slots=1, handler=completing())
        await soon(lambda: two.store.got, "two has looked in vain")
        (job,) = await one.submit()
        await one.reach(1, State.COMPLETED)
        assert worker.tracker.times == {job: 1}
        assert one.store.calls["notify"] == two.store.calls["notify"] == 0


async def test_submits_are_announced_in_one_notification_and_only_to_other_instances(
    one: Instance, database: str
) -> None:
    one.wakes.apart_seconds = 0.01
    one.start("announcements", one.wakes.run())
    await one.submit(3)
    await soon(lambda: not one.wakes._unannounced, "there is no instance to notify")
    assert one.store.calls["notify"] == 0
    async with Instance(database, name="two", running=False) as two:
        received: asyncio.Queue[Iterable[Wake]] = asyncio.Queue()
        listening = asyncio.create_task(two.store.listen(received.put_nowait))
        await two.ticker.run_once()
        await one.ticker.run_once()
        assert one.wakes.others == 1
        (topic_no,) = await one.topic_nos("mail")
        await soon(lambda: two.store._listener is not None, "two listens")
        for _ in range(5):
            await one.submit(2)
        assert await asyncio.wait_for(received.get(), 60) == [TopicReady(topic_no)]
        assert one.store.calls["notify"] <= 5
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@pytest.mark.req("E7")
async def test_a_thousand_wakes_run_nothing_twice_and_keep_the_limit(one: Instance) -> None:
    ids = await one.submit(50)
    worker = await one.worker(slots=3, handler=slow(0.001))
    (topic_no,) = await one.topic_nos("mail")
    for turn in range(1_000):
        one.demands.wake(topic_no)
        if turn % 50 == 0:
            one.demands.wake_all()
            await asyncio.sleep(0)
    await one.reach(50, State.COMPLETED)
    assert worker.tracker.times == dict.fromkeys(ids, 1)
    assert worker.tracker.most <= 3


async def test_a_wake_that_comes_while_a_claim_is_in_flight_is_not_missed(one: Instance) -> None:
    worker = await one.worker(slots=2, handler=completing())
    await soon(lambda: one.store.got, "it has looked in vain")
    hold = one.store.after["claim"] = Hold()  # it has seen nothing, and has not said so yet
    (topic_no,) = await one.topic_nos("mail")
    one.demands.wake(topic_no)
    await hold.reached()
    await one.submit()
    hold.release()
    await one.reach(1, State.COMPLETED)
    assert worker.tracker.times.total() == 1


async def test_of_jobs_that_come_back_in_one_flush_the_first_that_is_due_brings_a_tick(one: Instance) -> None:
    worker = await one.worker(slots=2)
    await one.submit(2)
    while len(worker.session.held) < 2:
        await worker.take()
    delays = timedelta(hours=1), timedelta(milliseconds=50)
    held = [(job_id, entry[0]) for job_id, entry in worker.session.held.items()]
    worker.settle(*((*one_of, Snooze(delay=delay)) for one_of, delay in zip(held, delays, strict=True)))
    await one.reach(1, State.PENDING)


@pytest.mark.parametrize("by", ["delay", "run_at"])
async def test_of_jobs_in_one_submit_the_first_that_is_due_brings_a_tick(one: Instance, by: str) -> None:
    now = datetime.now(UTC)
    jobs = [
        Submission(
            tenant=TenantName(one.tenant),
            topic=TopicName("mail"),
            id=job_id,
            payload=b"x",
            new_id=True,
            **{"delay": span} if by == "delay" else {"run_at": now + span},
        )
        for job_id, span in zip(one.ids.make(2), (timedelta(hours=1), timedelta(seconds=0.2)), strict=True)
    ]
    await asyncio.wait_for(one.submitter.submit(await one.store.fill(jobs), size=400), SOON.total_seconds())
    await one.reach(1, State.PENDING)


async def test_of_jobs_that_wait_when_an_instance_starts_the_first_that_is_due_brings_a_tick(
    database: str, db: Connection
) -> None:
    queue = Queue(db)
    for seconds in (3_600, 0.3, 7_200):
        await queue.add(delay=timedelta(seconds=seconds))
    async with Instance(database) as one:
        await one.reach(1, State.PENDING)


async def test_a_tick_that_fails_is_followed_by_the_next(database: str) -> None:
    async with Instance(database, tick_seconds=0.02, wakes=False) as one:
        worker = await one.worker(slots=1, handler=completing())
        await soon(lambda: one.store.got, "it has looked in vain")
        one.store.before["tick"] = failing_with(AWAY, StoreBusy("busy"), OutcomeUnknown("lost"))
        await one.submit()
        await one.reach(1, State.COMPLETED)
        assert one.store.calls["tick"] >= 4
        assert worker.session.ended is None


async def test_a_due_job_that_is_locked_does_not_make_the_ticks_spin(database: str, db: Connection) -> None:
    async with Instance(database, running=False) as one:
        (job,) = await one.submit(delay=timedelta(milliseconds=20))
        transaction = db.transaction()
        await transaction.start()
        await db.execute("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", job)
        one.start("ticks", one.ticker.run())
        began = time.monotonic()
        await soon(lambda: one.ticker.ticks >= 6, "a few ticks were made in vain")
        assert time.monotonic() - began >= 4 * 0.05 * 0.9
        await transaction.rollback()
        await one.worker(slots=1, handler=completing())
        one.start("claims", one.claimer.run())
        await one.reach(1, State.COMPLETED)


async def test_a_due_job_that_was_locked_is_promoted_by_the_next_tick(stepped: Instance, db: Connection) -> None:
    clock = await Clock.install(db)
    (held_id,) = await stepped.submit(delay=timedelta(seconds=1))
    (later_id,) = await stepped.submit(delay=timedelta(seconds=2))
    await clock.advance(seconds=10)
    transaction = db.transaction()
    await transaction.start()
    await db.execute("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", held_id)
    assert [one for _, _, one in (await stepped.ticker.run_once()).promoted] == [later_id]
    await transaction.rollback()
    assert [one for _, _, one in (await stepped.ticker.run_once()).promoted] == [held_id]


# ---------------------------------------------------------------------- the pause gate


@pytest.mark.req("D10", "T3", "Z12")
async def test_a_paused_topic_is_never_claimed_and_a_resume_wakes_all_demands(
    stepped: Instance, db: Connection
) -> None:
    tenant_no = await stepped.store.tenant_no("acme")
    mail, sms = await stepped.topic_nos("mail", "sms")
    await control.pause(db, (tenant_no, mail), reason="full")
    await stepped.submit(2)
    await stepped.worker(slots=5)
    # The gate knows nothing yet; the claim's own check is the truth.
    assert await stepped.claimer.run_once() == 0
    assert stepped.store.calls["claim"] == 1
    await stepped.ticker.run_once()
    for _ in range(3):
        await stepped.submit(1)
        assert await stepped.claimer.run_once() == 0
    assert stepped.store.calls["claim"] == 1  # the gate comes first: nothing is asked
    await stepped.worker("both", "mail", "sms", slots=5)
    await stepped.submit(1, "sms")
    assert await stepped.claimer.run_once() == 1
    assert stepped.store.asked[-1].topic_nos == (sms,)
    await control.resume(db, (tenant_no, mail))
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 5
    assert (await stepped.states())[State.RUNNING] == 6


@pytest.mark.req("Z3", "Z20", "Z21")
async def test_a_pause_that_ends_by_itself_is_followed_although_the_next_tick_is_an_hour_away(
    one: Instance, db: Connection
) -> None:
    clock = await Clock.install(db)
    await one.worker(slots=1, handler=completing())
    await control.pause(db, reason="now", until=clock.now + timedelta(seconds=0.1))
    one.times.soon()
    await soon(lambda: one.gate.paused, "the pause is known here")
    await one.submit()
    await clock.advance(seconds=1)
    await one.reach(1, State.COMPLETED)


async def test_a_pause_lets_jobs_in_lets_running_ones_end_and_keeps_the_order(one: Instance, db: Connection) -> None:
    go = asyncio.Event()
    (before,) = await one.submit()
    worker = await one.worker(slots=1, handler=waiting_for(go))
    await soon(lambda: worker.tracker.now == 1, "it runs")
    await control.pause(db)
    await one.ticker.run_once()
    low = await one.submit(2)
    high = await one.submit(2, priority=10)
    go.set()
    await one.reach(1, State.COMPLETED)
    assert (await one.states())[State.PENDING] == 4
    assert worker.receipts[before, *await one.epochs([before])] is None
    await control.resume(db)
    await one.ticker.run_once()
    await one.reach(5, State.COMPLETED)
    assert [run.id for run in worker.tracker.runs] == [before, *high, *low]


async def test_a_pause_of_a_tenant_leaves_the_others_alone(stepped: Instance, db: Connection) -> None:
    await stepped.submit(2)
    await stepped.submit(2, tenant="other")
    await stepped.worker("a", slots=5)
    await stepped.worker("b", slots=5, tenant="other")
    stepped.gate.set_paused([(await stepped.store.tenant_no("acme"), 0)])
    assert await stepped.claimer.run_once() == 2
    assert [asked.tenant_no for asked in stepped.store.asked] == [await stepped.store.tenant_no("other")]
    stepped.gate.set_paused([])
    assert await stepped.claimer.run_once() == 2


async def test_a_resume_during_a_claim_is_not_forgotten(stepped: Instance) -> None:
    """Whoever asks for a look from the head while a claim is under way gets one afterwards."""
    await stepped.submit()
    await stepped.worker(slots=5)
    assert await stepped.claimer.run_once() == 1
    hold = stepped.store.after["claim"] = Hold()
    (topic_no,) = await stepped.topic_nos("mail")
    stepped.demands.wake(topic_no)
    claiming = asyncio.create_task(stepped.claimer.run_once())
    await hold.reached()
    stepped.demands.wake_all()
    hold.release()
    await claiming
    stepped.store.after.clear()
    await stepped.claimer.run_once()
    assert [asked.from_head for asked in stepped.store.asked] == [True, False, True]
