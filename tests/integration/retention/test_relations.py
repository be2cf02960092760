"""What others rely on stays: keys, children, batches."""

from __future__ import annotations

from headgate.domain.dependencies import NewBatch
from headgate.domain.job_logs import AttemptLines, LogLine
from headgate.domain.outcomes import Completed
from headgate.domain.states import State, SubmitReceipt
from headgate.store import dependencies, job_logs, reads, retention, topics
from headgate.store.batches import batch_status, expire_batches, open_batch, seal_batch
from tests.integration.retention.finishing import DAY, DIES, all_passes, end, end_all, known, later
from tests.support.queue import Clock, Queue, new_id

# ---------------------------------------------------------------------- what others rely on


async def test_an_idempotency_key_lives_for_its_window_also_when_its_job_is_gone(queue: Queue, clock: Clock) -> None:
    (job,) = await end(queue, Completed(), 1, key="order 1", key_window=20 * DAY)
    await later(clock, queue.db, days=19)
    await all_passes(queue.db)
    assert await known(queue, [job]) == []
    (again,) = await queue.submit(queue.job(key="order 1", key_window=20 * DAY))
    assert (again.id, again.receipt) == (job, SubmitReceipt.DUPLICATE)
    await later(clock, queue.db, days=2)
    await all_passes(queue.db)
    (new,) = await queue.submit(queue.job(key="order 1", key_window=20 * DAY))
    assert new.receipt is SubmitReceipt.CREATED


async def test_a_live_child_of_a_removed_parent_still_waits_for_the_other(queue: Queue, clock: Clock) -> None:
    first, second = await queue.add(2, "parents")
    (child,) = await queue.add(1, depends_on=[first, second])
    claimed = await queue.claim(1, "parents")
    await queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
    await later(clock, queue.db, days=9)
    await all_passes(queue.db)
    assert await known(queue, [first, second, child]) == [second, child]
    assert (await dependencies.unblock_ready(queue.db))[0] == []
    assert (await reads.get(queue.db, await queue.tenant_no(), child)).state is State.BLOCKED
    claimed = await queue.claim(1, "parents")
    await queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
    assert [job for _, _, job in (await dependencies.unblock_ready(queue.db))[0]] == [child]


async def test_a_child_that_waits_for_the_redrive_of_a_dead_parent_is_cancelled_when_that_is_removed(
    queue: Queue, clock: Clock
) -> None:
    (parent,) = await queue.add(1, "parents")
    (child,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")
    await end_all(queue, "parents", DIES)
    tenant = await queue.tenant_no()
    await topics.set_topic(queue.db, queue.names, tenant, "parents", rules={"keep_dead": 2 * DAY})
    await later(clock, queue.db, days=4)
    assert (await all_passes(queue.db)).jobs == 1  # by row, not by day
    await dependencies.unblock_ready(queue.db)
    assert (await reads.get(queue.db, tenant, child)).state is State.CANCELLED
    assert (await reads.events(queue.db, tenant, child))[-1].reason == f"it waited for {parent}, which is gone"


async def test_a_batch_counts_members_that_are_gone_until_its_last_job_is(queue: Queue, clock: Clock) -> None:
    db, tenant = queue.db, await queue.tenant_no()
    batch, callback = NewBatch(id=new_id(), expires_in=60 * DAY), queue.job("done")
    await open_batch(db, queue.names, tenant, batch, callback=callback)
    await end(queue, Completed(), 2, batch=batch.id)
    await end(queue, None, 1, batch=batch.id)
    (slow,) = await queue.add(1, batch=batch.id)
    await later(clock, db, days=9)
    await all_passes(db)
    status = await batch_status(db, tenant, batch.id)
    assert (status.total, status.counted) == (4, 4)
    assert status.counts == {State.COMPLETED: 2, State.CANCELLED: 1, State.PENDING: 1}
    await seal_batch(db, tenant, batch.id)
    assert (await batch_status(db, tenant, batch.id)).total == 4
    assert (await dependencies.unblock_ready(db))[0] == []
    await end_all(queue, "mail", Completed())
    assert [job for _, _, job in (await dependencies.unblock_ready(db))[0]] == [callback.id]
    await later(clock, db, days=9)
    await all_passes(db)
    assert await known(queue, [slow]) == []
    assert await retention.forget_batches(db) == (0, retention._BEGINNING)  # its callback is not through
    assert (await batch_status(db, tenant, batch.id)).counts == {State.COMPLETED: 3, State.CANCELLED: 1}
    await end_all(queue, "done", Completed())
    await later(clock, db, days=9)
    assert (await retention.forget_batches(db))[0] == 0  # it is known still
    await all_passes(db)
    assert (await retention.forget_batches(db))[0] == 1


async def test_of_batches_sealed_at_one_moment_none_is_passed_over(queue: Queue, clock: Clock) -> None:
    """One was sealed before, and has the highest id."""
    db, tenant = queue.db, await queue.tenant_no()
    low, middle, high = new_id(), new_id(), new_id()
    for batch_id in (low, middle, high):
        await open_batch(db, queue.names, tenant, NewBatch(id=batch_id))
    await seal_batch(db, tenant, high)
    await clock.advance(seconds=1)
    await seal_batch(db, tenant, low)
    await seal_batch(db, tenant, middle)
    await later(clock, db, days=2)
    forgotten, after = await retention.forget_batches(db, limit=2)
    assert forgotten == 2
    assert (await retention.forget_batches(db, after, limit=2))[0] == 1


async def test_batches_with_old_jobs_do_not_hide_those_behind_them(queue: Queue, clock: Clock) -> None:
    """Sealed first, and their jobs are there for long: what was sealed later is forgotten nevertheless."""
    db, tenant = queue.db, await queue.tenant_no()
    kept = []
    for _ in range(5):
        batch = NewBatch(id=new_id())
        await open_batch(db, queue.names, tenant, batch)
        await queue.add(1, batch=batch.id)
        await seal_batch(db, tenant, batch.id)
        kept.append(batch.id)
        await clock.advance(seconds=1)
    await open_batch(db, queue.names, tenant, NewBatch(id=new_id()))
    (empty,) = [row[0] for row in await db.fetch("SELECT id FROM headgate.batches WHERE sealed_at IS NULL")]
    await seal_batch(db, tenant, empty)
    await open_batch(db, queue.names, tenant, NewBatch(id=new_id(), expires_in=DAY))  # it is never sealed
    await later(clock, db, days=1)
    assert await expire_batches(db) == 1
    assert (await retention.forget_batches(db))[0] == 0  # a day is to be over: sealed exactly one ago is not
    await clock.advance(seconds=1)
    forgotten, after = await retention.forget_batches(db, limit=2)
    found = [forgotten]
    while after != retention._BEGINNING:
        forgotten, after = await retention.forget_batches(db, after, limit=2)
        found.append(forgotten)
    assert found == [0, 0, 1, 0][: len(found)]
    assert {row[0] for row in await db.fetch("SELECT id FROM headgate.batches WHERE NOT expired")} == set(kept)
    await later(clock, db, days=2)
    assert (await retention.forget_batches(db))[0] == 1  # the one that was never sealed, a day after it was closed
    assert {row[0] for row in await db.fetch("SELECT id FROM headgate.batches")} == set(kept)


async def test_a_batch_counts_members_that_are_gone_by_how_they_ended(queue: Queue, clock: Clock) -> None:
    db, tenant = queue.db, await queue.tenant_no()
    await queue.topic("mail")
    await topics.set_topic(db, queue.names, tenant, "mail", rules={"keep_dead": DAY})
    batch = NewBatch(id=new_id(), expires_in=60 * DAY)
    await open_batch(db, queue.names, tenant, batch, callback=queue.job("done"))
    for count, outcome in ((1, Completed()), (2, DIES), (3, None)):
        await end(queue, outcome, count, batch=batch.id)
    await later(clock, db, days=9)
    assert (await all_passes(db)).jobs == 6
    counts = (await batch_status(db, tenant, batch.id)).counts
    assert counts == {State.COMPLETED: 1, State.DEAD: 2, State.CANCELLED: 3}


async def test_log_lines_that_were_stored_within_an_hour_after_the_end_go_with_their_job(
    queue: Queue, clock: Clock
) -> None:
    (job_id,) = await end(queue, Completed())
    await end(queue, DIES)  # the day stays
    epoch = await queue.db.fetchval("SELECT epoch FROM headgate.archive WHERE id = $1", job_id)
    await clock.advance(minutes=49)
    lines = [AttemptLines(job_id, epoch, 1, [LogLine(1, 1, 2, "app", "late")])]
    assert await job_logs.add_log_lines(queue.db, await queue.tenant_no(), lines) == 1
    await later(clock, queue.db, days=9)
    assert (await all_passes(queue.db)).jobs == 1
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_logs") == 0
