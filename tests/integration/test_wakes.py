"""What starts a job and what asking costs: wakes here, a word to other instances, and many jobs by few statements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from statistics import median

import pytest

from headgate.dispatch import listener
from headgate.dispatch.listener import PacedWakes
from headgate.dispatch.tick_times import HINTS_APART, TICK_SECONDS
from headgate.domain.outcomes import Completed
from headgate.domain.states import State
from headgate.domain.wakes import JobsDue, TopicReady, TopicSubmitted, Wake
from headgate.store.connect import Connection, connect
from headgate.store.notifications import CHANNEL
from tests.support.dispatch_waits import settle_down, soon
from tests.support.dispatch_workers import completing
from tests.support.dispatching import Instance
from tests.support.queue import Queue, stranger


@pytest.mark.req("O1")
async def test_a_submit_starts_a_job_at_the_cost_of_one_claim_and_of_no_tick(database: str) -> None:
    async with Instance(database) as one:  # its tick is an hour away
        worker = await one.worker(slots=2)
        await soon(lambda: one.store.got and one.ticker.ticks, "it has looked in vain")
        await one.store.count_statements()
        await one.submit()  # what is asked once per topic and session is not counted
        await worker.take()
        claims, ticks, sent = one.store.calls["claim"], one.ticker.ticks, await one.store.sent()
        (job,) = await one.submit()
        assert list((await worker.take()).ids) == [job]
        await settle_down()
        assert one.store.calls["claim"] - claims <= 1
        assert await one.store.sent() - sent <= 2, "the submit and one claim"
        assert one.ticker.ticks == ticks
    assert TICK_SECONDS >= 1, "the poll is only a net"


@pytest.mark.req("O2")
async def test_credit_of_all_sessions_is_one_sum_and_without_credit_or_work_nothing_is_asked(database: str) -> None:
    async with Instance(database, running=False) as one:
        await one.submit(35)
        workers = [await one.worker(f"w{number}", slots=3) for number in range(10)]
        assert await one.claimer.run_once() == 30
        assert [asked.limit for asked in one.store.asked] == [30]
        await one.store.count_statements()
        for _ in range(5):
            one.demands.wake_all()
            assert await one.claimer.run_once() == 0
        assert await one.store.sent() == 0, "there is work, and no credit"
        for worker in workers:
            worker.ready(3)
        assert await one.claimer.run_once() == 5
        await one.ticker.run_once()  # it reads the name that is new, once
        assert await one.claimer.run_once() == 0
        sent = await one.store.sent()
        for _ in range(3):
            await one.ticker.run_once()
            assert await one.claimer.run_once() == 0
        assert await one.store.sent() - sent == 3, "there is credit, and nothing due: one look a tick"


async def test_a_tick_for_a_due_job_looks_at_no_running_jobs_and_one_for_a_verb_does(database: str) -> None:
    """Many come in a second while jobs are retried, and running jobs may be many dead rows."""
    async with Instance(database) as one:  # the next full tick is an hour away
        await soon(lambda: one.ticker.ticks, "it has ticked")
        looked = one.store.tick_running
        before = len(looked)
        await one.submit(delay=timedelta(milliseconds=50))
        await one.reach(1, State.PENDING)
        assert len(looked) > before
        assert not any(looked[before:])
        before = len(looked)
        await one.wakes.control_changed()
        await soon(lambda: len(looked) > before, "another tick")
        assert looked[before]


@pytest.mark.req("O3", "O4", "D25")
async def test_a_job_starts_on_another_instance_at_once_and_by_the_tick_if_the_notification_is_lost(
    database: str,
) -> None:
    """Nothing but PostgreSQL lies between the two, and no tick helps: theirs are an hour away."""
    async with Instance(database) as one, Instance(database, name="two") as two:
        one.start("announcements", one.wakes.run())
        two.start("words", two.store.listen(two.wakes.follow))
        worker = await two.worker(slots=3, handler=completing())
        await soon(lambda: two.store._listener is not None and two.store.got, "two listens, and has looked in vain")
        await soon(lambda: one.ticker.ticks and two.ticker.ticks, "both have ticked")
        await one.ticker.run_once()
        assert one.wakes.others == 1
        ticks = two.ticker.ticks

        async def pickup() -> float:
            began = time.monotonic()
            (job,) = await one.submit()
            await soon(lambda: worker.tracker.times[job] == 1, "it has begun over there")
            return time.monotonic() - began

        waits = [await pickup() for _ in range(9)]
        assert median(waits) < 5, waits
        assert two.ticker.ticks == ticks
        await one.reach(9, State.COMPLETED)
        words = two.tasks.pop("words")
        words.cancel()
        await asyncio.gather(words, return_exceptions=True)
        told = one.store.calls["notify"]
        await one.submit()
        await soon(lambda: one.store.calls["notify"] > told, "a word that nobody hears")
        assert worker.tracker.times.total() == 9
        await two.ticker.run_once()
        await one.reach(10, State.COMPLETED)
        assert worker.tracker.times.total() == 10


@pytest.mark.req("O4")
async def test_a_notification_is_not_part_of_a_submit_and_covers_many(database: str, db: Connection) -> None:
    """Words arrive in the order of their commits: if the first to arrive is a later one, a submit has sent none."""
    heard: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    ear = await connect(database, application_name="headgate test")
    try:
        await ear.add_listener(CHANNEL, lambda _db, pid, _channel, text: heard.put_nowait((pid, str(text))))
        queue = Queue(db)
        await queue.add(3)
        async with Instance(database) as one:
            one.wakes.apart_seconds = 0.2
            one.start("announcements", one.wakes.run())
            await one.submit(5)
            await soon(lambda: not one.wakes._unannounced, "there is no other instance to notify")
            await db.execute("SELECT pg_notify($1, 'later')", CHANNEL)
            assert (await asyncio.wait_for(heard.get(), 60))[1] == "later"

            async with Instance(database, name="two", running=False) as two:
                await two.ticker.run_once()
                await one.ticker.run_once()
                assert one.wakes.others == 1
                (topic_no,) = await one.topic_nos("mail")
                began = time.monotonic()
                for _ in range(60):
                    await one.submit()
                pid, text = await asyncio.wait_for(heard.get(), 60)
                await soon(lambda: not one.wakes._unannounced, "all was announced")
                most = (time.monotonic() - began) / 0.2 + 2
                assert text == str(topic_no)
                assert 1 <= one.store.calls["notify"] <= most < 60
                name = await db.fetchval("SELECT application_name FROM pg_stat_activity WHERE pid = $1", pid)
                assert name == "headgate tick", "not the session that submits"
    finally:
        await ear.close()


TAKE_KEY = """
INSERT INTO headgate.unique_jobs SELECT tenant_no, id, topic_no, 'k', true FROM headgate.jobs WHERE id = $1"""
SQL = "SELECT headgate.submit('mail', 'x'::bytea, tenant => 'acme'"


@asynccontextmanager
async def listening(
    one: Instance, on_notify: Callable[[Iterable[Wake]], None] | None = None
) -> AsyncIterator[list[str]]:
    """An instance that follows notifications, and what was sent to it."""
    heard: list[str] = []
    ear = await connect(one.store._dsn, application_name="headgate test")
    try:
        await ear.add_listener(CHANNEL, lambda _db, _pid, _channel, text: heard.append(str(text)))
        one.start("words", one.store.listen(on_notify or one.wakes.follow))
        await soon(lambda: getattr(one.store._listener, "_listeners", None), "it listens")
        await soon(lambda: one.ticker.ticks, "the first tick is over")
        yield heard
    finally:
        await ear.close()


async def test_a_job_of_an_applications_transaction_is_claimed_at_the_commit_without_a_tick(
    one: Instance, db: Connection
) -> None:
    worker = await one.worker(slots=10)
    (topic_no,) = await one.topic_nos("mail")
    async with listening(one) as heard:
        await soon(lambda: one.store.got, "it has looked in vain")
        ticks = one.ticker.ticks
        async with db.transaction():
            jobs = [await db.fetchval(f"{SQL})") for _ in range(3)]
            await one.store.notify({TopicReady(9)})
            await soon(lambda: heard, "a notification of another session")
        assert set((await worker.take()).ids) == set(jobs)
        await soon(lambda: len(heard) > 1, "the notification")
        assert heard == ["9", f"s{topic_no}"], "one for the whole transaction, at its commit"
        assert one.ticker.ticks == ticks, "no tick took part"

        transaction = db.transaction()
        await transaction.start()
        await db.fetchval(f"{SQL})")
        await transaction.rollback()
        await db.execute("SET headgate.wake = off")
        await db.fetchval(f"{SQL})")
        await db.execute("RESET headgate.wake; SELECT pg_notify('headgate_topics', 'later')")
        await soon(lambda: len(heard) > 2, "a later notification")
        assert heard[2:] == ["later"], "neither a rollback nor wake = off sends one"


async def test_of_transactions_that_commit_at_the_same_time_one_notifies_and_all_are_claimed_without_a_tick(
    one: Instance, db: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "AGAIN_SECONDS", 3600)  # the second look is the test's own
    worker = await one.worker(slots=10)
    (topic_no,) = await one.topic_nos("mail")
    paced = PacedWakes(one.wakes.follow, one.demands.wake_all)
    async with listening(one, paced.on_notify) as heard, stranger(database) as committing:
        ticks = one.ticker.ticks
        # As one that is between the decision to notify and the end of its commit.
        await committing.execute("SELECT pg_advisory_xact_lock(4847424, $1)", topic_no)
        silent = await db.fetchval(f"{SQL})")
        await one.store.notify({TopicSubmitted(topic_no)})  # what that one sends
        assert list((await worker.take()).ids) == [silent]
        late = await db.fetchval(f"{SQL})")  # committed after it was followed
        await one.store.notify({TopicReady(9)})
        await soon(lambda: len(heard) > 1, "a later notification")
        assert heard == [f"s{topic_no}", "9"], "the two have left theirs out"
        paced._look_again()
        assert list((await worker.take()).ids) == [late]
        assert one.ticker.ticks == ticks


async def test_of_transactions_that_commit_at_the_same_time_one_asks_for_a_tick_and_another_tick_follows(
    one: Instance, db: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "AGAIN_SECONDS", 3600)  # the second look is the test's own
    (topic_no,) = await one.topic_nos("mail")
    (holder,) = await one.submit()
    await db.execute(TAKE_KEY, holder)
    paced = PacedWakes(one.wakes.follow, one.demands.wake_all)
    async with listening(one, paced.on_notify) as heard, stranger(database) as committing:
        # As one that is between the decision to notify and the end of its commit.
        await committing.execute("SELECT pg_advisory_xact_lock(4847424, no) FROM unnest(ARRAY[0, $1]) AS no", topic_no)
        for option in (
            "limit_key => 'a'",
            "delay => '300 ms'",
            "unique_key => 'k'",
            f"depends_on => ARRAY['{holder}'::uuid]",
        ):
            await db.fetchval(f"{SQL}, {option})")
        ticks = one.ticker.ticks
        await one.store.notify({JobsDue()})  # what that one sends
        await soon(lambda: one.ticker.ticks > ticks, "its tick")
        assert heard == ["due"], "the others have left theirs out"
        ticks = one.ticker.ticks
        paced._look_again()
        await soon(lambda: one.ticker.ticks > ticks, "a second tick, for those")


async def test_jobs_that_fall_due_bring_at_most_a_tick_in_50_ms_however_many_are_announced(one: Instance) -> None:
    await soon(lambda: one.ticker.ticks, "the first tick is over")
    began, ticks = time.monotonic(), one.ticker.ticks
    async with asyncio.timeout(60):
        while one.ticker.ticks < ticks + 6:
            one.wakes.follow([JobsDue()])
            await asyncio.sleep(0)
    assert time.monotonic() - began >= 5 * HINTS_APART, "no six ticks in less than five times the distance"


@pytest.mark.parametrize(("option", "told"), [("", "s{topic_no}"), (", limit_key => 'a'", "due")])
async def test_a_transaction_that_lasts_keeps_no_other_from_notifying(
    one: Instance, db: Connection, database: str, option: str, told: str
) -> None:
    (topic_no,) = await one.topic_nos("mail")
    async with listening(one) as heard, stranger(database) as lasting:
        await lasting.fetchval(f"{SQL}{option})")
        await db.fetchval(f"{SQL}{option})")
        await soon(lambda: heard, "a notification")
        assert heard == [told.format(topic_no=topic_no)]


async def test_constraints_set_immediate_keep_the_topic_of_an_open_transaction_silent_until_its_end(
    one: Instance, db: Connection, database: str
) -> None:
    """As documented: the decision to notify is then made at the submit, not at the commit. No job is lost by it."""
    (topic_no,) = await one.topic_nos("mail")
    async with listening(one) as heard:
        async with stranger(database) as lasting:
            await lasting.execute("SET CONSTRAINTS ALL IMMEDIATE")
            await lasting.fetchval(f"{SQL})")
            silent = await db.fetchval(f"{SQL})")
            await one.store.notify({TopicReady(9)})
            await soon(lambda: heard, "a later notification")
            assert heard == ["9"]
            worker = await one.worker(slots=1)
            assert list((await worker.take()).ids) == [silent], "claimable all the same"
        await soon(lambda: len(heard) > 1, "the notification of the open transaction")
        assert heard == ["9", f"s{topic_no}"], "one, and at its commit"


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("limit_key => 'a'", "due"),
        ("delay => '300 ms'", "due"),
        ("run_at => clock_timestamp() + interval '300 ms'", "due"),
        ("depends_on => ARRAY['{ended}']::uuid[]", "due"),
        ("delay => '1 hour'", None),
        ("run_at => clock_timestamp() + interval '1 hour'", None),
    ],
)
async def test_a_job_that_falls_due_before_the_next_tick_brings_one(
    one: Instance, db: Connection, option: str, told: str | None
) -> None:
    queue = Queue(db)
    (ended,) = await queue.add()
    await queue.claim()
    await queue.settle((ended, 1, Completed()))
    async with listening(one) as heard:
        ticks = one.ticker.ticks
        await db.fetchval(f"{SQL}, {option.format(ended=ended)})")
        await db.execute("SELECT pg_notify('headgate_topics', 'later')")
        await soon(lambda: "later" in heard, "a later notification")
        assert heard[:-1] == ([] if told is None else [told])
        if told is None:
            assert one.ticker.ticks == ticks
        else:
            await soon(lambda: one.ticker.ticks > ticks, "a tick, though the next was an hour away")


async def test_jobs_that_an_applications_transaction_has_locked_are_looked_at_again_after_it(
    one: Instance, db: Connection
) -> None:
    (topic_no,) = await one.topic_nos("mail")
    parent, holder = await one.submit(2)
    async with listening(one) as heard:
        async with db.transaction():
            await db.fetchval(f"{SQL}, depends_on => $1::uuid[])", [parent])
        await soon(lambda: len(heard) == 2, "notifications")
        assert set(heard) == {f"s{topic_no}", "due"}
        await db.execute(TAKE_KEY, holder)
        assert await db.fetchval(f"{SQL}, unique_key => 'k')") == holder
        await soon(lambda: len(heard) == 4, "notifications")
        assert set(heard[2:]) == {f"s{topic_no}", "due"}


@pytest.mark.req("O20")
async def test_jobs_that_take_no_time_are_claimed_and_settled_many_at_a_time(database: str) -> None:
    """Each slot asks and answers for itself: a statement per job, or two, unless someone gathers them."""
    async with Instance(database) as one:
        await one.submit(2_000)
        workers = [await one.worker(f"w{number}", slots=10, handler=completing()) for number in range(10)]
        await one.reach(2_000, State.COMPLETED)
        assert sum(worker.tracker.times.total() for worker in workers) == 2_000
        assert max(worker.tracker.most for worker in workers) == 10
        print(f"{one.store.calls['claim']} claims, {one.store.calls['settle']} flushes of outcomes")  # noqa: T201
        assert one.store.calls["claim"] <= 200
        assert one.store.calls["settle"] <= 200
