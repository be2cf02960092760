"""A server that was frozen sends what it had taken in long ago: its "never sent before" is no longer believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from headgate.domain.dispatching import ClaimRequest
from headgate.domain.errors import StoreBusy
from headgate.domain.jobs import Submission
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Completed
from headgate.domain.states import SubmitReceipt
from headgate.store import new_ids
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from headgate.store.flush import SubmitFlush
from tests.support.queue import Clock, Queue

ROWS = "SELECT (SELECT count(*) FROM headgate.jobs), (SELECT count(*) FROM headgate.archive)"


@pytest.fixture
async def store(database: str, clock: Clock) -> AsyncIterator[DispatchStore]:
    """An instance that ticks when the test calls it."""
    store = DispatchStore(database)
    await store.register("one", "0")
    await store.tick([])
    yield store
    await store.close()


async def run_elsewhere(queue: Queue, job: Submission, clock: Clock, *, minutes: int) -> None:
    """Its client sends it again to another server, and it runs there. Time goes by, and the repeat is forgotten."""
    again = queue.job(id=job.id, payload=job.payload)
    await queue.submit(again)
    claimed = await queue.claim()
    await queue.settle((job.id, claimed.epochs[0], Completed()))
    await clock.advance(minutes=minutes)
    await queue.db.execute("DELETE FROM headgate.resent_ids")


async def late(store: DispatchStore, queue: Queue, clock: Clock, *, minutes: int) -> tuple[Submission, SubmitFlush]:
    job = queue.job()
    flush = await store.fill([job])
    await run_elsewhere(queue, job, clock, minutes=minutes)
    return job, flush


async def test_a_flush_that_waited_for_over_an_hour_makes_no_second_job(
    store: DispatchStore, db: Connection, clock: Clock
) -> None:
    queue = Queue(db)
    job, flush = await late(store, queue, clock, minutes=70)
    assert flush.resent_indexes == []
    answers = await store.submit(flush)
    assert [(answer.receipt, answer.job_id) for answer in answers.values()] == [(SubmitReceipt.DUPLICATE, job.id)]
    assert tuple(await db.fetchrow(ROWS)) == (0, 1)


async def test_nor_does_one_that_is_handed_over(store: DispatchStore, db: Connection, clock: Clock) -> None:
    queue = Queue(db)
    topic = await queue.topic()
    _, flush = await late(store, queue, clock, minutes=70)
    request = ClaimRequest(
        tenant_no=topic.tenant_no,
        topic_nos=[topic.no],
        limit=1,
        lease_ms=60_000,
        workers=["w"],
        runs=[1],
        ranges=KeyRanges.whole([topic.no]),
    )
    answers, got = await store.submit_and_claim(flush, request)
    assert [answer.receipt for answer in answers.values()] == [SubmitReceipt.DUPLICATE]
    assert len(got) == 0
    assert tuple(await db.fetchrow(ROWS)) == (0, 1)


async def test_a_flush_that_is_older_than_anything_is_kept_is_refused(
    store: DispatchStore, db: Connection, clock: Clock
) -> None:
    """The archive may have been dropped meanwhile, so it cannot be known whether it has run."""
    queue = Queue(db)
    _, flush = await late(store, queue, clock, minutes=24 * 60)
    await db.execute("DELETE FROM headgate.archive")
    for _ in range(2):
        with pytest.raises(StoreBusy, match="send it again"):
            await store.submit(flush)
        flush.mark_resent()
    assert tuple(await db.fetchrow(ROWS)) == (0, 0)


async def test_what_is_in_time_counts_as_new_and_costs_nothing_more(
    store: DispatchStore, db: Connection, clock: Clock
) -> None:
    queue = Queue(db)
    flush = await store.fill([queue.job(), queue.job()])
    await clock.advance(minutes=14)
    assert await store.submit(flush) == {}
    assert await db.fetchval("SELECT count(*) FROM headgate.resent_ids") == 0  # none was taken for a repeat


async def test_the_oldest_of_several_frames_decides_for_their_flush(
    store: DispatchStore, db: Connection, clock: Clock
) -> None:
    queue = Queue(db)
    job, old = await late(store, queue, clock, minutes=14)
    await store.tick([])
    young = await store.fill([queue.job()])
    await clock.advance(minutes=2)
    young.extend(old)
    answers = await store.submit(young)
    assert {place: answer.job_id for place, answer in answers.items()} == {1: job.id}


async def test_after_a_tick_that_came_much_too_late_nothing_counts_as_new_for_a_minute(
    store: DispatchStore, db: Connection, clock: Clock
) -> None:
    """What lay in the socket when the server was frozen is read after it thawed, and after its first tick."""
    queue = Queue(db)
    job = queue.job()
    await run_elsewhere(queue, job, clock, minutes=120)
    await store.tick([])
    answers = await store.submit(await store.fill([job]))
    assert [answer.receipt for answer in answers.values()] == [SubmitReceipt.DUPLICATE]
    for _ in range(3):
        await clock.advance(seconds=25)
        await store.tick([])
    flush = await store.fill([queue.job()])
    assert flush.new_id_until == clock.now + timedelta(minutes=15)
    assert await store.submit(flush) == {}


async def test_submits_go_on_while_all_ticks_fail(
    store: DispatchStore, db: Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ask for the clock themselves, so an instance without ticks takes no submit for one of long ago."""
    queue = Queue(db)
    monkeypatch.setattr(new_ids, "ASK_AFTER_SECONDS", 0.0)  # the test's time is the database's
    for _ in range(9):
        await clock.advance(minutes=10)
        assert await store.submit(await store.fill([queue.job()])) == {}
        plain = await store.fill_plain("acme", "mail", [queue.job().id.bytes], [b"1"], [0], new_id=True)
        assert await store.submit(plain) == {}
    assert await db.fetchval("SELECT count(*) FROM headgate.resent_ids") == 0  # and none for a repeat
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 18


async def test_a_submit_that_asks_for_the_clock_after_a_long_freeze_doubts_as_a_tick_does(
    store: DispatchStore, db: Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(db)
    monkeypatch.setattr(new_ids, "ASK_AFTER_SECONDS", 0.0)
    job = queue.job()
    await run_elsewhere(queue, job, clock, minutes=120)
    answers = await store.submit(await store.fill([job]))
    assert [answer.receipt for answer in answers.values()] == [SubmitReceipt.DUPLICATE]


async def test_a_submit_between_ticks_asks_for_no_clock(store: DispatchStore, db: Connection) -> None:
    queue = Queue(db)
    await store.submit(await store.fill([queue.job()]))
    sent: list[str] = []
    async with store.lane("submit").use() as lane:
        lane.add_query_logger(lambda record: sent.append(record.query))
    await store.submit(await store.fill([queue.job()]))
    await asyncio.sleep(0)  # the driver reports a statement a little later
    assert [query for query in sent if "clock_v1" in query] == []
    assert len([query for query in sent if "submit_v1" in query]) == 1
