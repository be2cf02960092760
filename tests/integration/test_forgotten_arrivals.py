"""Arrivals are deleted when every claimer has read them, and no claimer misses one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.domain.outcomes import Abandon
from headgate.store.connect import Connection
from headgate.store.upkeep import forget_arrivals
from tests.integration.test_arrivals import Other, claimed, passed, submitted
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue, links, stranger


@pytest.fixture
async def queue(db: Connection) -> Queue:
    """The instance that does things."""
    return Queue(db)


@pytest.fixture
async def other(database: str, queue: Queue) -> AsyncIterator[Other]:
    async with Instance(database, name="other", running=False, claims_along=True) as instance:
        await queue.topic("mail")
        await queue.topic("side")
        yield Other(database, instance, await instance.worker("w", "mail", "side"))


async def test_arrivals_are_forgotten_when_every_claimer_has_seen_them(
    queue: Queue, other: Other, clock: Clock
) -> None:
    left = "SELECT count(*) FROM headgate.arrivals"
    # The last deletion was when the template of this database was made, which may be long ago.
    await queue.db.execute("UPDATE headgate.arrivals_floor SET taken_at = headgate.clock_v1()")
    await passed(queue, other, clock)
    assert await queue.db.fetchval(left) == 2  # one for each flush
    assert await forget_arrivals(queue.db) == 0, "too soon"
    await clock.advance(seconds=30)
    assert await forget_arrivals(queue.db) == 0, "no claimer had seen those when it began"
    assert await forget_arrivals(queue.db) == 0, "too soon again"
    await clock.advance(seconds=30)
    assert await forget_arrivals(queue.db) == 2
    assert await queue.db.fetchval(left) == 0


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_one_that_has_not_claimed_since_looks_from_the_head(
    queue: Queue, other: Other, clock: Clock, times: int
) -> None:
    (job,) = await queue.add()
    epoch = await claimed(queue, job)
    await passed(queue, other, clock)
    await queue.settle((job, epoch, Abandon()))
    for _ in range(times):
        await forget_arrivals(queue.db, apart_ms=0)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.arrivals") == (0 if times > 1 else 4)
    assert (await other.claim())[0] == job
    await queue.settle((job, epoch + 1, Abandon()))
    assert (await other.claim())[0] == job, "and goes on from there"


async def test_arrivals_are_forgotten_in_bounded_steps_and_none_is_passed_by(
    queue: Queue, other: Other, clock: Clock
) -> None:
    async def forget(most: int) -> int:
        gone: int = await queue.db.fetchval("SELECT headgate.forget_arrivals_v1(30000, $1)", most)
        return gone

    await queue.db.execute("UPDATE headgate.arrivals_floor SET taken_at = headgate.clock_v1()")
    (job,) = await queue.add()
    epoch = await claimed(queue, job)
    await passed(queue, other, clock)
    await queue.settle((job, epoch, Abandon()))
    await queue.add()
    await clock.advance(seconds=30)
    assert await forget(4) == 0, "no claimer had seen those when it began"
    await clock.advance(seconds=30)
    assert await forget(4) == 4
    assert (await other.claim())[0] == job, "it has seen less than was deleted: from the head"
    await queue.settle((job, epoch + 1, Abandon()))  # after the snapshot that is used for deleting
    assert await forget(4) == 1, "goes on at once"
    assert await forget(4) == 0, "too soon"
    await clock.advance(seconds=30)
    assert await forget(4) == 1, "with the snapshot of the last step"
    await clock.advance(seconds=30)
    assert await forget(4) == 0
    assert (await other.claim())[0] == job, "it has a generation of the first step only"


async def test_what_commits_long_after_it_was_written_is_not_forgotten_unseen(
    queue: Queue, other: Other, clock: Clock
) -> None:
    async with links(other.dsn, 1) as (slow,), slow.transaction():
        late = await submitted(slow)
        await passed(queue, other, clock)
        for _ in range(3):
            await forget_arrivals(queue.db, apart_ms=0)
            await other.claim()
    assert await forget_arrivals(queue.db, apart_ms=0) == 0
    assert not other.from_head
    assert (await other.claim())[0] == late
    assert not other.from_head


@pytest.mark.parametrize("what", ["the table", "the claimer"])
async def test_numbers_of_another_clusters_transactions_mean_nothing(
    queue: Queue, other: Other, clock: Clock, what: str
) -> None:
    """After a dump was restored elsewhere, or a failover has lost the end: look from the head."""
    (job,) = await queue.add()
    epoch = await claimed(queue, job)
    await passed(queue, other, clock)
    assert other.marks.seen is not None
    elsewhere = "9000000000:9000000000:"
    if what == "the table":
        await queue.db.execute("UPDATE headgate.arrivals_floor SET snapshot = $1::text::pg_snapshot", elsewhere)
    else:
        other.marks.seen = other.marks.seen._replace(snapshot=elsewhere)
    await queue.settle((job, epoch, Abandon()))
    await forget_arrivals(queue.db, apart_ms=0)
    assert (await other.claim())[0] == job
    await queue.settle((job, epoch + 1, Abandon()))
    assert (await other.claim())[0] == job, "and goes on from there"


async def test_arrivals_are_forgotten_after_a_step_back_of_the_clock(queue: Queue, clock: Clock) -> None:
    await queue.db.execute("UPDATE headgate.arrivals_floor SET taken_at = headgate.clock_v1()")
    await queue.add()
    await clock.advance(hours=-2)
    await forget_arrivals(queue.db)
    await clock.advance(seconds=30)
    assert await forget_arrivals(queue.db) == 1


async def test_an_arrival_that_was_in_flight_when_others_were_forgotten_is_forgotten_later(
    queue: Queue, database: str
) -> None:
    await queue.topic()
    async with stranger(database) as session:
        await session.fetchval("SELECT headgate.submit('mail', 'x'::bytea, tenant => 'acme')")
        await queue.add()  # the transaction after it
        await forget_arrivals(queue.db, apart_ms=0)
    assert [await forget_arrivals(queue.db, apart_ms=0) for _ in range(3)] == [1, 1, 0]
