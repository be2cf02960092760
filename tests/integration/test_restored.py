"""A database that came back older than it was: old runs are refused, and instances that outlived it end."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta

import pytest

from headgate.domain.errors import InstanceForgotten
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Snooze
from headgate.domain.states import Receipt
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from headgate.store.restore_fence import fence_restore
from headgate.store.settle import OutcomeFlush, settle
from tests.support.queue import Queue


@pytest.mark.req("F47")
async def test_outcomes_of_runs_from_before_a_restore_are_refused(db: Connection) -> None:
    queue = Queue(db)
    await queue.add(3)
    old = await queue.claim(2)
    done = await fence_restore(db, actor="a test")
    assert done.jobs == 3
    told = await queue.settle(
        *((job_id, epoch, Completed()) for job_id, epoch in zip(old.ids, old.epochs, strict=True))
    )
    assert [answer.receipt for answer in told] == [Receipt.STALE, Receipt.STALE]
    fresh = await queue.claim(1)
    assert fresh.epochs[0] > max(old.epochs) + 2**40
    told = await queue.settle((fresh.ids[0], fresh.epochs[0], Completed()))
    assert [answer.receipt for answer in told] == [Receipt.APPLIED]


@pytest.mark.req("F47")
async def test_an_instance_that_the_database_does_not_know_gets_an_error(database: str, db: Connection) -> None:
    store = DispatchStore(database)
    try:
        await store.register("one", "0")
        await store.tick([])
        await fence_restore(db, actor="a test")
        with pytest.raises(InstanceForgotten, match="start it again"):
            await store.tick([])
    finally:
        await store.close()


@pytest.mark.req("F45")
async def test_an_answer_about_an_earlier_commit_waits_until_that_is_durable(db: Connection) -> None:
    """A transaction without a record of its own would not wait for a synchronous standby before it answers."""
    queue = Queue(db)
    [job_id] = await queue.add(1)
    keyed = queue.job(key="once")
    await queue.submit(keyed)
    [epoch] = (await queue.claim(1, "mail")).epochs
    await queue.settle((job_id, epoch, Completed()))
    [other] = (await queue.claim(1, "mail")).epochs
    await queue.settle((keyed.id, other, Snooze(delay=timedelta(hours=1))))

    async def writes(answer: Awaitable[object]) -> bool:
        async with db.transaction():
            before: str = await db.fetchval("SELECT pg_current_wal_insert_lsn()::text")
            await answer
            return bool(await db.fetchval("SELECT pg_current_wal_insert_lsn() > $1::text::pg_lsn", before)) and bool(
                await db.fetchval("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
            )

    assert await writes(queue.settle((job_id, epoch, Completed())))
    assert await writes(queue.settle((keyed.id, other, Snooze(delay=timedelta(hours=1)))))
    assert await writes(queue.submit(queue.job(id=job_id)))
    assert await writes(queue.submit(queue.job(key="once")))


async def test_nothing_that_another_cluster_has_numbered_is_taken_for_news(db: Connection) -> None:
    """A backup restored into another cluster has numbers of transactions that lie ahead there."""
    queue = Queue(db)
    [job_id, failed] = await queue.add(2)
    claimed = await queue.claim()
    flush = OutcomeFlush()
    flush.recorded = True
    flush.add(await queue.tenant_no(), job_id, claimed.epochs[0], Completed())
    await settle(db, flush)
    await queue.settle((failed, claimed.epochs[1], Failed(error=ErrorInfo(type="E"))))
    await audit.record(db, 0, actor="ana", verb="pause", target="all")
    await db.execute(
        """UPDATE headgate.job_events SET xid = '99999999';
           UPDATE headgate.audit SET xid = '99999999';
           UPDATE headgate.event_recording SET until = 'infinity';
           UPDATE headgate.arrivals_floor SET snapshot = '99999999:99999999:', gone_to = '99999999'"""
    )
    before, xid = await db.fetchrow("SELECT generation, pg_current_xact_id()::text FROM headgate.arrivals_floor")
    await fence_restore(db, actor="ana")
    now = "pg_snapshot_xmax(pg_current_snapshot())"
    for table in ("job_events", "audit"):
        assert not await db.fetchval(f"SELECT bool_or(xid >= {now}) FROM headgate.{table}"), table
    assert await db.fetchval("SELECT bool_and(changed_by > $1::text::xid8) FROM headgate.topics", xid), "read again"
    for table in ("arrivals", "completions"):
        assert await db.fetchval(f"SELECT count(*) FROM headgate.{table}") == 0
    assert await db.fetchval("SELECT until <= now() FROM headgate.event_recording")
    floor = await db.fetchrow(
        f"SELECT generation, pg_snapshot_xmax(snapshot) <= {now}, gone_to = '0' FROM headgate.arrivals_floor"
    )
    assert tuple(floor) == (before + 2, True, True)
