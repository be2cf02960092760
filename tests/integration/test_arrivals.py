"""Across instances the order is exact to the batch in flight (promise 6): the very next claim of any instance takes
first what has become claimable, anywhere below its watermark and by any instance. No notification is sent here."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from importlib import resources
from uuid import UUID

import pytest

from headgate.dispatch.watermark import MAX_GAPS, Watermark
from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.keyrange import HIGHEST, LOWEST, KeyRanges
from headgate.domain.limits import PRIORITY_MAX, PRIORITY_MIN
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack
from headgate.store import control, dependencies, leases, topics, verbs
from headgate.store.connect import Connection
from tests.support import store_calls
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue, links

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom"))
SOON = RetryPolicy(kind=BackoffKind.EXPLICIT, delays_ms=(10_000,))


class Other:
    """The instance under test: it claims two at a time for topics with a backlog, and gets no notifications."""

    def __init__(self, dsn: str, instance: Instance, worker: Worker) -> None:
        self.dsn, self.instance, self.worker = dsn, instance, worker

    async def claim(self, count: int = 2) -> list[UUID]:
        self.worker.ready(count)
        assert await self.instance.claimer.run_once() == count, "it has a backlog: its claims are full"
        return list((await self.worker.take()).ids)

    @property
    def marks(self) -> Watermark:
        (demand,) = self.instance.demands.by_wanted.values()
        return demand.marks

    @property
    def from_head(self) -> bool:
        return self.instance.store.asked[-1].from_head


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


async def passed(queue: Queue, other: Other, clock: Clock, *, priority: int = 0, topic: str = "mail") -> None:
    """Put the other's watermark in this class above everything so far, with a backlog behind it."""
    await clock.advance(seconds=1)
    await queue.add(50)
    await clock.advance(seconds=1)
    await queue.add(6, topic, priority=priority)
    first = await other.claim()
    assert other.from_head
    assert await other.claim() != first
    assert not other.from_head, "it claims from its mark"


async def claimed(queue: Queue, job: UUID, topic: str = "mail") -> int:
    """Run a job here; its epoch."""
    got = await queue.claim(1, topic, lease=timedelta(seconds=5))
    assert got.ids == (job,)
    return got.epochs[0]


async def limit(queue: Queue, name: str, **changes: object) -> None:
    await topics.set_topic(queue.db, queue.names, await queue.tenant_no(), name, changes=changes)


Case = Callable[[Queue, Other, Clock], Awaitable[UUID]]


async def abandoned(queue: Queue, other: Other, clock: Clock) -> UUID:
    (job,) = await queue.add()
    epoch = await claimed(queue, job)
    await passed(queue, other, clock)
    await queue.settle((job, epoch, Abandon()))
    return job


async def nacked(queue: Queue, other: Other, clock: Clock) -> UUID:
    (job,) = await queue.add()
    epoch = await claimed(queue, job)
    await passed(queue, other, clock)
    await queue.settle((job, epoch, Nack(delay=timedelta(0), reason="not me")))
    return job


async def promoted(queue: Queue, other: Other, clock: Clock) -> UUID:
    (job,) = await queue.add(delay=timedelta(seconds=5))
    await passed(queue, other, clock)
    await clock.advance(seconds=5)
    assert [one.id for one in await store_calls.promote(queue.db)] == [job]
    return job


async def retried(queue: Queue, other: Other, clock: Clock) -> UUID:
    (job,) = await queue.add(policy=SOON)
    epoch = await claimed(queue, job)
    await passed(queue, other, clock)
    await queue.settle((job, epoch, BOOM))
    await clock.advance(seconds=20)
    assert [one.id for one in await store_calls.promote(queue.db)] == [job]
    return job


async def reaped(queue: Queue, other: Other, clock: Clock) -> UUID:
    (job,) = await queue.add(policy=SOON)
    await claimed(queue, job)
    await passed(queue, other, clock)
    await clock.advance(seconds=10)
    assert [one.id for one in await leases.reap(queue.db)] == [job]
    await clock.advance(seconds=20)
    assert [one.id for one in await store_calls.promote(queue.db)] == [job]
    return job


async def not_received(queue: Queue, other: Other, clock: Clock) -> UUID:
    (job,) = await queue.add()
    await claimed(queue, job)
    await passed(queue, other, clock)
    gone = await queue.db.fetch("SELECT headgate.abandon_undeclared_v1($1, 'worker', '{}')", await queue.tenant_no())
    assert [row[0] for row in gone] == [job]
    return job


async def unblocked(queue: Queue, other: Other, clock: Clock) -> UUID:
    (parent,) = await queue.add()
    (job,) = await queue.add(depends_on=(parent,))
    epoch = await claimed(queue, parent)
    await passed(queue, other, clock)
    await queue.settle((parent, epoch, Completed()))
    freed, _ = await dependencies.unblock_ready(queue.db)
    assert [job_id for _, _, job_id in freed] == [job]
    return job


async def let_in_by_its_key(queue: Queue, other: Other, clock: Clock) -> UUID:
    await limit(queue, "side", max_running_per_key=1)
    first, job = await queue.add(2, "side", limit_key="k", priority=1)
    epoch = await claimed(queue, first, "side")
    await passed(queue, other, clock, topic="side", priority=1)
    await queue.settle((first, epoch, Completed()))
    return job


async def let_in_by_its_topic(queue: Queue, other: Other, clock: Clock) -> UUID:
    await limit(queue, "side", max_running=1)
    first, job = await queue.add(2, "side")
    epoch = await claimed(queue, first, "side")
    await passed(queue, other, clock)
    await queue.settle((first, epoch, Completed()))
    return job


async def resumed(queue: Queue, other: Other, clock: Clock) -> UUID:
    """It came back while its topic was paused, of which the other was not notified either."""
    (job,) = await queue.add(topic="side")
    epoch = await claimed(queue, job, "side")
    await queue.add(4, "side")
    await passed(queue, other, clock)
    topic = await queue.topic("side")
    await control.pause(queue.db, (topic.tenant_no, topic.no), who="me")
    await queue.settle((job, epoch, Abandon()))
    assert job not in await other.claim()
    await control.resume(queue.db, (topic.tenant_no, topic.no))
    return job


async def reprioritised(queue: Queue, other: Other, clock: Clock) -> UUID:
    (job,) = await queue.add()
    await passed(queue, other, clock, priority=10)
    await verbs.reprioritise(queue.db, await queue.tenant_no(), [job], priority=10)
    return job


async def moved(queue: Queue, other: Other, clock: Clock) -> UUID:
    (job,) = await queue.add(topic="elsewhere")
    await passed(queue, other, clock)
    topic = await queue.topic()
    await verbs.move(queue.db, await queue.tenant_no(), [job], topic_no=topic.no)
    return job


async def redriven(queue: Queue, other: Other, clock: Clock) -> UUID:
    """Its rank is new, and its transaction commits when the other has passed that."""
    (job,) = await queue.add(priority=10)
    epoch = await claimed(queue, job)
    await queue.settle((job, epoch, Failed(error=BOOM.error, permanent=True)))
    async with links(other.dsn, 1) as (slow,), slow.transaction():
        await verbs.redrive(slow, await queue.tenant_no(), [job])
        await passed(queue, other, clock, priority=10)
    return job


async def replaced(queue: Queue, other: Other, clock: Clock) -> UUID:
    """A submit with its unique key makes it due, and urgent."""
    (job,) = await queue.add(delay=timedelta(minutes=1))
    await passed(queue, other, clock, priority=10)
    await queue.db.execute(
        "SELECT headgate.push_unique_v1($1, ARRAY[$2::uuid], '{1}', '{NULL}', '{NULL}', '{0}', ARRAY['x'::bytea],"
        " '{10}', ARRAY[gen_random_uuid()])",
        await queue.tenant_no(),
        job,
    )
    return job


CASES: list[Case] = [
    *(abandoned, nacked, promoted, retried, reaped, not_received, unblocked, let_in_by_its_key, let_in_by_its_topic),
    *(resumed, reprioritised, moved, redriven, replaced),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_next_claim_of_another_instance_takes_it_first(
    queue: Queue, other: Other, clock: Clock, case: Case
) -> None:
    job = await case(queue, other, clock)
    assert (await other.claim())[0] == job


# ---------------------------------------------------------------------- transactions that commit late


async def test_a_flush_that_commits_late_is_taken_first(queue: Queue, other: Other, clock: Clock) -> None:
    async with links(other.dsn, 1) as (slow,), slow.transaction():
        late = await Queue(slow).add(30)
        await passed(queue, other, clock)
    got = [job for _ in range(10) for job in await other.claim(3)]
    assert got == late, "all of them, in order, although no claim takes more than three"


async def test_submits_in_open_transactions_are_taken_first_whichever_commits_when(
    queue: Queue, other: Other, clock: Clock
) -> None:
    async with links(other.dsn, 5) as slow:
        spans = [one.transaction() for one in slow]
        for span in spans:
            await span.start()
        late: dict[int, list[UUID]] = {n: [] for n in range(5)}
        for n in [0, 1, 2, 3, 4] * 20:  # by turns: the ranks of one lie between those of the others
            late[n].append(await submitted(slow[n]))
            await clock.advance(milliseconds=50)
        await passed(queue, other, clock)
        for n in (3, 0, 4, 1, 2):
            await spans[n].commit()
            assert [job for _ in range(4) for job in await other.claim(5)] == late[n], f"of transaction {n}"
    assert not other.from_head


async def test_more_that_commits_late_than_a_watermark_can_tell_apart_comes_in_order(
    queue: Queue, other: Other, clock: Clock
) -> None:
    many = 3 * MAX_GAPS
    async with links(other.dsn, 1) as (slow,), slow.transaction():
        late = []
        for _ in range(many):
            late.append(await submitted(slow))
            await clock.advance(seconds=1)
        await passed(queue, other, clock)
    assert [job for _ in range(many // 4) for job in await other.claim(4)] == late


async def test_many_that_come_back_at_once_from_places_far_apart_come_in_order(
    queue: Queue, other: Other, clock: Clock
) -> None:
    many = MAX_GAPS + 30
    for _ in range(many):
        await queue.add()
        await clock.advance(seconds=1)
    got = await queue.claim(many)
    await passed(queue, other, clock)
    await queue.settle(*((job, epoch, Abandon()) for job, epoch in zip(got.ids, got.epochs, strict=True)))
    assert [job for _ in range(2) for job in await other.claim(many // 2)] == list(got.ids)


@pytest.mark.parametrize("ends", [-1, 0, 1])
async def test_an_arrival_at_the_very_end_of_a_range_is_not_taken_for_part_of_it(queue: Queue, ends: int) -> None:
    seen = (await queue.claim(1)).news
    assert seen is not None
    (job,) = await queue.add()
    rank = await queue.db.fetchval("SELECT rank_at FROM headgate.jobs")
    topic, ranges = await queue.topic(), KeyRanges()
    ranges.add(topic.no, LOWEST, (-1, rank + ends))  # up to there, and not included
    ranges.add(topic.no, (-1, rank + 100), HIGHEST)
    assert (await queue.claim(1, ranges=ranges, seen=seen.seen)).ids == (job,)


async def submitted(db: Connection) -> UUID:
    job: UUID = await db.fetchval("SELECT headgate.submit('mail', ''::bytea, tenant => 'acme')")
    return job


async def test_what_is_rolled_back_has_not_arrived(queue: Queue, other: Other, clock: Clock) -> None:
    async with links(other.dsn, 1) as (slow,):
        span = slow.transaction()
        await span.start()
        gone = await submitted(slow)
        await passed(queue, other, clock)
        await span.rollback()
    assert gone not in await other.claim()


async def test_jobs_of_a_claim_that_fails_are_taken_first(queue: Queue, other: Other, clock: Clock) -> None:
    """While it holds them, others pass them over. No arrival is written when they are claimable again."""
    await passed(queue, other, clock)
    async with links(other.dsn, 1) as (slow,):
        span = slow.transaction()
        await span.start()
        held = await Queue(slow).claim(7)
        assert len(held) == 7
        for _ in range(3):
            assert not {*await other.claim()} & {*held.ids}
        await span.rollback()
    assert [*await other.claim(4), *await other.claim(3)] == list(held.ids)


async def test_a_row_locked_for_long_does_not_hold_the_watermark_back(queue: Queue, other: Other, clock: Clock) -> None:
    await passed(queue, other, clock)
    async with links(other.dsn, 1) as (slow,), slow.transaction():
        locked = await slow.fetchval(
            "SELECT id FROM headgate.jobs WHERE state = 0 ORDER BY rank_at, id LIMIT 1 FOR UPDATE"
        )
        for _ in range(4):
            await other.claim(3)
            await clock.advance(seconds=1)
            await queue.add(3)
        ((_, marks),) = [one for one in other.marks._marks.items() if one[1]]
        (mark,) = marks.values()
        assert [stop - start for start, stop in mark.gaps] == [1], "one place to look at, not all since then"
    assert (await other.claim())[0] == locked


# ---------------------------------------------------------------------- what each claim brings along


async def test_a_claim_without_news_asks_for_no_more_than_its_own_ranges(
    queue: Queue, other: Other, clock: Clock
) -> None:
    await passed(queue, other, clock)
    for _ in range(5):
        await queue.add(2)
        await other.claim()
        assert len(other.instance.store.asked[-1].ranges.topic_nos) == 3, "mail: two around its mark; side: one"


async def test_a_job_handed_over_at_once_does_not_overtake_a_better_one(
    queue: Queue, other: Other, clock: Clock
) -> None:
    """On an idle instance a submit claims along: what has come back elsewhere is before it anyway."""
    (job,) = await queue.add()
    epoch = await claimed(queue, job)
    await clock.advance(seconds=1)
    await queue.add()
    await other.claim(1)
    other.worker.ready(1)
    assert await other.instance.claimer.run_once() == 0
    await queue.settle((job, epoch, Abandon()))
    await other.instance.submit()
    assert list((await other.worker.take()).ids) == [job]


async def test_jobs_of_the_lowest_and_the_highest_priority_of_an_ageing_topic_arrive_together(queue: Queue) -> None:
    # Their ranks are further apart than a bigint can say.
    clock = await Clock.install(queue.db)
    await queue.topic("mail")
    await queue.db.execute("UPDATE headgate.topics SET ageing_step_us = 3600000000")
    await queue.names.refresh(queue.db)
    delay = timedelta(seconds=10)
    (last,) = await queue.add(1, priority=PRIORITY_MIN, delay=delay)
    (first,) = await queue.add(1, priority=PRIORITY_MAX, delay=delay)
    await clock.advance(seconds=11)
    assert len(await store_calls.promote(queue.db)) == 2
    assert (await queue.claim(2)).ids == (first, last)


# ---------------------------------------------------------------------- no function is left out

NEVER_PENDING = {
    "cancel_v1": "sets a flag",
    "claim_v1": "to running",
    "expire_lost_v1": "the lease; reap_v1 ends the attempts",
    "fire_v1": "sets a flag of what submit_v1 made",
    "submit_running_v1": "made as running",
    "add_dependencies_v1": "sets a flag",
    "progress_v1": "the progress",
    "reap_v1": "the lease; settle_other_v1 writes the arrivals of what it ends",
    "renew_v1": "the lease",
    "set_limits_v1": "sets a flag",
    "take_limited_v1": "back to blocked, into the line of its key",
    "trigger_v1": "sets a flag of what submit_v1 made",
}


def test_every_function_that_writes_jobs_tells_of_arrivals_or_is_known_to_make_none() -> None:
    folder = resources.files("headgate.store") / "functions"
    writers = {
        file.name.removesuffix(".sql"): "arrived_v1(" in text or "INSERT INTO headgate.arrivals" in text
        for file in folder.iterdir()
        if re.search(r"(INSERT INTO|UPDATE) headgate\.jobs\b", text := file.read_text())
    }
    silent = {name for name, tells in writers.items() if not tells}
    assert silent == set(NEVER_PENDING), "a job that becomes claimable must tell where: headgate.arrived_v1"


# ---------------------------------------------------------------------- the ranges that arrivals are kept as


async def ranges_of(db: Connection, ranks: list[tuple[int, int, int]]) -> set[tuple[int, int, int, int]]:
    topics_, classes, ats = (list(column) for column in zip(*ranks, strict=True))
    return {
        tuple(row) for row in await db.fetch("SELECT * FROM headgate.key_ranges_v1($1, $2, $3)", topics_, classes, ats)
    }


async def test_ranks_less_than_10_ms_apart_share_a_range_of_their_topic_and_class(db: Connection) -> None:
    """Other topics and classes have ranks between them, which neither join nor part them."""
    found = await ranges_of(
        db, [(1, -1, 0), (1, -1, 10_000), (1, -1, 20_001), (1, -2, 5_000), (1, -2, 20_000), (2, -1, 15_000)]
    )
    assert found == {
        (1, -1, 0, 10_000),
        (1, -1, 20_001, 20_001),
        (1, -2, 5_000, 5_000),
        (1, -2, 20_000, 20_000),
        (2, -1, 15_000, 15_000),
    }


async def test_many_ranges_become_64_of_neighbours(db: Connection) -> None:
    ranks = [n * 20_000 for n in range(128)]
    found = await ranges_of(db, [(1, -1, rank) for rank in ranks] + [(1, -2, rank) for rank in ranks[:64]])
    assert found == {
        *((1, -1, low, low + 20_000) for low in ranks[::2]),
        *((1, -2, rank, rank) for rank in ranks[:64]),
    }
