"""The coordinator against a real PostgreSQL, with a function in the place of the wire."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from importlib import resources
from typing import Any
from uuid import UUID

import pytest

from headgate import server as composition
from headgate.dispatch.coordinator import CLAIM_LIMIT, Coordinator
from headgate.dispatch.demand import MOST_HINTS
from headgate.dispatch.links import MAX_QUEUED_PARTS, Delivery, Link, LinkOverflow, LinkSilent, Told
from headgate.dispatch.writer import ShuttingDown
from headgate.domain.errors import InternalError, OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from headgate.domain.identity import Identity, Scope
from headgate.domain.outcomes import Abandon, Completed, Nack, Snooze
from headgate.domain.states import Receipt, State
from headgate.server import Server, ServerOptions
from headgate.store import control
from headgate.store.connect import Connection, connect
from tests.support.dispatching import (
    SOON,
    Handler,
    Hold,
    Instance,
    Run,
    Tracker,
    completing,
    failing,
    failing_with,
    settle_down,
    slow,
    soon,
    waiting_for,
)
from tests.support.queue import Clock
from tests.support.waiting import until_async

AWAY = StoreUnavailable("the database is away")


# ---------------------------------------------------------------------- slots and credit


@pytest.mark.req("C1", "C7", "C8", "D22")
async def test_four_short_jobs_after_another_do_not_wait_for_a_long_one(one: Instance) -> None:
    done = asyncio.Event()
    long_job: list[UUID] = []

    async def handler(run: Run) -> Completed:
        if run.id in long_job:
            await done.wait()
        return Completed()

    long_job += await one.submit()
    worker = await one.worker(slots=5, handler=handler)
    await soon(lambda: worker.tracker.now == 1, "the long job runs")
    await one.submit(24)
    await one.reach(24, State.COMPLETED)  # while the first one still runs
    assert worker.tracker.running[long_job[0]] == 1
    done.set()
    await one.reach(25, State.COMPLETED)


@pytest.mark.req("C2", "C3", "C11", "T5")
async def test_the_number_of_slots_is_reached_and_never_passed(one: Instance) -> None:
    go = asyncio.Event()
    await one.submit(30)
    worker = await one.worker(slots=5, handler=waiting_for(go))
    await soon(lambda: worker.tracker.now == 5, "all slots are busy")
    assert [(asked.limit, asked.runs) for asked in one.store.asked] == [(5, (5,))]  # all free credit, in one claim
    go.set()
    await one.reach(30, State.COMPLETED)
    assert worker.tracker.most == 5
    assert set(worker.tracker.times.values()) == {1}
    assert all(got <= asked.limit <= 5 for got, asked in zip(one.store.got, one.store.asked, strict=True))


@pytest.mark.req("C4", "T3")
async def test_without_credit_nothing_is_asked(one: Instance) -> None:
    go = asyncio.Event()
    await one.submit(2)
    worker = await one.worker(slots=2, handler=waiting_for(go))
    await soon(lambda: worker.tracker.now == 2, "both slots are busy")
    before = one.store.calls["claim"]
    for _ in range(5):
        await one.submit(10)
        await settle_down()
    assert one.store.calls["claim"] == before
    assert one.free() == 0
    go.set()
    await one.reach(52, State.COMPLETED)


@pytest.mark.req("C5", "D7", "D22")
async def test_a_submit_wakes_it_and_a_finished_job_wakes_it(one: Instance) -> None:
    worker = await one.worker(slots=1, handler=completing())
    await soon(lambda: one.store.got, "the first look found nothing")
    began = time.monotonic()
    await one.submit()
    await soon(lambda: worker.tracker.runs, "it has started")
    assert time.monotonic() - began < 1
    await one.submit(2)  # the tick is an hour away: the submit starts the first, its end the second
    await one.reach(3, State.COMPLETED, within=timedelta(seconds=5))
    assert worker.tracker.most == 1


@pytest.mark.req("C6")
async def test_credit_that_a_claim_does_not_use_is_given_back_at_once(still: Instance) -> None:
    await still.submit(3)
    worker = await still.worker(slots=10)
    assert await still.coordinator.claim_once() == 3
    assert still.free() == 7
    assert len(await worker.take()) == 3
    await still.submit(9)
    assert await still.coordinator.claim_once() == 7  # without another word from the worker
    assert still.free() == 0


@pytest.mark.req("T4")
async def test_a_freed_slot_is_filled_within_milliseconds(one: Instance) -> None:
    await one.submit(40)
    worker = await one.worker(slots=1)
    waits = []
    for _ in range(30):
        delivery = await worker.take()
        began = time.perf_counter()
        worker.complete(delivery)
        worker.ready(1)
        delivery = await worker.take()
        waits.append(time.perf_counter() - began)
        worker.complete(delivery)
        worker.ready(1)
        if len(waits) == 19:
            break
    assert statistics.median(waits) < 0.020, f"{sorted(waits)}"


@pytest.mark.req("T5", "D12")
@pytest.mark.parametrize(("claim_limit", "credit"), [(7, 3), (7, 7), (7, 20)])
async def test_one_claim_is_one_call_of_at_most_the_cap_and_the_credit(
    database: str, claim_limit: int, credit: int
) -> None:
    async with Instance(database, running=False, claim_limit=claim_limit) as one:
        await one.submit(50)
        await one.store.count_statements()
        await one.worker(slots=credit)
        assert await one.coordinator.claim_once() == min(claim_limit, credit)
        assert await one.store.sent() == 1
        while await one.coordinator.claim_once():
            pass
        assert sum(one.store.got) == credit
        assert {asked.limit <= min(claim_limit, credit) for asked in one.store.asked} == {True}


@pytest.mark.req("D12")
def test_the_cap_of_a_claim_is_500_unless_set_otherwise() -> None:
    assert CLAIM_LIMIT == 500
    assert ServerOptions(database_url="").claim_limit == 500


@pytest.mark.req("T7", "C9")
async def test_ten_thousand_jobs_that_do_nothing_take_few_claims(one: Instance) -> None:
    await one.submit(10_000)
    worker = await one.worker()

    async def work() -> None:
        left = 10_000
        worker.ready(1_000)
        while left:
            delivery = await worker.take()
            worker.complete(delivery)
            left -= len(delivery)
            worker.ready(len(delivery))

    await asyncio.wait_for(work(), 30)
    await one.flushed()
    assert (await one.states())[State.COMPLETED] == 10_000
    assert one.store.calls["claim"] <= 45, "twenty would do with flushes of 500"
    assert one.store.calls["settle"] <= 45


@pytest.mark.req("C9", "C10", "T6")
async def test_fifty_links_cost_as_much_as_one(still: Instance) -> None:
    await still.store.count_statements()
    workers = [await still.worker(slots=4) for _ in range(50)]
    await still.coordinator.claim_once()
    assert still.store.calls == {"claim": 1}
    before = await still.store.sent()
    for _ in range(3):  # idle: the tick alone, and nothing else
        await still.coordinator.tick_once()
        await still.coordinator.claim_once()
    assert await still.store.sent() - before == 3
    assert (still.store.calls["claim"], still.store.calls["tick"]) == (1, 3)
    await still.submit(1)
    await still.coordinator.claim_once()
    assert still.store.calls["claim"] == 2  # one wake, one claim, one link served
    assert sum(worker.link.held != {} for worker in workers) == 1


@pytest.mark.req("T6")
async def test_an_idle_instance_asks_once_a_tick_whatever_is_connected(database: str) -> None:
    async with Instance(database, tick_seconds=0.05) as one:
        await one.store.count_statements()
        for number in range(20):
            await one.worker(f"w{number}", f"topic{number % 5}", slots=3)
        await soon(lambda: one.store.calls["claim"] >= 5, "every demand has looked once")
        ticks, statements = one.store.calls["tick"], await one.store.sent()
        await soon(lambda: one.store.calls["tick"] >= ticks + 5, "five more ticks")
        assert await one.store.sent() - statements <= one.store.calls["tick"] - ticks + 1


@pytest.mark.req("C13")
async def test_each_claimer_that_locks_as_it_reads_visits_the_rows_of_all_others(one: Instance, database: str) -> None:
    """Why there is one claimer per instance, and why it chooses before it locks."""
    (topic_no,) = await one.topic_nos("mail")
    await one.submit(100)
    sessions = [await connect(database, application_name="claimer") for _ in range(5)]
    try:
        visited = []
        for session in sessions:
            await session.execute("BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
            plan = await session.fetch(
                "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF)"
                " SELECT id FROM headgate.jobs WHERE topic_no = $1 AND state = 0"
                " ORDER BY rank_class, rank_at LIMIT 10 FOR UPDATE SKIP LOCKED",
                topic_no,
            )
            (scan,) = [row[0] for row in plan if "Index Scan" in row[0]]
            visited.append(int(float(scan.split("rows=")[1].split()[0])))
        assert visited == [10, 20, 30, 40, 50]  # N claimers: O(N²)
    finally:
        for session in sessions:
            await session.close()


@pytest.mark.req("C14")
def test_the_concurrency_core_needs_nothing_but_the_standard_library() -> None:
    for path in resources.files("headgate.dispatch").iterdir():
        if not path.name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                ours = name.startswith(("headgate.dispatch", "headgate.domain"))
                assert ours or name.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"


@pytest.mark.req("C12")
def test_nobody_can_put_an_executor_of_batches_into_the_coordinator() -> None:
    assert set(inspect.signature(Coordinator).parameters) == {
        "store",
        "links",
        "hand_back",
        "claim_limit",
        "tick_seconds",
        "wakes",
        "watchdog",
    }


@pytest.mark.req("C15", "T1")
def test_the_ten_edge_cases_and_the_eight_bug_proofs_are_here() -> None:
    here = {
        number
        for module in (sys.modules[__name__], __import__("tests.integration.test_leases", fromlist=["x"]))
        for _, test in inspect.getmembers(module, inspect.isfunction)
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "req"
        for number in mark.args
    }
    assert {f"E{n}" for n in range(1, 11)} | {f"B{n}" for n in range(1, 9)} <= here


@pytest.mark.req("C16")
async def test_delayed_failing_and_slow_handlers_share_an_instance(one: Instance) -> None:
    go, tracker = asyncio.Event(), Tracker()
    handlers: dict[str, Handler] = {"wait": waiting_for(go), "fail": failing(permanent=True), "slow": slow(0.02)}
    for topic, handler in handlers.items():
        await one.submit(5, topic)
        await one.worker(topic, topic, slots=5, handler=handler, tracker=tracker)
    await one.reach(5, State.DEAD)
    await one.reach(5, State.COMPLETED)
    assert tracker.now == 5
    go.set()
    await one.reach(10, State.COMPLETED)
    assert tracker.times.total() == 15


# ---------------------------------------------------------------------- wakes and ticks


@pytest.mark.req("D9", "D25")
@pytest.mark.parametrize("tick_seconds", [0.05, 0.3])
async def test_the_tick_alone_starts_a_job_and_its_period_is_tunable(database: str, tick_seconds: float) -> None:
    async with Instance(database, wakes=False, tick_seconds=tick_seconds) as one:
        worker = await one.worker(slots=3, handler=completing())
        await soon(lambda: one.store.got and one.coordinator.ticks, "it has looked in vain")
        ticks, began = one.coordinator.ticks, time.monotonic()
        await one.submit(2)
        await one.reach(2, State.COMPLETED)
        assert one.coordinator.ticks > ticks
        assert worker.tracker.times.total() == 2
        await soon(lambda: one.coordinator.ticks >= ticks + 3, "three ticks")
        assert time.monotonic() - began >= 2 * tick_seconds * 0.9


@pytest.mark.req("D25")
async def test_another_instance_finds_a_job_without_any_word_of_it(one: Instance, database: str) -> None:
    async with Instance(database, name="two", tick_seconds=0.05) as two:
        worker = await two.worker(slots=1, handler=completing())
        await soon(lambda: two.store.got, "two has looked in vain")
        (job,) = await one.submit()
        await one.reach(1, State.COMPLETED)
        assert worker.tracker.times == {job: 1}
        assert one.store.calls["notify"] == two.store.calls["notify"] == 0


async def test_news_of_submits_goes_to_other_instances_in_one_word_and_only_when_there_are_some(
    one: Instance, database: str
) -> None:
    one.start("announcements", one.coordinator.run_announcements(apart=0.01))
    await one.submit(3)
    await soon(lambda: not one.coordinator._unannounced, "nobody is there to be told")
    assert one.store.calls["notify"] == 0
    async with Instance(database, name="two", running=False) as two:
        heard: asyncio.Queue[list[int]] = asyncio.Queue()
        listening = asyncio.create_task(two.store.listen(heard.put_nowait, lambda: None))
        await two.coordinator.tick_once()
        await one.coordinator.tick_once()
        assert one.coordinator.others == 1
        (topic_no,) = await one.topic_nos("mail")
        await soon(lambda: two.store._listener is not None, "two listens")
        for _ in range(5):
            await one.submit(2)
        assert await asyncio.wait_for(heard.get(), 10) == [topic_no]
        assert one.store.calls["notify"] <= 5
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@pytest.mark.req("E7")
async def test_a_thousand_wakes_run_nothing_twice_and_keep_the_limit(one: Instance) -> None:
    ids = await one.submit(50)
    worker = await one.worker(slots=3, handler=slow(0.001))
    (topic_no,) = await one.topic_nos("mail")
    for turn in range(1_000):
        one.coordinator.stir(topic_no)
        if turn % 50 == 0:
            one.coordinator.stir_all()
            await asyncio.sleep(0)
    await one.reach(50, State.COMPLETED)
    assert worker.tracker.times == dict.fromkeys(ids, 1)
    assert worker.tracker.most <= 3


async def test_a_wake_that_comes_while_a_claim_is_in_flight_is_not_missed(one: Instance) -> None:
    worker = await one.worker(slots=2, handler=completing())
    await soon(lambda: one.store.got, "it has looked in vain")
    hold = one.store.after["claim"] = Hold()  # it has seen nothing, and has not said so yet
    (topic_no,) = await one.topic_nos("mail")
    one.coordinator.stir(topic_no)
    await hold.reached()
    await one.submit()
    hold.release()
    await one.reach(1, State.COMPLETED, within=timedelta(seconds=5))
    assert worker.tracker.times.total() == 1


async def test_a_tick_that_fails_is_followed_by_the_next(database: str) -> None:
    async with Instance(database, tick_seconds=0.02, wakes=False) as one:
        worker = await one.worker(slots=1, handler=completing())
        await soon(lambda: one.store.got, "it has looked in vain")
        one.store.before["tick"] = failing_with(AWAY, StoreBusy("busy"), OutcomeUnknown("lost"))
        await one.submit()
        await one.reach(1, State.COMPLETED)
        assert one.store.calls["tick"] >= 4
        assert worker.link.ended is None


async def test_a_due_job_that_somebody_holds_does_not_make_the_ticks_spin(database: str, db: Connection) -> None:
    async with Instance(database, running=False) as one:
        (job,) = await one.submit(delay=timedelta(milliseconds=20))
        transaction = db.transaction()
        await transaction.start()
        await db.execute("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", job)
        one.start("ticks", one.coordinator.run_ticks())
        began = time.monotonic()
        await soon(lambda: one.coordinator.ticks >= 6, "a few ticks were made in vain")
        assert time.monotonic() - began >= 4 * 0.05 * 0.9
        await transaction.rollback()
        await one.worker(slots=1, handler=completing())
        one.start("claims", one.coordinator.run())
        await one.reach(1, State.COMPLETED)


async def test_a_due_job_that_somebody_held_is_promoted_by_the_next_tick(still: Instance, db: Connection) -> None:
    clock = await Clock.install(db)
    (held_id,) = await still.submit(delay=timedelta(seconds=1))
    (later_id,) = await still.submit(delay=timedelta(seconds=2))
    await clock.advance(seconds=10)
    transaction = db.transaction()
    await transaction.start()
    await db.execute("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", held_id)
    assert [one for _, _, one in (await still.coordinator.tick_once()).promoted] == [later_id]
    await transaction.rollback()
    assert [one for _, _, one in (await still.coordinator.tick_once()).promoted] == [held_id]


# ---------------------------------------------------------------------- the pause gate


@pytest.mark.req("D10", "T3", "Z12")
async def test_a_paused_topic_is_never_asked_for_and_a_resume_wakes_everybody(still: Instance, db: Connection) -> None:
    tenant_no = await still.store.tenant_no("acme")
    mail, sms = await still.topic_nos("mail", "sms")
    await control.pause(db, (tenant_no, mail), reason="full")
    await still.submit(2)
    await still.worker(slots=5)
    # The gate knows nothing yet; the claim's own check is the truth.
    assert await still.coordinator.claim_once() == 0
    assert still.store.calls["claim"] == 1
    await still.coordinator.tick_once()
    for _ in range(3):
        await still.submit(1)
        assert await still.coordinator.claim_once() == 0
    assert still.store.calls["claim"] == 1  # the gate comes first: nothing is asked
    await still.worker("both", "mail", "sms", slots=5)
    await still.submit(1, "sms")
    assert await still.coordinator.claim_once() == 1
    assert still.store.asked[-1].topic_nos == (sms,)
    await control.resume(db, (tenant_no, mail))
    await still.coordinator.tick_once()
    assert await still.coordinator.claim_once() == 5
    assert (await still.states())[State.RUNNING] == 6


@pytest.mark.req("Z3", "Z20", "Z21")
async def test_a_pause_lets_jobs_in_lets_running_ones_end_and_keeps_the_order(one: Instance, db: Connection) -> None:
    go = asyncio.Event()
    (before,) = await one.submit()
    worker = await one.worker(slots=1, handler=waiting_for(go))
    await soon(lambda: worker.tracker.now == 1, "it runs")
    await control.pause(db)
    await one.coordinator.tick_once()
    low = await one.submit(2)
    high = await one.submit(2, priority=10)
    go.set()
    await one.reach(1, State.COMPLETED)
    assert (await one.states())[State.PENDING] == 4
    assert worker.receipts[before, 1] is None
    await control.resume(db)
    await one.coordinator.tick_once()
    await one.reach(5, State.COMPLETED)
    assert [run.id for run in worker.tracker.runs] == [before, *high, *low]


async def test_a_pause_of_a_tenant_leaves_the_others_alone(still: Instance, db: Connection) -> None:
    await still.submit(2)
    await still.submit(2, tenant="other")
    await still.worker("a", slots=5)
    await still.worker("b", slots=5, tenant="other")
    still.coordinator.flip([(await still.store.tenant_no("acme"), 0)])
    assert await still.coordinator.claim_once() == 2
    assert [asked.tenant_no for asked in still.store.asked] == [await still.store.tenant_no("other")]
    still.coordinator.flip([])
    assert await still.coordinator.claim_once() == 2


async def test_a_resume_during_a_claim_is_not_forgotten(still: Instance) -> None:
    """Whoever asks for a look from the head while a claim is under way gets one afterwards."""
    await still.submit()
    await still.worker(slots=5)
    assert await still.coordinator.claim_once() == 1
    hold = still.store.after["claim"] = Hold()
    (topic_no,) = await still.topic_nos("mail")
    still.coordinator.stir(topic_no)
    claiming = asyncio.create_task(still.coordinator.claim_once())
    await hold.reached()
    still.coordinator.stir_all()
    hold.release()
    await claiming
    still.store.after.clear()
    await still.coordinator.claim_once()
    assert [asked.from_head for asked in still.store.asked] == [True, False, True]


# ---------------------------------------------------------------------- commit, send, recover


@pytest.mark.req("D16")
async def test_the_claim_is_committed_before_anything_is_sent(one: Instance, db: Connection) -> None:
    hold = one.store.after["claim"] = Hold()
    (job,) = await one.submit()
    worker = await one.worker(slots=1)
    await hold.reached()
    row = await db.fetchrow("SELECT state, owner, worker, lease_until, epoch FROM headgate.jobs WHERE id = $1", job)
    assert (row["state"], row["owner"], row["worker"], row["epoch"]) == (1, one.store.instance_no, "one-w1", 1)
    assert row["lease_until"] is not None
    assert not worker.link.held
    worker.lose()  # between commit and send
    one.outcomes.writer.close()  # and no way to hand it back
    hold.release()
    await soon(lambda: one.free() == 0 and not one.coordinator._demands, "the claim is over")
    assert (await one.job(job)).state is State.RUNNING


@pytest.mark.req("D17", "D23")
@pytest.mark.parametrize("sent", [False, True])
async def test_the_lease_alone_recovers_what_was_not_sent_and_what_a_dead_worker_held(
    still: Instance, db: Connection, sent: bool
) -> None:
    clock = await Clock.install(db)
    still.coordinator._hand_back = lambda _: None  # no clean-up of any kind
    (job,) = await still.submit()
    worker = await still.worker(slots=1)
    assert await still.coordinator.claim_once() == 1
    if sent:
        await worker.take()
    worker.lose()
    await still.coordinator.tick_once()
    assert (await still.job(job)).state is State.RUNNING
    await clock.advance(seconds=61)
    assert (await still.coordinator.tick_once()).reaped == 1
    view = await still.job(job)
    assert (view.state, view.attempt) == (State.RETRYING, 1)
    await clock.advance(seconds=10)
    other = await still.worker(slots=1)
    await still.coordinator.tick_once()
    assert await still.coordinator.claim_once() == 1
    assert (await other.take()).attempts == (2,)


@pytest.mark.req("T11", "B7", "D19")
async def test_a_broken_stream_ends_alone_and_its_unsent_jobs_go_back_at_once_at_no_cost(one: Instance) -> None:
    go = asyncio.Event()
    other = await one.worker("other", "other", slots=2, handler=waiting_for(go))
    await one.submit(2, "other")
    await soon(lambda: other.tracker.now == 2, "the other worker is busy")
    jobs = await one.submit(3)
    broken = await one.worker("broken", slots=3)
    await soon(lambda: len(broken.link.held) == 3, "three jobs are queued for it")
    broken.lose()
    await one.flushed()
    views = [await one.job(job) for job in jobs]
    assert [(view.state, view.attempt, view.epoch) for view in views] == [(State.PENDING, 0, 1)] * 3
    assert not broken.link.held
    await one.worker("next", slots=3, handler=completing())
    await one.reach(3, State.COMPLETED, within=timedelta(seconds=5))
    assert other.link.ended is None
    assert {run.attempt for run in other.tracker.runs} == {1}
    go.set()
    await one.reach(5, State.COMPLETED)


@pytest.mark.req("T11")
async def test_what_was_written_stays_leased_when_the_stream_breaks(one: Instance) -> None:
    jobs = await one.submit(4)
    worker = await one.worker(slots=2)
    first = await worker.take()
    worker.ready(2)
    await soon(lambda: len(worker.link.held) == 4, "two more are queued")
    worker.lose()
    await one.flushed()
    assert [(await one.job(job)).state for job in jobs] == [State.RUNNING] * 2 + [State.PENDING] * 2
    assert list(first.ids) == jobs[:2]


@pytest.mark.req("D11")
async def test_the_open_stream_is_the_presence_and_when_it_ends_nothing_more_is_claimed(
    one: Instance, db: Connection
) -> None:
    tables = "SELECT relname, n_tup_ins FROM pg_stat_user_tables WHERE relname ~ 'worker|link|presence|subscri'"
    worker = await one.worker(slots=5, handler=completing())
    await soon(lambda: one.store.got, "it has looked")
    assert await db.fetch(tables) == []
    worker.lose()
    before = one.store.calls["claim"]
    await one.submit(5)
    await one.coordinator.tick_once()
    await settle_down()
    assert one.store.calls["claim"] == before
    assert (await one.states())[State.PENDING] == 5
    assert not one.coordinator._demands
    assert not one.coordinator._by_topic


@pytest.mark.req("D19", "D26")
async def test_a_worker_that_does_not_read_is_closed_and_its_jobs_go_to_others(one: Instance) -> None:
    deaf = await one.worker("deaf", slots=1)
    jobs = await one.submit(1)
    await soon(lambda: len(deaf.link.held) == 1, "a job is queued for it")
    for _ in range(MAX_QUEUED_PARTS):
        deaf.link.tell(Told(beat_ack=True))
    assert deaf.link.ended is None
    deaf.ready(1)
    jobs += await one.submit(1)
    await soon(lambda: deaf.link.ended is not None, "its buffer is full")
    assert isinstance(deaf.link.ended, LinkOverflow)
    # Its stream is stuck in a write and has not noticed: nothing more is claimed for it meanwhile.
    deaf.ready(5)
    before = one.store.calls["claim"]
    jobs += await one.submit(5)
    await settle_down()
    assert one.store.calls["claim"] == before
    deaf.lose()
    await one.worker("good", slots=10, handler=completing())
    await one.reach(7, State.COMPLETED)


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

    async def alone() -> bool:  # a session that has ended has told all its figures
        return bool(await db.fetchval("SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()"))

    await until_async(alone, "all other sessions are gone")
    assert await db.fetchval("SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()") == 0


# ---------------------------------------------------------------------- errors


@pytest.mark.req("E1", "T10", "D18", "D19")
@pytest.mark.parametrize("error", [AWAY, StoreBusy("deadlock"), OutcomeUnknown("lost"), StoreError("refused")])
async def test_a_claim_that_fails_ends_no_link_and_is_tried_again(one: Instance, error: StoreError) -> None:
    workers = [await one.worker(slots=2, handler=completing()) for _ in range(5)]
    await soon(lambda: one.store.got, "it has looked")
    one.store.before["claim"] = failing_with(error)
    await one.submit(10)
    await one.reach(10, State.COMPLETED)
    assert one.coordinator.claim_errors == 1
    assert [worker.link.ended for worker in workers] == [None] * 5
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
            one.coordinator.stir(topic_no)
        return one.coordinator.claim_errors >= 5

    await soon(woken, "five claims have failed")
    assert time.monotonic() - began >= 0.5 * (0.05 + 0.1 + 0.2 + 0.4)
    await one.reach(4, State.COMPLETED)  # and the loop lives


@pytest.mark.req("B8")
async def test_a_stop_during_the_backoff_is_heard_at_once(one: Instance) -> None:
    one.store.before["claim"] = failing_with(*[AWAY] * 100)
    await one.worker(slots=1)
    await soon(lambda: one.coordinator.claim_errors >= 4, "it waits longer and longer")
    one.coordinator.stop()
    assert await asyncio.wait_for(one.died("claims"), 1) is None


async def test_a_demand_that_is_refused_does_not_keep_the_others_from_their_work(one: Instance) -> None:
    bad = await one.worker("bad", "bad", lease=timedelta(days=30))
    bad.ready(3)
    good = await one.worker("good", slots=3, handler=completing())
    await one.submit(20)
    await one.reach(20, State.COMPLETED, within=timedelta(seconds=5))
    assert one.coordinator.claim_errors == 1
    assert bad.link.ended is None
    assert good.tracker.times.total() == 20


@pytest.mark.req("F48")
async def test_a_topic_whose_page_cannot_be_read_does_not_keep_the_others_from_their_work(one: Instance) -> None:
    broken = await one.worker("broken", "broken", slots=1)
    (topic_no,) = (topic.no for topic in await one.store.topics(one.tenant, ["broken"]))

    async def unreadable() -> None:
        if one.store.asked[-1].topic_nos == (topic_no,):
            raise StoreError("the database refused: invalid page in block 0 of relation (XX001)")

    one.store.before["claim"] = unreadable
    await one.submit(1, "broken")
    await soon(lambda: one.coordinator.claim_errors >= 1, "the broken one was refused")
    await one.worker("good", slots=3, handler=completing())
    await one.submit(20)
    await one.reach(20, State.COMPLETED, within=timedelta(seconds=5))
    assert broken.link.ended is None


@pytest.mark.req("B1")
async def test_an_error_while_dealing_leaks_no_credit_and_strands_no_job(
    still: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await still.submit(6)
    first, second = await still.worker("a", slots=3), await still.worker("b", slots=3)
    good = type(second.link).deliver

    def deliver(link: object, delivery: Delivery) -> bool:
        if link is second.link:
            raise MemoryError
        return good(first.link, delivery)

    with monkeypatch.context() as patch:
        patch.setattr(type(second.link), "deliver", deliver)
        with pytest.raises(MemoryError):
            await still.coordinator.claim_once()
    assert len(await first.take()) == 3
    assert still.free() == 3
    await still.flushed()
    assert [(await still.job(job)).state for job in jobs] == [State.RUNNING] * 3 + [State.PENDING] * 3
    assert await still.coordinator.claim_once() == 3  # known to have come back, by their ids
    assert list((await second.take()).ids) == jobs[3:]


# ---------------------------------------------------------------------- fairness, groups


async def test_jobs_that_trickle_in_are_spread_over_all_links(still: Instance) -> None:
    workers = [await still.worker(slots=10) for _ in range(3)]
    for _ in range(12):
        await still.submit()
        assert await still.coordinator.claim_once() == 1
    assert [len(worker.link.held) for worker in workers] == [4, 4, 4]


@pytest.mark.parametrize(("claim_limit", "credit"), [(4, 3), (2, 5), (3, 1), (500, 2)])
async def test_fewer_jobs_than_credit_reach_every_link_in_turn(database: str, claim_limit: int, credit: int) -> None:
    async with Instance(database, running=False, claim_limit=claim_limit) as one:
        workers = [await one.worker(slots=credit) for _ in range(5)]
        for _ in range(5 * credit):
            await one.submit()
            await one.coordinator.claim_once()
        assert [len(worker.link.held) for worker in workers] == [credit] * 5


async def test_links_that_want_the_same_share_a_claim_and_others_have_their_own(still: Instance) -> None:
    minute = timedelta(minutes=1)
    await still.worker("a", "mail", "sms", slots=1)
    await still.worker("b", "sms", "mail", slots=1)  # the same topics, in another order
    await still.worker("c", "mail", slots=1)
    await still.worker("d", "mail", "sms", slots=1, lease=2 * minute)
    await still.worker("e", "mail", "sms", slots=1, tenant="other")
    await still.submit(10)
    assert await still.coordinator.claim_once() == 4
    groups = Counter(asked.workers for asked in still.store.asked[:4])
    assert groups == {("a", "b"): 1, ("c",): 1, ("d",): 1, ("e",): 1}


async def test_the_worker_on_the_row_is_the_one_that_gets_the_job(still: Instance, db: Connection) -> None:
    workers = [await still.worker(slots=3) for _ in range(4)]
    await still.submit(10)
    assert await still.coordinator.claim_once() == 10
    for worker in workers:
        rows = await db.fetch("SELECT id FROM headgate.jobs WHERE worker = $1", worker.link.worker_id)
        assert {row[0] for row in rows} == set(worker.link.held)


async def test_a_link_that_comes_and_goes_leaves_nothing_behind(still: Instance) -> None:
    stays = await still.worker("stays", slots=1)
    await still.submit(1)
    assert await still.coordinator.claim_once() == 1
    for number in range(5):
        passing = await still.worker(f"passing{number}", slots=2)
        await still.coordinator.claim_once()
        passing.lose()
    assert len(still.coordinator._demands) == 1  # the one that is busy counts as well
    assert len(stays.link.credit) == 1
    stays.lose()
    assert not still.coordinator._demands
    assert not still.coordinator._by_topic


async def test_a_link_that_ends_during_its_claim_leaves_nothing_behind(one: Instance) -> None:
    hold = one.store.after["claim"] = Hold()
    (job,) = await one.submit()
    worker = await one.worker(slots=3)
    await hold.reached()
    worker.lose()
    hold.release()
    await soon(lambda: not one.coordinator._demands, "the demand is dropped")
    await one.flushed()
    view = await one.job(job)
    assert (view.state, view.attempt) == (State.PENDING, 0)


async def test_nothing_is_claimed_for_a_link_that_has_ended_and_does_not_know_yet(still: Instance) -> None:
    await still.submit(6)
    silent = await still.worker("silent", slots=3)
    good = await still.worker("good", slots=3)
    silent.link.end(LinkSilent("not heard of"))
    assert await still.coordinator.claim_once() == 3
    assert (len(silent.link.held), len(good.link.held)) == (0, 3)
    assert still.free() == 0


# ---------------------------------------------------------------------- hints and the watermark


async def move_mark(one: Instance, *topics: str) -> None:
    """Put the watermark above everything submitted so far: claim and complete something younger."""
    for topic in topics or ("mail",):
        await one.submit(1, topic)
        worker = await one.worker(f"mover {topic}", topic, slots=1)
        assert await one.coordinator.claim_once() == 1
        worker.complete(await worker.take())
        await one.flushed()
        worker.lose()


async def below_the_mark(one: Instance, count: int = 1) -> tuple[list[UUID], list[int]]:
    """Jobs that run, older than the mark: their ids and epochs."""
    jobs = await one.submit(count)
    holder = await one.worker("holder", slots=count)
    assert await one.coordinator.claim_once() == count
    delivery = await holder.take()
    await move_mark(one)
    return list(jobs), list(delivery.epochs)


@pytest.mark.parametrize("outcome", [Abandon(), Nack(delay=timedelta(0), reason="not me")])
async def test_a_job_that_comes_back_below_the_mark_is_claimed_at_once_by_its_id(
    still: Instance, outcome: Abandon | Nack
) -> None:
    (job,), (epoch,) = await below_the_mark(still)
    worker = await still.worker(slots=1)
    assert await still.coordinator.claim_once() == 0
    settled = await worker.report(job, epoch, outcome)
    assert (settled.receipt, settled.state) == (Receipt.APPLIED, State.PENDING)
    assert await still.coordinator.claim_once() == 1
    last = still.store.asked[-1]
    assert (last.hints, last.from_head) == ((job,), False)
    assert list((await worker.take()).ids) == [job]


async def test_a_promoted_job_is_claimed_at_once_by_its_id(still: Instance, db: Connection) -> None:
    clock = await Clock.install(db)
    (job,), (epoch,) = await below_the_mark(still)
    worker = await still.worker(slots=1)
    await worker.report(job, epoch, Snooze(delay=timedelta(seconds=30)))
    await still.coordinator.claim_once()
    await clock.advance(seconds=31)
    await still.coordinator.tick_once()
    assert await still.coordinator.claim_once() == 1
    assert still.store.asked[-1].hints == (job,)
    assert list((await worker.take()).ids) == [job]


async def test_hints_are_bounded_and_go_to_the_jobs_tenant_only(still: Instance) -> None:
    await still.worker("a", slots=1)
    await still.worker("b", slots=1, tenant="other")
    await still.coordinator.claim_once()
    mine, theirs = still.coordinator._demands.values()
    for job in still.ids.make(MOST_HINTS):
        still.coordinator.stir_hint(mine.tenant_no, job)
    assert (len(mine.hints), len(theirs.hints), mine.from_head) == (MOST_HINTS, 0, False)
    for job in still.ids.make(3 * MOST_HINTS):
        still.coordinator.stir_hint(mine.tenant_no, job)
    assert (mine.hints, mine.from_head, theirs.stirred) == ({}, True, False)  # too many to name: from the head


async def test_hints_survive_a_claim_that_fails(still: Instance) -> None:
    (job,), (epoch,) = await below_the_mark(still)
    worker = await still.worker(slots=1)
    await still.coordinator.claim_once()
    await worker.report(job, epoch, Abandon())
    still.store.before["claim"] = failing_with(AWAY)
    with pytest.raises(StoreUnavailable):
        await still.coordinator.claim_once()
    assert await still.coordinator.claim_once() == 1
    assert list((await worker.take()).ids) == [job]


async def test_claims_start_at_the_mark_and_not_at_the_head(still: Instance) -> None:
    await still.worker(slots=100)
    for _ in range(4):
        await still.submit(2)
        await still.coordinator.claim_once()
    assert [asked.from_head for asked in still.store.asked] == [True, False, False, False]


async def test_an_idle_link_finds_by_the_tick_what_lies_below_the_mark(still: Instance, db: Connection) -> None:
    (job,), _ = await below_the_mark(still)
    worker = await still.worker(slots=1)
    assert await still.coordinator.claim_once() == 0
    # Somebody else handed it back, and told nobody.
    await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = $1", job)
    assert await still.coordinator.claim_once() == 0
    await still.coordinator.tick_once()
    assert await still.coordinator.claim_once() == 1
    assert list((await worker.take()).ids) == [job]


async def test_links_that_are_never_idle_find_it_too_within_a_few_ticks(still: Instance, db: Connection) -> None:
    """At each tick all credit is spent, so nobody asks whether the topic has work; the sweep must not depend on it."""
    (job,), _ = await below_the_mark(still)
    worker = await still.worker(slots=1)
    await still.submit(50)
    assert await still.coordinator.claim_once() == 1
    await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = $1", job)
    for _ in range(4):
        await still.coordinator.tick_once()
        worker.ready(1)
        assert await still.coordinator.claim_once() == 1
    assert job in worker.link.held


async def test_many_jobs_below_the_mark_come_in_order_before_younger_ones(still: Instance, db: Connection) -> None:
    jobs, _ = await below_the_mark(still, 30)
    worker = await still.worker(slots=4)
    assert await still.coordinator.claim_once() == 0
    await still.submit(10)
    await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = ANY ($1)", jobs)
    still.coordinator.stir_all()
    got: list[UUID] = []
    for _ in range(8):
        assert await still.coordinator.claim_once() == 4
        got += (await worker.take()).ids
        worker.ready(4)
    assert got[:30] == jobs


async def test_a_sweep_that_finds_more_than_it_may_take_goes_on_where_it_stopped(
    still: Instance, db: Connection
) -> None:
    jobs, _ = await below_the_mark(still, 30)
    worker = await still.worker(slots=4)
    await still.submit(50)
    assert await still.coordinator.claim_once() == 4
    await db.execute("UPDATE headgate.jobs SET state = 0, owner = NULL, lease_until = NULL WHERE id = ANY ($1)", jobs)
    await still.coordinator.tick_once()
    for _ in range(8):
        worker.ready(4)
        assert await still.coordinator.claim_once() == 4
    assert set(jobs) <= set(worker.link.held)


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


# ---------------------------------------------------------------------- two workers, one job


@pytest.mark.req("E2", "E9", "R7")
@pytest.mark.parametrize("late", [failing(), completing(b"late")])
async def test_who_lost_the_lease_is_told_so_and_the_second_success_stands(
    still: Instance, db: Connection, late: Handler
) -> None:
    clock = await Clock.install(db)
    (job,) = await still.submit()
    first = await still.worker("first", slots=1)
    await still.coordinator.claim_once()
    await first.take()
    await clock.advance(seconds=61)
    assert (await still.coordinator.tick_once()).reaped == 1
    await clock.advance(seconds=5)
    second = await still.worker("second", slots=1)
    await still.coordinator.tick_once()
    await still.coordinator.claim_once()
    (epoch,) = (await second.take()).epochs
    run = Run(id=job, epoch=1, attempt=1, topic_no=0, worker="first")
    assert (await first.report(job, 1, await late(run))).receipt is Receipt.STALE
    assert (await second.report(job, epoch, Completed(result=b"mine"))).receipt is Receipt.APPLIED
    assert (await first.report(job, 1, await late(run))).receipt is Receipt.STALE
    view = await still.job(job)
    assert (view.state, view.attempt, view.worker) == (State.COMPLETED, 2, "second")
    async with still.store.lane("read").use() as connection:
        assert await connection.fetchval("SELECT result FROM headgate.archive WHERE id = $1", job) == b"mine"
        assert await connection.fetchval("SELECT count(*) FROM headgate.archive WHERE id = $1", job) == 1


@pytest.mark.req("E3")
async def test_two_slots_and_claims_of_one_still_fill_both_slots(database: str) -> None:
    async with Instance(database, claim_limit=1) as one:
        delays = iter([0.02, 0.001, 0.005] * 10)

        async def handler(_run: Run) -> Completed:
            await asyncio.sleep(next(delays))
            return Completed()

        await one.submit(20)
        worker = await one.worker(slots=2, handler=handler)
        await one.reach(20, State.COMPLETED)
        assert worker.tracker.most == 2
        assert {asked.limit for asked in one.store.asked} == {1}


@pytest.mark.req("E8")
async def test_twenty_jobs_that_all_fail_are_all_dead_and_each_end_is_told_once(one: Instance) -> None:
    ids = await one.submit(20, max_attempts=1)
    await one.worker(slots=4, handler=failing())
    await one.reach(20, State.DEAD)
    await soon(lambda: len(one.ended) == 20, "all ends are told")
    assert Counter(one.ended) == dict.fromkeys(ids, 1)


# ---------------------------------------------------------------------- stopping


@pytest.mark.req("E4", "B3")
@pytest.mark.parametrize("link_ends", [False, True])
async def test_a_stop_during_a_claim_deals_or_hands_back_what_it_gets(one: Instance, link_ends: bool) -> None:
    hold = one.store.after["claim"] = Hold()
    jobs = await one.submit(3)
    worker = await one.worker(slots=3)
    await hold.reached()
    one.coordinator.stop()
    if link_ends:
        worker.lose()
    assert not one.tasks["claims"].done()  # it waits for what the database says
    hold.release()
    assert await one.died("claims") is None
    await one.flushed()
    states = {(await one.job(job)).state for job in jobs}
    assert states == {State.PENDING if link_ends else State.RUNNING}
    if not link_ends:
        assert list((await worker.take()).ids) == jobs


@pytest.mark.req("E4")
async def test_a_coordinator_that_is_killed_during_its_claim_leaves_the_jobs_to_their_lease(
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
    assert (await one.coordinator.tick_once()).reaped == 1
    assert (await one.job(job)).state is State.RETRYING


async def test_a_writer_that_is_cancelled_leaves_nobody_waiting(one: Instance) -> None:
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
            await asyncio.wait_for(answer, 5)
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
    told = await asyncio.wait_for(worker.settle(*((job, 1, Completed()) for job in ids)), SOON.total_seconds())
    assert {place: type(answer) for place, answer in told.items()} == {7: InternalError}
    assert set(worker.link.held) == {poison}
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
    await asyncio.wait_for(one.stop(drain=False), 20)


@pytest.mark.req("B5")
@pytest.mark.parametrize("fault", [MemoryError("none left"), RuntimeError("a bug")])
async def test_a_service_that_dies_ends_the_server_with_its_error(server: Server, fault: Exception) -> None:
    running = asyncio.create_task(server.run(asyncio.Event()))

    async def claim(**_: object) -> None:
        raise fault

    server.store.claim = claim  # type: ignore[method-assign, assignment]
    await connect_by_hand(server)
    with pytest.raises(type(fault)):
        await asyncio.wait_for(running, SOON.total_seconds())


@pytest.mark.req("E10", "B2", "E5")
async def test_a_server_whose_coordinator_is_dead_still_stops_and_stops_twice_at_once(
    server: Server, db: Connection
) -> None:
    server._tasks["claims"].cancel()
    await connect_by_hand(server)
    await asyncio.wait_for(asyncio.gather(server.stop(drain=False), server.stop(drain=False)), 20)
    async with Instance(server.options.database_url, name="two", running=False) as two:
        await two.submit(3)
        await settle_down()
        assert (await two.states()) == {State.PENDING: 3}


@pytest.mark.req("B4")
async def test_a_stop_is_bounded_when_a_claim_hangs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "STOP_SECONDS", 0.1)
    hold = Hold()

    async def claim(**_: object) -> None:
        await hold()

    server.store.claim = claim  # type: ignore[method-assign, assignment]
    await connect_by_hand(server)
    await hold.reached()
    began = time.monotonic()
    await asyncio.wait_for(server.stop(drain=False), 20)
    assert time.monotonic() - began < 5


async def test_the_order_of_stopping_loses_no_outcome(server: Server, db: Connection) -> None:
    """Claims end, links are told to drain, what they report meanwhile is written, renewals end last."""
    one = Instance(server.options.database_url, name="beside", running=False)
    one.store, one.links, one.coordinator = server.store, server.links, server.coordinator  # type: ignore[assignment]
    one.outcomes, one.submitter = server.outcomes, server.submitter
    (job, later) = await one.submit(2)
    worker = await one.worker(slots=1)
    delivery = await worker.take()
    assert list(delivery.ids) == [job]
    order: list[str] = []
    grpc_stop, renewer_stop = server._grpc.stop, server.renewer.stop  # type: ignore[union-attr]

    async def draining(grace: float | None) -> None:
        order.append("draining")
        assert server._tasks["claims"].done()
        assert (await worker.hear()).drain_seconds == 0
        worker.complete(delivery)  # the worker's last word
        worker.ready(1)
        worker.lose()
        await grpc_stop(grace)

    def stopping_renewals() -> None:
        server.renewer.stop = renewer_stop  # type: ignore[method-assign]
        order.append("renewals")
        assert server._tasks["outcomes"].done()
        renewer_stop()

    server._grpc.stop = draining  # type: ignore[union-attr, method-assign]
    server.renewer.stop = stopping_renewals  # type: ignore[method-assign]
    await asyncio.wait_for(server.stop(drain=False), 20)
    assert order == ["draining", "renewals"]
    assert await db.fetchval("SELECT state FROM headgate.archive WHERE id = $1", job) == State.COMPLETED
    assert await db.fetchval("SELECT state FROM headgate.jobs WHERE id = $1", later) == State.PENDING


async def connect_by_hand(server: Server) -> None:
    """A link with credit, without a wire."""
    identity = Identity(tenant="default", subject="test", scopes=frozenset(Scope))
    link = Link(identity, await server.store.tenant_no("default"), "w", time.monotonic, 60_000)
    link.heard()
    server.links.open(link)
    (topic,) = await server.store.topics("default", ["mail"])
    server.coordinator.grant(link, [topic.no], 60_000, 1)


async def test_on_an_ageing_topic_new_urgent_work_below_the_mark_is_claimed_at_once(one: Instance) -> None:
    await one.submit()  # makes the topic
    async with one.store.lane("read").use() as db:
        await db.execute("UPDATE headgate.topics SET ageing_step_us = 3600000000")  # an hour for each unit of priority
        await one.store.names.refresh(db)
    worker = await one.worker(slots=1, handler=completing())
    await one.reach(1, State.COMPLETED)
    for _ in range(3):  # the tick is an hour away: only the wake of the submit can find it
        await one.submit(1, priority=10)
        await soon(lambda: not worker.tracker.now and one.free() == 1, "the slot is free again")
    await one.reach(4, State.COMPLETED, within=timedelta(seconds=5))
