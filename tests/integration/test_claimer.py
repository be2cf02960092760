"""The claimer against a real PostgreSQL, with a function in the place of the wire: slots, credit, fair shares."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from collections import Counter
from datetime import timedelta
from importlib import resources
from typing import Any
from uuid import UUID

import pytest

from headgate.dispatch.claimer import CLAIM_LIMIT, Claimer
from headgate.dispatch.session_ends import SessionSilent
from headgate.domain.outcomes import Completed
from headgate.domain.states import State
from headgate.server import ServerOptions
from headgate.store.connect import Connection, connect
from tests.support.dispatch_waits import settle_down, soon
from tests.support.dispatch_workers import Handler, Run, Tracker, completing, failing, slow, waiting_for
from tests.support.dispatching import Instance
from tests.support.watched_store import Hold

# ---------------------------------------------------------------------- slots and credit


@pytest.mark.req("C1", "C7", "D22")
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
    await soon(lambda: len(one.store.got) == len(one.store.asked), "the claim for the slots that fell free is answered")
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


@pytest.fixture
async def timers_passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays of all timers that have run out on this loop."""
    passed: list[float] = []
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def counted(when: float, callback: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:
        delay = when - loop.time()

        def run() -> None:
            passed.append(delay)
            callback(*args)

        return call_at(when, run, **options)

    monkeypatch.setattr(loop, "call_at", counted)
    return passed


@pytest.mark.req("C8")
async def test_no_timer_passes_between_a_completion_and_the_claim_that_refills_its_slot(
    one: Instance, timers_passed: list[float]
) -> None:
    """Without delay: no timer has to run out first. Counted on the loop, so that a slow machine changes nothing."""
    worker = await one.worker(slots=1)
    await one.submit(2)
    delivery = await worker.take()
    claim = one.store.before["claim"] = Hold()
    one.renewer.stop()  # else its own timer runs out every half second
    await one.died("renewals")
    timers_passed.clear()
    worker.complete(delivery)
    worker.ready(1)
    await claim.reached()
    assert timers_passed == []
    claim.release()
    await worker.take()


@pytest.mark.req("C5")
async def test_no_timer_passes_between_a_submit_and_the_claim_that_takes_it(
    one: Instance, timers_passed: list[float]
) -> None:
    worker = await one.worker(slots=1)
    await soon(lambda: one.store.got, "the first look found nothing")
    claim = one.store.before["claim"] = Hold()
    one.renewer.stop()  # else its own timer runs out every half second
    await one.died("renewals")
    timers_passed.clear()
    await one.submit()
    await claim.reached()
    assert timers_passed == []
    claim.release()
    await worker.take()


@pytest.mark.req("D7", "D22")
async def test_a_submit_wakes_it_and_a_finished_job_wakes_it(one: Instance) -> None:
    worker = await one.worker(slots=1, handler=completing())
    await soon(lambda: one.store.got, "the first look found nothing")
    await one.submit()  # the tick is an hour away
    await soon(lambda: worker.tracker.runs, "it has started")
    await one.submit(2)  # the submit starts the first, its end the second
    await one.reach(3, State.COMPLETED)
    assert worker.tracker.most == 1


@pytest.mark.req("C6")
async def test_credit_that_a_claim_does_not_use_is_given_back_at_once(stepped: Instance) -> None:
    await stepped.submit(3)
    worker = await stepped.worker(slots=10)
    assert await stepped.claimer.run_once() == 3
    assert stepped.free() == 7
    assert len(await worker.take()) == 3
    await stepped.submit(9)
    assert await stepped.claimer.run_once() == 7  # without another word from the worker
    assert stepped.free() == 0


@pytest.mark.req("T4")
async def test_a_freed_slot_is_filled_by_one_claim_and_no_tick(one: Instance) -> None:
    """How long that takes is measured by `make bench` (refill of a freed slot): the median is below 20 ms."""
    await one.submit(40)
    worker = await one.worker(slots=1)
    delivery = await worker.take()
    ticks, claims = one.ticker.ticks, one.claimer.claims
    for _ in range(19):
        worker.complete(delivery)
        worker.ready(1)
        delivery = await worker.take()
    assert one.claimer.claims - claims == 19
    assert one.ticker.ticks == ticks


@pytest.mark.req("T5", "D12")
@pytest.mark.parametrize(("claim_limit", "credit"), [(7, 3), (7, 7), (7, 20)])
async def test_one_claim_is_one_call_of_at_most_the_cap_and_the_credit(
    database: str, claim_limit: int, credit: int
) -> None:
    async with Instance(database, running=False, claim_limit=claim_limit) as one:
        await one.submit(50)
        await one.store.count_statements()
        await one.worker(slots=credit)
        assert await one.claimer.run_once() == min(claim_limit, credit)
        assert await one.store.sent() == 1
        while await one.claimer.run_once():
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

    await asyncio.wait_for(work(), 60)
    await one.flushed()
    assert (await one.states())[State.COMPLETED] == 10_000
    assert one.store.calls["claim"] <= 45, "twenty would do with flushes of 500"
    assert one.store.calls["settle"] <= 45


@pytest.mark.req("C9", "C10", "T6")
async def test_fifty_sessions_cost_as_much_as_one(stepped: Instance) -> None:
    await stepped.store.count_statements()
    workers = [await stepped.worker(slots=4) for _ in range(50)]
    await stepped.claimer.run_once()
    assert stepped.store.calls == {"claim": 1}
    await stepped.ticker.run_once()  # it reads the name that is new, once
    before = await stepped.store.sent()
    for _ in range(3):  # idle: the tick alone, and nothing else
        await stepped.ticker.run_once()
        await stepped.claimer.run_once()
    assert await stepped.store.sent() - before == 3
    assert (stepped.store.calls["claim"], stepped.store.calls["tick"]) == (1, 4)
    await stepped.submit(1)
    await stepped.claimer.run_once()
    assert stepped.store.calls["claim"] == 2  # one wake, one claim, one session served
    assert sum(worker.session.held != {} for worker in workers) == 1


@pytest.mark.req("T6")
async def test_an_idle_instance_asks_once_a_tick_whatever_is_connected(database: str) -> None:
    async with Instance(database, tick_seconds=0.05) as one:
        await one.store.count_statements()
        for number in range(20):
            await one.worker(f"w{number}", f"topic{number % 5}", slots=3)
        await soon(lambda: len(one.store.got) >= 5, "every demand has looked once")
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
def test_the_claimer_takes_no_executor_of_batches() -> None:
    assert set(inspect.signature(Claimer).parameters) == {
        "store",
        "demands",
        "gate",
        "limit_timers",
        "abandon_unsent",
        "end_late",
        "claim_limit",
        "tallies",
        "trace",
        "mismatch",
    }


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


# ---------------------------------------------------------------------- fairness, groups


async def test_jobs_that_trickle_in_are_spread_over_all_sessions(stepped: Instance) -> None:
    workers = [await stepped.worker(slots=10) for _ in range(3)]
    for _ in range(12):
        await stepped.submit()
        assert await stepped.claimer.run_once() == 1
    assert [len(worker.session.held) for worker in workers] == [4, 4, 4]


@pytest.mark.parametrize(("claim_limit", "credit"), [(4, 3), (2, 5), (3, 1), (500, 2)])
async def test_fewer_jobs_than_credit_reach_every_session_in_turn(database: str, claim_limit: int, credit: int) -> None:
    async with Instance(database, running=False, claim_limit=claim_limit) as one:
        workers = [await one.worker(slots=credit) for _ in range(5)]
        for _ in range(5 * credit):
            await one.submit()
            await one.claimer.run_once()
        assert [len(worker.session.held) for worker in workers] == [credit] * 5


async def test_sessions_that_want_the_same_share_a_claim_and_others_have_their_own(stepped: Instance) -> None:
    minute = timedelta(minutes=1)
    await stepped.worker("a", "mail", "sms", slots=1)
    await stepped.worker("b", "sms", "mail", slots=1)  # the same topics, in another order
    await stepped.worker("c", "mail", slots=1)
    await stepped.worker("d", "mail", "sms", slots=1, lease=2 * minute)
    await stepped.worker("e", "mail", "sms", slots=1, tenant="other")
    await stepped.submit(10)
    assert await stepped.claimer.run_once() == 4
    groups = Counter(asked.workers for asked in stepped.store.asked[:4])
    assert groups == {("a", "b"): 1, ("c",): 1, ("d",): 1, ("e",): 1}


async def test_the_worker_on_the_row_is_the_one_that_gets_the_job(stepped: Instance, db: Connection) -> None:
    workers = [await stepped.worker(slots=3) for _ in range(4)]
    await stepped.submit(10)
    assert await stepped.claimer.run_once() == 10
    for worker in workers:
        rows = await db.fetch("SELECT id FROM headgate.jobs WHERE worker = $1", worker.session.worker_id)
        assert {row[0] for row in rows} == set(worker.session.held)


async def test_a_session_that_comes_and_goes_leaves_nothing_behind(stepped: Instance) -> None:
    stays = await stepped.worker("stays", slots=1)
    await stepped.submit(1)
    assert await stepped.claimer.run_once() == 1
    for number in range(5):
        passing = await stepped.worker(f"passing{number}", slots=2)
        await stepped.claimer.run_once()
        passing.lose()
    assert len(stepped.demands.by_wanted) == 1  # the one that is busy counts as well
    assert len(stays.session.credit) == 1
    stays.lose()
    assert not stepped.demands.by_wanted
    assert not stepped.demands.by_topic


async def test_a_session_that_ends_during_its_claim_leaves_nothing_behind(one: Instance) -> None:
    hold = one.store.after["claim"] = Hold()
    (job,) = await one.submit()
    worker = await one.worker(slots=3)
    await hold.reached()
    worker.lose()
    hold.release()
    await soon(lambda: not one.demands.by_wanted, "the demand is dropped")
    await one.flushed()
    view = await one.job(job)
    assert (view.state, view.attempt) == (State.PENDING, 0)


async def test_nothing_is_claimed_for_a_session_that_has_ended_and_does_not_know_yet(stepped: Instance) -> None:
    await stepped.submit(6)
    silent = await stepped.worker("silent", slots=3)
    good = await stepped.worker("good", slots=3)
    silent.session.end(SessionSilent("not heard of"))
    assert await stepped.claimer.run_once() == 3
    assert (len(silent.session.held), len(good.session.held)) == (0, 3)
    assert stepped.free() == 0
