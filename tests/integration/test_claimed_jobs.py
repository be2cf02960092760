"""What a claim, a heartbeat, a failure and an expired lease do to a job: the statements of the store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.domain.outcomes import Abandon, Completed, Nack, Snooze
from headgate.domain.states import EventKind, Receipt, State
from headgate.store import leases, reads
from headgate.store.connect import Connection, connect
from tests.integration.test_order import BOOM, NOW, view
from tests.support import store_calls
from tests.support.effort import processor_seconds
from tests.support.epochs import claims, epochs_of
from tests.support.queue import Clock, Queue


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


@pytest.fixture
async def clock(queue: Queue) -> Clock:
    return await Clock.install(queue.db)


@pytest.mark.req("D13", "L1", "R1")
async def test_one_claim_sets_state_owner_worker_lease_epoch_and_attempt_together(queue: Queue, clock: Clock) -> None:
    (job_id,) = await queue.add()
    queue.owner = 42
    await queue.claim(lease=timedelta(seconds=30), workers=["ant"])
    job = await view(queue, job_id)
    assert (job.state, job.owner, job.worker) == (State.RUNNING, 42, "ant")
    assert (job.attempt, claims(job.epoch)) == (1, 1)
    assert (job.claimed_at, job.lease_until) == (clock.now, clock.now + timedelta(seconds=30))


@pytest.mark.req("D13")
@pytest.mark.parametrize("change", ["owner = NULL", "lease_until = NULL", "state = 0", "epoch = 0"])
async def test_the_table_refuses_a_running_row_without_owner_lease_or_epoch(queue: Queue, change: str) -> None:
    await queue.add()
    await queue.claim()
    with pytest.raises(Exception, match=r"jobs_(lease|attempts)"):
        await queue.db.execute(f"UPDATE headgate.jobs SET {change}")


@pytest.mark.req("D13")
async def test_a_claim_for_several_workers_deals_the_jobs_in_runs_best_first(queue: Queue) -> None:
    ids = await queue.add(5)
    claimed = await queue.claim(6, workers=["ant", "bee", "cat"], runs=[1, 3, 2])
    assert list(claimed.ids) == ids
    assert claimed.workers == ("ant", "bee", "bee", "bee", "cat")
    assert [(await view(queue, job_id)).worker for job_id in ids] == list(claimed.workers)


@pytest.mark.req("D14")
async def test_only_jobs_that_are_due_are_candidates(queue: Queue, clock: Clock) -> None:
    await queue.add(delay=timedelta(seconds=5), priority=10)
    retrying, running, finished = await queue.add(3)
    await queue.claim()
    await queue.settle((retrying, 1, BOOM), (finished, 1, Completed()))
    (due,) = await queue.add(priority=-1)
    assert (await queue.claim()).ids == (due,)
    assert claims((await view(queue, running)).epoch) == 1


@pytest.mark.req("D14")
async def test_candidates_are_read_through_the_partial_index_and_never_by_a_scan_of_the_table(queue: Queue) -> None:
    await queue.add(500)
    await queue.db.execute("ANALYZE headgate.jobs")
    async with queue.db.transaction():
        await queue.claim(10)
        scans, order_scans = await queue.db.fetchrow(
            "SELECT pg_stat_get_xact_numscans('headgate.jobs'::regclass),"
            "       pg_stat_get_xact_numscans('headgate.jobs_claim_order'::regclass)"
        )
    assert scans == 0
    assert order_scans >= 1


@pytest.mark.req("D16")
async def test_a_claim_is_committed_when_it_returns_so_that_a_broken_wire_leaves_a_job_under_a_lease(
    database: str, queue: Queue, clock: Clock
) -> None:
    (job_id,) = await queue.add()
    claimer = Queue(await connect(database, application_name="headgate claimer"))
    assert (await claimer.claim()).ids == (job_id,)
    claimer.db.terminate()  # nothing is sent, no one says goodbye: the lease alone brings the job back
    job = await view(queue, job_id)
    assert (job.state, job.lease_until) == (State.RUNNING, clock.now + timedelta(seconds=60))
    await clock.advance(seconds=60)
    assert await leases.reap(queue.db) == [], "not before it is over"
    await clock.advance(microseconds=1)
    assert [one.id for one in await leases.reap(queue.db)] == [job_id]


@pytest.mark.req("L3", "T27", "O14")
async def test_a_zombies_beat_and_outcomes_change_nothing_for_its_successor(queue: Queue, clock: Clock) -> None:
    (job_id,) = await queue.add()
    await queue.claim(workers=["zombie"])
    await clock.advance(seconds=61)
    await leases.reap(queue.db)
    await clock.advance(seconds=1)
    await store_calls.promote(queue.db)
    await queue.claim(workers=["successor"])
    before = await view(queue, job_id)
    await clock.advance(seconds=5)
    tenant = await queue.tenant_no()
    (old,) = await epochs_of(queue.db, [job_id])
    beat = [leases.Held(tenant_no=tenant, ids=[job_id], epochs=[old], lease_ms=60_000)]
    assert (await leases.renew(queue.db, beat))[tenant, job_id, old].lost
    for outcome in (Completed(), BOOM, Abandon(), Snooze(delay=NOW), Nack(delay=NOW, reason="late")):
        (answer,) = await queue.settle((job_id, 1, outcome))
        assert answer.receipt is Receipt.STALE
    assert await view(queue, job_id) == before
    (answer,) = await queue.settle((job_id, 2, Completed()))
    assert answer.receipt is Receipt.APPLIED


@pytest.mark.req("L3")
async def test_a_beat_for_a_job_that_does_not_run_is_answered_as_lost(queue: Queue) -> None:
    back, done = await queue.add(2)
    await queue.claim()
    await queue.settle((back, 1, Abandon()), (done, 1, Completed()))
    tenant, unknown = await queue.tenant_no(), queue.job().id
    ids = [back, done, unknown]
    epochs = await epochs_of(queue.db, ids)
    answers = await leases.renew(queue.db, [leases.Held(tenant_no=tenant, ids=ids, epochs=epochs, lease_ms=60_000)])
    assert {job_id: answer.lost for (_, job_id, _), answer in answers.items()} == dict.fromkeys(ids, True)


async def test_a_beat_pushes_the_lease_forward_and_never_back(queue: Queue, clock: Clock) -> None:
    (job_id,) = await queue.add()
    await queue.claim(lease=timedelta(seconds=60))
    tenant, epochs = await queue.tenant_no(), await epochs_of(queue.db, [job_id])
    for seconds, ends in ((30, 60), (120, 120), (60, 120)):
        beat = [leases.Held(tenant_no=tenant, ids=[job_id], epochs=epochs, lease_ms=seconds * 1_000)]
        assert await leases.renew(queue.db, beat) == {}
        assert (await view(queue, job_id)).lease_until == clock.now + timedelta(seconds=ends)


@pytest.mark.req("T30")
async def test_the_watchdog_works_through_ten_thousand_expired_jobs_in_bounded_batches(
    queue: Queue, clock: Clock
) -> None:
    for _ in range(2):
        await queue.add(5_000)
        assert len(await queue.claim(5_000)) == 5_000
    await clock.advance(seconds=61)
    backend = [queue.db.get_server_pid()]
    began = processor_seconds(backend)
    small = [len(await leases.reap(queue.db, limit=500)) for _ in range(10)]
    halfway = processor_seconds(backend)
    large = [len(await leases.reap(queue.db, limit=5_000)) for _ in range(2)]
    ended = processor_seconds(backend)
    assert (small, large) == ([500] * 10, [5_000, 0])
    # As many jobs in a tenth of the calls: ten times as long when the batch's arrays were joined row by row.
    assert ended - halfway <= 6 * (halfway - began) + 0.05
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.jobs WHERE state = 3 AND attempt = 1") == 10_000


@pytest.mark.req("R1", "R6", "T32")
async def test_a_worker_that_crashes_in_silence_pays_with_its_attempts(queue: Queue, clock: Clock) -> None:
    (job_id,) = await queue.add(max_attempts=2)
    for attempt, end in ((1, State.RETRYING), (2, State.DEAD)):
        assert (await queue.claim()).attempts == (attempt,)
        await clock.advance(seconds=61)
        (reaped,) = await leases.reap(queue.db)
        assert (reaped.id, reaped.state) == (job_id, end)
        await clock.advance(seconds=attempt**2)
        await store_calls.promote(queue.db)
    dead = await view(queue, job_id)
    assert (dead.attempt, dead.finished_at) == (2, clock.now - timedelta(seconds=4))
    assert dead.last_error is not None
    assert "LeaseExpired: the worker did not renew" in dead.last_error


@pytest.mark.req("R2", "T32")
async def test_only_a_running_job_can_fail(queue: Queue) -> None:
    pending, done = await queue.add(2)
    await queue.claim()
    await queue.settle((pending, 1, Abandon()), (done, 1, Completed()))
    before = [await view(queue, job_id) for job_id in (pending, done)]
    answers = await queue.settle((pending, 1, BOOM), (done, 1, BOOM), (queue.job().id, 1, BOOM))
    assert [answer.receipt for answer in answers] == [Receipt.STALE, Receipt.STALE, Receipt.UNKNOWN]
    assert [await view(queue, job_id) for job_id in (pending, done)] == before


@pytest.mark.req("R3", "P12", "T32")
async def test_a_failed_job_waits_for_the_square_of_its_attempts_with_its_lease_gone_and_its_error_kept(
    queue: Queue, clock: Clock
) -> None:
    (job_id,) = await queue.add()
    for attempt in range(1, 5):
        assert (await queue.claim()).attempts == (attempt,)
        (answer,) = await queue.settle((job_id, attempt, BOOM))
        wait = timedelta(seconds=attempt**2)
        assert (answer.state, answer.run_at) == (State.RETRYING, clock.now + wait)
        job = await view(queue, job_id)
        assert (job.state, job.owner, job.lease_until, job.last_error) == (
            State.RETRYING,
            None,
            None,
            "ValueError: boom",
        )
        await clock.advance(seconds=wait.total_seconds())
        await store_calls.promote(queue.db)


@pytest.mark.req("R4", "T32")
async def test_the_last_attempts_failure_makes_a_dead_letter_with_its_error(queue: Queue, clock: Clock) -> None:
    (job_id,) = await queue.add(max_attempts=2)
    await queue.claim()
    await queue.settle((job_id, 1, Nack(delay=NOW, reason="not now")))
    await queue.claim()
    (answer,) = await queue.settle((job_id, 2, BOOM))
    assert (answer.receipt, answer.state) == (Receipt.APPLIED, State.DEAD)
    dead = await view(queue, job_id)
    assert (dead.state, dead.attempt, dead.finished_at, dead.last_error) == (
        State.DEAD,
        2,
        clock.now,
        "ValueError: boom",
    )
    assert len(await queue.claim()) == 0
    assert await store_calls.promote(queue.db) == []


@pytest.mark.req("R5", "T32")
async def test_a_retrying_job_is_the_same_row_and_promotion_is_a_bounded_update(queue: Queue, clock: Clock) -> None:
    ids = await queue.add(5)
    await queue.claim()
    await queue.settle(*((job_id, 1, BOOM) for job_id in ids))
    rows = await queue.db.fetch("SELECT id, state FROM headgate.jobs")
    assert {row["id"]: State(row["state"]) for row in rows} == dict.fromkeys(ids, State.RETRYING)
    assert await store_calls.next_due(queue.db) == clock.now + timedelta(seconds=1)
    await clock.advance(seconds=1)
    assert [len(await store_calls.promote(queue.db, limit=2)) for _ in range(4)] == [2, 2, 1, 0]
    claimed = await queue.claim()
    assert (list(claimed.ids), set(claimed.attempts)) == (ids, {2})


@pytest.mark.req("R6", "T32")
async def test_a_reaped_job_takes_the_path_of_a_failed_one(queue: Queue, clock: Clock) -> None:
    reported, silent = await queue.add(2, priority=3)
    await queue.claim(lease=timedelta(seconds=10))
    await clock.advance(seconds=11)
    await queue.settle((reported, 1, BOOM))
    await leases.reap(queue.db)
    one, other = await view(queue, reported), await view(queue, silent)
    assert (one.state, one.attempt, one.epoch, one.priority, one.run_at, one.owner, one.lease_until) == (
        (other.state, other.attempt, other.epoch, other.priority, other.run_at, other.owner, other.lease_until)
    )
    events = [(await reads.events(queue.db, await queue.tenant_no(), job_id))[0] for job_id in (reported, silent)]
    assert [event.kind for event in events] == [EventKind.FAILED, EventKind.LEASE_EXPIRED]
    assert [event.attempt for event in events] == [1, 1]
