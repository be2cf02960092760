"""Leases that are set by the claim, and kept by renewals."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from headgate.domain.errors import OutcomeUnknown, StoreUnavailable
from headgate.domain.outcomes import Abandon, Completed
from headgate.domain.states import Receipt
from headgate.domain.topic_sets import TopicSet
from headgate.store.connect import Connection
from tests.integration.leases.leasing import AWAY, MINUTE, holding, pass_time
from tests.support.dispatch_waits import ManualClock
from tests.support.dispatching import Instance
from tests.support.epochs import claims
from tests.support.queue import Clock
from tests.support.watched_store import Hold, failing_with

# ---------------------------------------------------------------------- set by the claim


@pytest.mark.req("L1", "L3", "D13")
async def test_the_claim_sets_owner_worker_lease_epoch_and_attempt_together(stepped: Instance, db: Connection) -> None:
    worker, (job,) = await holding(stepped)
    row = await db.fetchrow(
        "SELECT state, owner, worker, epoch % 1024 AS claims, attempt, lease_until - claimed_at AS lease"
        " FROM headgate.jobs"
    )
    assert dict(row) == {
        "state": 1,
        "owner": stepped.store.instance_no,
        "worker": worker.session.worker_id,
        "claims": 1,
        "attempt": 1,
        "lease": MINUTE,
    }
    for column in ("owner", "lease_until"):
        with pytest.raises(asyncpg.CheckViolationError):
            await db.execute(f"UPDATE headgate.jobs SET {column} = NULL WHERE id = $1", job)


async def test_a_token_of_other_topics_renews_nothing(stepped: Instance, clock: Clock, db: Connection) -> None:
    """The job is answered as one that does not exist, and its lease stays as it is."""
    _, (job,) = await holding(stepped)
    tenant_no, epoch, lease_until = await db.fetchrow("SELECT tenant_no, epoch, lease_until FROM headgate.jobs")
    await clock.advance(seconds=10)
    renew = stepped.renewer.calls.renew
    answers = await renew(tenant_no, 60_000, [job], [epoch], topics=TopicSet.of("other"))
    assert answers[tenant_no, job, epoch].lost
    assert await db.fetchval("SELECT lease_until FROM headgate.jobs") == lease_until
    assert await renew(tenant_no, 60_000, [job], [epoch], topics=TopicSet.of("mail")) == {}
    assert await db.fetchval("SELECT lease_until FROM headgate.jobs") > lease_until


async def test_each_ready_may_ask_for_a_lease_of_its_own(stepped: Instance, db: Connection) -> None:
    await stepped.submit(2)
    await stepped.worker("short", slots=1, lease=timedelta(seconds=5))
    await stepped.worker("long", slots=1, lease=timedelta(hours=1))
    assert await stepped.claimer.run_once() == 2
    leases = await db.fetch("SELECT lease_until - claimed_at FROM headgate.jobs ORDER BY 1")
    assert [row[0] for row in leases] == [timedelta(seconds=5), timedelta(hours=1)]


# ---------------------------------------------------------------------- kept


@pytest.mark.req("O15")
async def test_a_job_shorter_than_half_its_lease_costs_no_renewal(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    await stepped.store.count_statements()
    worker, _ = await holding(stepped, 5)
    before = await stepped.store.sent()
    for _ in range(9):
        await pass_time(seconds, clock, 3)
        worker.session.mark_seen()
        assert await stepped.renewer.run_once() == 0
    worker.complete(worker.delivered[0])
    await stepped.flushed()
    await pass_time(seconds, clock, 300)
    worker.session.mark_seen()
    assert await stepped.renewer.run_once() == 0
    assert stepped.store.calls["renew"] == 0
    assert await stepped.store.sent() - before == stepped.store.calls["settle"]


@pytest.mark.req("T28", "O15")
async def test_what_a_worker_was_sent_and_has_not_started_stays_leased(
    stepped: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    """Nothing is known here of what runs: everything delivered is kept, for as long as the worker beats."""
    worker, jobs = await holding(stepped, 50)
    for _ in range(20):  # ten minutes, ten leases
        await pass_time(seconds, clock, 31)
        worker.session.mark_seen()  # a beat
        assert await stepped.renewer.run_once() == 50
        assert (await stepped.ticker.run_once()).reaped == 0
    assert stepped.store.calls["renew"] == 20  # one statement each time, however many jobs
    rows = await db.fetch("SELECT attempt, epoch % 1024, lease_until - headgate.clock_v1() FROM headgate.jobs")
    assert {tuple(row) for row in rows} == {(1, 1, MINUTE)}
    assert set(jobs) == set(worker.session.held)


async def test_an_extension_requested_during_a_renewal_is_not_lost(
    stepped: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    worker, (job,) = await holding(stepped)
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    hold = stepped.store.after["renew"] = Hold()
    renewing = asyncio.create_task(stepped.renewer.run_once())
    await hold.reached()
    worker.session.held[job] = (
        worker.session.held[job][0],
        3_600_000,
        seconds(),
        worker.session.held[job][3],
    )  # as a beat with an extension does
    hold.release()
    assert await renewing == 1
    assert await stepped.renewer.run_once() == 1
    assert await db.fetchval("SELECT lease_until - headgate.clock_v1() FROM headgate.jobs") == timedelta(hours=1)


async def test_a_job_delivered_again_during_a_renewal_keeps_its_new_epoch(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (job,) = await holding(stepped)
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    hold = stepped.store.after["renew"] = Hold()
    renewing = asyncio.create_task(stepped.renewer.run_once())
    await hold.reached()
    await worker.report(job, 1, Abandon())
    worker.ready(1)
    assert await stepped.claimer.run_once() == 1
    hold.release()
    await renewing
    assert claims(worker.session.held[job][0]) == 2


async def test_a_late_outcome_of_an_old_attempt_does_not_end_the_renewals_of_the_new_one(stepped: Instance) -> None:
    worker, (job,) = await holding(stepped)
    await worker.report(job, 1, Abandon())
    worker.ready(1)
    assert await stepped.claimer.run_once() == 1
    assert (await worker.report(job, 1, Completed())).receipt is Receipt.STALE
    assert claims(worker.session.held[job][0]) == 2
    assert (await worker.report(job, 2, Completed())).receipt is Receipt.APPLIED
    assert not worker.session.held


async def test_renewals_that_fail_are_tried_again_and_end_no_session(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, _ = await holding(stepped)
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    stepped.store.before["renew"] = failing_with(AWAY, OutcomeUnknown("lost"))
    for _ in range(2):
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            await stepped.renewer.run_once()
    assert await stepped.renewer.run_once() == 1
    assert worker.session.ended is None
