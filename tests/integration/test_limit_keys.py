"""Limits by key: concurrency, rates, strict order, and turns between keys."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.domain.outcomes import Abandon, Completed, Nack, Snooze
from headgate.domain.states import State
from headgate.domain.topic_limits import Rate
from headgate.store import verbs
from headgate.store.connect import Connection, connect
from tests.integration.test_limits import BOOM, SECOND, limit, no_drift, states
from tests.integration.test_priority import set_ageing
from tests.support import store_calls
from tests.support.queue import Clock, Queue


async def key_of(queue: Queue, ids: list[UUID] | tuple[UUID, ...]) -> list[str]:
    rows = await queue.db.fetch("SELECT job_id, limit_key FROM headgate.job_limit_keys")
    keys = dict(rows)
    return [keys[job_id] for job_id in ids]


async def test_a_key_never_runs_more_than_its_limit(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running_per_key=2)
    a, b = await queue.add(5, limit_key="a"), await queue.add(1, limit_key="b")
    assert await states(queue) == {State.PENDING: 3, State.BLOCKED: 3}
    got = await queue.claim(10)
    assert set(got.ids) == {*a[:2], *b}
    assert len(await queue.claim(10)) == 0
    await queue.settle((a[1], 1, Completed()))
    assert (await queue.claim(10)).ids == (a[2],)  # the flush that made room has freed the next
    await no_drift(db)


async def test_a_key_on_a_topic_without_limits_changes_nothing(db: Connection) -> None:
    queue = Queue(db)
    ids = await queue.add(5, limit_key="a")
    assert (await queue.claim(10)).ids == tuple(ids)
    await queue.settle(*((job, 1, Completed()) for job in ids))
    await no_drift(db)


async def test_limits_apply_to_jobs_that_were_there_before_them(db: Connection) -> None:
    queue = Queue(db)
    await queue.add(5, limit_key="a")
    await limit(queue, max_running_per_key=1)
    assert len(await queue.claim(10)) == 1  # those let in too early went back to their line
    assert await states(queue) == {State.RUNNING: 1, State.BLOCKED: 4}
    await no_drift(db)


async def test_a_lowered_limit_leaves_the_best_job_of_each_key(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running_per_key=3)
    (first,) = await queue.add(1, limit_key="a")
    await queue.add(1)  # without a key, between the others
    (urgent,) = await queue.add(1, limit_key="a", priority=5)
    (other,) = await queue.add(1, limit_key="b", priority=3)
    await queue.add(1, limit_key="b")
    await limit(queue, max_running_per_key=1)
    got = (await queue.claim(10)).ids
    assert got[:2] == (urgent, other)  # in order of priority, whatever the order of their ids
    assert len(got) == 3
    await queue.settle((urgent, 1, Completed()))
    assert (await queue.claim(10)).ids == (first,)
    await no_drift(db)


async def test_raising_or_removing_a_limit_admits_waiting_jobs(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running_per_key=1)
    for number in range(30):
        await queue.add(3, limit_key=f"k{number}")
    assert (await states(queue))[State.PENDING] == 30
    await limit(queue, max_running_per_key=2)
    freed = {row[0] for row in await db.fetch("SELECT topic_no FROM headgate.admit_due_v1(20)")}
    assert freed == {(await queue.topic()).no}
    assert (await states(queue))[State.PENDING] == 50  # in bounded parts
    await db.fetch("SELECT topic_no FROM headgate.admit_due_v1(20)")
    assert (await states(queue))[State.PENDING] == 60
    await limit(queue, max_running_per_key=None)
    await db.fetch("SELECT topic_no FROM headgate.admit_due_v1(100)")
    assert await states(queue) == {State.PENDING: 90}
    await no_drift(db)


@pytest.mark.parametrize("outcome", [Abandon(), Nack(delay=timedelta(0), reason="later")])
async def test_a_job_that_comes_back_at_once_goes_through_its_line(db: Connection, outcome: object) -> None:
    queue = Queue(db)
    await limit(queue, max_running_per_key=1)
    ids = await queue.add(3, limit_key="a")
    await queue.claim(10)
    (answer,) = await queue.settle((ids[0], 1, outcome))  # type: ignore[arg-type]
    assert answer.state is State.BLOCKED
    assert (await queue.claim(10)).ids == (ids[0],)  # at its old place
    await no_drift(db)


async def test_cancelled_jobs_leave_their_line_and_give_their_capacity_back(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running_per_key=1)
    ids = await queue.add(4, limit_key="a")
    tenant_no = await queue.tenant_no()
    await verbs.cancel(db, tenant_no, [ids[0], ids[2]])  # one let in, one in line
    assert (await queue.claim(10)).ids == (ids[1],)
    await verbs.cancel(db, tenant_no, [ids[1]])
    await queue.settle((ids[1], 1, BOOM))
    assert (await queue.claim(10)).ids == (ids[3],)
    await no_drift(db)


async def test_redriven_and_due_jobs_go_into_their_line(db: Connection) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, max_running_per_key=1)
    ids = await queue.add(2, limit_key="a", max_attempts=1)
    (later,) = await queue.add(1, limit_key="a", delay=SECOND)
    await queue.claim(1)
    await queue.settle((ids[0], 1, BOOM))
    await verbs.redrive(db, await queue.tenant_no(), [ids[0]])
    await clock.advance(seconds=2)
    await store_calls.promote(db)
    assert await states(queue) == {State.PENDING: 1, State.BLOCKED: 2}
    order = []
    while got := (await queue.claim(10)).ids:
        order += got
        await queue.settle((got[0], 1 + (got[0] == ids[0]), Completed()))
    assert order == [ids[1], ids[0], later] or order == [ids[1], later, ids[0]]
    await no_drift(db)


@pytest.mark.parametrize("ageing", [False, True])
async def test_reprioritising_moves_a_job_in_its_line(db: Connection, ageing: bool) -> None:
    queue = Queue(db)
    if ageing:
        await set_ageing(queue, "mail", SECOND)
    await limit(queue, max_running_per_key=1)
    ids = await queue.add(4, limit_key="a")
    await queue.claim(1)
    await verbs.reprioritise(db, await queue.tenant_no(), [ids[3]], priority=5)
    await queue.settle((ids[0], 1, Completed()))
    assert (await queue.claim(10)).ids == (ids[3],)
    await no_drift(db)


async def test_a_key_starts_no_more_than_its_rate_allows(db: Connection) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, key_rate=Rate(count=10, period=SECOND, burst=2))
    await queue.add(10, limit_key="a")
    await queue.add(1, limit_key="b")
    got = await queue.claim(10)
    assert Counter(await key_of(queue, got.ids)) == {"a": 2, "b": 1}
    ((_, at),) = got.waits
    assert at is not None
    assert 0.1 <= at <= 0.101
    await db.fetch("SELECT topic_no FROM headgate.admit_due_v1(100)")
    assert State.PENDING not in await states(queue)
    await clock.advance(seconds=at)
    await db.fetch("SELECT topic_no FROM headgate.admit_due_v1(100)")
    assert len(await queue.claim(10)) == 1
    await clock.advance(seconds=30)
    await db.fetch("SELECT topic_no FROM headgate.admit_due_v1(100)")
    assert len(await queue.claim(10)) == 2
    await no_drift(db)


async def admit_due(queue: Queue) -> None:
    await queue.db.fetch("SELECT topic_no FROM headgate.admit_due_v1(100)")


async def test_a_key_admits_a_thousand_jobs_at_once_and_the_others_follow(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running_per_key=2_000)
    await admit_due(queue)  # after a change of limits it looks at all keys: not in what follows
    await queue.add(1_001, limit_key="a")
    assert await states(queue) == {State.PENDING: 1_000, State.BLOCKED: 1}
    await admit_due(queue)
    assert await states(queue) == {State.PENDING: 1_001}
    await no_drift(db)


async def test_a_key_that_a_later_claim_has_charged_gives_no_tokens_to_an_earlier_one(db: Connection) -> None:
    """A claim in several rounds has the time of its first one. A key of a later round may have been charged since."""
    queue, clock = Queue(db), await Clock.install(db)
    await limit(queue, key_rate=Rate(count=10, period=SECOND, burst=3))
    await queue.add(3, limit_key="a")
    assert len(await queue.claim(1)) == 1
    row = await db.fetchrow("SELECT id, tenant_no, topic_no FROM headgate.jobs WHERE state = 0 LIMIT 1")
    took = await db.fetchval(
        "SELECT ids FROM headgate.take_limited_v1($1, ARRAY[$2::uuid], ARRAY[$3::int], ARRAY[$3::int], NULL, true, $4)",
        row["tenant_no"],
        row["id"],
        row["topic_no"],
        clock.now - timedelta(milliseconds=1),
    )
    assert took == []
    # Moved back, the bucket would get tokens twice for the time between the two.
    assert await db.fetchval("SELECT refilled_at FROM headgate.limit_usage WHERE limit_key = 'a'") == clock.now
    await no_drift(db)


async def test_a_key_is_looked_at_later_only_while_jobs_wait_for_its_rate(db: Connection) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, key_rate=Rate(count=1, period=SECOND))
    await admit_due(queue)  # after a change of limits it looks at all keys: not in what follows
    await queue.add(3, limit_key="a")
    for waiting in (True, True, False):
        await admit_due(queue)
        assert len(await queue.claim(10)) == 1
        assert await db.fetchval("SELECT next_at IS NOT NULL FROM headgate.limit_usage") is waiting
        await clock.advance(seconds=1.1)
    await no_drift(db)


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_job_that_was_locked_when_its_token_came_is_looked_at_again(
    db: Connection, database: str, behind: int
) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, key_rate=Rate(count=1, period=SECOND))
    await admit_due(queue)  # after a change of limits it looks at all keys: not in what follows
    _, locked, *others = await queue.add(2 + behind, limit_key="a")
    assert len(await queue.claim(10)) == 1
    await clock.advance(seconds=1.1)
    other = await connect(database, application_name="headgate test")
    try:
        async with other.transaction():
            await other.execute("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", locked)
            await admit_due(queue)
            assert len(await queue.claim(10)) == 0
    finally:
        await other.close()
    for job in (locked, *others):
        await clock.advance(seconds=1.1)
        await admit_due(queue)
        assert (await queue.claim(10)).ids == (job,)
    await no_drift(db)


async def test_a_retry_in_strict_order_waits_for_the_rate_of_its_key(db: Connection) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, ordered_by_key=True, key_rate=Rate(count=1, period=timedelta(seconds=10)))
    await admit_due(queue)  # after a change of limits it looks at all keys: not in what follows
    first, second = await queue.add(2, limit_key="a")
    assert (await queue.claim(10)).ids == (first,)
    await queue.settle((first, 1, Snooze(delay=SECOND)))
    await clock.advance(seconds=1)
    await store_calls.promote(db)
    assert len(await queue.claim(10)) == 0  # due again, but without a token
    for job, epoch in ((first, 2), (second, 1)):
        await clock.advance(seconds=10.1)
        await admit_due(queue)
        assert (await queue.claim(10)).ids == (job,)
        await queue.settle((job, epoch, Completed()))
    await no_drift(db)


async def test_a_key_in_strict_order_waits_for_the_one_before_to_end_for_good(db: Connection) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, ordered_by_key=True)
    ids = await queue.add(3, limit_key="a", max_attempts=5)
    assert (await queue.claim(10)).ids == (ids[0],)
    await queue.settle((ids[0], 1, BOOM))
    assert len(await queue.claim(10)) == 0  # it retries, and holds the key meanwhile
    urgent = (await queue.add(1, limit_key="a", priority=10))[0]
    assert len(await queue.claim(10)) == 0
    await clock.advance(seconds=100)
    await store_calls.promote(db)
    assert (await queue.claim(10)).ids == (ids[0],)
    await queue.settle((ids[0], 2, Snooze(delay=SECOND)))
    assert len(await queue.claim(10)) == 0
    await verbs.cancel(db, await queue.tenant_no(), [ids[0]])
    for job in (urgent, *ids[1:]):
        assert (await queue.claim(10)).ids == (job,)
        await queue.settle((job, 1, Completed()))
    await no_drift(db)


async def test_keys_take_turns_however_many_jobs_each_has(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, fair_by_key=True)
    await queue.add(1000, limit_key="big")
    await queue.claim(1)
    few = set(await queue.add(10, limit_key="small"))
    seen = []
    while few and (got := await queue.claim(5)).ids:
        seen += await key_of(queue, got.ids)
        few -= set(got.ids)
    assert not few
    assert len(seen) <= 40, seen  # not behind a thousand
    await no_drift(db)


async def test_of_a_key_with_fair_shares_few_jobs_are_pending_however_often_it_gets_more(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, fair_by_key=True)
    pending = "SELECT count(*) FROM headgate.jobs WHERE state = 0 /* pending */"
    for _ in range(3):
        await queue.add(8, limit_key="big")
        assert await db.fetchval(pending) <= 10
    await queue.claim(4)
    await queue.add(8, limit_key="big")
    assert await db.fetchval(pending) <= 10
    await no_drift(db)


async def test_a_key_with_fair_shares_gets_more_pending_jobs_when_half_of_them_are_claimed(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, fair_by_key=True)
    await queue.add(20, limit_key="big")
    assert await states(queue) == {State.PENDING: 10, State.BLOCKED: 10}
    await queue.claim(5)
    assert await states(queue) == {State.RUNNING: 5, State.PENDING: 10, State.BLOCKED: 5}
    await no_drift(db)


async def test_many_keys_share_in_turn(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, fair_by_key=True)
    for number in range(5):
        await queue.add(100, limit_key=f"k{number}")
    counts: Counter[str] = Counter()
    for _ in range(40):
        counts.update(await key_of(queue, (await queue.claim(5)).ids))
        assert max(counts.values()) - min(counts[f"k{number}"] for number in range(5)) <= 11
    assert sum(counts.values()) == 200
    await no_drift(db)


async def test_priority_comes_before_turns(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, fair_by_key=True)
    await queue.add(50, limit_key="a")
    (urgent,) = await queue.add(1, limit_key="b", priority=20)
    assert (await queue.claim(1)).ids == (urgent,)


async def test_priority_counts_as_waiting_time_in_the_turns_of_an_ageing_topic(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, fair_by_key=True)
    await db.execute("UPDATE headgate.topics SET ageing_step_us = 3600000000")  # an hour for each unit of priority
    await queue.names.refresh(db)
    await queue.add(10, limit_key="a")
    (urgent,) = await queue.add(1, limit_key="b", priority=2)
    (later,) = await queue.add(1, limit_key="b", priority=-1)
    assert (await queue.claim(1)).ids == (urgent,)
    assert (await queue.claim(11)).ids[-1] == later
    await no_drift(db)


async def test_a_job_that_starts_after_its_limit_was_removed_is_not_counted(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running=2)
    (job,) = await queue.add()
    await queue.claim()
    await queue.settle((job, 1, Abandon()))
    await limit(queue, max_running=None)
    await queue.claim()
    await queue.settle((job, 2, Completed()))
    await no_drift(db)
