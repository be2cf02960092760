"""The claimer between a claim and its delivery: what is sent, lost, refused or comes too late."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta

import pytest

from headgate.dispatch.delivery import ControlFrame, Delivery
from headgate.dispatch.session import MAX_CONTROL_WEIGHT, MAX_QUEUED_PARTS
from headgate.dispatch.session_ends import SessionOverflow
from headgate.domain.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from headgate.domain.outcomes import Completed
from headgate.domain.states import Receipt, State
from headgate.store.connect import Connection
from tests.support.dispatch_waits import settle_down, soon
from tests.support.dispatch_workers import Handler, Run, Tracker, completing, failing, waiting_for
from tests.support.dispatching import Instance
from tests.support.epochs import claims
from tests.support.queue import Clock
from tests.support.waiting import until_async
from tests.support.watched_store import Hold, failing_with

AWAY = StoreUnavailable("the database is away")


# ---------------------------------------------------------------------- commit, send, recover


@pytest.mark.req("D16")
async def test_the_claim_is_committed_before_anything_is_sent(one: Instance, db: Connection) -> None:
    hold = one.store.after["claim"] = Hold()
    (job,) = await one.submit()
    worker = await one.worker(slots=1)
    await hold.reached()
    row = await db.fetchrow("SELECT state, owner, worker, lease_until, epoch FROM headgate.jobs WHERE id = $1", job)
    assert (row["state"], row["owner"], row["worker"], claims(row["epoch"])) == (1, one.store.instance_no, "one-w1", 1)
    assert row["lease_until"] is not None
    assert not worker.session.held
    worker.lose()  # between commit and send
    one.outcomes.writer.stop()  # and no way to hand it back
    hold.release()
    await soon(lambda: one.free() == 0 and not one.demands.by_wanted, "the claim is over")
    assert (await one.job(job)).state is State.RUNNING


@pytest.mark.req("D17", "D23")
@pytest.mark.parametrize("sent", [False, True])
async def test_the_lease_alone_recovers_what_was_not_sent_and_what_a_dead_worker_held(
    stepped: Instance, db: Connection, sent: bool
) -> None:
    clock = await Clock.install(db)
    stepped.claimer._abandon_unsent = stepped.demands.abandon_unsent = lambda _: None  # no clean-up of any kind
    (job,) = await stepped.submit()
    worker = await stepped.worker(slots=1)
    assert await stepped.claimer.run_once() == 1
    if sent:
        await worker.take()
    worker.lose()
    await stepped.ticker.run_once()
    assert (await stepped.job(job)).state is State.RUNNING
    await clock.advance(seconds=61)
    assert (await stepped.ticker.run_once()).reaped == 1
    view = await stepped.job(job)
    assert (view.state, view.attempt) == (State.RETRYING, 1)
    await clock.advance(seconds=10)
    other = await stepped.worker(slots=1)
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 1
    assert (await other.take()).attempts == (2,)


@pytest.mark.req("T11", "B7", "D19")
async def test_a_broken_stream_ends_alone_and_its_unsent_jobs_go_back_at_once_at_no_cost(one: Instance) -> None:
    go = asyncio.Event()
    other = await one.worker("other", "other", slots=2, handler=waiting_for(go))
    await one.submit(2, "other")
    await soon(lambda: other.tracker.now == 2, "the other worker is busy")
    jobs = await one.submit(3)
    broken = await one.worker("broken", slots=3)
    await soon(lambda: len(broken.session.held) == 3, "three jobs are queued for it")
    broken.lose()
    await one.flushed()
    views = [await one.job(job) for job in jobs]
    assert [(view.state, view.attempt, claims(view.epoch)) for view in views] == [(State.PENDING, 0, 1)] * 3
    assert not broken.session.held
    await one.worker("next", slots=3, handler=completing())
    await one.reach(3, State.COMPLETED)
    assert other.session.ended is None
    assert {run.attempt for run in other.tracker.runs} == {1}
    go.set()
    await one.reach(5, State.COMPLETED)


@pytest.mark.req("T11")
async def test_what_was_written_stays_leased_when_the_stream_breaks(one: Instance) -> None:
    jobs = await one.submit(4)
    worker = await one.worker(slots=2)
    first = await worker.take()
    worker.ready(2)
    await soon(lambda: len(worker.session.held) == 4, "two more are queued")
    worker.lose()
    await one.flushed()
    assert [(await one.job(job)).state for job in jobs] == [State.RUNNING] * 2 + [State.PENDING] * 2
    assert list(first.ids) == jobs[:2]


@pytest.mark.req("D11")
async def test_the_open_stream_is_the_presence_and_when_it_ends_nothing_more_is_claimed(
    one: Instance, db: Connection
) -> None:
    tables = (
        "SELECT relname, n_tup_ins FROM pg_stat_user_tables"
        " WHERE relname ~ 'worker|session|presence|subscri'"
        " AND relname NOT IN ('web_sessions', 'worker_stops')"  # of browsers; what operators have asked for
    )
    worker = await one.worker(slots=5, handler=completing())
    await soon(lambda: one.store.got, "it has looked")
    assert await db.fetch(tables) == []
    worker.lose()
    before = one.store.calls["claim"]
    await one.submit(5)
    await one.ticker.run_once()
    await settle_down()
    assert one.store.calls["claim"] == before
    assert (await one.states())[State.PENDING] == 5
    assert not one.demands.by_wanted
    assert not one.demands.by_topic


@pytest.mark.req("D19", "D26")
async def test_a_worker_that_does_not_read_is_closed_and_its_jobs_go_to_others(one: Instance) -> None:
    deaf = await one.worker("deaf", slots=1)
    jobs = await one.submit(1)
    await soon(lambda: len(deaf.session.held) == 1, "a job is queued for it")
    for _ in range(MAX_CONTROL_WEIGHT):
        deaf.session.send_control(ControlFrame(beat_ack=True))
    assert deaf.session.ended is None
    before = one.store.calls["claim"]
    deaf.ready(1)
    jobs += await one.submit(1)
    await settle_down()
    assert one.store.calls["claim"] == before, "nothing more is claimed for it until it reads"
    deaf.session.send_control(ControlFrame(beat_ack=True))
    await soon(lambda: deaf.session.ended is not None, "its buffer is full")
    assert isinstance(deaf.session.ended, SessionOverflow)
    # Its stream is stuck in a write and has not noticed: nothing more is claimed for it meanwhile.
    deaf.ready(5)
    before = one.store.calls["claim"]
    jobs += await one.submit(5)
    await settle_down()
    assert one.store.calls["claim"] == before
    deaf.lose()
    await one.worker("good", slots=10, handler=completing())
    await one.reach(7, State.COMPLETED)


async def test_a_burst_of_small_frames_delays_a_worker_and_does_not_close_it(one: Instance) -> None:
    busy = await one.worker("busy", slots=1)
    await one.submit(1)
    await soon(lambda: len(busy.session.held) == 1, "a job is queued for it")
    for _ in range(MAX_QUEUED_PARTS):
        busy.session.send_control(ControlFrame(beat_ack=True))
    busy.ready(1)
    await one.submit(1)
    await settle_down()
    assert busy.session.ended is None
    assert len(busy.session.held) == 1
    while len(busy.session.held) < 2:  # it reads again
        async with asyncio.timeout(5):
            assert await busy.session.next_part() is not None
    assert busy.session.ended is None


@pytest.mark.req("D2", "D4", "D15")
async def test_two_instances_and_twenty_workers_run_each_job_once_without_a_rollback(
    database: str, db: Connection
) -> None:
    tracker = Tracker()
    async with (
        Instance(database, tick_seconds=0.05) as one,
        Instance(database, name="two", tick_seconds=0.05) as two,
    ):
        for instance in (one, two):
            for _ in range(10):
                await instance.worker(slots=5, handler=completing(), tracker=tracker)
        ids = await one.submit(300) + await two.submit(300)
        await one.reach(600, State.COMPLETED)
        assert tracker.times == dict.fromkeys(ids, 1)
        assert tracker.overlaps == 0
        assert {run.attempt for run in tracker.runs} == {1}
        assert {run.worker[:3] for run in tracker.runs} == {"one", "two"}

    async def alone() -> bool:  # a session that has ended has reported all its figures
        return bool(await db.fetchval("SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()"))

    await until_async(alone, "all other sessions are gone")
    assert await db.fetchval("SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()") == 0


# ---------------------------------------------------------------------- errors


@pytest.mark.req("E1", "T10", "D18", "D19")
@pytest.mark.parametrize("error", [AWAY, StoreBusy("deadlock"), OutcomeUnknown("lost"), StoreError("refused")])
async def test_a_claim_that_fails_ends_no_session_and_is_tried_again(one: Instance, error: StoreError) -> None:
    workers = [await one.worker(slots=2, handler=completing()) for _ in range(5)]
    await soon(lambda: one.store.got, "it has looked")
    one.store.before["claim"] = failing_with(error)
    await one.submit(10)
    await one.reach(10, State.COMPLETED)
    assert one.claimer.errors == 1
    assert [worker.session.ended for worker in workers] == [None] * 5
    await soon(lambda: one.free() == 10, "all credit is back")


@pytest.mark.req("B6", "B8")
async def test_claims_that_fail_back_off_and_a_thousand_wakes_do_not_hurry_them(one: Instance) -> None:
    await one.worker(slots=2, handler=completing())
    await soon(lambda: one.store.got, "it has looked")
    one.store.before["claim"] = failing_with(*[AWAY] * 5)
    (topic_no,) = await one.topic_nos("mail")
    began = time.monotonic()
    await one.submit(4)

    def woken() -> bool:
        for _ in range(100):
            one.demands.wake(topic_no)
        return one.claimer.errors >= 5

    await soon(woken, "five claims have failed")
    assert time.monotonic() - began >= 0.5 * (0.05 + 0.1 + 0.2 + 0.4)
    await one.reach(4, State.COMPLETED)  # and the loop lives


@pytest.mark.req("B8")
async def test_a_stop_ends_the_backoff_at_once(one: Instance) -> None:
    one.store.before["claim"] = failing_with(*[AWAY] * 100)
    await one.worker(slots=1)
    await soon(lambda: one.claimer.errors >= 4, "it waits longer and longer")
    one.claimer.stop()
    assert await asyncio.wait_for(one.died("claims"), 60) is None


async def test_a_demand_that_is_refused_does_not_keep_the_others_from_their_work(one: Instance) -> None:
    bad = await one.worker("bad", "bad", lease=timedelta(days=30))
    bad.ready(3)
    good = await one.worker("good", slots=3, handler=completing())
    await one.submit(20)
    await one.reach(20, State.COMPLETED)
    assert one.claimer.errors == 1
    assert bad.session.ended is None
    assert good.tracker.times.total() == 20


async def test_a_topic_whose_page_cannot_be_read_does_not_keep_the_others_from_their_work(one: Instance) -> None:
    broken = await one.worker("broken", "broken", slots=1)
    (topic_no,) = (topic.no for topic in await one.store.topics(one.tenant, ["broken"]))

    async def unreadable() -> None:
        if one.store.asked[-1].topic_nos == (topic_no,):
            raise StoreError("the database refused: invalid page in block 0 of relation (XX001)")

    one.store.before["claim"] = unreadable
    await one.submit(1, "broken")
    await soon(lambda: one.claimer.errors >= 1, "the broken one was refused")
    await one.worker("good", slots=3, handler=completing())
    await one.submit(20)
    await one.reach(20, State.COMPLETED)
    assert broken.session.ended is None


async def test_bugs_met_by_some_demands_do_not_keep_the_others_from_their_work(
    stepped: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("broken", "broken-too"):
        await stepped.worker(name, name, slots=1)
    good = await stepped.worker("good", "good", slots=3)
    broken = await stepped.topic_nos("broken", "broken-too")

    async def faulty() -> None:
        if stepped.store.asked[-1].topic_nos[0] in broken:
            raise RuntimeError("planted")

    stepped.store.before["claim"] = faulty
    await stepped.submit(3, "good")
    claiming = asyncio.create_task(stepped.claimer.run())
    assert len(await good.take()) == 3
    assert not claiming.done()
    stepped.claimer.stop()
    await claiming
    for topic_no in broken:
        assert f"in a claim for tenant {good.session.tenant_no}, topics ({topic_no},)" in caplog.text


async def test_a_bug_met_while_no_other_demand_gets_jobs_fails_the_service(one: Instance) -> None:
    """So it is restarted after a wait and counted, and the instance is not ready."""
    await one.worker("broken", slots=1)
    await soon(lambda: one.store.got, "it has looked")
    one.store.before["claim"] = failing_with(RuntimeError("planted"))
    before = one.store.calls["claim"]
    one.demands.wake_all()
    assert isinstance(await one.died("claims"), RuntimeError)
    assert one.store.calls["claim"] == before + 1, "it is not tried again before the next wake"


@pytest.mark.req("B1")
async def test_an_error_while_dealing_leaks_no_credit_and_strands_no_job(
    stepped: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await stepped.submit(6)
    first, second = await stepped.worker("a", slots=3), await stepped.worker("b", slots=3)
    good = type(second.session).deliver

    def deliver(session: object, delivery: Delivery) -> bool:
        if session is second.session:
            raise MemoryError
        return good(first.session, delivery)

    with monkeypatch.context() as patch:
        patch.setattr(type(second.session), "deliver", deliver)
        with pytest.raises(MemoryError):
            await stepped.claimer.run_once()
    assert len(await first.take()) == 3
    assert stepped.free() == 3
    await stepped.flushed()
    assert [(await stepped.job(job)).state for job in jobs] == [State.RUNNING] * 3 + [State.PENDING] * 3
    assert await stepped.claimer.run_once() == 3  # known to have come back, by their ids
    assert list((await second.take()).ids) == jobs[3:]


# ---------------------------------------------------------------------- two workers, one job


@pytest.mark.req("E2", "E9", "R7")
@pytest.mark.parametrize("late", [failing(), completing(b"late")])
async def test_a_worker_without_its_lease_gets_stale_and_the_second_success_counts(
    stepped: Instance, db: Connection, late: Handler
) -> None:
    clock = await Clock.install(db)
    (job,) = await stepped.submit()
    first = await stepped.worker("first", slots=1)
    await stepped.claimer.run_once()
    await first.take()
    await clock.advance(seconds=61)
    assert (await stepped.ticker.run_once()).reaped == 1
    await clock.advance(seconds=5)
    second = await stepped.worker("second", slots=1)
    await stepped.ticker.run_once()
    await stepped.claimer.run_once()
    (epoch,) = (await second.take()).epochs
    run = Run(id=job, epoch=epoch - 1, attempt=1, topic_no=0, worker="first")
    assert (await first.report(job, epoch - 1, await late(run))).receipt is Receipt.STALE
    assert (await second.report(job, epoch, Completed(result=b"mine"))).receipt is Receipt.APPLIED
    assert (await first.report(job, 1, await late(run))).receipt is Receipt.STALE
    view = await stepped.job(job)
    assert (view.state, view.attempt, view.worker) == (State.COMPLETED, 2, "second")
    async with stepped.store.lane("upkeep").use() as connection:
        assert await connection.fetchval("SELECT result FROM headgate.archive WHERE id = $1", job) == b"mine"
        assert await connection.fetchval("SELECT count(*) FROM headgate.archive WHERE id = $1", job) == 1


@pytest.mark.req("E3")
async def test_two_slots_and_claims_of_one_still_fill_both_slots(database: str) -> None:
    async with Instance(database, claim_limit=1) as one:
        begun, both = 0, asyncio.Event()

        async def handler(_run: Run) -> Completed:
            nonlocal begun
            begun += 1
            if begun == 2:
                both.set()
            await asyncio.wait_for(both.wait(), 60)
            return Completed()

        await one.submit(20)
        worker = await one.worker(slots=2, handler=handler)
        await one.reach(20, State.COMPLETED)
        assert worker.tracker.most == 2
        assert {asked.limit for asked in one.store.asked} == {1}


@pytest.mark.req("E8")
async def test_twenty_jobs_that_all_fail_are_all_dead_and_each_end_is_reported_once(one: Instance) -> None:
    ids = await one.submit(20, max_attempts=1)
    await one.worker(slots=4, handler=failing())
    await one.reach(20, State.DEAD)
    await soon(lambda: len(one.ended) == 20, "all ends are told")
    assert Counter(one.ended) == dict.fromkeys(ids, 1)
