"""Schedules whose topic takes no more jobs: no occurrence is lost, no other schedule is delayed, nothing spins."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from headgate.domain.outcomes import Completed
from headgate.domain.schedules import After, At, CatchUp, Every, Overlap, WhenFull
from headgate.domain.states import State
from headgate.store import reads, schedules, topics
from headgate.store.connect import Connection
from tests.integration.schedules.bench import MINUTE, NOON, Bench
from tests.support.queue import Clock, links

SECOND = timedelta(seconds=1)


@pytest.fixture
async def bench(db: Connection) -> Bench:
    return Bench(db, await Clock.install(db, NOON))


async def bound(bench: Bench, most: int | None, topic: str = "mail") -> None:
    """So many jobs may wait in the topic."""
    await bench.queue.topic(topic)
    tenant = await bench.queue.tenant_no()
    await topics.set_topic(bench.db, bench.queue.names, tenant, topic, changes={"max_backlog": most})


async def drain(bench: Bench) -> list[Any]:
    """Run everything that waits."""
    claimed = await bench.queue.claim(100)
    await bench.queue.settle(
        *((job_id, epoch, Completed()) for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True))
    )
    return list(claimed.ids)


async def look(bench: Bench) -> Any:
    """Fire what is due, at the moment at which the schedule is looked at next."""
    at = await bench.db.fetchval("SELECT min(look_at) FROM headgate.schedules")
    if at > bench.clock.now:
        await bench.clock.set(at)
    return await bench.scheduler.run_once()


@pytest.mark.parametrize(
    "timing", [Every(interval=MINUTE), At(at=NOON + MINUTE), After(delay=MINUTE)], ids=["every", "at", "after"]
)
async def test_an_occurrence_of_a_full_topic_stays_due_and_fires_when_there_is_capacity(
    bench: Bench, timing: Any
) -> None:
    await bound(bench, 1)
    await bench.queue.add(1)
    await bench.put(timing=timing)
    await bench.clock.advance(minutes=1)
    done = await bench.scheduler.run_once()
    assert (done.made, done.skipped, done.waiting) == (0, 0, 1)
    view = await bench.get()
    assert (view.next_at, view.last_at, view.full_since) == (NOON + MINUTE, None, NOON + MINUTE)
    assert (view.fired, view.skipped, view.last_skip, view.last_error) == (0, 0, "", "")
    assert await bench.jobs() == []
    await drain(bench)
    assert (await look(bench)).made == 1
    assert await bench.occurrences() == [NOON + MINUTE]
    view = await bench.get()
    assert (view.fired, view.full_since, view.last_at) == (1, None, NOON + MINUTE)
    assert view.next_at == (NOON + 2 * MINUTE if isinstance(timing, Every) else None)


async def test_while_it_waits_it_is_looked_at_ever_less_often_and_others_fire_in_time(bench: Bench) -> None:
    await bound(bench, 0)
    for n in range(20):
        await bench.put(f"full-{n}", timing=At(at=NOON + SECOND))
    await bench.put("free", topic="other", timing=Every(interval=SECOND))
    looks = 0
    for second in range(1, 121):
        await bench.clock.set(NOON + second * SECOND)
        done = await bench.scheduler.run_once()
        assert done.made == 1, second
        looks += done.waiting
        # What is not to be looked at yet is no reason to look again at once.
        assert (await bench.scheduler.run_once()).seen == 0
    assert 20 * 8 <= looks <= 20 * 20  # of 20 × 120
    since, at = await bench.db.fetchrow("SELECT full_since, look_at FROM headgate.schedules WHERE name = 'full-0'")
    assert since == NOON + SECOND
    assert timedelta(0) < at - bench.clock.now <= 15 * SECOND


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (CatchUp.ONE, [(6, 1)]),
        (CatchUp.ALL, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]),
        (CatchUp.NONE, [(6, 1)]),
    ],
    ids=lambda value: value.value if isinstance(value, CatchUp) else "",
)
async def test_what_comes_due_while_it_waits_is_caught_up_by_its_own_policy(
    bench: Bench, catch_up: CatchUp, expected: list[tuple[int, int]]
) -> None:
    await bound(bench, 1)
    await bench.queue.add(1)
    await bench.put(catch_up=catch_up)
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).waiting == 1
    await bench.clock.set(NOON + 6 * MINUTE + 10 * SECOND)
    await drain(bench)
    await bound(bench, 100)
    await bench.scheduler.run_once()
    found = [((job.occurrence - NOON) // MINUTE, (job.covers_from - NOON) // MINUTE) for job in await bench.jobs()]
    assert sorted(found) == expected
    assert (await bench.get()).next_at == NOON + 7 * MINUTE


async def test_with_catch_up_none_an_occurrence_too_late_for_its_capacity_is_skipped_and_counted(bench: Bench) -> None:
    await bound(bench, 0)
    await bench.put(catch_up=CatchUp.NONE)
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).waiting == 1
    await bench.clock.advance(seconds=31)
    await bound(bench, None)
    done = await bench.scheduler.run_once()
    assert (done.made, done.skipped) == (0, 1)
    view = await bench.get()
    assert (view.last_skip, view.full_since, view.next_at) == ("late", None, NOON + 2 * MINUTE)


async def test_catching_up_makes_as_many_jobs_as_the_topic_has_capacity_for(bench: Bench) -> None:
    """The oldest first, and none twice: the cursor stands at the first that has no job."""
    await bound(bench, 2)
    await bench.put(catch_up=CatchUp.ALL)
    await bench.clock.advance(minutes=5)
    done = await bench.scheduler.run_once()
    assert (done.made, done.waiting, done.skipped) == (2, 1, 0)
    view = await bench.get()
    assert (view.next_at, view.last_at, view.fired) == (NOON + 3 * MINUTE, NOON + 2 * MINUTE, 2)
    assert (await look(bench)).made == 0
    await drain(bench)
    assert (await look(bench)).made == 2
    await drain(bench)
    assert (await look(bench)).made == 1
    assert await bench.occurrences() == [NOON + n * MINUTE for n in range(1, 6)]
    view = await bench.get()
    assert (view.next_at, view.full_since, view.fired, view.skipped) == (NOON + 6 * MINUTE, None, 5, 0)


async def test_one_that_is_to_skip_counts_the_occurrence_and_continues(bench: Bench) -> None:
    await bound(bench, 0)
    await bench.put(when_full=WhenFull.SKIP)
    await bench.clock.advance(minutes=1)
    done = await bench.scheduler.run_once()
    assert (done.made, done.skipped, done.waiting) == (0, 1, 0)
    view = await bench.get()
    assert (view.next_at, view.full_since, view.skipped) == (NOON + 2 * MINUTE, None, 1)
    assert (view.last_skip, view.last_skip_at, view.last_at) == ("refused", NOON + MINUTE, NOON + MINUTE)
    assert [(one.at, one.why) for one in view.skips] == [(NOON + MINUTE, "refused")]
    await bound(bench, None)
    assert (await bench.scheduler.run_once()).made == 0
    assert view.spec.when_full is WhenFull.SKIP


@pytest.mark.parametrize("when_full", list(WhenFull))
async def test_a_job_is_not_cancelled_for_one_that_cannot_be_made(bench: Bench, when_full: WhenFull) -> None:
    """overlap=replace: the earlier job stays until there is space for the one that replaces it."""
    await bench.put(overlap=Overlap.REPLACE, when_full=when_full)
    await bench.put("neighbour", topic="other")
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 2
    (first,) = (await bench.queue.claim(1)).ids  # it runs, so that cancelling it would make no room
    await bound(bench, 0)
    await bench.clock.advance(minutes=1)
    done = await bench.scheduler.run_once()
    assert (done.made, done.waiting, done.skipped) == (1, *((1, 0) if when_full is WhenFull.WAIT else (0, 1)))
    tenant = await bench.queue.tenant_no()
    assert not (await reads.get(bench.db, tenant, first)).cancel_requested
    view = await bench.get()
    assert (view.full_since is None) == (when_full is WhenFull.SKIP)
    assert view.next_at == NOON + (2 if when_full is WhenFull.WAIT else 3) * MINUTE
    assert view.last_at == NOON + (1 if when_full is WhenFull.WAIT else 2) * MINUTE  # an edit goes on after it
    await bound(bench, None)
    await bench.clock.set(NOON + 3 * MINUTE)
    assert (await bench.scheduler.run_once()).made == 2
    assert (await reads.get(bench.db, tenant, first)).cancel_requested


async def test_a_waiting_job_is_replaced_by_one_that_takes_its_capacity(bench: Bench) -> None:
    await bound(bench, 1)
    await bench.put(overlap=Overlap.REPLACE)
    for minute in (1, 2):
        await bench.clock.set(NOON + minute * MINUTE)
        assert (await bench.scheduler.run_once()).made == 1
    assert [job.state for job in await bench.jobs()] == [State.PENDING, State.CANCELLED]


async def test_an_edit_keeps_what_waits_and_a_pause_lets_it_go(bench: Bench) -> None:
    await bound(bench, 0)
    await bench.put()
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    view, _ = await bench.put(payload=b"other")
    assert (view.next_at, view.full_since) == (NOON + MINUTE, None)
    assert (await bench.scheduler.run_once()).waiting == 1
    await bench.verb(schedules.pause)
    assert (await bench.get()).full_since is None
    await bench.verb(schedules.resume)
    view = await bench.get()
    assert (view.next_at, view.full_since) == (NOON + 2 * MINUTE, None)


async def test_several_instances_make_one_job_for_each_occurrence_as_capacity_changes(
    bench: Bench, database: str
) -> None:
    await bound(bench, 3)
    names = [f"s{n}" for n in range(6)]
    for name in names:
        await bench.put(name, catch_up=CatchUp.ALL)
    async with links(database, 3) as some:
        others = [Bench(link, bench.clock) for link in some]
        for _ in range(5):  # five minutes: thirty occurrences
            await bench.clock.advance(minutes=1)
            await asyncio.gather(*(other.scheduler.run_once() for other in others))
            await drain(bench)
        for _ in range(60):
            await asyncio.gather(*(other.scheduler.run_once() for other in others))
            assert await bench.db.fetchval("SELECT count(*) FROM headgate.jobs") <= 3 * 4  # flushes in flight
            await drain(bench)
            await bench.clock.advance(seconds=16)
            if min([(await bench.get(name)).next_at for name in names]) > NOON + 5 * MINUTE:
                break
    for name in names:
        made = [at for at in await bench.occurrences(name) if at <= NOON + 5 * MINUTE]
        assert made == [NOON + n * MINUTE for n in range(1, 6)], name
        assert (await bench.get(name)).skipped == 0
