"""Lost workers that come back in unusual ways: in several statements, to locked rows, without an incarnation."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import pytest

from headgate.dispatch.lease_calls import ROWS_AT_ONCE
from headgate.dispatch.lost_workers import reconnect_grace_of
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_rules import Hello
from headgate.dispatch.worker_calls import WorkerCalls
from headgate.domain.errors import StoreUnavailable
from headgate.domain.limits import LEASE_DEFAULT
from headgate.store.connect import Connection
from tests.integration.test_lost_workers import (
    GRACE,
    LEFT,
    OURS,
    Time,
    comes_back,
    holding,
    other,
    stepped,
    still_leased,
)
from tests.support.dispatch_waits import ManualClock, settle_down
from tests.support.dispatching import Instance
from tests.support.queue import Clock
from tests.support.watched_store import Hold, failing_with

__all__ = ["other", "stepped"]  # fixtures


async def renewing(time: Time, span: int, one: Instance, session: WorkerSession) -> int:
    """Time passes for a worker that is connected and beats; returns how many leases were ended."""
    expired = 0
    for _ in range(2 * span):
        session.mark_seen()
        await one.renewer.run_once()
        expired += await time.passes(0.5)
    return expired


def locking(one: Instance) -> AbstractAsyncContextManager[Connection]:
    return one.store.lane("upkeep").use()


LOCK = "SELECT FROM headgate.jobs WHERE id = ANY ($1) FOR NO KEY UPDATE"  # as a submit that depends on it does


# ---------------------------------------------------------------------- to another instance


async def test_a_worker_that_declares_many_jobs_in_turn_to_another_instance_keeps_all_of_them(
    stepped: Instance, other: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    """It is back a second before the grace ends, and the second statement comes seconds after it."""
    count = 2 * ROWS_AT_ONCE
    worker = await stepped.worker("w", slots=count, incarnation=7)
    await stepped.submit(count)
    while await stepped.claimer.run_once():
        pass
    ids = list[UUID]()
    while worker.session.unwritten():
        ids += (await worker.take()).ids
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    await time.passes(GRACE - 1)
    second, calls = Hold(), 0

    async def before() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            await second()

    other.store.before["renew"] = before
    connecting = asyncio.create_task(comes_back(other, ids[::-1]))  # the last ones first
    await second.reached()
    assert await time.passes(GRACE - 1) == 0
    second.release()
    await connecting
    assert await time.passes(GRACE + 2) == 0
    assert len(await still_leased(db)) == count
    assert len(stepped.lost_workers) == 0


async def test_what_a_worker_on_another_instance_does_not_take_over_ends_after_another_grace(
    stepped: Instance, other: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    """It is killed between two statements, for example."""
    worker, ids = await holding(stepped, 2)
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    await other.renewer.calls.renew(
        worker.session.tenant_no, 60_000, ids[:1], await stepped.epochs(ids[:1]), topics=None, declared=True
    )
    assert await time.passes(2 * GRACE - 1) == 0
    assert await time.passes(2) == 1
    assert await still_leased(db) == ids[:1]


@pytest.mark.parametrize("noticed", ["before", "after"])
async def test_a_job_that_is_locked_when_it_is_declared_is_taken_over_as_soon_as_it_is_free(
    stepped: Instance, other: Instance, db: Connection, seconds: ManualClock, clock: Clock, noticed: str
) -> None:
    worker, ids = await holding(stepped, 1)
    time = Time(seconds, clock, stepped, other)
    async with locking(stepped) as locker, locker.transaction():
        await locker.execute(LOCK, ids)
        if noticed == "before":
            worker.disconnect()
        session = await comes_back(other, ids)
        assert await renewing(time, 13, other, session) == 0  # locked for longer than the grace
        assert await time.passes(0.5) == 0
    assert await time.passes(0.5) == 0  # the instance that it left comes first, and looks again at this very moment
    assert await renewing(time, 3, other, session) == 0
    assert [row["owner"] for row in await db.fetch(LEFT)] == [other.store.instance_no]
    if noticed == "after":
        worker.disconnect()
    assert await renewing(time, round(GRACE) + 2, other, session) == 0
    assert await still_leased(db) == ids
    assert session.locked == set()


# ---------------------------------------------------------------------- to the same instance


async def lost_in_hello(one: Instance, ids: Sequence[UUID], meanwhile: Callable[[], None]) -> None:
    """The worker connects, and is killed before it is greeted."""
    epochs = await one.epochs(ids)
    hello = Hello(worker_id="w", incarnation=7, resumed=True, declared=len(ids), ids=lambda: list(ids), epochs=epochs)
    greeting = Hold()
    one.store.before["renew"] = greeting
    connecting = asyncio.create_task(one.rules.open(OURS, hello))
    await greeting.reached()
    meanwhile()
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    del one.store.before["renew"]


async def test_a_worker_that_is_killed_in_its_hello_is_lost_with_what_its_older_session_held(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 2)
    time = Time(seconds, clock, stepped)
    await lost_in_hello(stepped, ids, worker.disconnect)  # superseded by the hello
    assert await time.passes(GRACE - 1) == 0
    assert await time.passes(2) == 2
    assert await still_leased(db) == []


async def test_an_older_session_that_ends_after_the_hello_of_its_successor_is_not_lost(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 2)
    await comes_back(stepped, ids)
    worker.disconnect()
    assert len(stepped.lost_workers) == 0
    assert await Time(seconds, clock, stepped).passes(GRACE + 2) == 0
    assert await still_leased(db) == ids


@pytest.mark.parametrize("order", ["lost first", "superseded"])
async def test_without_an_incarnation_only_what_is_declared_is_kept(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock, order: str
) -> None:
    """A process that was restarted under the same worker id has not brought the jobs of the old one back."""
    await stepped.submit(2)
    worker = await stepped.worker("w", slots=2)
    assert await stepped.claimer.run_once() == 2
    ids = list((await worker.take()).ids)
    time = Time(seconds, clock, stepped)
    if order == "lost first":
        worker.disconnect()
        await time.passes(1)
    await comes_back(stepped, ids[:1], incarnation=0)
    if order == "superseded":
        worker.disconnect()
    assert await time.passes(GRACE - 2) == 0
    assert await time.passes(3) == 1
    assert await still_leased(db) == ids[:1]
    assert len(stepped.lost_workers) == 0


# ---------------------------------------------------------------------- one of several, and waits


async def test_a_tenant_that_is_refused_keeps_no_other_worker_from_being_released(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    first, _ = await holding(stepped, 2)
    await stepped.submit(1, tenant="globex")
    second = await stepped.worker("w2", slots=1, incarnation=9, tenant="globex")
    assert await stepped.claimer.run_once() == 1
    await second.take()
    first.disconnect()
    second.disconnect()
    waiting = stepped.renewer.calls.turns._rows
    waiting[first.session.tenant_no] = 49_990  # as with many unary heartbeats of this tenant
    time = Time(seconds, clock, stepped)
    assert await time.passes(GRACE + 1) == 1
    waiting[first.session.tenant_no] -= 49_990
    assert await time.passes(1) == 2
    assert await still_leased(db) == []


async def test_what_was_released_before_an_error_is_reaped_at_once_and_the_failed_one_is_tried_last(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    first, _ = await holding(stepped, 1)
    await stepped.submit(1)
    second = await stepped.worker("w2", slots=1, incarnation=9)
    assert await stepped.claimer.run_once() == 1
    await second.take()
    first.disconnect()
    second.disconnect()
    time = Time(seconds, clock, stepped)
    await time.passes(GRACE - 0.5)
    stepped.store.before["expire_lost"] = failing_with(StoreUnavailable("the database is away"))
    with pytest.raises(StoreUnavailable):
        await time.passes(0.5)
    stepped.times.begin()
    answers = deque([None, StoreUnavailable("the database is away")])

    async def away_at_the_second() -> None:
        if (error := answers.popleft()) is not None:
            raise error

    stepped.store.before["expire_lost"] = away_at_the_second
    with pytest.raises(StoreUnavailable):
        await time.passes(0.5)
    assert stepped.lost_workers.expired == 1  # of the second worker
    assert stepped.times._next_full == 0.0
    assert [lost.session.worker_id for lost in stepped.lost_workers._lost.values()] == ["w"]


async def test_a_renewal_while_the_turn_is_waited_for_counts_as_a_return(
    stepped: Instance, other: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped)
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    epochs = await stepped.epochs(ids)
    await time.passes(GRACE - 1)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def busy() -> None:
        async with stepped.renewer.calls.turns.turn(77, 1):
            entered.set()
            await leave.wait()

    others = asyncio.create_task(busy())
    await entered.wait()
    await time.jump(1)
    ending = asyncio.create_task(stepped.lost_workers.run_once())
    await settle_down()
    await time.jump(1)
    await WorkerCalls(other.rules).heartbeat(OURS, "w", ids, epochs, lease_seconds=0, progress=())
    await time.jump(12)
    leave.set()
    await others
    assert await ending == 0
    assert await still_leased(db) == ids


# ---------------------------------------------------------------------- the promise


async def test_by_default_a_job_of_a_killed_worker_runs_again_within_15_seconds(
    database: str, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    """With the settings of a server that was given none, and the clocks of server and database in our hands."""
    grace = reconnect_grace_of(None, lease=LEASE_DEFAULT)
    assert grace is not None
    async with Instance(
        database, running=False, now=seconds, lease=LEASE_DEFAULT, reconnect_grace=grace.total_seconds()
    ) as stepped:
        worker, ids = await holding(stepped)
        successor = await stepped.worker("successor", slots=1, incarnation=8)
        time = Time(seconds, clock, stepped)
        await time.jump(5)
        worker.disconnect()
        waited = 0.0
        while not (await stepped.claimer.run_once()):
            assert waited < 15, "the promise: docs/promises.md, 3"
            await time.passes(0.5)
            waited += 0.5
            if waited % 1 == 0:  # a server ticks every second
                await stepped.ticker.run_once()
            stepped.demands.wake_all()
        assert waited >= grace.total_seconds()
        assert list((await successor.take()).ids) == ids
        assert (await stepped.job(ids[0])).attempt == 2
