"""Priority where more than the order of two jobs is at stake: its index, its cost, and how long anything can wait."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.store import verbs
from headgate.store.connect import Connection, connect
from tests.support import store_calls
from tests.support.ageing import ageing_wait_bound
from tests.support.queue import Clock, Queue


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


@pytest.fixture
async def clock(queue: Queue) -> Clock:
    return await Clock.install(queue.db)


async def set_ageing(queue: Queue, topic: str, step: timedelta) -> None:
    no = (await queue.topic(topic)).no
    await queue.db.execute(
        "UPDATE headgate.topics SET ageing_step_us = $2 WHERE topic_no = $1", no, step // timedelta(microseconds=1)
    )
    await queue.names.refresh(queue.db)


@pytest.mark.req("P9")
async def test_the_order_is_an_index_over_claimable_jobs_alone(queue: Queue) -> None:
    (definition,) = await queue.db.fetchrow(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'headgate' AND indexname = 'jobs_claim_order'"
    )
    assert definition.endswith("ON headgate.jobs USING btree (topic_no, rank_class, rank_at) WHERE (state = 0)")
    await queue.add(300, delay=timedelta(hours=1))
    await queue.db.execute("REINDEX INDEX headgate.jobs_claim_order")  # which counts its entries
    size = "SELECT reltuples FROM pg_class WHERE oid = 'headgate.jobs_claim_order'::regclass"
    assert await queue.db.fetchval(size) <= 0, "what is not due is not in it"
    await queue.add(200)
    await queue.db.execute("REINDEX INDEX headgate.jobs_claim_order")  # which counts its entries
    assert await queue.db.fetchval(size) == 200


@pytest.mark.req("P14")
async def test_timed_retried_and_redriven_jobs_are_ordinary_rows_under_the_same_order(
    queue: Queue, clock: Clock
) -> None:
    (timed,) = await queue.add(priority=5, delay=timedelta(minutes=1))
    (retried,) = await queue.add(priority=7)
    (dead,) = await queue.add(priority=6, max_attempts=1)
    await queue.claim()
    boom = Failed(error=ErrorInfo(type="ValueError", message="boom"))
    await queue.settle((retried, 1, boom), (dead, 1, boom))
    await verbs.redrive(queue.db, await queue.tenant_no(), [dead])
    await clock.advance(minutes=2)
    await store_calls.promote(queue.db)
    plain = [(await queue.add(priority=priority))[0] for priority in (8, 7, 6, 5, 4)]
    claimed = await queue.claim(10)
    assert list(claimed.priorities) == [8, 7, 7, 6, 6, 5, 5, 4]
    assert claimed.ids == (plain[0], retried, plain[1], dead, plain[2], timed, plain[3], plain[4])


@pytest.mark.req("P17")
async def test_a_priority_costs_no_table_no_loop_and_no_other_statement(database: str, queue: Queue) -> None:
    """What submit and claim touch is the same, row for row, whether jobs have priorities or not.

    Except for their arrivals: that is a row for each priority of a flush.
    """
    written = (
        "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_xact_user_tables"
        " WHERE schemaname = 'headgate' AND n_tup_ins + n_tup_upd + n_tup_del > 0 ORDER BY relname"
    )
    touched = []
    await queue.topic()
    for priorities in ((0, 0, 0), (5, -3, 0)):
        fresh = Queue(await connect(database, application_name="headgate test"))  # the numbers are its session's
        jobs = [fresh.job(priority=priority) for priority in priorities]
        await fresh.topic()
        async with fresh.db.transaction():
            await fresh.submit(*jobs)
            assert len(await fresh.claim(10)) == 3
            touched.append({name: tuple(rows) for name, *rows in await fresh.db.fetch(written)})
        await fresh.db.close()
    assert [one.pop("arrivals") for one in touched] == [(1, 0, 0), (3, 0, 0)]
    assert touched[0] == touched[1]
    assert set(touched[0]) == {"flow_deltas", "jobs"}


@pytest.mark.req("T18", "O9")
@pytest.mark.parametrize(
    ("priority", "highest", "step"),
    [(0, 10, 1.0), (-10, 20, 0.5), (20, 20, 1.0), (5, -5, 1.0)],
    ids=["normal behind high", "bulk behind urgent", "among equals", "ahead of all"],
)
async def test_under_endless_urgent_load_an_ageing_job_starts_within_the_computed_bound(
    queue: Queue, clock: Clock, priority: int, highest: int, step: float
) -> None:
    """A worker that takes one job every half second, and an urgent one submitted every half second, forever."""
    await set_ageing(queue, "mail", timedelta(seconds=step))
    bound = ageing_wait_bound(priority, highest, timedelta(seconds=step))
    assert bound == max(0, highest - priority) * timedelta(seconds=step)
    ahead = await queue.add(3, priority=highest)  # it waits for these as well, half a second each
    (patient,) = await queue.add(priority=priority)
    began = clock.now
    taken = 0
    while True:
        await queue.add(priority=highest)
        (got,) = (await queue.claim(1)).ids
        if got == patient:
            break
        taken += 1
        await clock.advance(seconds=0.5)
        assert taken < 200, "it starves"
    waited = clock.now - began
    assert waited <= bound + len(ahead) * timedelta(seconds=0.5)
    assert waited >= min(bound, timedelta(0)) + (bound if highest > priority else timedelta(0))


@pytest.mark.req("T18", "P11")
async def test_on_a_strict_topic_the_same_load_starves_it(queue: Queue, clock: Clock) -> None:
    """Documented in docs/howto/operate.md: strict is one sentence, and this is its price."""
    (patient,) = await queue.add()
    for _ in range(100):
        await queue.add(priority=10)
        assert (await queue.claim(1)).ids != (patient,)
        await clock.advance(seconds=60)
    assert (await queue.claim(1)).ids == (patient,), "until the load ends"
