"""Who runs first, and what a claim, a failure and a lapsed lease do to a job: the statements that hold in the store."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from headgate.domain.errors import InvalidInput
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Snooze
from headgate.domain.states import EventKind, Receipt, State
from headgate.domain.views import JobView
from headgate.store import leases, reads, verbs
from headgate.store.connect import Connection, connect
from tests.support import store_calls
from tests.support.effort import processor_seconds
from tests.support.epochs import claims, epochs_of
from tests.support.queue import Clock, Queue

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom"))
NOW = timedelta(0)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


@pytest.fixture
async def clock(queue: Queue) -> Clock:
    return await Clock.install(queue.db)


async def view(queue: Queue, job_id: UUID) -> JobView:
    return await reads.get(queue.db, await queue.tenant_no(), job_id)


async def set_ageing(queue: Queue, topic: str, step: timedelta) -> None:
    no = (await queue.topic(topic)).no
    await queue.db.execute(
        "UPDATE headgate.topics SET ageing_step_us = $2 WHERE topic_no = $1", no, step // timedelta(microseconds=1)
    )
    await queue.names.refresh(queue.db)


# ---------------------------------------------------------------------------------------------------------- priority


@pytest.mark.req("P1")
async def test_equal_priorities_run_first_in_first_out(queue: Queue) -> None:
    in_one_flush = await queue.add(3)
    one_by_one = [job_id for _ in range(3) for job_id in await queue.add()]
    assert list((await queue.claim(2)).ids + (await queue.claim(10)).ids) == in_one_flush + one_by_one


@pytest.mark.req("P1")
async def test_the_databases_clock_makes_the_order_and_not_the_ids(queue: Queue) -> None:
    first, second = queue.job(), queue.job()
    assert first.id < second.id
    await queue.submit(second)
    await queue.submit(first)
    assert (await queue.claim()).ids == (second.id, first.id)


@pytest.mark.req("O22")
async def test_jobs_of_one_moment_have_an_order_and_it_is_not_that_of_the_commits(
    queue: Queue, clock: Clock, database: str
) -> None:
    jobs = [queue.job() for _ in range(9)]
    jobs.reverse()  # neither the ids nor the clock, which stands still, tell them apart in this order
    await queue.submit(*jobs)
    assert [job_id for count in (2, 3, 4) for job_id in (await queue.claim(count)).ids] == [job.id for job in jobs]
    slow = Queue(await connect(database, application_name="headgate test"))
    try:
        async with slow.db.transaction():
            (first,) = await slow.add()
            await clock.advance(seconds=1)
            (second,) = await queue.add()  # committed before the first
        assert (await queue.claim()).ids == (first, second)
    finally:
        await slow.db.close()


@pytest.mark.req("P2")
async def test_an_urgent_job_overtakes_ten_thousand_bulk_jobs(queue: Queue) -> None:
    for _ in range(2):
        await queue.add(5_000)
    (urgent,) = await queue.add(priority=10)
    assert (await queue.claim(1)).ids == (urgent,)


@pytest.mark.req("P4")
async def test_a_job_submitted_without_a_priority_stands_where_one_with_priority_0_does(queue: Queue) -> None:
    jobs = [queue.job(), queue.job(priority=0), queue.job()]
    await queue.submit(*jobs)
    claimed = await queue.claim()
    assert claimed.ids == tuple(job.id for job in jobs)
    assert claimed.priorities == (0, 0, 0)
    assert len(set(claimed.rank_classes)) == 1


@pytest.mark.req("P6")
async def test_higher_priorities_run_first_and_negative_ones_after_0(queue: Queue) -> None:
    order = [2**31 - 1, 10, 1, 0, -1, -10, -(2**31)]
    await queue.submit(*(queue.job(priority=priority) for priority in reversed(order)))
    assert list((await queue.claim()).priorities) == order


@pytest.mark.req("P6")
@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 1.5, "high", True])
async def test_a_priority_is_an_int32_and_never_missing(queue: Queue, priority: object) -> None:
    with pytest.raises(InvalidInput, match="priority"):
        queue.job(priority=priority)
    nullable: bool = await queue.db.fetchval(
        "SELECT NOT attnotnull FROM pg_attribute WHERE attrelid = 'headgate.jobs'::regclass AND attname = 'priority'"
    )
    assert not nullable


@pytest.mark.req("P6")
async def test_a_job_without_a_priority_has_that_of_its_topic(queue: Queue) -> None:
    await queue.submit(queue.job(priority=None))
    assert (await queue.claim()).priorities == (0,)


@pytest.mark.req("P11")
async def test_a_strict_topic_starves_the_lower_priority_for_as_long_as_there_is_a_higher_one(
    queue: Queue, clock: Clock
) -> None:
    (starving,) = await queue.add()
    for _ in range(20):
        await clock.advance(hours=1)
        (urgent,) = await queue.add(priority=10)
        assert (await queue.claim(1)).ids == (urgent,)
    assert (await queue.claim(1)).ids == (starving,)


@pytest.mark.req("T18")
async def test_an_ageing_topic_runs_every_job_within_its_bound(queue: Queue, clock: Clock) -> None:
    await set_ageing(queue, "mail", timedelta(seconds=1))
    (patient,) = await queue.add()
    waits = 0
    while True:  # a worker that takes one job a second, and one urgent job a second
        await queue.add(priority=10)
        if (await queue.claim(1)).ids == (patient,):
            break
        waits += 1
        await clock.advance(seconds=1)
    assert waits == 10, "ten units of priority, a second each"


@pytest.mark.req("P15")
async def test_a_claim_over_several_topics_takes_the_best_of_them_all(queue: Queue) -> None:
    (low,) = await queue.add(1, "mail", priority=1)
    (high,) = await queue.add(1, "sms", priority=9)
    (middle,) = await queue.add(1, "push", priority=5)
    (tied,) = await queue.add(1, "sms", priority=1)
    assert (await queue.claim(1, "mail", "sms", "push")).ids == (high,)
    assert (await queue.claim(10, "push", "sms", "mail")).ids == (middle, low, tied), "by age where priorities tie"


@pytest.mark.req("P15")
async def test_an_ageing_topic_takes_its_place_among_strict_ones_at_priority_0(queue: Queue, clock: Clock) -> None:
    await set_ageing(queue, "ageing", timedelta(seconds=1))
    (below,) = await queue.add(1, "strict", priority=-1)
    (old,) = await queue.add(1, "strict")
    await clock.advance(seconds=3)
    (boosted,) = await queue.add(1, "ageing", priority=5)  # as if submitted five seconds ago
    (plain,) = await queue.add(1, "ageing")
    (above,) = await queue.add(1, "strict", priority=1)
    assert (await queue.claim(10, "ageing", "strict")).ids == (above, boosted, old, plain, below)


@pytest.mark.req("P16", "T19")
async def test_a_new_priority_counts_from_the_next_claim_on_and_is_written_down(queue: Queue) -> None:
    first, second, third = await queue.add(3)
    tenant = await queue.tenant_no()
    ((moved, place),) = (
        await verbs.reprioritise(queue.db, tenant, [third], priority=5, who="ana", reason="vip")
    ).values()
    assert (moved.changed, moved.state) == (True, State.PENDING)
    assert place is not None
    await verbs.reprioritise(queue.db, tenant, [first], priority=-5)
    assert (await queue.claim(10)).ids == (third, second, first)
    (event,) = await reads.events(queue.db, tenant, third)
    assert (event.kind, event.actor, event.reason) == (EventKind.REPRIORITISED, "ana", "vip")
    assert event.detail == {"old": 0, "new": 5}


@pytest.mark.req("P16")
async def test_a_priority_changed_by_hand_in_storage_counts_at_the_next_claim(queue: Queue) -> None:
    _, second = await queue.add(2)
    await queue.db.execute("UPDATE headgate.jobs SET priority = 3, rank_class = -4 WHERE id = $1", second)
    claimed = await queue.claim(1)
    assert (claimed.ids, claimed.priorities) == ((second,), (3,))


@pytest.mark.req("P16")
async def test_a_job_moved_up_keeps_its_age_within_the_new_priority(queue: Queue) -> None:
    (old,) = await queue.add()
    (urgent,) = await queue.add(priority=5)
    await verbs.reprioritise(queue.db, await queue.tenant_no(), [old], priority=5)
    assert (await queue.claim()).ids == (old, urgent)


@pytest.mark.req("T19")
async def test_a_running_or_finished_job_cannot_be_given_another_priority(queue: Queue) -> None:
    finished, running = await queue.add(2)
    await queue.claim()
    await queue.settle((finished, 1, Completed()))
    tenant = await queue.tenant_no()
    answers = await verbs.reprioritise(queue.db, tenant, [finished, running], priority=5)
    assert [(changed.changed, changed.state, place) for changed, place in answers.values()] == [
        (False, State.COMPLETED, None),
        (False, State.RUNNING, None),
    ]
    assert (await view(queue, running)).priority == 0
    assert await reads.events(queue.db, tenant, running) == []


@pytest.mark.req("P12")
async def test_a_failure_keeps_the_priority_and_moves_only_the_due_time(queue: Queue, clock: Clock) -> None:
    (job_id,) = await queue.add(priority=7)
    before = await view(queue, job_id)
    await queue.claim()
    await queue.settle((job_id, 1, BOOM))
    after = await view(queue, job_id)
    assert (after.priority, after.rank_class, after.rank_at) == (before.priority, before.rank_class, before.rank_at)
    assert (before.run_at, after.run_at) == (clock.now, clock.now + timedelta(seconds=1))


@pytest.mark.req("P13")
async def test_a_backed_off_urgent_job_waits_until_it_is_due_and_is_first_again_then(
    queue: Queue, clock: Clock
) -> None:
    (urgent,) = await queue.add(priority=10)
    await queue.claim()
    await queue.settle((urgent, 1, BOOM))
    (other,) = await queue.add(priority=5)
    await clock.advance(seconds=1, microseconds=-1)
    assert await store_calls.promote(queue.db) == []
    assert (await queue.claim(1)).ids == (other,), "not due: it does not run, and does not hold up others"
    (late,) = await queue.add(priority=5)
    await clock.advance(microseconds=1)
    assert [one.id for one in await store_calls.promote(queue.db)] == [urgent]
    assert (await queue.claim(10)).ids == (urgent, late)


async def test_a_promoted_job_outranks_younger_work_of_its_priority(queue: Queue, clock: Clock) -> None:
    (delayed,) = await queue.add(delay=timedelta(seconds=10))
    await clock.advance(seconds=5)
    (young,) = await queue.add()
    await clock.advance(seconds=5)
    assert len(await store_calls.promote(queue.db)) == 1
    assert (await queue.claim()).ids == (delayed, young)


@pytest.mark.req("W13", "O19")
async def test_a_job_handed_back_returns_to_its_old_place_at_no_cost(queue: Queue) -> None:
    first, second, third = await queue.add(3)
    assert (await queue.claim(2)).ids == (first, second)
    (answer,) = await queue.settle((first, 1, Abandon()))
    assert (answer.receipt, answer.state) == (Receipt.APPLIED, State.PENDING)
    assert (await view(queue, first)).attempt == 0
    again = await queue.claim(10)
    assert (again.ids, again.attempts, [*map(claims, again.epochs)]) == ((first, third), (1, 1), [2, 1])


@pytest.mark.req("W12")
async def test_a_nack_without_delay_is_claimable_at_once_at_its_old_place_and_costs_the_attempt(
    queue: Queue, clock: Clock
) -> None:
    first, second = await queue.add(2)
    await queue.claim(1)
    (answer,) = await queue.settle((first, 1, Nack(delay=NOW, reason="limited")))
    assert (answer.receipt, answer.state) == (Receipt.APPLIED, State.PENDING)
    again = await queue.claim(10)
    assert (again.ids, again.attempts) == ((first, second), (2, 1))
    with pytest.raises(InvalidInput, match="delay"):
        Nack(delay=timedelta(milliseconds=-1), reason="limited")


async def test_a_snooze_costs_nothing_and_the_job_is_as_old_as_before_when_it_is_due(
    queue: Queue, clock: Clock
) -> None:
    (job_id,) = await queue.add()
    await queue.claim()
    (answer,) = await queue.settle((job_id, 1, Snooze(delay=timedelta(seconds=5))))
    assert (answer.state, answer.run_at) == (State.SCHEDULED, clock.now + timedelta(seconds=5))
    (young,) = await queue.add()
    await clock.advance(seconds=5)
    await store_calls.promote(queue.db)
    claimed = await queue.claim()
    assert (claimed.ids, claimed.attempts) == ((job_id, young), (1, 1))


async def test_a_redriven_job_ranks_as_if_it_were_submitted_now(queue: Queue) -> None:
    (dead,) = await queue.add()
    await queue.claim()
    await queue.settle((dead, 1, Failed(error=ErrorInfo(type="Fatal"), permanent=True)))
    (waiting,) = await queue.add()
    await verbs.redrive(queue.db, await queue.tenant_no(), [dead])
    claimed = await queue.claim()
    assert (claimed.ids, claimed.attempts, [*map(claims, claimed.epochs)]) == ((waiting, dead), (1, 1), [1, 2])


# -------------------------------------------------------------------------------------------------- claims and leases


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
    claimer.db.terminate()  # nothing is sent, nobody says goodbye: the lease alone brings the job back
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
async def test_the_watchdog_works_through_ten_thousand_lapsed_jobs_in_bounded_batches(
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


# ------------------------------------------------------------------------------------------------------------ retries


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
    assert "lease expired" in dead.last_error


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
    assert [event.kind for event in events] == [EventKind.FAILED, EventKind.LAPSED]
    assert [event.attempt for event in events] == [1, 1]
