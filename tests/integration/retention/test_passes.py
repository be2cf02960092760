"""One pass is bounded, and the next continues where it stopped."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from headgate.domain.dependencies import NewBatch, Unique
from headgate.domain.outcomes import Completed
from headgate.domain.retention import Removed
from headgate.domain.states import State, SubmitReceipt
from headgate.store import dependencies, partitions, retention, verbs
from headgate.store.batches import open_batch, seal_batch
from tests.integration.retention.finishing import DAY, DIES, START, counts_agree, end, end_all, known, later
from tests.support.queue import Clock, Queue, links, new_id

# ---------------------------------------------------------------------- bounded, repeatable, on every instance


async def test_a_pass_is_bounded_and_the_next_continues_where_it_stopped(queue: Queue, clock: Clock) -> None:
    await end(queue, Completed(), 10)
    await end(queue, DIES, 10)
    await later(clock, queue.db, days=9)
    assert await retention.run_pass(queue.db, seconds=0) == Removed(more=True)
    looked = []
    while True:
        row = await queue.db.fetchrow("SELECT * FROM headgate.retire_chunk_v1($1, 6, false)", START.date())
        looked.append(row["looked"])
        if row["done"]:
            break
    assert looked == [6, 6, 6, 2]
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.archive") == 10
    # Walked: the next look at it is a look at one row.
    row = await queue.db.fetchrow("SELECT * FROM headgate.retire_chunk_v1($1, 6, false)", START.date())
    assert (row["looked"], row["removed"], row["done"]) == (0, 0, True)
    await counts_agree(queue)


async def test_a_walk_over_several_tenants_passes_no_job_over(queue: Queue, clock: Clock) -> None:
    """A chunk ends within the second tenant, whose ids are all below that of the first one's job."""
    await queue.tenant_no()
    other = Queue(queue.db, tenant="other")
    theirs = await end(other, Completed(), 3)
    ours = await end(queue, Completed(), 1)
    await end(other, DIES)  # the day stays
    assert max(theirs) < min(ours)
    await later(clock, queue.db, days=9)
    while (await retention.run_pass(queue.db, chunk=2)).jobs:
        pass
    assert await known(other, theirs) == []
    assert await known(queue, ours) == []


async def test_a_pass_continues_with_expired_keys_while_it_has_time(queue: Queue, clock: Clock) -> None:
    left = "SELECT count(*) FROM headgate.idempotency_keys"
    for n in range(9):
        await queue.add(key=f"k{n}", key_window=timedelta(hours=1))
    await later(clock, queue.db, hours=2)
    assert (await retention.run_pass(queue.db, seconds=0, chunk=2)).more
    assert await queue.db.fetchval(left) == 7, "out of time: one chunk"
    await retention.run_pass(queue.db, seconds=120, chunk=2)
    assert await queue.db.fetchval(left) == 0


async def test_a_day_that_is_old_as_a_whole_is_cleared_in_bounded_passes_too(
    queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(queue, Completed(), 45, payload=b"l" * 3_000)
    await later(clock, queue.db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 10)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 20)
    left = [45]
    while (await retention.run_pass(queue.db, chunk=10)).more:
        left.append(await queue.db.fetchval("SELECT count(*) FROM headgate.payloads"))
    assert max(before - after for before, after in pairwise(left)) == 20  # a day without jobs takes a chunk, too
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NULL", f"headgate.archive_{START:%Y%m%d}")
    await counts_agree(queue)


@pytest.mark.parametrize("ended", [False, True])
async def test_a_job_submitted_again_while_its_day_is_cleared_keeps_its_payload_and_its_limit_key(
    queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    jobs = await end(queue, Completed(), 12, payload=b"l" * 3_000, tags=["red"], limit_key="k")
    await later(clock, queue.db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 5)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 5)
    again, past = max(jobs), f"headgate.archive_{START:%Y%m%d}"
    while not await queue.db.fetchval("SELECT count(*) BETWEEN 1 AND 11 FROM headgate.payloads"):
        assert (await retention.run_pass(queue.db, chunk=5)).more
    new = queue.job(id=again, payload=b"n" * 3_000, tags=["green"], limit_key="other")
    assert [done.receipt for done in await queue.submit(new)] == [SubmitReceipt.CREATED]
    if ended:  # and be it already in the archive again
        await end_all(queue, "mail", Completed())
    while (await retention.run_pass(queue.db, chunk=5)).more:
        pass
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NULL", past)
    if ended:
        assert set(await verbs.redrive(queue.db, await queue.tenant_no(), [again])) == {again}
    claimed = await queue.claim(10)
    assert (list(claimed.ids), list(claimed.payloads)) == ([again], [b"n" * 3_000])
    keys = [tuple(row) for row in await queue.db.fetch("SELECT job_id, limit_key FROM headgate.job_limit_keys")]
    assert keys == [(again, "other")]
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_tags WHERE tag = 'green'") == 1
    await queue.settle((again, claimed.epochs[0], Completed()))
    await counts_agree(queue)


@pytest.mark.parametrize("second_life", ["plain", "tagged", "linked"])
async def test_a_job_submitted_again_while_its_day_is_cleared_has_nothing_of_its_first_life(
    queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch, second_life: str
) -> None:
    db, tenant = queue.db, await queue.tenant_no()
    first, second = NewBatch(id=new_id()), NewBatch(id=new_id())
    await open_batch(db, queue.names, tenant, first)
    (parent,) = await queue.add(1, "parents")
    for n in range(6):
        own = {"depends_on": [parent], "batch": first.id, "unique": Unique(key=f"u{n}")}
        await queue.submit(queue.job(payload=b"l" * 3_000, tags=["red", "green"], limit_key="k", **own))
    await end_all(queue, "parents", Completed())
    while (await dependencies.unblock_ready(db))[1]:
        pass
    await end_all(queue, "mail", Completed())
    await seal_batch(db, tenant, first.id)
    await later(clock, db, days=40)
    (young,) = await end(queue, Completed(), 1, "other", tags=["blue"])
    monkeypatch.setattr(partitions, "CHUNK", 2)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 2)
    while not await db.fetchval("SELECT count(*) BETWEEN 1 AND 5 FROM headgate.payloads"):
        assert (await retention.run_pass(db, chunk=2)).more
    again = await db.fetchval("SELECT max(id::text)::uuid FROM headgate.payloads")
    options: dict[str, object] = {} if second_life == "plain" else {"tags": ["green"]}
    if second_life == "linked":
        await open_batch(db, queue.names, tenant, second)
        (parent,) = await queue.add(1, "parents")
        options |= {"batch": second.id, "depends_on": [parent], "unique": Unique(key="mine")}
    assert [done.receipt for done in await queue.submit(queue.job(id=again, **options))] == [SubmitReceipt.CREATED]
    repeat = queue.job("other", id=young, tags=["blue"])
    assert [done.receipt for done in await queue.submit(repeat)] == [SubmitReceipt.DUPLICATE]
    while (await retention.run_pass(db, chunk=2)).more:
        pass
    left = {
        name: [tuple(row) for row in await db.fetch(f"SELECT {columns} FROM headgate.{name} ORDER BY 1")]
        for name, columns in (
            ("job_tags", "tag, job_id"),
            ("batch_jobs", "batch_id, job_id"),
            ("job_dependencies", "parent_id, child_id"),
            ("unique_jobs", "key, job_id"),
            ("job_limit_keys", "limit_key, job_id"),
            ("payloads", "id"),
        )
    }
    expected: dict[str, list[tuple[object, ...]]] = {name: [] for name in left}
    expected["job_tags"] = [("blue", young)] if second_life == "plain" else [("blue", young), ("green", again)]
    if second_life == "linked":
        expected["batch_jobs"] = [(second.id, again)]
        expected["job_dependencies"] = [(parent, again)]
        expected["unique_jobs"] = [("mine", again)]
    assert left == expected
    counted = await db.fetchrow("SELECT total, gone_completed FROM headgate.batches WHERE id = $1", first.id)
    assert tuple(counted) == (6, 6)
    assert not await db.fetchval("SELECT count(*) FROM headgate.retention_days WHERE leaving")
    await counts_agree(queue)


async def test_a_day_that_is_half_cleared_is_dropped_also_when_a_rule_becomes_longer(
    queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await end(queue, Completed(), 12, payload=b"l" * 3_000)
    await later(clock, queue.db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 5)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 5)
    while not await queue.db.fetchval("SELECT count(*) BETWEEN 1 AND 11 FROM headgate.payloads"):
        assert (await retention.run_pass(queue.db, chunk=5)).more
    await retention.set_rules(queue.db, {"dead": 300 * DAY, "completed": 300 * DAY}, actor="ana", reason="audit")
    for _ in range(5):
        await retention.run_pass(queue.db, chunk=5)
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NULL", f"headgate.archive_{START:%Y%m%d}")
    assert await known(queue, jobs) == []
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    await counts_agree(queue)


async def test_a_pass_says_when_others_hold_all_that_is_left(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(queue, Completed(), 45)
    await later(clock, queue.db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 10)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 20)
    monkeypatch.setattr(retention, "LOCK_WAIT", timedelta(milliseconds=50))
    day = f"headgate.archive_{START:%Y%m%d}"
    assert (await retention.run_pass(queue.db)).more  # it is detached, and cleared in part
    async with links(database, 1) as (reader,), reader.transaction():
        await reader.execute(f"LOCK TABLE {day} IN ACCESS SHARE MODE")
        passes = [await retention.run_pass(queue.db)]
        while not passes[-1].blocked and len(passes) < 20:
            passes.append(await retention.run_pass(queue.db))
        assert passes[-1] == Removed(more=True, blocked=True)
        # To clear the jobs of a day is progress, though nothing is counted as removed.
        assert not passes[0].blocked
        assert all(one.more for one in passes)
    done = await retention.run_pass(queue.db)
    assert (done.days > 0, done.more, done.blocked) == (True, False, False)
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NULL", day)


async def test_a_day_that_a_reader_holds_keeps_no_other_from_being_cleared(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(queue, Completed(), 2)
    await later(clock, queue.db, days=35)
    await end(queue, Completed(), 3)
    await end(queue, DIES, 1)
    await later(clock, queue.db, days=9)
    monkeypatch.setattr(retention, "LOCK_WAIT", timedelta(seconds=1.2))  # longer than a pass
    async with links(database, 1) as (reader,), reader.transaction():
        await reader.fetch("SELECT count(*) FROM headgate.archive")
        done = await retention.run_pass(queue.db)
    assert done.jobs >= 3
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.archive WHERE state = $1", State.COMPLETED) <= 2
