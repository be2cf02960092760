"""Renewals of several tenants and sessions: whose leases come first, and in which shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.dispatch import renewals
from headgate.dispatch.renewals import LeaseRenewer
from headgate.dispatch.session_ends import Superseded
from headgate.dispatch.sessions import WorkerIdTaken
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.states import State
from headgate.store.connect import Connection
from tests.support.dispatch_waits import ManualClock
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Clock


@pytest.fixture
async def stepped(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """An instance that moves only when the test calls it; leases are of a minute."""
    async with Instance(database, running=False, now=seconds) as instance:
        yield instance


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements of twenty rows, and three of them before it looks again who is due."""
    monkeypatch.setattr(renewals, "ROWS_AT_ONCE", 20)
    monkeypatch.setattr(renewals, "STATEMENTS_A_PASS", 3)


async def holding(one: Instance, count: int, name: str, *, tenant: str, lease: timedelta | None = None) -> Worker:
    await one.submit(count, tenant=tenant, topic=name)
    worker = await one.worker(name, name, slots=count, tenant=tenant, lease=lease)
    while await one.claimer.run_once():
        pass
    assert len(worker.session.held) == count
    return worker


async def pass_time(seconds: ManualClock, clock: Clock, span: float, *heard: Worker) -> None:
    seconds.advance(span)
    await clock.advance(seconds=span)
    for worker in heard:
        worker.session.mark_seen()


def shares(one: Instance) -> Sequence[dict[int, int]]:
    """Rows by tenant of each statement since it was asked last."""
    found, one.store.renewals = one.store.renewals, []
    return found


async def test_every_statement_is_shared_among_the_tenants_that_have_leases_to_renew(
    stepped: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    greedy = await holding(stepped, 50, "greedy", tenant="greedy")
    small = await holding(stepped, 15, "small", tenant="small")
    first, second = greedy.session.tenant_no, small.session.tenant_no
    await pass_time(seconds, clock, 31, greedy, small)
    assert await stepped.renewer.run_once() == 60
    assert shares(stepped) == [{first: 10, second: 10}, {first: 15, second: 5}, {first: 20}]
    assert stepped.renewer.behind
    assert await stepped.renewer.run_once() == 5
    assert shares(stepped) == [{first: 5}]
    assert not stepped.renewer.behind
    left = await db.fetchval("SELECT min(lease_until - headgate.clock_v1()) FROM headgate.jobs")
    assert left.total_seconds() == 60  # none was left out


async def test_a_lease_that_falls_due_during_a_long_pass_is_in_the_first_statement_of_the_next(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    greedy = await holding(stepped, 100, "greedy", tenant="greedy")
    await pass_time(seconds, clock, 20, greedy)
    late = await holding(stepped, 1, "late", tenant="late")
    await pass_time(seconds, clock, 11, greedy, late)
    assert await stepped.renewer.run_once() == 60
    await pass_time(seconds, clock, 20, greedy, late)
    shares(stepped)
    assert await stepped.renewer.run_once() == 41
    assert shares(stepped) == [
        {greedy.session.tenant_no: 19, late.session.tenant_no: 1},
        {greedy.session.tenant_no: 20},
        {greedy.session.tenant_no: 1},
    ]


async def test_leases_that_are_locked_do_not_keep_others_of_their_session_waiting(
    stepped: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    worker = await holding(stepped, 90, "locked", tenant="acme")
    await pass_time(seconds, clock, 31, worker)
    locked: list[UUID] = list(worker.session.held)[:60]
    async with db.transaction():
        await db.execute("SELECT FROM headgate.jobs WHERE id = ANY ($1) FOR UPDATE", locked)
        assert await stepped.renewer.run_once() == 0
        assert not stepped.renewer.behind  # asking again without a pause would not free them
        assert await stepped.renewer.run_once() == 30
    assert await stepped.renewer.run_once() == 60


async def test_what_was_sent_to_a_worker_is_its_own_credentials_to_give_back_on_every_instance(
    stepped: Instance, database: str
) -> None:
    mine = await stepped.worker("w", slots=1, incarnation=7, subject="mine")
    (job,) = await stepped.submit(1)
    assert await stepped.claimer.run_once() == 1
    async with Instance(database, name="two", running=False) as other:
        thief = await other.worker("w", incarnation=7, subject="another")  # it knows the name and the incarnation
        tenant_no = thief.session.tenant_no
        assert await other.renewer.calls.abandon_undeclared(tenant_no, thief.session.claims_as, []) == []
        assert (await stepped.job(job)).state is State.RUNNING
        assert (await stepped.job(job)).worker == "w"
        mine.lose()
        back = await other.worker("w2", incarnation=7, subject="mine")
        assert await other.renewer.calls.abandon_undeclared(tenant_no, back.session.claims_as, []) == []  # another name
        thief.lose()
        back = await other.worker("w", incarnation=7, subject="mine")
        assert await other.renewer.calls.abandon_undeclared(tenant_no, back.session.claims_as, []) == [job]


async def test_a_worker_id_belongs_to_the_credential_whose_session_is_alive(stepped: Instance) -> None:
    older = await stepped.worker("w", subject="mine")
    with pytest.raises(WorkerIdTaken, match="id of its own"):
        await stepped.worker("w", subject="another")
    assert older.session.ended is None
    assert stepped.sessions.find(older.session.tenant_no, "w") is older.session
    await stepped.worker("w", subject="another", tenant="elsewhere")  # another tenant's names are its own
    newer = await stepped.worker("w", subject="mine")
    assert isinstance(older.session.ended, Superseded)
    newer.lose()
    await stepped.worker("w", subject="another")


async def test_the_watchdog_waits_for_what_was_due_in_an_outage_and_for_nothing_later(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    """Leases of a second are due in every pass: they must not keep the watchdog of all tenants closed."""
    gate = WatchdogGate(beat=5, now=seconds)
    renewer = LeaseRenewer(stepped.store, stepped.sessions, now=seconds, watchdog=gate)
    greedy = await holding(stepped, 100, "greedy", tenant="greedy", lease=timedelta(seconds=1))
    seconds.advance(0.5)
    gate.lost()
    gate.answered()
    seconds.advance(5)
    gate.answered()
    greedy.session.mark_seen()
    assert await renewer.run_once() == 60
    assert not gate.is_open  # forty were due in the outage, and have not been tried
    assert await renewer.run_once() == 60
    assert renewer.behind
    assert gate.is_open
