"""Topics are changed while others hold rows: no one else waits, and a change that fails leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import RowLocked
from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.domain.states import State
from headgate.domain.topic_limits import Rate
from headgate.store import topics
from headgate.store.connect import Connection, connect
from headgate.store.dispatch_store import DispatchStore
from headgate.store.lane import set_lock_timeout
from headgate.store.topics import TopicStore
from tests.integration.test_limits import no_drift
from tests.support.dispatch_waits import SOON
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue
from tests.support.waiting import until_async

FIXED = RetryPolicy.fixed(timedelta(seconds=30))
RUNNING = "SELECT id FROM headgate.jobs WHERE state = 1 FOR NO KEY UPDATE"  # as a submit that depends on them
TOPIC = "SELECT topic_no FROM headgate.topics FOR UPDATE"
POLICY = """
SELECT p.kind, p.base_ms FROM headgate.jobs j JOIN headgate.retry_policies p ON p.policy_no = j.policy_no
 WHERE j.id = $1"""
# Who waits for a row, and whether claims wait for them meanwhile. One look at all locks.
WAITING = """
WITH l AS MATERIALIZED (SELECT pid, locktype, classid, objid, mode, granted FROM pg_locks)
SELECT EXISTS (SELECT FROM l AS d WHERE d.pid = l.pid AND d.locktype = 'advisory' AND d.classid = 4847423
                                    AND d.objid = 1 /* dispatch */ AND d.mode = 'ExclusiveLock')
  FROM l WHERE l.locktype = 'transactionid' AND NOT l.granted"""
DISPATCH_WAITED_FOR = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 4847423 AND objid = 1 AND NOT granted"""


@asynccontextmanager
async def holding(database: str, statement: str) -> AsyncIterator[Connection]:
    """An application's open transaction that holds rows, or a lock."""
    app = await connect(database, application_name="app")
    try:
        async with app.transaction():
            assert await app.fetch(statement)
            yield app
    finally:
        await app.close()


@pytest.fixture
async def queue(db: Connection) -> Queue:
    """With one job that runs."""
    queue = Queue(db)
    await queue.add()
    assert len(await queue.claim()) == 1
    return queue


async def declared(stepped: Instance, rules: dict[str, object], *, worker: str = "w") -> bool:
    async with asyncio.timeout(SOON.total_seconds()):
        found = await TopicStore(stepped.store).declare_topic(
            stepped.tenant, "mail", rules, source="shop", worker=worker, actor="token"
        )
    return found is not None and found[1]


async def test_claims_do_not_wait_for_a_limit_that_waits_for_a_locked_job(
    stepped: Instance, queue: Queue, database: str
) -> None:
    async with holding(database, RUNNING):
        declaring = asyncio.create_task(declared(stepped, {"max_running": 2}))

        async def looked() -> bool:
            rows = await queue.db.fetch(WAITING)
            assert not any(row[0] for row in rows), "it keeps out the claims of all tenants while it waits"
            return bool(rows)

        await until_async(looked, "the declaration waits for the job")
    assert await declaring, "tried again"
    await queue.add(5)
    assert len(await queue.claim(5)) == 1, "the job that ran before counts"
    await no_drift(queue.db)


async def test_a_job_locked_after_the_look_ends_the_try_at_once(stepped: Instance, queue: Queue, database: str) -> None:
    tenant_no, change = await queue.tenant_no(), {"max_running": 2}
    async with (
        stepped.store.lane("upkeep").use() as db,
        holding(database, "SELECT pg_advisory_xact_lock_shared(4847423, 1)") as claim,
    ):
        await set_lock_timeout(db, timedelta(seconds=60))
        setting = asyncio.create_task(topics.set_topic(db, stepped.store.names, tenant_no, "mail", changes=change))

        async def waits() -> bool:
            return bool(await queue.db.fetchval(DISPATCH_WAITED_FOR))

        await until_async(waits, "the change waits for the claim")
        async with holding(database, RUNNING):
            await claim.execute("ROLLBACK AND CHAIN")
            with pytest.raises(RowLocked):
                await asyncio.wait_for(setting, 30)  # not after its lock timeout of 60 s
        await topics.set_topic(db, stepped.store.names, tenant_no, "mail", changes=change)


async def test_a_tick_does_not_fail_for_a_locked_bucket_that_is_to_refill(queue: Queue, database: str) -> None:
    """After a step back of the clock its time lies ahead. The next tick that finds it free lets it refill."""
    clock = await Clock.install(queue.db)
    rate = {"rate": Rate(count=1, period=timedelta(hours=1))}
    await topics.set_topic(queue.db, queue.names, await queue.tenant_no(), "mail", changes=rate)
    await queue.add()
    await queue.claim()
    await clock.advance(hours=-2)
    store = DispatchStore(database)
    try:
        await store.register("one", "test")
        async with holding(database, "SELECT FROM headgate.limit_usage FOR UPDATE"):
            await store.tick([])
        assert await queue.db.fetchval("SELECT refilled_at FROM headgate.limit_usage") > clock.now
        await store.tick([])
        assert await queue.db.fetchval("SELECT refilled_at FROM headgate.limit_usage") == clock.now
    finally:
        await store.close()


async def test_a_policy_of_a_change_that_failed_is_given_to_no_job(
    stepped: Instance, queue: Queue, database: str
) -> None:
    names, tenant_no = stepped.store.names, await queue.tenant_no()
    await stepped.store.topics(stepped.tenant, ["mail"])
    rules = {"max_running": 2, "retry": FIXED}
    async with holding(database, RUNNING), stepped.store.lane("upkeep").use() as db:
        with pytest.raises(RowLocked):
            await topics.declare_topic(db, names, tenant_no, "mail", rules, source="s", worker="w", actor="t")
    (job_id,) = await stepped.submit(1, policy=FIXED)
    assert tuple(await queue.db.fetchrow(POLICY, job_id) or ()) == (1, 30_000)


async def test_a_job_whose_policy_is_missing_is_retried(queue: Queue) -> None:
    await queue.add()
    await queue.db.execute("UPDATE headgate.jobs SET policy_no = 999999 WHERE state = 0")
    (job_id,) = (await queue.claim()).ids
    await queue.settle((job_id, 1, Failed(error=ErrorInfo(type="E", message="boom"))))
    row = await queue.db.fetchrow("SELECT state, run_at - claimed_at FROM headgate.jobs WHERE id = $1", job_id)
    assert State(row[0]) is State.RETRYING
    assert row[1] >= timedelta(seconds=1)


async def test_what_is_declared_already_locks_nothing_and_no_declaration_delays_operators(
    stepped: Instance, queue: Queue, database: str
) -> None:
    async with stepped.store.as_tenant("admin", 0):
        assert await declared(stepped, {"max_attempts": 3})
    async with holding(database, TOPIC):
        assert not await declared(stepped, {"max_attempts": 3})
    assert not await declared(stepped, {"max_attempts": 3}, worker="v")
    stored = (await TopicStore(stepped.store).get_topic(stepped.tenant, "mail")).sources.declarations
    assert [one.workers for one in stored] == [("v", "w")]
