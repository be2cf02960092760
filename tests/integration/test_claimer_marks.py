"""Hints and the watermark: what lies below the mark of a claimer is found anyway."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.dispatch import scans, sweeps
from headgate.dispatch.demand import MOST_HINTS
from headgate.domain.errors import StoreUnavailable
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Abandon, Nack, Snooze
from headgate.domain.states import Receipt, State
from headgate.store.connect import Connection
from tests.support.dispatch_waits import soon
from tests.support.dispatch_workers import completing
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue
from tests.support.watched_store import failing_with

AWAY = StoreUnavailable("the database is away")


# ---------------------------------------------------------------------- hints and the watermark


async def move_mark(one: Instance, *topics: str) -> None:
    """Put the watermark above everything submitted so far: claim and complete something younger."""
    for topic in topics or ("mail",):
        await one.submit(1, topic)
        worker = await one.worker(f"mover {topic}", topic, slots=1)
        assert await one.claimer.run_once() == 1
        worker.complete(await worker.take())
        await one.flushed()
        worker.lose()


async def below_the_mark(one: Instance, count: int = 1) -> tuple[list[UUID], list[int]]:
    """Jobs that run, older than the mark: their ids and epochs."""
    jobs = await one.submit(count)
    holder = await one.worker("holder", slots=count)
    assert await one.claimer.run_once() == count
    delivery = await holder.take()
    await move_mark(one)
    return list(jobs), list(delivery.epochs)


@pytest.mark.parametrize("outcome", [Abandon(), Nack(delay=timedelta(0), reason="not me")])
async def test_a_job_that_comes_back_below_the_mark_is_claimed_at_once_by_its_id(
    stepped: Instance, outcome: Abandon | Nack
) -> None:
    (job,), (epoch,) = await below_the_mark(stepped)
    worker = await stepped.worker(slots=1)
    assert await stepped.claimer.run_once() == 0
    settled = await worker.report(job, epoch, outcome)
    assert (settled.receipt, settled.state) == (Receipt.APPLIED, State.PENDING)
    assert await stepped.claimer.run_once() == 1
    last = stepped.store.asked[-1]
    assert (last.hints, last.from_head) == ((job,), False)
    assert list((await worker.take()).ids) == [job]


async def test_a_promoted_job_is_claimed_at_once_by_its_id(stepped: Instance, db: Connection) -> None:
    clock = await Clock.install(db)
    (job,), (epoch,) = await below_the_mark(stepped)
    worker = await stepped.worker(slots=1)
    await worker.report(job, epoch, Snooze(delay=timedelta(seconds=30)))
    await stepped.claimer.run_once()
    await clock.advance(seconds=31)
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 1
    assert stepped.store.asked[-1].hints == (job,)
    assert list((await worker.take()).ids) == [job]


async def test_hints_are_bounded_and_go_to_the_jobs_tenant_only(stepped: Instance) -> None:
    await stepped.worker("a", slots=1)
    await stepped.worker("b", slots=1, tenant="other")
    await stepped.claimer.run_once()
    mine, theirs = stepped.demands.by_wanted.values()
    for job in stepped.ids.make(MOST_HINTS):
        stepped.demands.wake_for_job(mine.tenant_no, job)
    assert (len(mine.hints), len(theirs.hints), mine.from_head) == (MOST_HINTS, 0, False)
    for job in stepped.ids.make(3 * MOST_HINTS):
        stepped.demands.wake_for_job(mine.tenant_no, job)
    assert (mine.hints, mine.from_head, theirs.wake_pending) == ({}, True, False)  # too many to name: from the head


async def test_hints_survive_a_claim_that_is_full_without_them(stepped: Instance) -> None:
    (job, other), epochs = await below_the_mark(stepped, 2)
    worker = await stepped.worker(slots=1)
    assert await stepped.claimer.run_once() == 0
    for one, epoch in zip((job, other), epochs, strict=True):
        await worker.report(one, epoch, Abandon())
    assert await stepped.claimer.run_once() == 1
    (first,) = (await worker.take()).ids
    (demand,) = worker.session.credit
    assert set(demand.hints) == {job, other} - {first}


async def test_hints_survive_a_claim_that_fails(stepped: Instance) -> None:
    (job,), (epoch,) = await below_the_mark(stepped)
    worker = await stepped.worker(slots=1)
    await stepped.claimer.run_once()
    await worker.report(job, epoch, Abandon())
    stepped.store.before["claim"] = failing_with(AWAY)
    with pytest.raises(StoreUnavailable):
        await stepped.claimer.run_once()
    assert await stepped.claimer.run_once() == 1
    assert stepped.store.asked[-1].hints == (job,)
    assert list((await worker.take()).ids) == [job]


async def test_a_look_from_the_head_that_fails_is_made_again(stepped: Instance) -> None:
    await stepped.submit(1)
    await stepped.worker(slots=3)
    assert await stepped.claimer.run_once() == 1
    stepped.demands.wake_all()
    stepped.store.before["claim"] = failing_with(AWAY)
    with pytest.raises(StoreUnavailable):
        await stepped.claimer.run_once()
    await stepped.submit(1)
    assert await stepped.claimer.run_once() == 1
    assert stepped.store.asked[-1].from_head


async def test_claims_start_at_the_mark_and_not_at_the_head(stepped: Instance) -> None:
    await stepped.worker(slots=100)
    for _ in range(4):
        await stepped.submit(2)
        await stepped.claimer.run_once()
    assert [asked.from_head for asked in stepped.store.asked] == [True, False, False, False]


async def test_the_tick_finds_jobs_below_the_mark_for_an_idle_session(stepped: Instance, db: Connection) -> None:
    (job,), _ = await below_the_mark(stepped)
    worker = await stepped.worker(slots=1)
    assert await stepped.claimer.run_once() == 0
    # Another worker abandoned it, and no one was notified.
    await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = $1", job)
    assert await stepped.claimer.run_once() == 0
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 1
    assert list((await worker.take()).ids) == [job]


async def test_sessions_that_are_never_idle_find_it_too_within_a_few_ticks(stepped: Instance, db: Connection) -> None:
    """At each tick all credit is spent, so no one asks whether the topic has work; the sweep must not depend on it."""
    (job,), _ = await below_the_mark(stepped)
    worker = await stepped.worker(slots=1)
    await stepped.submit(50)
    assert await stepped.claimer.run_once() == 1
    await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = $1", job)
    for _ in range(4):
        await stepped.ticker.run_once()
        await stepped.ticker.run_once(sweep=False, running=False)  # a job fell due
        worker.ready(1)
        assert await stepped.claimer.run_once() == 1
    assert job in worker.session.held


async def test_many_jobs_below_the_mark_come_in_order_before_younger_ones(stepped: Instance, db: Connection) -> None:
    jobs, _ = await below_the_mark(stepped, 30)
    worker = await stepped.worker(slots=4)
    assert await stepped.claimer.run_once() == 0
    await stepped.submit(10)
    await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = ANY ($1)", jobs)
    stepped.demands.wake_all()
    got: list[UUID] = []
    for _ in range(8):
        assert await stepped.claimer.run_once() == 4
        got += (await worker.take()).ids
        worker.ready(4)
    assert got[:30] == jobs


async def test_a_sweep_that_finds_more_than_it_may_take_continues_where_it_stopped(
    stepped: Instance, db: Connection
) -> None:
    jobs, _ = await below_the_mark(stepped, 30)
    worker = await stepped.worker(slots=4)
    await stepped.submit(50)
    assert await stepped.claimer.run_once() == 4
    await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = ANY ($1)", jobs)
    await stepped.ticker.run_once()
    for _ in range(8):
        worker.ready(4)
        assert await stepped.claimer.run_once() == 4
    assert set(jobs) <= set(worker.session.held)


async def test_after_a_lost_connection_claims_start_from_the_head(one: Instance) -> None:
    """The database it leads to may have a clock that is behind: what is submitted there ranks below the marks."""
    worker = await one.worker(slots=10, handler=completing())
    await one.submit(2)
    await one.reach(2, State.COMPLETED)
    one.store.before["claim"] = failing_with(AWAY)
    await soon(lambda: one.free() == 10, "nothing is under way")
    before = len(one.store.asked)
    await one.submit(2)
    await one.reach(4, State.COMPLETED)
    assert [asked.from_head for asked in one.store.asked[before : before + 2]] == [False, True]
    assert worker.tracker.times.total() == 4


# ---------------------------------------------------------------------- the whole server, as far as it stops


async def test_on_an_ageing_topic_new_urgent_work_below_the_mark_is_claimed_at_once(one: Instance) -> None:
    await one.submit()  # makes the topic
    async with one.store.lane("upkeep").use() as db:
        await db.execute("UPDATE headgate.topics SET ageing_step_us = 3600000000")  # an hour for each unit of priority
        await one.store.names.refresh(db)
    worker = await one.worker(slots=1, handler=completing())
    await one.reach(1, State.COMPLETED)
    for _ in range(3):  # the tick is an hour away: only the wake of the submit can find it
        await one.submit(1, priority=10)
        await soon(lambda: not worker.tracker.now and one.free() == 1, "the slot is free again")
    await one.reach(4, State.COMPLETED)


# ---------------------------------------------------------------------- where looking below the marks has become slow


async def test_slow_scans_of_topics_are_left_to_the_scanner_and_new_jobs_are_found(
    stepped: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "SLOW_SECONDS", -1.0)  # any scan is slow
    monkeypatch.setattr(scans, "_WIDE_US", -1)
    stepped.scanner.topics = scans.ScanPace(every=0.0, share=1e-9)
    await stepped.submit(1)
    worker = await stepped.worker(slots=2)
    assert await stepped.claimer.run_once() == 1  # which sets the mark of its demand
    worker.complete(await worker.take())
    await stepped.flushed()
    asked = stepped.store.tick_ranges
    await stepped.ticker.run_once()
    await stepped.ticker.run_once()
    assert asked[-2] is None  # everything
    assert asked[-1] is not None
    assert asked[-1] != KeyRanges.whole(asked[-1].topic_nos)
    await stepped.submit(1)
    assert (await stepped.ticker.run_once()).pending
    await stepped.scanner.run_once()
    assert stepped.store.calls["scan_topics"] == 0, "the last one was slow: it is due much later"


async def test_dead_rows_of_one_demand_are_enough_for_a_rest_after_a_slow_scan(
    stepped: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(scans, "_WIDE_US", 0)
    stepped.scanner.topics = scans.ScanPace(every=0.0, share=1e-9)
    await stepped.worker("idle", "side", slots=1)
    await stepped.worker(slots=2)
    for _ in range(2):
        await stepped.submit(1)
        assert await stepped.claimer.run_once() == 1
    await stepped.ticker.run_once()
    await stepped.scanner.run_once()
    assert stepped.store.calls["scan_topics"] == 0


async def test_a_scan_that_fails_rests_as_one_that_does_not(stepped: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "SLOW_SECONDS", -1.0)
    monkeypatch.setattr(scans, "_WIDE_US", -1)
    await stepped.worker(slots=1)
    for kind, verb in (("topics", "scan_topics"), ("floors", "scan_below_floors")):
        pace = scans.ScanPace(every=0.0, share=1e-9)
        pace.apart = True
        setattr(stepped.scanner, kind, pace)
        stepped.store.before[verb] = failing_with(AWAY)
        with pytest.raises(StoreUnavailable):
            await stepped.scanner.run_once()
        await stepped.scanner.run_once()
        assert stepped.store.calls[verb] == 1


async def test_where_scans_are_slow_ticks_look_from_the_marks_of_every_demand(stepped: Instance) -> None:
    topics = "mail", "side"
    for topic in topics:
        await stepped.submit(1, topic)
        await stepped.worker("", topic, slots=2)
    assert await stepped.claimer.run_once() == 2
    stepped.scanner.topics.apart = True
    for topic in topics:
        await stepped.submit(1, topic)
    assert set((await stepped.ticker.run_once()).pending) == set(await stepped.topic_nos(*topics))


async def test_where_scans_are_slow_ticks_find_urgent_jobs_of_an_ageing_topic_below_the_mark(
    stepped: Instance, db: Connection
) -> None:
    await stepped.submit(1)
    await db.execute("UPDATE headgate.topics SET ageing_step_us = 3600000000")
    await stepped.store.names.refresh(db)
    await stepped.worker(slots=2)
    assert await stepped.claimer.run_once() == 1
    stepped.scanner.topics.apart = True
    assert not (await stepped.ticker.run_once()).pending
    await stepped.submit(1, priority=10)
    assert (await stepped.ticker.run_once()).pending


@pytest.mark.parametrize("noted", [True, False])
async def test_a_job_below_the_mark_is_claimed_after_a_scan_apart_from_ticks(
    stepped: Instance, db: Connection, noted: bool
) -> None:
    (job,), (epoch,) = await below_the_mark(stepped)
    worker = await stepped.worker(slots=1)
    assert await stepped.claimer.run_once() == 0
    if noted:  # as another instance whose notification is lost
        assert (await Queue(db).settle((job, epoch, Abandon())))[0].state is State.PENDING
    else:  # manually
        await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = $1", job)
    stepped.scanner.topics.apart = True
    assert not (await stepped.ticker.run_once()).pending, "a tick looks from the mark on"
    assert await stepped.claimer.run_once() == 0
    await stepped.scanner.run_once()
    assert await stepped.claimer.run_once() == 1
    assert list((await worker.take()).ids) == [job]
    stepped.scanner.topics_scanned(asyncio.get_running_loop().time())
    assert not stepped.scanner.topics.apart, "a quick one: ticks scan again"


async def test_a_sweep_that_makes_a_claim_slow_goes_half_as_far_the_next_time(
    stepped: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, least = stepped.claimer._sweeps, sweeps.SWEEP_AT_LEAST_US
    pace._most_us = pace._swept_us = 8 * least
    for slow, expected in ((-1.0, 4), (-1.0, 2), (1e9, 4), (-1.0, 2), (-1.0, 1), (-1.0, 1), (1e9, 2)):
        monkeypatch.setattr(sweeps, "_SWEEP_SLOW_SECONDS", slow)
        pace.claimed(0.01, swept=True)
        assert pace._most_us == expected * least
        pace._swept_us = pace._most_us
    for _ in range(40):
        pace.claimed(0.01, swept=True)
    assert pace._most_us == sweeps.SWEEP_MOST_US


async def test_a_tick_that_is_aimed_at_a_due_job_looks_at_no_topics(stepped: Instance) -> None:
    await stepped.worker(slots=1)
    await stepped.submit(1)
    assert not (await stepped.ticker.run_once(sweep=False)).pending
    assert (await stepped.ticker.run_once()).pending
