"""Which job runs first, and what a claim, a failure and an expired lease do to a job: the statements of the store."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from headgate.domain.errors import InvalidInput
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Snooze
from headgate.domain.states import EventKind, Receipt, State
from headgate.domain.views import JobView
from headgate.store import reads, verbs
from headgate.store.connect import Connection, connect
from tests.support import store_calls
from tests.support.epochs import claims
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
    jobs.reverse()  # neither the ids nor the clock, which stalls, tell them apart in this order
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
async def test_a_priority_changed_manually_in_storage_counts_at_the_next_claim(queue: Queue) -> None:
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
async def test_an_abandoned_job_returns_to_its_old_place_at_no_cost(queue: Queue) -> None:
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
