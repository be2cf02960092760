"""Rows that a foreign transaction holds locked: no one else's lease depends on them, and they are not called lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.dispatch.progress import ProgressWriter
from headgate.domain.dispatching import Renewal
from headgate.domain.outcomes import Completed
from headgate.domain.states import Receipt, State
from headgate.store import leases
from headgate.store.connect import Connection, connect
from headgate.store.topics import TopicStore
from tests.support.dispatch_waits import ManualClock, settle_down
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Clock, stranger

SOON = 15.0
SKIPPED = Renewal(lost=False, cancel=False, skipped=True)
LOST = Renewal(lost=True, cancel=False)
DONE = Completed(result=b"r")
DEPENDING = "SELECT headgate.submit('mail', 'x'::bytea, tenant => 'acme', depends_on => $1::uuid[])"


@pytest.fixture
async def stepped(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """An instance that moves only when the test calls it; leases are of a minute."""
    async with Instance(database, running=False, now=seconds) as instance:
        yield instance


@asynccontextmanager
async def locking(database: str, ids: Sequence[UUID], strength: str = "UPDATE") -> AsyncIterator[None]:
    """A transaction of another client that has these rows locked and does not end."""
    assert strength in ("UPDATE", "SHARE")
    async with stranger(database) as session:
        rows = await session.fetch(f"SELECT FROM headgate.jobs WHERE id = ANY ($1) FOR {strength}", list(ids))
        assert len(rows) == len(ids)
        yield


async def holding(one: Instance, count: int) -> tuple[Worker, list[UUID]]:
    """A worker that was sent so many new jobs."""
    await one.submit(count)
    worker = await one.worker("w", slots=count)
    assert await one.claimer.run_once() == count
    return worker, list((await worker.take()).ids)


async def renewed(one: Instance) -> int:
    return await asyncio.wait_for(one.renewer.run_once(), SOON)


@pytest.mark.req("L3")
@pytest.mark.parametrize("first", ["the renewal", "the watchdog"])
async def test_two_locked_rows_cost_no_other_job_its_lease(
    database: str, stepped: Instance, seconds: ManualClock, clock: Clock, first: str
) -> None:
    worker, ids = await holding(stepped, 50)
    locked, free = ids[10:12], ids[:10] + ids[12:]
    async with locking(database, locked):
        for _ in range(5):  # two and a half leases
            seconds.advance(31)
            await clock.advance(seconds=31)
            worker.session.mark_seen()
            assert await renewed(stepped) == 48
            assert (await stepped.ticker.run_once()).reaped == 0
        for job in free:
            assert (await worker.report(job, 1, DONE)).receipt is Receipt.APPLIED
        assert set(worker.session.held) == set(locked), "still held, and asked for again at every pass"
        assert not worker.told, "nobody was told that a lease is lost"
        assert stepped.renewer.skipped == 10
    # They are free again, and their leases are over: the first claim gets them.
    if first == "the renewal":
        assert await renewed(stepped) == 2
        assert (await stepped.ticker.run_once()).reaped == 0
        assert await renewed(stepped) == 0, "renewed, hence not due"
    else:
        assert (await stepped.ticker.run_once()).reaped == 2
        assert await renewed(stepped) == 0
        assert {one for one, _ in (await worker.hear()).lost} == set(locked)
        assert not worker.session.held
    for job in locked:
        receipt = (await worker.report(job, 1, DONE)).receipt
        assert receipt is (Receipt.APPLIED if first == "the renewal" else Receipt.STALE)
    states = await stepped.states()
    assert states[State.COMPLETED] == (50 if first == "the renewal" else 48)


async def test_a_locked_row_is_renewed_as_soon_as_it_is_free(
    database: str, stepped: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    worker, (locked, free) = await holding(stepped, 2)
    seconds.advance(31)
    await clock.advance(seconds=31)
    worker.session.mark_seen()
    async with locking(database, [locked]):
        assert await renewed(stepped) == 1
        assert await renewed(stepped) == 0  # asked again, and only it
        assert stepped.store.renewed_rows == 3
    before = await db.fetchval("SELECT lease_until FROM headgate.jobs WHERE id = $1", locked)
    assert await renewed(stepped) == 1
    after = await db.fetchval("SELECT lease_until FROM headgate.jobs WHERE id = $1", locked)
    assert after - before == timedelta(seconds=31)
    assert set(worker.session.held) == {locked, free}


@pytest.mark.parametrize("passes", [1, 2])
async def test_a_running_job_that_an_open_transaction_depends_on_is_not_reaped_and_then_renewed(
    database: str, stepped: Instance, seconds: ManualClock, clock: Clock, passes: int
) -> None:
    """Half a lease, as documented, and longer than a whole one."""
    worker, (job,) = await holding(stepped, 1)
    async with stranger(database) as application:
        await application.fetchval(DEPENDING, [job])
        for _ in range(passes):
            seconds.advance(31)
            await clock.advance(seconds=31)
            worker.session.mark_seen()
            assert await renewed(stepped) == 0
            assert (await stepped.ticker.run_once()).reaped == 0
        assert stepped.renewer.skipped == passes
    if passes == 1:
        assert (await stepped.ticker.run_once()).reaped == 0, "half a lease is left for the renewal"
    assert await renewed(stepped) == 1
    assert (await stepped.ticker.run_once()).reaped == 0
    assert (await worker.report(job, 1, DONE)).receipt is Receipt.APPLIED


async def test_what_a_worker_declares_while_it_is_locked_is_neither_lost_nor_taken_as_renewed(
    database: str, stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (locked, free, gone) = await holding(stepped, 3)
    await worker.report(gone, 1, DONE)
    worker.lose()
    back = await stepped.worker("w")
    async with locking(database, [locked]):
        epochs = await stepped.epochs([locked, free, gone])
        declared = stepped.renewer.declare(back.session, [locked, free, gone], epochs, 60_000)
        assert await asyncio.wait_for(declared, SOON) == [(gone, epochs[2])]
        assert set(back.session.held) == {locked, free}
        assert await stepped.store.abandon_undeclared(back.session.tenant_no, "w", list(back.session.held)) == []
        assert await renewed(stepped) == 0
    assert await renewed(stepped) == 1, "due at once, for nobody has renewed it here"
    await settle_down()
    assert (await back.report(locked, 1, DONE)).receipt is Receipt.APPLIED


async def test_a_worker_that_is_back_does_not_wait_for_what_a_limit_counts(
    database: str, stepped: Instance, db: Connection
) -> None:
    await TopicStore(stepped.store).set_topic(
        stepped.tenant, "mail", rules={}, limits={"max_running": 5}, actor="test", reason=""
    )
    worker, (job,) = await holding(stepped, 1)
    worker.lose()
    back = await stepped.worker("w")
    async with stranger(database, "SELECT FROM headgate.limit_usage FOR UPDATE"):
        waiting = stepped.store.abandon_undeclared(back.session.tenant_no, "w", [])
        assert await asyncio.wait_for(waiting, 5) == []  # half of what a session waits for a lock
    assert await stepped.store.abandon_undeclared(back.session.tenant_no, "w", []) == [job]


@pytest.mark.parametrize("strength", ["UPDATE", "SHARE"])
async def test_for_locked_rows_only_certain_answers_are_given(
    database: str, stepped: Instance, clock: Clock, strength: str
) -> None:
    worker, (mine, theirs) = await holding(stepped, 2)
    tenant = worker.session.tenant_no
    await clock.advance(seconds=61)
    my_first, their_first = await stepped.epochs([mine, theirs])
    await stepped.store.renew({(tenant, 60_000): ([mine], [my_first])})
    await stepped.ticker.run_once()
    await clock.advance(seconds=20)
    await stepped.ticker.run_once()
    other = await stepped.worker("successor", slots=1)
    assert await stepped.claimer.run_once() == 1
    assert list((await other.take()).ids) == [theirs]
    async with locking(database, [mine, theirs], strength):
        asked = {
            (tenant, 60_000): ([mine, theirs], [my_first, their_first]),
            (tenant, 30_000): ([theirs], [their_first + 1]),
        }
        answers = await asyncio.wait_for(stepped.store.renew(asked), SOON)
    assert answers == {
        (tenant, mine, my_first): SKIPPED,
        (tenant, theirs, their_first): LOST,  # a newer epoch has it, whatever holds its row now
        (tenant, theirs, their_first + 1): SKIPPED,
    }


async def test_progress_of_a_locked_row_keeps_no_renewal_waiting(
    database: str, stepped: Instance, db: Connection
) -> None:
    worker, (locked, free) = await holding(stepped, 2)
    async with locking(database, [locked]):
        words = {job: (worker.session.held[job][0], {"done": 7}) for job in (locked, free)}
        assert await asyncio.wait_for(stepped.store.progress(worker.session.tenant_no, words), SOON) == [locked]
    rows = await db.fetch("SELECT id, progress IS NULL FROM headgate.jobs")
    assert {row[0]: row[1] for row in rows} == {locked: True, free: False}


async def test_progress_of_a_locked_row_is_noted_in_a_later_round(
    database: str, stepped: Instance, db: Connection
) -> None:
    """A renewal of the same job at the same moment is such a lock, and a job may report only once."""
    worker, (once, twice) = await holding(stepped, 2)
    tenant, writer = worker.session.tenant_no, ProgressWriter(stepped.renewer.calls)
    for job in (once, twice):
        writer.note(tenant, job, worker.session.held[job][0], {"done": 1})
    async with locking(database, [once, twice]):
        assert await asyncio.wait_for(writer.run_once(), SOON) == 0
        writer.note(tenant, twice, worker.session.held[twice][0], {"done": 2})
        assert await asyncio.wait_for(writer.run_once(), SOON) == 0
    assert await writer.run_once() == 2
    rows = await db.fetch("SELECT id, progress->>'done' FROM headgate.jobs")
    assert {row[0]: row[1] for row in rows} == {once: "1", twice: "2"}
    assert await writer.run_once() == 0


async def test_a_renewal_passes_by_what_is_being_reaped(database: str, stepped: Instance, clock: Clock) -> None:
    worker, (job,) = await holding(stepped, 1)
    tenant, (epoch,) = worker.session.tenant_no, await stepped.epochs([job])
    asked = {(tenant, 60_000): ([job], [epoch])}
    await clock.advance(seconds=61)
    watchdog = await connect(database, application_name="watchdog")
    try:
        async with watchdog.transaction():
            assert [one.id for one in await leases.reap(watchdog)] == [job]
            assert await asyncio.wait_for(stepped.store.renew(asked), SOON) == {(tenant, job, epoch): SKIPPED}
        assert await stepped.store.renew(asked) == {(tenant, job, epoch): LOST}
    finally:
        await watchdog.close()
