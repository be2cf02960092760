"""Two claimers choose the same candidates; work lies below the watermark."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from headgate.dispatch.watermark import Watermark
from headgate.domain.arrivals import RankRange
from headgate.domain.outcomes import Abandon, Nack
from headgate.domain.states import State
from headgate.store import reads, verbs
from headgate.store.names import Topic
from tests.integration.traps.rivals import BOOM, Rivals, all_jobs
from tests.support import store_calls
from tests.support.epochs import claims
from tests.support.queue import Clock, Queue

# ------------------------------------------------------------------------- (c) two claimers choose the same candidates


@pytest.mark.req("D15")
async def test_a_claimer_takes_the_next_jobs_in_order_and_never_waits_for_another(queue: Queue, rivals: Rivals) -> None:
    ids = await queue.add(6)
    other, third = await rivals.queue(), await rivals.queue()
    async with queue.db.transaction(), other.db.transaction():
        assert list((await queue.claim(2)).ids) == ids[:2]
        # No task, no waiting: a claim that waited for a row would hang here until the test's deadline.
        assert list((await other.claim(2)).ids) == ids[2:4]
        assert list((await third.claim(10)).ids) == ids[4:]
    assert await all_jobs(queue) == {State.RUNNING: 6}


@pytest.mark.req("D15")
@pytest.mark.parametrize("committed", [True, False])
async def test_candidates_taken_between_choosing_and_locking_are_not_claimed_twice(
    queue: Queue, rivals: Rivals, committed: bool
) -> None:
    ids = await queue.add(8)
    gate, slow, quick = (
        await rivals.gate("claim_v1", before="-- explain: lock"),
        await rivals.queue(),
        await rivals.queue(),
    )
    await gate.holds(slow)
    claim = rivals.start(slow.claim(4))
    await rivals.waiting(slow)
    transaction = quick.db.transaction()
    await transaction.start()
    assert list((await quick.claim(3)).ids) == ids[:3]
    if committed:
        await transaction.commit()
    await gate.open()
    claimed = await claim
    assert list(claimed.ids) == ids[3:7], "the next in order, and never more than asked for"
    assert [claims(epoch) for epoch in claimed.epochs] == [1, 1, 1, 1]
    if not committed:
        await transaction.rollback()
        assert list((await queue.claim()).ids) == [*ids[:3], ids[7]], "what was let go is first again"


async def test_a_candidate_that_is_cancelled_or_moved_between_choosing_and_locking_is_left_out(
    queue: Queue, rivals: Rivals
) -> None:
    cancelled, demoted, kept = await queue.add(3)
    gate, slow = await rivals.gate("claim_v1", before="-- explain: lock"), await rivals.queue()
    await gate.holds(slow)
    claim = rivals.start(slow.claim(3))
    await rivals.waiting(slow)
    tenant = await queue.tenant_no()
    await verbs.cancel(queue.db, tenant, [cancelled])
    await verbs.reprioritise(queue.db, tenant, [demoted], priority=-5)
    await gate.open()
    claimed = await claim
    assert claimed.ids == (kept, demoted), "in the order that holds now"
    assert await all_jobs(queue) == {State.RUNNING: 2, State.CANCELLED: 1}


async def test_when_all_the_best_jobs_are_held_a_claim_continues_below_them(queue: Queue, rivals: Rivals) -> None:
    ids = await queue.add(40)
    other = await rivals.queue()
    async with queue.db.transaction():
        await queue.claim(37)
        assert list((await other.claim(3)).ids) == ids[37:], "within four rounds: 15 × 3 candidates"


# ------------------------------------------------------------------------------------ (d) work below the watermark

SECOND = 1_000_000


class Marked:
    """A claimer that keeps a watermark, as an instance does, but reads no arrivals: what the other ways find."""

    def __init__(self, queue: Queue, topic: Topic) -> None:
        self.queue = queue
        self.mark = Watermark()
        self._topic_nos = [topic.no]

    async def claim(self, n: int = 10, *, sweep_us: int = 0, hints: list[UUID] | None = None) -> tuple[UUID, ...]:
        ranges = self.mark.ranges(self._topic_nos, sweep_us=sweep_us)
        claimed = await self.queue.claim(n, ranges=ranges, hints=hints or [])
        self.mark.learn(
            self._topic_nos,
            claimed.topic_nos,
            claimed.rank_classes,
            claimed.ranks_at,
            full=len(claimed) == n,
            from_head=False,
            news=claimed.news,
        )
        return claimed.ids

    async def sweeps_until(self, job_id: UUID, *, sweep_us: int, at_most: int) -> int:
        """How many sweeps it took to find the job; no more than `at_most` are made."""
        for n in range(1, at_most + 1):
            if job_id in await self.claim(sweep_us=sweep_us):
                return n
        raise AssertionError(f"not found by {at_most} sweeps")


@pytest.fixture
async def marked(queue: Queue, clock: Clock) -> tuple[Marked, list[UUID]]:
    """Ten jobs, a second apart, all claimed: the mark stands at the last one."""
    ids: list[UUID] = []
    for _ in range(10):
        ids += await queue.add()
        await clock.advance(seconds=1)
    marked = Marked(queue, await queue.topic())
    assert list(await marked.claim()) == ids
    assert marked.mark.span_us == 9 * SECOND
    return marked, ids


async def test_a_retry_below_the_watermark_is_claimed_at_once_when_it_is_known_here(
    marked: tuple[Marked, list[UUID]], clock: Clock
) -> None:
    claimer, ids = marked
    queue = claimer.queue
    await queue.settle((ids[2], 1, BOOM), (ids[4], 1, Nack(delay=timedelta(0), reason="busy")), (ids[6], 1, Abandon()))
    await clock.advance(seconds=1)
    (promoted,) = await store_calls.promote(queue.db)
    assert promoted.id == ids[2]
    (young,) = await queue.add()
    assert await claimer.claim(hints=[promoted.id, ids[4], ids[6]]) == (ids[2], ids[4], ids[6], young)


@pytest.mark.parametrize("place", [0, 4, 8], ids=["oldest", "middle", "newest"])
async def test_a_retry_below_the_watermark_is_found_by_one_round_of_sweeps(
    marked: tuple[Marked, list[UUID]], clock: Clock, place: int
) -> None:
    claimer, ids = marked
    queue = claimer.queue
    await queue.settle((ids[place], 1, BOOM))
    await clock.advance(seconds=1)
    await store_calls.promote(queue.db)
    assert await claimer.claim() == (), "below the mark: the trap is set"
    assert await claimer.sweeps_until(ids[place], sweep_us=SECOND, at_most=10) == 9 - place


async def test_a_sweep_finds_what_comes_back_while_the_mark_moves_on(
    marked: tuple[Marked, list[UUID]], clock: Clock
) -> None:
    claimer, ids = marked
    queue = claimer.queue
    await claimer.claim(sweep_us=3 * SECOND)  # has just looked where the job will come back
    await queue.settle((ids[8], 1, Abandon()))
    found = None
    for sweep in range(2 * 10):
        await queue.add()
        await clock.advance(seconds=1)
        if ids[8] in await claimer.claim(sweep_us=3 * SECOND):
            found = sweep
            break
    assert found is not None, "not within two rounds"


async def test_a_job_older_than_every_mark_ends_a_round_of_sweeps(queue: Queue, clock: Clock) -> None:
    (away,) = await queue.add(delay=timedelta(minutes=1))
    await clock.advance(minutes=1)
    claimer = Marked(queue, await queue.topic())
    for _ in range(3):
        await queue.add()
        await clock.advance(seconds=1)
    assert len(await claimer.claim()) == 3
    await store_calls.promote(queue.db)
    assert await claimer.claim() == ()
    assert await claimer.sweeps_until(away, sweep_us=SECOND, at_most=4) <= 3


async def test_a_job_whose_transaction_commits_late_is_found_by_a_sweep(
    queue: Queue, rivals: Rivals, clock: Clock
) -> None:
    claimer, slow = Marked(queue, await queue.topic()), await rivals.queue()
    (first,) = await queue.add()
    await clock.advance(seconds=1)
    async with slow.db.transaction():
        (late,) = await slow.add()
        await clock.advance(seconds=1)
        (second,) = await queue.add()
        assert await claimer.claim() == (first, second)
    assert await claimer.claim() == ()
    assert await claimer.sweeps_until(late, sweep_us=SECOND, at_most=3) == 1


async def test_a_job_moved_into_a_class_below_its_mark_is_found(
    marked: tuple[Marked, list[UUID]], clock: Clock
) -> None:
    claimer, _ = marked
    queue = claimer.queue
    by_hint, by_sweep = await queue.add(2)  # older than the urgent one, and of another class
    await clock.advance(seconds=1)
    (urgent,) = await queue.add(priority=10)
    assert await claimer.claim(1) == (urgent,)
    moved = await verbs.reprioritise(queue.db, await queue.tenant_no(), [by_hint, by_sweep], priority=10)
    assert all(changed.changed for changed, _ in moved.values())
    assert await claimer.claim() == ()
    assert await claimer.claim(hints=[by_hint]) == (by_hint,)
    assert await claimer.sweeps_until(by_sweep, sweep_us=SECOND, at_most=3) <= 2


async def test_a_gap_below_the_mark_finds_an_ageing_topics_urgent_job(queue: Queue, clock: Clock) -> None:
    # In an ageing topic every new job of a higher priority lands below the mark: its bonus is in the rank.
    await queue.db.execute("UPDATE headgate.topics SET ageing_step_us = 1000000")
    await queue.names.refresh(queue.db)
    claimer = Marked(queue, await queue.topic())
    await queue.add()
    await claimer.claim()
    await clock.advance(seconds=1)
    (urgent,) = await queue.add(priority=5)
    assert await claimer.claim() == ()
    place = await reads.get(queue.db, await queue.tenant_no(), urgent)
    assert place.rank_class is not None
    assert place.rank_at is not None
    claimer.mark.missed([RankRange((await queue.topic()).no, place.rank_class, place.rank_at, place.rank_at)])
    assert await claimer.claim() == (urgent,)
