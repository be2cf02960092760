"""Dead rows, and keys that are forgotten."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from headgate.domain.outcomes import Completed
from headgate.store import upkeep
from headgate.store.connect import Connection
from headgate.store.database import Database
from tests.support.queue import Clock, Queue, links, new_id
from tests.support.waiting import until_async

DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def dead_rows(db: Connection) -> int:
    if db.get_server_version().major >= 15:
        await db.execute("SELECT pg_catalog.pg_stat_force_next_flush()")
    await db.execute("SELECT pg_catalog.pg_stat_clear_snapshot()")
    found: int = await db.fetchval(
        "SELECT n_dead_tup FROM pg_catalog.pg_stat_all_tables WHERE relid = 'headgate.jobs'::regclass"
    )
    return found


async def leave_dead_rows(queue: Queue, count: int) -> None:
    """Submit, claim and complete: two dead rows a job, and an empty table."""
    await queue.db.execute("ALTER TABLE headgate.jobs SET (autovacuum_enabled = off)")
    await queue.add(count)
    claimed = await queue.claim(count)
    await queue.settle(*((job_id, 1, Completed()) for job_id in claimed.ids))

    async def known() -> bool:
        return await dead_rows(queue.db) >= 2 * count

    await until_async(known, "PostgreSQL has counted the dead rows")


async def test_dead_rows_are_removed_and_the_table_is_not_truncated(queue: Queue) -> None:
    await leave_dead_rows(queue, 1_000)
    size = await queue.db.fetchval("SELECT pg_catalog.pg_relation_size('headgate.jobs')")
    few = {bloat.table: bloat for bloat in await upkeep.vacuum_hot_tables(queue.db, dead_rows=2_001)}
    assert set(few) == set(upkeep.HOT_TABLES)
    assert (few["jobs"].vacuumed, few["jobs"].dead, few["jobs"].live) == (False, 2_000, 0)
    assert await dead_rows(queue.db) == 2_000
    many = {bloat.table: bloat for bloat in await upkeep.vacuum_hot_tables(queue.db, dead_rows=2_000)}
    assert {table for table, bloat in many.items() if bloat.vacuumed} == {"jobs"}

    async def none_left() -> bool:  # PostgreSQL 14 tells of it a little later
        return await dead_rows(queue.db) == 0

    await until_async(none_left, "the dead rows are gone")
    # Giving the empty pages back would have taken a lock that stops every claim.
    assert await queue.db.fetchval("SELECT pg_catalog.pg_relation_size('headgate.jobs')") == size
    await queue.add(1_000)
    assert await queue.db.fetchval("SELECT pg_catalog.pg_relation_size('headgate.jobs')") == size


async def test_who_keeps_dead_rows_from_being_removed_is_named(
    db: Connection, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with links(database, 1) as (reader,):
        await reader.execute("SET application_name = 'nightly report'")
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetchval("SELECT count(*) FROM headgate.jobs")
            assert await upkeep.warn_of_held_snapshots(db, longer_than=HOUR) == []
            (who,) = await upkeep.warn_of_held_snapshots(db, longer_than=timedelta())
            assert "nightly report" in who
            assert f"session {reader.get_server_pid()}" in who
        assert await upkeep.warn_of_held_snapshots(db, longer_than=timedelta()) == []
    (warning,) = caplog.records
    assert warning.getMessage().startswith("snapshot_held seconds=")


async def test_vacuuming_and_claiming_do_not_wait_for_each_other(queue: Queue, database: str) -> None:
    await leave_dead_rows(queue, 200)
    await queue.add(10)
    async with links(database, 2) as (claimer, vacuumer):
        for link in (claimer, vacuumer):
            await link.execute("SET lock_timeout = '200ms'")
        mine = Queue(claimer)
        claiming = claimer.transaction()
        await claiming.start()
        assert len(await mine.claim(5)) == 5
        report = await upkeep.vacuum_hot_tables(vacuumer, dead_rows=0)  # beside a claim that has not committed
        assert all(bloat.vacuumed for bloat in report)
        await claiming.commit()
        vacuuming = vacuumer.transaction()
        await vacuuming.start()
        await vacuumer.execute("LOCK TABLE headgate.jobs IN SHARE UPDATE EXCLUSIVE MODE")  # what a vacuum holds
        assert len(await mine.claim(5)) == 5
        await upkeep.vacuum_hot_tables(claimer, dead_rows=0)  # a second one steps aside
        await vacuuming.commit()


async def test_expired_keys_and_ids_are_forgotten_oldest_first_in_bounded_numbers(queue: Queue, database: str) -> None:
    clock = await Clock.install(queue.db)
    for n in range(6):
        await queue.add(key=f"k{n}", key_window=(n + 1) * HOUR)
        await queue.submit(queue.job(id=new_id()))  # remembered for an hour
    assert await upkeep.forget_expired(queue.db) == 0
    await clock.advance(hours=4)

    async def left() -> tuple[list[str], int]:
        rows = await queue.db.fetch("SELECT key FROM headgate.idempotency_keys ORDER BY key")
        return [row["key"] for row in rows], await queue.db.fetchval("SELECT count(*) FROM headgate.resent_ids")

    assert await upkeep.forget_expired(queue.db, limit=2) == 4
    assert await left() == (["k2", "k3", "k4", "k5"], 4)
    async with links(database, 1) as (submitter,):
        submitting = submitter.transaction()
        await submitting.start()
        await Queue(submitter).submit(queue.job(key="k2"))  # takes the expired key for a new job
        await queue.db.execute("SET lock_timeout = '200ms'")
        assert await upkeep.forget_expired(queue.db) == 1 + 4  # skips the one in use
        await submitting.commit()
    assert await left() == (["k2", "k4", "k5"], 0)
    assert await upkeep.forget_expired(queue.db) == 0


async def test_an_id_that_was_sent_again_is_remembered_for_an_hour_after_its_last_copy(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    job = queue.job(id=new_id())
    await queue.submit(job)
    await clock.advance(minutes=40)
    await queue.submit(job)
    await clock.advance(minutes=59, seconds=59, milliseconds=999)
    assert await upkeep.forget_expired(queue.db) == 0
    await clock.advance(milliseconds=1)
    assert await upkeep.forget_expired(queue.db) == 1


async def test_looks_at_ages_take_a_twentieth_of_the_time_at_the_most(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    record_ages = upkeep.record_ages

    async def slow(db: Connection, after: int = 0) -> int:
        looks.append(time.monotonic())
        await asyncio.sleep(0.05)  # as over a backlog of dead rows
        return await record_ages(db, after)

    monkeypatch.setattr(upkeep, "record_ages", slow)
    store = Database(database)
    rounds = upkeep.UpkeepRounds(store)
    try:
        await rounds.tidy(thorough=False)
        await rounds.tidy(thorough=False)
        assert len(looks) == 1
        async with asyncio.timeout(30):
            while len(looks) < 2:
                await asyncio.sleep(0.02)
                await rounds.tidy(thorough=False)
    finally:
        await store.close()
    assert looks[1] - looks[0] >= 0.05 / upkeep.AGES_SHARE
