"""A claim whose snapshot predates a pause."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headgate.domain.errors import StoreError
from headgate.domain.states import State
from headgate.store import control
from tests.integration.traps.rivals import Rivals, all_jobs
from tests.support.queue import Clock, Queue


async def target_of(queue: Queue, what: str) -> tuple[int, int]:
    tenant, topic = await queue.tenant_no(), await queue.topic()
    return {"everything": control.EVERYTHING, "tenant": (tenant, 0), "topic": (tenant, topic.no)}[what]


TARGETS = pytest.mark.parametrize("what", ["everything", "tenant", "topic"])


@pytest.mark.req("O6")
@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_claim_in_an_old_snapshot_is_refused(queue: Queue, isolation: Any) -> None:
    await queue.add()
    with pytest.raises(StoreError, match="READ COMMITTED"):
        async with queue.db.transaction(isolation=isolation):
            await queue.claim()
    assert await all_jobs(queue) == {State.PENDING: 1}


@pytest.mark.req("O6")
@TARGETS
async def test_a_pause_waits_for_the_claim_in_flight_and_stops_all_later_ones(
    queue: Queue, rivals: Rivals, what: str
) -> None:
    await queue.add(3)
    operator, other = await rivals.queue(), await rivals.queue()
    async with queue.db.transaction():
        assert len(await queue.claim(1)) == 1
        pause = rivals.start(control.pause(operator.db, await target_of(queue, what)))
        await rivals.waiting(operator, on=queue)
        late = rivals.start(other.claim(1))  # queues up behind the pause: it may not slip in before
        await rivals.waiting(other, on=operator)
        assert not pause.done()
    await pause
    assert len(await late) == 0
    assert len(await queue.claim(1)) == 0
    assert await all_jobs(queue) == {State.RUNNING: 1, State.PENDING: 2}


@pytest.mark.req("O6")
@TARGETS
@pytest.mark.parametrize("committed", [True, False])
async def test_a_claim_that_began_before_the_pause_waits_and_then_obeys_it(
    queue: Queue, rivals: Rivals, what: str, committed: bool
) -> None:
    await queue.add()
    other = await rivals.queue()
    transaction = queue.db.transaction()
    await transaction.start()
    await control.pause(queue.db, await target_of(queue, what))
    # The claim's own statement takes its snapshot now, before the pause is committed.
    claim = rivals.start(other.claim())
    await rivals.waiting(other, on=queue)
    await (transaction.commit() if committed else transaction.rollback())
    assert len(await claim) == (0 if committed else 1)


async def test_the_lease_of_a_claim_that_waited_for_a_pause_begins_when_it_has_the_job(
    queue: Queue, rivals: Rivals, clock: Clock
) -> None:
    await queue.add()
    other = await rivals.queue()
    transaction = queue.db.transaction()
    await transaction.start()
    await control.pause(queue.db, await target_of(queue, "topic"))
    claim = rivals.start(other.claim(lease=timedelta(seconds=60)))
    await rivals.waiting(other, on=queue)
    later = clock.now + timedelta(minutes=5)
    await (await rivals.queue()).db.execute("UPDATE public.test_clock SET at = $1", later)
    await transaction.rollback()  # and with it goes the pause
    lease = "SELECT lease_until - claimed_at, claimed_at FROM headgate.jobs"
    assert len(await claim) == 1
    assert tuple(await queue.db.fetchrow(lease)) == (timedelta(seconds=60), later)


@pytest.mark.req("Z24")
@TARGETS
async def test_a_paused_target_is_never_claimed_and_nothing_else_is_stopped(queue: Queue, what: str) -> None:
    stranger = Queue(queue.db, tenant="other")
    for place, topic in ((queue, "mail"), (queue, "sms"), (stranger, "mail")):
        await place.add(2, topic)
    target = await target_of(queue, what)
    await control.pause(queue.db, target)

    async def claimable() -> tuple[int, int, int]:
        return len(await queue.claim(1, "mail")), len(await queue.claim(1, "sms")), len(await stranger.claim(1))

    assert await claimable() == {"everything": (0, 0, 0), "tenant": (0, 0, 1), "topic": (0, 1, 1)}[what]
    (hinted,) = await queue.add()
    assert len(await queue.claim(10, "mail", hints=[hinted])) == 0, "a hint is no way round a pause"
    assert await control.resume(queue.db, target)
    assert (await claimable())[0] == 1


async def test_a_claim_over_many_topics_leaves_out_the_paused_one(queue: Queue) -> None:
    await queue.add(1, "mail", priority=10)
    (text,) = await queue.add(1, "sms")
    await control.pause(queue.db, await target_of(queue, "topic"))
    assert (await queue.claim(10, "mail", "sms")).ids == (text,)


async def test_a_pause_with_an_end_lets_go_at_that_time(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await queue.add()
    await control.pause(queue.db, until=clock.now + timedelta(minutes=5))
    await clock.advance(minutes=5, microseconds=-1)
    assert len(await queue.claim()) == 0
    await clock.advance(microseconds=1)
    assert not (await control.controls(queue.db))[0].paused
    assert len(await queue.claim()) == 1


async def test_a_resume_that_names_another_pause_clears_one_that_has_ended_by_itself(
    queue: Queue, clock: Clock
) -> None:
    await control.pause(queue.db, await target_of(queue, "topic"), until=clock.now + timedelta(minutes=1))
    since = await queue.db.fetchval("SELECT paused_at FROM headgate.dispatch_control WHERE paused")
    other = since - timedelta(hours=1)
    resume = "SELECT headgate.resume_v1($1, $2, $3)"
    target = await target_of(queue, "topic")
    assert await queue.db.fetchval(resume, *target, other) is None
    await clock.advance(minutes=2)
    assert await queue.db.fetchval(resume, *target, other) is False
    assert not await queue.db.fetchval("SELECT bool_or(paused) FROM headgate.dispatch_control")
