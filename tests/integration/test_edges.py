"""Edges of leases and due times: when a lease begins, ends of ranges, one id under two tenants, late credit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Outcome
from headgate.domain.states import Receipt, State
from headgate.store import dependencies, leases, reads, verbs
from headgate.store.connect import Connection, connect
from headgate.store.topics import TopicStore
from tests.support import store_calls
from tests.support.dispatch_waits import ManualClock, soon
from tests.support.dispatch_workers import completing, waiting_for
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue, new_id
from tests.support.waiting import until_async

MICRO, SECOND, MINUTE = timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=1)
DIES = Failed(error=ErrorInfo(type="ValueError", message="boom"), permanent=True)
WAITERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def after_a_wait(db: Connection, clock: Clock, call: Coroutine[Any, Any, Any], lock: Connection) -> Any:
    """Start a call that waits for another transaction's lock; half a minute later the lock is gone."""
    task = asyncio.create_task(call)

    async def waits() -> bool:
        return bool(await db.fetchval(WAITERS))

    await until_async(waits, "the call waits for the lock")
    await clock.advance(seconds=30)
    await lock.execute("ROLLBACK")
    return await asyncio.wait_for(task, 10)


# ---------------------------------------------------------------------- a lease begins when the row is taken


async def lease_of(db: Connection, job: UUID) -> tuple[datetime, datetime]:
    row = await db.fetchrow("SELECT claimed_at, lease_until FROM headgate.jobs WHERE id = $1", job)
    return row["claimed_at"], row["lease_until"]


@pytest.mark.parametrize("behind", ["a pause", "a limit"])
async def test_a_lease_begins_after_the_claim_has_waited(
    database: str, db: Connection, clock: Clock, queue: Queue, behind: str
) -> None:
    async with Instance(database, running=False) as one:
        if behind == "a limit":
            await TopicStore(one.store).set_topic(
                one.tenant, "mail", rules={}, limits={"max_running": 5}, actor="", reason=""
            )
        (job,) = await one.submit(1)
        await one.worker(slots=1)
        lock = await connect(database, application_name="a stranger")
        await lock.execute("BEGIN")
        if behind == "a pause":
            await lock.execute("SELECT pg_advisory_xact_lock(4847423, 1)")
        else:
            assert await lock.fetch("SELECT FROM headgate.limit_usage FOR UPDATE")
        assert await after_a_wait(db, clock, one.claimer.run_once(), lock) == 1
        await lock.close()
    assert await lease_of(db, job) == (clock.now, clock.now + MINUTE)


async def test_a_lease_begins_after_a_submit_that_claims_has_waited(
    database: str, db: Connection, clock: Clock
) -> None:
    async with Instance(database, running=False, claims_along=True) as one:
        await one.worker(slots=1)
        assert await one.claimer.run_once() == 0
        lock = await connect(database, application_name="a stranger")
        await lock.execute("BEGIN")
        await lock.execute("SELECT pg_advisory_xact_lock(4847423, 1)")
        (job,) = await after_a_wait(db, clock, one.submit(1), lock)
        await lock.close()
        assert one.store.calls["submit_and_claim"] == 1
    assert await lease_of(db, job) == (clock.now, clock.now + MINUTE)


# ---------------------------------------------------------------------- ends of ranges


async def test_a_job_is_due_at_its_very_microsecond_and_not_before(queue: Queue, clock: Clock) -> None:
    (job,) = await queue.add(1, delay=SECOND)
    await clock.advance(seconds=1, microseconds=-1)
    assert await store_calls.promote(queue.db) == []
    await clock.advance(microseconds=1)
    assert [one.id for one in await store_calls.promote(queue.db)] == [job]


async def test_a_lease_that_ends_now_is_not_over(queue: Queue, clock: Clock) -> None:
    (job,) = await queue.add()
    await queue.claim(lease=MINUTE)
    await clock.advance(minutes=1)
    assert await leases.reap(queue.db) == []
    await clock.advance(microseconds=1)
    assert [one.id for one in await leases.reap(queue.db)] == [job]


async def test_what_lies_exactly_on_a_floor_is_found(queue: Queue, clock: Clock) -> None:
    began = clock.now
    (runs,) = await queue.add()
    await queue.claim(lease=MINUTE)
    (waits,) = await queue.add(1, delay=SECOND)
    due = began + SECOND
    assert await store_calls.next_due(queue.db, floor=due) == due
    assert await store_calls.next_due(queue.db, floor=due + MICRO) is None
    assert await store_calls.oldest_running(queue.db, floor=began) == began
    assert await store_calls.oldest_running(queue.db, floor=began + MICRO) is None
    await clock.advance(minutes=2)
    assert await store_calls.promote(queue.db, floor=due + MICRO) == []
    assert [one.id for one in await store_calls.promote(queue.db, floor=due)] == [waits]
    assert await leases.reap(queue.db, floor=began + MICRO) == []
    assert [one.id for one in await leases.reap(queue.db, floor=began)] == [runs]


async def test_exactly_as_many_as_asked_are_promoted_and_reaped(queue: Queue, clock: Clock) -> None:
    await queue.add(3)
    await queue.claim(lease=MINUTE)
    await queue.add(3, delay=SECOND)
    await clock.advance(minutes=2)
    assert [len(await store_calls.promote(queue.db, limit=2)) for _ in range(3)] == [2, 1, 0]
    assert [len(await leases.reap(queue.db, limit=2)) for _ in range(3)] == [2, 1, 0]


# ---------------------------------------------------------------------- one id under two tenants


async def test_of_one_id_under_two_tenants_each_is_promoted_in_its_own_time(db: Connection, clock: Clock) -> None:
    one, two = Queue(db, tenant="acme"), Queue(db, tenant="globex")
    job = new_id()
    await one.submit(one.job(id=job, delay=SECOND))
    await two.submit(two.job(id=job, delay=MINUTE))
    (other,) = await two.add(1, delay=SECOND)  # so that the call is about both tenants
    await clock.advance(seconds=1)
    found = {(got.tenant_no, got.topic_no, got.id) for got in await store_calls.promote(db)}
    mine, theirs = await one.topic(), await two.topic()
    assert found == {(mine.tenant_no, mine.no, job), (theirs.tenant_no, theirs.no, other)}
    view = await reads.get(db, theirs.tenant_no, job)
    assert view.state is State.SCHEDULED
    await clock.advance(minutes=1)
    assert [(got.tenant_no, got.id) for got in await store_calls.promote(db)] == [(theirs.tenant_no, job)]


async def test_a_promotion_wakes_the_topic_of_its_own_tenant(database: str, clock: Clock) -> None:
    async with Instance(database, running=False) as one:
        acme = await one.worker("a", slots=1)
        globex = await one.worker("g", slots=1, tenant="globex")
        assert await one.claimer.run_once() == 0
        (job,) = await one.submit(1, tenant="globex", delay=SECOND)
        await clock.advance(seconds=1)
        asked = len(one.store.asked)
        await one.ticker.run_once()
        assert await one.claimer.run_once() == 1
        assert [(call.tenant_no, call.hints) for call in one.store.asked[asked:]] == [
            (globex.session.tenant_no, (job,))
        ]
        assert list((await globex.take()).ids) == [job]
        assert not acme.session.held


async def test_of_one_id_under_two_tenants_only_the_expired_attempt_is_reaped_and_only_its_worker_is_notified(
    database: str, db: Connection, clock: Clock, seconds: ManualClock
) -> None:
    async with Instance(database, running=False, now=seconds) as one:
        job = new_id()
        for tenant in ("acme", "globex"):
            queue = Queue(db, tenant=tenant)
            await queue.submit(queue.job(id=job))
        acme = await one.worker("w", slots=1)
        globex = await one.worker("w", slots=1, tenant="globex")
        assert await one.claimer.run_once() == 2
        ours, theirs = await acme.take(), await globex.take()
        await clock.advance(seconds=61)
        held = {(globex.session.tenant_no, 60_000): ([job], list(theirs.epochs))}
        assert await one.store.renew(held) == {}
        assert (await one.ticker.run_once()).reaped == 1
        seconds.advance(31)
        acme.session.mark_seen()
        globex.session.mark_seen()
        assert await one.renewer.run_once() == 1
        assert [(one_, epoch) for one_, epoch in (await acme.hear()).lost] == [(job, ours.epochs[0])]
        assert not acme.session.held
        assert globex.session.holds(job, theirs.epochs[0])
        assert not globex.told


async def test_of_two_holders_of_one_job_only_the_older_epoch_is_lost(
    database: str, clock: Clock, seconds: ManualClock
) -> None:
    async with Instance(database, running=False, now=seconds) as one:
        (job,) = await one.submit(1)
        older = await one.worker("older", slots=1)
        assert await one.claimer.run_once() == 1
        first = (await older.take()).epochs[0]
        await clock.advance(seconds=61)
        assert (await one.ticker.run_once()).reaped == 1
        await clock.advance(hours=1)
        await one.ticker.run_once()
        newer = await one.worker("newer", slots=1)
        assert await one.claimer.run_once() == 1
        second = (await newer.take()).epochs[0]
        assert second > first
        seconds.advance(31)
        for worker in (older, newer):
            worker.session.mark_seen()
        assert await one.renewer.run_once() == 1
        assert list((await older.hear()).lost) == [(job, first)]
        assert newer.session.holds(job, second)
        assert not newer.told


# ---------------------------------------------------------------------- redriven parents


@pytest.mark.parametrize("body", [None, b"small", b"L" * 5_000])
async def test_a_child_waits_for_its_parent_through_any_number_of_redrives(queue: Queue, body: bytes | None) -> None:
    (parent,) = await queue.add()
    tenant = await queue.tenant_no()
    (child,) = await queue.add(1, "other", depends_on=[parent], on_parent_failure="block")

    async def ends(outcome: Completed | Failed) -> list[UUID]:
        claimed = await queue.claim()
        assert claimed.ids == (parent,)
        await queue.settle((parent, claimed.epochs[0], outcome))
        return [job_id for _, _, job_id in (await dependencies.unblock_ready(queue.db))[0]]

    for _ in range(2):
        assert await ends(DIES) == []
        assert (await reads.get(queue.db, tenant, child)).state is State.BLOCKED
        await verbs.redrive(queue.db, tenant, [parent], **({} if body is None else {"payloads": [body]}))
    assert await ends(Completed()) == [child]
    assert (await queue.claim(1, "other")).ids == (child,)


# ---------------------------------------------------------------------- credit that comes later than the job


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_job_that_came_while_all_slots_were_taken_starts_when_one_falls_free(database: str, where: str) -> None:
    async with Instance(database) as one, Instance(database, name="two") as two:
        await soon(lambda: one.ticker.ticks and two.ticker.ticks, "both have ticked; the next is an hour away")
        busy = asyncio.Event()
        worker = await one.worker(slots=1, handler=waiting_for(busy))
        (first,) = await one.submit(1)
        await soon(lambda: worker.tracker.now == 1, "its slot is taken")
        (second,) = await (one if where == "here" else two).submit(1)
        busy.set()
        await soon(lambda: worker.tracker.times[second] == 1, "the second one has started")
        assert worker.tracker.times[first] == 1


async def test_a_job_that_fell_due_while_all_slots_were_taken_starts_when_one_falls_free(database: str) -> None:
    async with Instance(database) as one:
        await soon(lambda: one.ticker.ticks, "it has ticked")
        busy = asyncio.Event()
        worker = await one.worker(slots=1, handler=waiting_for(busy))
        await one.submit(1)
        await soon(lambda: worker.tracker.now == 1, "its slot is taken")
        (late,) = await one.submit(1, delay=timedelta(milliseconds=50))
        await one.reach(1, State.PENDING)
        busy.set()
        await soon(lambda: worker.tracker.times[late] == 1, "it has started")


async def test_a_job_starts_at_a_worker_that_connects_after_it_was_promoted(database: str) -> None:
    async with Instance(database) as one:
        await soon(lambda: one.ticker.ticks, "it has ticked")
        (late,) = await one.submit(1, delay=timedelta(milliseconds=50))
        await one.reach(1, State.PENDING)
        worker = await one.worker(slots=1, handler=completing())
        await soon(lambda: worker.tracker.times[late] == 1, "it has started")


@pytest.mark.parametrize("outcome", [Completed(), Failed(error=ErrorInfo(type="Oops"))], ids=["completed", "failed"])
async def test_the_answer_to_an_outcome_that_is_known_already_waits_for_a_commit_of_its_own(
    queue: Queue, outcome: Outcome
) -> None:
    """With synchronous replication: what it is about may be seen here before a standby has it."""
    (job_id,) = await queue.add()
    epoch = (await queue.claim()).epochs[0]
    await queue.settle((job_id, epoch, outcome))
    async with queue.db.transaction():
        assert [one.receipt for one in await queue.settle((job_id, epoch, outcome))] == [Receipt.DUPLICATE]
        assert await queue.db.fetchval("SELECT pg_current_xact_id_if_assigned()") is not None


async def test_a_thousand_characters_of_an_error_stay_with_the_job(queue: Queue) -> None:
    (job_id,) = await queue.add()
    epoch = (await queue.claim()).epochs[0]
    await queue.settle((job_id, epoch, Failed(error=ErrorInfo(type="Oops", message="x" * 2_000))))
    assert (await reads.get(queue.db, await queue.tenant_no(), job_id)).last_error == ("Oops: " + "x" * 2_000)[:1_000]
