"""Limits by topic and by key, as the store keeps them: exact, changeable at run time, off when unused."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest

from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.dependencies import Unique
from headgate.domain.errors import BacklogFull, InvalidInput, NotFound
from headgate.domain.jobs import TopicRules
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Snooze
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.topic_limits import Rate
from headgate.store import audit, leases, reads, topic_views, topics, verbs
from headgate.store import submit as submitting
from headgate.store.connect import Connection, connect
from headgate.store.dispatch_store import DispatchStore
from headgate.store.flush import fill
from tests.support import store_calls
from tests.support.queue import Clock, Queue, new_id, stranger

BOOM = Failed(error=ErrorInfo(type="E", message="boom"))
SECOND = timedelta(seconds=1)
WAITS = "SELECT cardinality(pg_catalog.pg_blocking_pids($1)) > 0"


async def limit(queue: Queue, name: str = "mail", **changes: object) -> None:
    await queue.topic(name)
    await topics.set_topic(queue.db, queue.names, await queue.tenant_no(), name, changes=changes)


async def states(queue: Queue) -> Counter[State]:
    rows = await queue.db.fetch("SELECT state, count(*) FROM headgate.jobs GROUP BY 1")
    return Counter({State(state): n for state, n in rows})


async def no_drift(db: Connection) -> None:
    """The counters say what the rows say, and no one stands in a line who is not blocked."""
    assert await db.fetch("SELECT * FROM headgate.limit_drift_v1()") == []
    strays = await db.fetchval(
        "SELECT count(*) FROM headgate.limit_line w WHERE NOT EXISTS (SELECT FROM headgate.jobs j"
        " WHERE j.tenant_no = w.tenant_no AND j.id = w.job_id AND j.state = 4)"
    )
    assert strays == 0


# ---------------------------------------------------------------- a topic's own limits


@pytest.mark.parametrize("rate", [None, Rate(count=1_000, period=SECOND)])
async def test_a_topic_never_runs_more_than_its_limit(db: Connection, rate: Rate | None) -> None:
    queue = Queue(db)
    await limit(queue, max_running=3, rate=rate)
    await queue.add(10)
    first = await queue.claim(10)
    assert len(first) == 3
    assert first.waits == ((first.topic_nos[0], None),)  # more when something ends, whatever the rate allows
    assert len(await queue.claim(10)) == 0
    await queue.settle((first.ids[0], 1, Completed()), (first.ids[1], 1, BOOM))
    assert len(await queue.claim(10)) == 2
    assert len(await queue.claim(10)) == 0
    await no_drift(db)


async def test_a_full_topic_does_not_delay_others(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, "full", max_running=2)
    await queue.add(50, "full", priority=10)
    await queue.add(5, "free")
    got = await queue.claim(20, "full", "free")
    assert Counter(got.topic_nos) == {(await queue.topic("full")).no: 2, (await queue.topic("free")).no: 5}
    await no_drift(db)


async def test_jobs_found_by_their_ids_are_counted_too(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running=2)
    ids = await queue.add(10)
    assert len(await queue.claim(10, hints=ids[5:])) == 2
    await no_drift(db)


@pytest.mark.parametrize("outcome", [Abandon(), Snooze(delay=SECOND), Nack(delay=timedelta(0), reason="later"), BOOM])
async def test_every_way_out_of_running_gives_the_capacity_back(db: Connection, outcome: object) -> None:
    queue = Queue(db)
    await limit(queue, max_running=1)
    await queue.add(2)
    got = await queue.claim(2)
    assert len(got) == 1
    await queue.settle((got.ids[0], 1, outcome))  # type: ignore[arg-type]
    assert len(await queue.claim(2)) == 1
    await no_drift(db)


async def test_an_expired_lease_gives_the_capacity_back(db: Connection) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, max_running=1)
    await queue.add(2)
    await queue.claim(2, lease=SECOND)
    await clock.advance(seconds=5)
    assert len(await leases.reap(db)) == 1
    assert len(await queue.claim(2)) == 1
    await no_drift(db)


async def test_a_limit_set_while_jobs_run_counts_them(db: Connection) -> None:
    queue = Queue(db)
    await queue.add(10)
    running = await queue.claim(4)
    await limit(queue, max_running=5)
    assert (await topic_views.topic(db, await queue.tenant_no(), "mail")).running == 4
    assert len(await queue.claim(10)) == 1
    await limit(queue, max_running=None)
    assert len(await queue.claim(2)) == 2
    await queue.settle(*((job, 1, Completed()) for job in running.ids))
    await limit(queue, max_running=3)  # three run: lowering ends none of them
    assert len(await queue.claim(10)) == 0
    await no_drift(db)


async def test_a_topic_starts_no_more_than_its_rate_allows(db: Connection) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, rate=Rate(count=10, period=SECOND, burst=3))
    await queue.add(30)
    got = await queue.claim(20)
    assert len(got) == 3
    ((topic_no, at),) = got.waits
    assert topic_no == got.topic_nos[0]
    assert at is not None
    assert 0.1 <= at <= 0.101
    await clock.advance(seconds=at)
    assert len(await queue.claim(20)) == 1
    await clock.advance(seconds=0.25)
    assert len(await queue.claim(20)) == 2
    await clock.advance(seconds=60)
    assert len(await queue.claim(20)) == 3  # the bucket holds no more


@pytest.mark.parametrize("noticed", ["by its tick", "before it started"])
@pytest.mark.parametrize("limits", ["rate", "key_rate"])
async def test_a_bucket_refills_after_a_step_back_of_the_clock(
    database: str, db: Connection, limits: str, noticed: str
) -> None:
    queue, key = Queue(db), "a" if limits == "key_rate" else None
    clock = await Clock.install(db)
    await limit(queue, **{limits: Rate(count=10, period=SECOND, burst=3)})
    no = (await queue.topic()).no
    store = DispatchStore(database)
    try:
        await store.register("one", "test")
        if noticed == "by its tick":
            await store.tick([no])
        await queue.add(10, limit_key=key)
        assert len(await queue.claim(10)) == 3  # the bucket is empty
        await clock.advance(minutes=-10)
        stepped_back = (await store.tick([no])).stepped_back
        assert stepped_back == (timedelta(minutes=10) if noticed == "by its tick" else None)
        assert len(await queue.claim(10)) == 0  # a step gives no tokens
        await clock.advance(seconds=0.2)
        await store.admit_due()
        assert len(await queue.claim(10)) == 2
    finally:
        await store.close()
    await no_drift(db)


async def test_a_key_without_a_bucket_is_looked_at_after_a_step_back_of_the_clock(
    database: str, db: Connection
) -> None:
    """Its next job is locked when it may start, so the key is to be looked at in a second. That second is hours away
    once the clock has stepped back."""
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, max_running_per_key=1)
    _, second = await queue.add(2, limit_key="a")
    claimed = await queue.claim(2)
    store = DispatchStore(database)
    try:
        await store.register("one", "test")
        await store.tick([])  # which looks at all keys of limits that were changed
        async with stranger(database, "SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", second):
            await queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
        await clock.advance(hours=-2)
        await store.tick([])
        assert await states(queue) == {State.BLOCKED: 1}
        await store.admit_due()
    finally:
        await store.close()
    assert (await queue.claim(2)).ids == (second,)
    await no_drift(db)


SLOW_CLOCK = """
CREATE OR REPLACE FUNCTION headgate.clock_v1() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
DECLARE v_read timestamptz := pg_catalog.clock_timestamp();
BEGIN
    IF pg_catalog.current_setting('application_name') = 'slow' THEN
        PERFORM pg_catalog.pg_advisory_lock_shared(7);
    END IF;
    RETURN v_read;
END $$"""


async def test_a_bucket_charged_while_the_clock_is_read_gets_no_tokens_twice(database: str, db: Connection) -> None:
    """A server looks at its first tick whether the clock went back. Between its look at the clock and at the bucket, a
    claim charges the bucket: that is no step back."""
    queue = Queue(db)
    await limit(queue, rate=Rate(count=10, period=SECOND, burst=3))
    await queue.add(1)
    assert len(await queue.claim(1)) == 1
    await db.execute(SLOW_CLOCK)
    for _ in range(50):  # it waits for a lock for a tenth of a second only
        async with asyncio.timeout(30):
            slow = await connect(database, application_name="slow")
            await db.execute("SELECT pg_advisory_lock(7)")
            looking = asyncio.create_task(slow.fetchval("SELECT headgate.rewind_limits_v1()"))
            while not looking.done() and not await db.fetchval(WAITS, slow.get_server_pid()):
                await asyncio.sleep(0)
            charged = await db.fetchval(
                "UPDATE headgate.limit_usage SET refilled_at = headgate.clock_v1() RETURNING refilled_at"
            )
            await db.execute("SELECT pg_advisory_unlock(7)")
            try:
                assert await looking == 0
                break
            except asyncpg.LockNotAvailableError:
                continue
            finally:
                await slow.close()
    else:
        raise AssertionError("it never waited")
    assert await db.fetchval("SELECT refilled_at FROM headgate.limit_usage") == charged


# ---------------------------------------------------------------- backlog


async def test_a_full_backlog_refuses_row_by_row(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_backlog=5)
    ids = await queue.add(4)
    tenant_no = await queue.tenant_no()
    jobs = [queue.job(), queue.job(), queue.job("other"), queue.job(key="k")]
    flush = await fill(db, queue.names, jobs)
    answers = await submitting.submit(db, flush)
    assert set(answers) == {1, 3}
    for answer in answers.values():
        assert answer.receipt is SubmitReceipt.REFUSED
        assert isinstance(answer.error, BacklogFull)
        assert (answer.error.topic, answer.error.limit, answer.error.waiting) == ("mail", 5, 4)
    # Sent again: it is there, which is no news to a full topic.
    again = await queue.submit(queue.job(id=ids[0]))
    assert again[0].receipt is SubmitReceipt.DUPLICATE
    with pytest.raises(BacklogFull):
        await queue.add(1)
    got = await queue.claim(3)
    await queue.add(3)
    await queue.settle(*((job, 1, Abandon()) for job in got.ids))  # what came back may go over the limit
    with pytest.raises(BacklogFull, match='topic "mail" has 8 jobs waiting and takes at most 5'):
        await queue.add(1)
    assert (await reads.get(db, tenant_no, ids[3])).state is State.PENDING
    # The refused key is free.
    await limit(queue, max_backlog=None)
    assert (await queue.submit(queue.job(key="k")))[0].receipt is SubmitReceipt.CREATED


async def test_a_submit_in_a_long_transaction_delays_no_job_of_its_key(db: Connection, database: str) -> None:
    queue = Queue(db)
    await limit(queue, max_running_per_key=1, max_backlog=3)
    ids = await queue.add(2, limit_key="a")
    await queue.claim(1)
    other = await connect(database, application_name="headgate test")
    try:
        async with other.transaction():
            mine = await other.fetchval("SELECT headgate.submit('mail', ''::bytea, tenant => 'acme', limit_key => 'a')")
            async with asyncio.timeout(60):
                await queue.settle((ids[0], 1, Completed()))  # would wait forever, were the key's row locked
                assert (await queue.claim(1)).ids == (ids[1],)
        await store_calls.promote(db)
        assert (await reads.get(db, await queue.tenant_no(), mine)).state is State.BLOCKED
        await queue.add(2)
        with pytest.raises(asyncpg.ConfigurationLimitExceededError, match='"mail" has 3 jobs waiting'):
            await db.fetchval("SELECT headgate.submit('mail', ''::bytea, tenant => 'acme')")
    finally:
        await other.close()
    await queue.settle((ids[1], 1, Completed()))
    assert mine in (await queue.claim(3)).ids
    await no_drift(db)


# ---------------------------------------------------------------- rules at run time


async def test_rules_and_limits_change_at_run_time_and_are_audited(db: Connection) -> None:
    queue = Queue(db)
    tenant_no = await queue.tenant_no()
    await queue.topic()
    rules = TopicRules(
        max_attempts=3, policy=RetryPolicy(kind=BackoffKind.FIXED, base_ms=50), ageing_step=timedelta(seconds=60)
    )
    given = {"max_attempts": 3, "retry": rules.policy, "ageing_step": rules.ageing_step}
    await topics.set_topic(db, queue.names, tenant_no, "mail", rules=given, actor="eve", reason="slow down")
    view = await topics.set_topic(db, queue.names, tenant_no, "mail", changes={"max_running": 7}, actor="eve")
    assert view.rules == rules
    assert view.limits.max_running == 7
    (job,) = await queue.add(1)
    seen = await reads.get(db, tenant_no, job)
    assert seen.max_attempts == 3
    newest, oldest = await audit.entries(db, tenant_no)
    assert (oldest.actor, oldest.verb, oldest.target, oldest.reason) == (
        *("eve", "configure_topic", "topic mail", "slow down"),
    )
    assert oldest.detail["new"]["max_attempts"] == 3  # type: ignore[index]
    assert "max_running" not in newest.detail["old"]  # type: ignore[operator]
    assert newest.detail["new"]["max_running"] == 7  # type: ignore[index]
    assert (await topic_views.topic(db, tenant_no, "mail")).counts == {State.PENDING: 1}


async def test_bad_limits_and_unknown_topics_are_refused(db: Connection) -> None:
    queue = Queue(db)
    with pytest.raises(NotFound, match='no topic "nowhere"'):
        await topics.set_topic(db, queue.names, await queue.tenant_no(), "nowhere", changes={})
    with pytest.raises(InvalidInput, match="max_running"):
        await limit(queue, max_running=-1)
    with pytest.raises(InvalidInput, match=r"rate\.count"):
        Rate(count=0, period=SECOND)


# ---------------------------------------------------------------- healing


async def test_without_limits_the_check_of_their_counters_reads_no_jobs(db: Connection) -> None:
    scans = "SELECT seq_scan + idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'headgate.jobs'::regclass"

    async def looks() -> int:
        async with db.transaction():
            before: int = await db.fetchval(scans)
            assert await db.fetchval("SELECT mended FROM headgate.mend_limits_v1(0, '', 100)") == 0
            after: int = await db.fetchval(scans)
            return after - before

    queue = Queue(db)
    await queue.add(5)
    await queue.claim(5)
    assert await looks() == 0
    await limit(queue, max_running=5)
    assert await looks() > 0


async def test_wrong_counters_are_put_right(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running=5, max_running_per_key=2)
    await queue.add(10, limit_key="a")
    await queue.claim(10)
    await db.execute("UPDATE headgate.limit_usage SET running = 7, admitted = 3")
    assert await db.fetchval("SELECT mended FROM headgate.mend_limits_v1(0, '', 100)") == 2
    await no_drift(db)
    await db.execute("DELETE FROM headgate.limit_usage")
    assert await db.fetchval("SELECT mended FROM headgate.mend_limits_v1(0, '', 100)") == 2
    await no_drift(db)


async def test_unused_keys_are_deleted(db: Connection) -> None:
    queue = Queue(db)
    await limit(queue, max_running_per_key=1)
    for number in range(20):
        await queue.add(1, limit_key=f"k{number:02}")
    got = await queue.claim(10)
    await queue.settle(*((job, 1, Completed()) for job in got.ids))
    assert await db.fetchval("SELECT key FROM headgate.mend_limits_v1(0, '', 5)") == "k04"
    await db.fetchval("SELECT key FROM headgate.mend_limits_v1(0, '', 100)")
    assert await db.fetchval("SELECT count(*) FROM headgate.limit_usage") == 10
    assert len(await queue.claim(20)) == 10
    await no_drift(db)


async def test_the_tick_reaps_promotes_and_frees_where_limits_are_used(db: Connection, database: str) -> None:
    queue = Queue(db)
    clock = await Clock.install(db)
    await limit(queue, max_running=1, key_rate=Rate(count=1, period=SECOND))
    await queue.add(3, limit_key="a")
    (later,) = await queue.add(1, limit_key="b", delay=timedelta(seconds=5))
    await queue.claim(1, lease=SECOND)
    store = DispatchStore(database)
    try:
        await store.register("one", "test")
        no = (await queue.topic()).no
        await store.topics("acme", ["mail"])
        assert store.names.topics_by_no[no].rules.ageing_step is None
        assert await store.reap() == []
        tick = await store.tick([no])
        assert (tick.promoted, tick.pending) == ([], [])
        assert {topic_no for topic_no, _ in tick.limits_open} == {no}
        assert store.names.is_keyed(no)
        await clock.advance(seconds=10)
        assert await store.reap() == [no]
        tick = await store.tick([no])
        assert [job for _, _, job in tick.promoted] == [later]
        assert tick.pending == [no]
        assert len(await queue.claim(5)) == 1  # of two that may, one at a time
    finally:
        await store.close()
    await no_drift(db)


# ---------------------------------------------------------------- redrives


async def test_a_paced_redrive_of_jobs_with_keys_lines_each_up_when_it_is_due(db: Connection) -> None:
    """The first at once, the others at their times: each waits for its key, none before it is due."""
    clock, queue = await Clock.install(db), Queue(db)
    await limit(queue, max_running_per_key=1)
    tenant = await queue.tenant_no()
    jobs = await queue.add(6, limit_key="a", max_attempts=1)
    for _ in jobs:
        claimed = await queue.claim(1)
        await queue.settle((claimed.ids[0], claimed.epochs[0], BOOM))
    await no_drift(db)
    # Not in the order of their ids: the pace follows the order that was asked for.
    order = [jobs[place] for place in (3, 0, 5, 1, 4, 2)]
    assert set(await verbs.redrive(db, tenant, order, apart=10 * SECOND)) == set(order)
    due = [(await reads.get(db, tenant, job_id)).run_at - clock.now for job_id in order]
    assert due == [place * 10 * SECOND for place in range(6)]
    assert await states(queue) == {State.PENDING: 1, State.SCHEDULED: 5}
    await no_drift(db)
    assert (await queue.claim(10)).ids == (order[0],)
    ran = [order[0]]
    epoch = (await reads.get(db, tenant, order[0])).epoch
    for place in range(1, 6):
        await clock.advance(seconds=10)
        assert [job.id for job in await store_calls.promote(db)] == [order[place]]
        assert len(await queue.claim(10)) == 0  # its key is taken
        assert (await reads.get(db, tenant, order[place])).state is State.BLOCKED
        await no_drift(db)
        await queue.settle((ran[-1], epoch, Completed()))
        claimed = await queue.claim(10)
        assert claimed.ids == (order[place],)
        ran, epoch = [*ran, claimed.ids[0]], claimed.epochs[0]
    await queue.settle((ran[-1], epoch, Completed()))
    assert await states(queue) == {}
    await no_drift(db)


@pytest.mark.parametrize("first_is", ["unknown", "alive", "later"])
async def test_a_paced_redrive_whose_first_job_is_not_due_puts_none_into_line(db: Connection, first_is: str) -> None:
    clock, queue = await Clock.install(db), Queue(db)
    await limit(queue, max_running_per_key=1)
    tenant = await queue.tenant_no()
    jobs = await queue.add(3, limit_key="a", max_attempts=1)
    for _ in jobs:
        claimed = await queue.claim(1)
        await queue.settle((claimed.ids[0], claimed.epochs[0], BOOM))
    (alive,) = await queue.add(1, "other")
    asked = {"unknown": [new_id(), *jobs], "alive": [alive, *jobs], "later": jobs}[first_is]
    delay = SECOND if first_is == "later" else timedelta(0)
    assert set(await verbs.redrive(db, tenant, asked, delay=delay, apart=10 * SECOND)) == set(jobs)
    due = [(await reads.get(db, tenant, job_id)).run_at - clock.now for job_id in jobs]
    assert due == [delay + asked.index(job_id) * 10 * SECOND for job_id in jobs]
    assert [(await reads.get(db, tenant, job_id)).state for job_id in jobs] == [State.SCHEDULED] * 3
    assert await db.fetchval("SELECT count(*) FROM headgate.limit_line") == 0
    await no_drift(db)


async def test_a_paced_redrive_leaves_out_a_unique_key_that_is_taken_and_keeps_the_pace_of_the_rest(
    db: Connection,
) -> None:
    clock, queue = await Clock.install(db), Queue(db)
    tenant = await queue.tenant_no()
    jobs = []
    for n in range(3):
        jobs += await queue.add(1, unique=Unique(key=f"u{n}"), limit_key="a", max_attempts=1)
        claimed = await queue.claim(1)
        await queue.settle((claimed.ids[0], claimed.epochs[0], BOOM))
    await queue.add(1, unique=Unique(key="u0"))  # the first one's key is another's now
    assert set(await verbs.redrive(db, tenant, jobs, apart=10 * SECOND)) == set(jobs[1:])
    found = [await reads.get(db, tenant, job_id) for job_id in jobs]
    assert [job.state for job in found] == [State.DEAD, State.SCHEDULED, State.SCHEDULED]
    assert [job.run_at - clock.now for job in found[1:]] == [10 * SECOND, 20 * SECOND]
    await no_drift(db)
