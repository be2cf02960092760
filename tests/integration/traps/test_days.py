"""Midnight, and missing days."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from headgate.domain.states import Receipt, State
from headgate.store import leases, listing, reads, verbs
from headgate.store.partitions import fetch_into_days
from tests.integration.traps.rivals import BOOM, DONE, FATAL, Rivals, all_jobs, last_instant, run, state_of
from tests.support import store_calls
from tests.support.queue import Clock, Queue


async def days_of(queue: Queue, table: str = "archive") -> list[str]:
    """The partitions that hold a row, in order."""
    rows = await queue.db.fetch(f"SELECT DISTINCT tableoid::regclass::text AS name FROM headgate.{table} ORDER BY 1")
    return [row["name"] for row in rows]


def day(table: str, at: datetime) -> str:
    return f"headgate.{table}_{at:%Y%m%d}"


async def everything_is_found(queue: Queue, ids: list[UUID]) -> None:
    """get, result and lists see each job, whatever day it finished."""
    tenant = await queue.tenant_no()
    for job_id in ids:
        assert (await reads.get(queue.db, tenant, job_id)).id == job_id
        assert (await reads.result(queue.db, tenant, job_id)).state.is_final
    listed: list[UUID] = []
    cursor = None
    while True:
        page = await store_calls.list_jobs(queue.db, tenant, limit=1, cursor=cursor)
        listed += [row.id for row in page.rows]
        if (cursor := page.cursor) is None:
            break
    assert sorted(listed) == sorted(ids)
    finished = listing.Filter(states=frozenset({State.COMPLETED, State.DEAD}))
    assert len((await store_calls.list_jobs(queue.db, tenant, matching=finished)).rows) == len(ids)


async def test_flushes_around_midnight_land_in_the_right_day(queue: Queue) -> None:
    clock = await Clock.install(queue.db, last_instant())
    ids = await queue.add(4)
    await queue.claim()
    before = clock.now
    await queue.settle((ids[0], 1, DONE), (ids[1], 1, FATAL))
    assert await days_of(queue) == [day("archive", before)]
    await clock.advance(milliseconds=1)
    assert (clock.now.hour, clock.now.microsecond) == (0, 0)
    await queue.settle((ids[2], 1, DONE), (ids[3], 1, FATAL))
    assert await days_of(queue) == [day("archive", before), day("archive", clock.now)]
    assert await days_of(queue, "job_events") == [day("job_events", before), day("job_events", clock.now)]
    await everything_is_found(queue, [*ids])
    assert await all_jobs(queue) == {State.COMPLETED: 2, State.DEAD: 2}


async def test_one_transaction_may_cross_midnight(queue: Queue, rivals: Rivals) -> None:
    clock = await Clock.install(queue.db, last_instant())
    ids = await queue.add(2)
    await queue.claim()
    other = await rivals.queue()
    async with other.db.transaction():
        await other.settle((ids[0], 1, DONE))
        await clock.advance(milliseconds=1)
        await other.settle((ids[1], 1, DONE))
    assert len(await days_of(queue)) == 2
    await everything_is_found(queue, [*ids])


async def test_a_job_finished_before_midnight_is_redriven_after_it_and_finishes_again(queue: Queue) -> None:
    clock = await Clock.install(queue.db, last_instant())
    (job_id,) = await queue.add()
    await run(queue, job_id)
    await clock.advance(milliseconds=1)
    await verbs.redrive(queue.db, await queue.tenant_no(), [job_id])
    assert await days_of(queue) == []
    await run(queue, job_id, FATAL)
    assert await days_of(queue) == [day("archive", clock.now)]
    assert await all_jobs(queue) == {State.DEAD: 1}


VERBS = ["complete", "fail", "die", "reap", "cancel", "cancel running", "redrive", "reprioritise", "discard"]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_makes_the_days_that_are_missing_when_the_clock_jumps_a_month(queue: Queue, verb: str) -> None:
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    finished, running = await queue.add(2)
    await queue.claim()
    await queue.settle((finished, 1, FATAL))
    (queued,) = await queue.add()
    await clock.advance(days=30)
    match verb:
        case "complete":
            assert (await queue.settle((running, 1, DONE)))[0].receipt is Receipt.APPLIED
            assert await state_of(queue, running) is State.COMPLETED
        case "fail":
            assert (await queue.settle((running, 1, BOOM)))[0].state is State.RETRYING
        case "die":
            assert (await queue.settle((running, 1, FATAL)))[0].state is State.DEAD
        case "reap":
            assert [one.id for one in await leases.reap(queue.db)] == [running]
        case "cancel":
            assert (await verbs.cancel(queue.db, tenant, [queued]))[queued].state is State.CANCELLED
        case "cancel running":
            assert (await verbs.cancel(queue.db, tenant, [running]))[running].changed
        case "redrive":
            assert set(await verbs.redrive(queue.db, tenant, [finished])) == {finished}
        case "reprioritise":
            assert (await verbs.reprioritise(queue.db, tenant, [queued], priority=1))[queued][0].changed
        case "discard":
            assert await verbs.discard(queue.db, tenant, [finished]) == {finished}
    assert sum((await all_jobs(queue)).values()) == (2 if verb == "discard" else 3)
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NOT NULL", day("archive", clock.now + timedelta(days=7)))


async def test_many_instances_that_miss_the_same_day_all_get_their_outcomes_in(queue: Queue, rivals: Rivals) -> None:
    clock = await Clock.install(queue.db)
    ids = await queue.add(8)
    await queue.claim()
    others = [await rivals.queue() for _ in range(4)]
    await clock.advance(days=30)
    await asyncio.gather(
        *(other.settle((ids[2 * n], 1, DONE), (ids[2 * n + 1], 1, FATAL)) for n, other in enumerate(others))
    )
    assert await all_jobs(queue) == {State.COMPLETED: 4, State.DEAD: 4}
    assert await days_of(queue) == [day("archive", clock.now)]


async def test_an_outcome_survives_the_loss_of_todays_partitions(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    (job_id,) = await queue.add()
    await queue.claim()
    await queue.db.execute(f"DROP TABLE {day('archive', clock.now)}, {day('job_events', clock.now)}")
    assert (await queue.settle((job_id, 1, FATAL)))[0].state is State.DEAD
    assert await days_of(queue) == [day("archive", clock.now)]


async def test_a_missing_day_is_known_in_whatever_language_the_server_speaks(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await clock.advance(days=30)
    await queue.db.execute(
        f"""CREATE FUNCTION public.eintragen() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
                IF to_regclass('{day("archive", clock.now)}') IS NULL THEN
                    RAISE EXCEPTION 'keine Partition von Relation »archive« für die Zeile gefunden'
                    USING ERRCODE = 'check_violation', SCHEMA = 'headgate', TABLE = 'archive';
                END IF;
                RETURN 1;
            END $$"""
    )
    assert await fetch_into_days(queue.db, "SELECT public.eintragen()") == [(1,)]


@pytest.mark.parametrize("back", [1, 30])
async def test_a_clock_that_steps_back_by_days_loses_nothing(queue: Queue, back: int) -> None:
    clock = await Clock.install(queue.db)
    ids = await queue.add(2)
    await queue.claim()
    await queue.settle((ids[0], 1, DONE))
    today = clock.now
    await clock.advance(days=-back)
    assert await leases.reap(queue.db) == [], "its lease is far from over now"
    await queue.settle((ids[1], 1, DONE))
    assert await days_of(queue) == [day("archive", clock.now), day("archive", today)]
    await everything_is_found(queue, [*ids])
    tenant = await queue.tenant_no()
    assert set(await verbs.redrive(queue.db, tenant, [*ids])) == {*ids}
    assert sorted((await queue.claim()).ids) == sorted(ids)
    assert await all_jobs(queue) == {State.RUNNING: 2}


@pytest.fixture
async def running(queue: Queue) -> UUID:
    """One job, claimed: epoch 1."""
    (job_id,) = await queue.add()
    await queue.claim()
    return job_id
