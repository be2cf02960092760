"""Retention beside other instances, redrives and readers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headgate.domain.dependencies import NewBatch, Unique
from headgate.domain.errors import StoreUnavailable
from headgate.domain.outcomes import Completed
from headgate.domain.states import SubmitReceipt
from headgate.store import partitions, retention, topics, verbs
from headgate.store.batches import open_batch
from tests.integration.retention.finishing import DAY, DIES, START, all_passes, counts_agree, end, known, later
from tests.support.queue import Clock, Queue, links, new_id, stranger
from tests.support.waiting import until_async


async def test_four_instances_at_once_remove_each_job_once(queue: Queue, clock: Clock, database: str) -> None:
    for _ in range(3):
        await end(queue, Completed(), 40, payload=b"l" * 3_000, tags=["red"])
        await end(queue, DIES, 10)
        await later(clock, queue.db, days=1)
    await later(clock, queue.db, days=9)
    async with links(database, 4) as some:
        done = await asyncio.gather(*(retention.run_pass(link, chunk=7) for link in some))
    rest = await all_passes(queue.db)
    assert sum(one.jobs for one in done) + rest.jobs == 120
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.archive") == 30
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    await counts_agree(queue)


async def test_an_instance_killed_in_the_middle_of_a_chunk_leaves_it_whole(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOCK_WAIT", timedelta(seconds=60))
    jobs = await end(queue, Completed(), 6, payload=b"l" * 3_000)
    await later(clock, queue.db, days=9)
    async with links(database, 2) as (holder, worker):
        holding = holder.transaction()
        await holding.start()
        await holder.execute("SELECT FROM headgate.payloads WHERE id = $1 FOR UPDATE", jobs[3])
        cut_off = asyncio.create_task(retention.run_pass(worker))

        async def waits() -> bool:
            return bool(
                await queue.db.fetchval(
                    "SELECT wait_event_type = 'Lock' FROM pg_catalog.pg_stat_activity WHERE pid = $1",
                    worker.get_server_pid(),
                )
            )

        await until_async(waits, "its chunk is in the middle: jobs deleted, payloads not")
        assert await known(queue, jobs) == jobs
        # Another instance does not wait for it: the day is being worked on.
        assert (await retention.run_pass(queue.db)).jobs == 0
        await queue.db.execute("SELECT pg_terminate_backend($1)", worker.get_server_pid())
        with pytest.raises(StoreUnavailable):
            await cut_off
        await holding.rollback()
    assert await known(queue, jobs) == jobs
    assert (await all_passes(queue.db)).jobs == 6
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    await counts_agree(queue)


@pytest.mark.parametrize("chunk", [1_000, 2])  # in one chunk, or both in the first of two
async def test_a_job_that_is_being_redriven_is_passed_over_and_one_that_stays_is_removed_later(
    queue: Queue, clock: Clock, database: str, chunk: int
) -> None:
    jobs = await end(queue, DIES, 3)
    tenant = await queue.tenant_no()
    await topics.set_topic(queue.db, queue.names, tenant, "mail", rules={"keep_dead": DAY})
    await later(clock, queue.db, days=3)
    async with links(database, 1) as (other,):
        redriving = other.transaction()
        await redriving.start()
        assert set(await verbs.redrive(other, tenant, [jobs[0]])) == {jobs[0]}
        kept_back = other.transaction()
        await kept_back.start()
        await verbs.redrive(other, tenant, [jobs[1]])
        assert (await retention.run_pass(queue.db, chunk=chunk)).jobs == 1
        assert (await retention.run_pass(queue.db, chunk=chunk)).jobs == 0
        assert await queue.db.fetchval("SELECT due FROM headgate.days_due_v1()") is False  # for a minute
        await kept_back.rollback()
        await redriving.commit()
    assert await known(queue, jobs) == jobs[:2]
    await clock.advance(seconds=61)
    assert (await retention.run_pass(queue.db, chunk=chunk)).jobs == 1
    assert await known(queue, jobs) == jobs[:1]
    await counts_agree(queue)


LOCKED = "SELECT id FROM headgate.archive WHERE id = $1 FOR UPDATE"
DUE = "SELECT due FROM headgate.days_due_v1() WHERE day = $1"


async def test_a_walk_that_has_missed_a_job_continues_at_once_and_rests_at_its_end(
    queue: Queue, clock: Clock, database: str
) -> None:
    locked, *_ = await end(queue, Completed(), 3)
    await later(clock, queue.db, days=9)
    async with stranger(database, LOCKED, locked):
        for looked, removed, due in ((2, 1, True), (1, 1, False)):
            row = await queue.db.fetchrow("SELECT * FROM headgate.retire_chunk_v1($1, 2, false)", START.date())
            assert (row["looked"], row["removed"]) == (looked, removed)
            assert await queue.db.fetchval(DUE, START.date()) is due


async def test_a_walk_by_new_rules_does_not_count_what_the_one_before_has_missed(
    queue: Queue, clock: Clock, database: str
) -> None:
    locked, *_ = await end(queue, Completed(), 3)
    await end(queue, DIES, 1, "other")  # the day stays
    await later(clock, queue.db, days=9)
    async with stranger(database, LOCKED, locked):
        assert await queue.db.fetchval("SELECT removed FROM headgate.retire_chunk_v1($1, 2, false)", START.date()) == 1
    await topics.set_topic(queue.db, queue.names, await queue.tenant_no(), "mail", rules={"keep_dead": DAY})
    assert (await retention.run_pass(queue.db, chunk=2)).jobs == 2
    await clock.advance(seconds=61)
    assert await queue.db.fetchval(DUE, START.date()) is False  # nothing was missed: the day is not walked again


async def test_a_reader_of_the_archive_for_hours_delays_neither_claims_nor_settles(
    queue: Queue, clock: Clock, database: str
) -> None:
    gone = await end(queue, Completed(), 5)
    await later(clock, queue.db, days=9)
    fresh = await queue.add(2)
    async with links(database, 2) as (reader, remover), reader.transaction(isolation="repeatable_read"):
        await reader.fetchval("SELECT count(*) FROM headgate.archive")
        removing = asyncio.create_task(retention.run_pass(remover))
        await queue.db.execute("SET lock_timeout = '500ms'")
        claimed = await queue.claim(1)
        await queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
        assert (await removing).jobs == 5
        assert await reader.fetchval("SELECT count(*) FROM headgate.archive") == 5  # as of its beginning
        assert (await queue.claim(1)).ids == (fresh[1],)
    assert await known(queue, gone) == []


async def test_a_job_submitted_again_twice_at_once_while_its_day_is_cleared_keeps_all_it_has(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second submit waits for the first, and must not take what the first has made for a part of the old job."""
    db, tenant = queue.db, await queue.tenant_no()
    old, new = NewBatch(id=new_id()), NewBatch(id=new_id())
    await open_batch(db, queue.names, tenant, old)
    for n in range(3):
        options = {"tags": ["red"], "limit_key": "old", "unique": Unique(key=f"u{n}"), "batch": old.id}
        await end(queue, Completed(), 1, payload=b"l" * 3_000, **options)
    await later(clock, db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 1)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 1)
    while not await db.fetchval("SELECT count(*) BETWEEN 1 AND 2 FROM headgate.unique_jobs"):
        assert (await retention.run_pass(db, chunk=1)).more
    again = await db.fetchval("SELECT max(job_id::text)::uuid FROM headgate.unique_jobs")
    await open_batch(db, queue.names, tenant, new)
    job = queue.job(id=again, tags=["green"], limit_key="new", unique=Unique(key="mine"), batch=new.id)
    async with links(database, 2) as (one, two):
        first = one.transaction()
        await first.start()
        assert [done.receipt for done in await Queue(one).submit(job)] == [SubmitReceipt.CREATED]
        second = asyncio.create_task(Queue(two).submit(job))
        waits = "SELECT cardinality(pg_catalog.pg_blocking_pids($1)) > 0"
        await until_async(lambda: db.fetchval(waits, two.get_server_pid()), "the second waits for the first")
        await first.commit()
        assert [done.receipt for done in await second] == [SubmitReceipt.DUPLICATE]
    for table, column, kept in (
        ("job_tags", "tag", "green"),
        ("job_limit_keys", "limit_key", "new"),
        ("batch_jobs", "batch_id", new.id),
        ("unique_jobs", "key", "mine"),
    ):
        found = await db.fetch(f"SELECT {column} FROM headgate.{table} WHERE job_id = $1", again)
        assert [row[0] for row in found] == [kept], table
    assert await db.fetchval("SELECT gone_completed FROM headgate.batches WHERE id = $1", new.id) == 0


async def test_a_day_that_was_emptied_is_dropped_early_and_one_that_is_not_empty_is_attached_again(
    queue: Queue, clock: Clock
) -> None:
    tenant = await queue.tenant_no()
    await end(queue, Completed(), 2)
    await queue.topic("long")
    await topics.set_topic(queue.db, queue.names, tenant, "long", rules={"keep_dead": 300 * DAY})
    await later(clock, queue.db, days=1)
    (kept,) = await end(queue, DIES, 1, "long")
    await later(clock, queue.db, days=39)
    done = await all_passes(queue.db)
    assert (done.jobs, done.days > 0) == (2, True)
    days = [
        row[0]
        for row in await queue.db.fetch(
            "SELECT relname FROM pg_catalog.pg_class"
            " WHERE relname ~ '^(archive|job_events)_[0-9]{8}$' AND relkind = 'r' ORDER BY 1"
        )
    ]
    first = (START + DAY).date()
    assert days[0] == f"archive_{first:%Y%m%d}"
    assert f"job_events_{START:%Y%m%d}" not in days
    assert await known(queue, [kept]) == [kept]
    # Cut off after a detach of a day that was taken for empty, and is not (a clock was set back by weeks).
    leaving = "SELECT count(*) FROM headgate.retention_days WHERE leaving"
    await queue.db.execute("UPDATE headgate.retention_days SET leaving = true WHERE day = $1", first)
    await queue.db.execute(f"ALTER TABLE headgate.archive DETACH PARTITION headgate.{days[0]} CONCURRENTLY")
    assert await known(queue, [kept]) == []
    await all_passes(queue.db)
    assert await known(queue, [kept]) == [kept]
    assert await queue.db.fetchval(leaving) == 0  # else every submit would look for jobs of that day
