"""The fence: an epoch is never given out twice for one id, whatever became of the job in between."""

from __future__ import annotations

from uuid import UUID

import pytest

from headgate.domain.dispatching import ClaimRequest
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Outcome
from headgate.domain.states import Receipt, SubmitReceipt
from headgate.store import verbs
from headgate.store.connect import Connection
from headgate.store.flush import fill
from headgate.store.restore_fence import fence_restore
from headgate.store.submit_claim import submit_and_claim
from tests.support.dispatching import Instance
from tests.support.queue import Queue

DEAD = Failed(error=ErrorInfo(type="Fatal"), permanent=True)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def claim_one(queue: Queue, job_id: UUID) -> int:
    claimed = await queue.claim(1)
    assert list(claimed.ids) == [job_id]
    return claimed.epochs[0]


async def receipt_of(queue: Queue, job_id: UUID, epoch: int, outcome: Outcome | None = None) -> Receipt:
    (answer,) = await queue.settle((job_id, epoch, outcome or Completed()))
    return answer.receipt


async def end(queue: Queue, job_id: UUID, epoch: int, fate: str) -> None:
    """The job ends and every trace of it goes: discarded by a client, or dropped with its day by retention."""
    assert await receipt_of(queue, job_id, epoch, DEAD if fate == "discarded" else Completed()) is Receipt.APPLIED
    if fate == "discarded":
        await verbs.discard(queue.db, await queue.tenant_no(), [job_id])
    elif fate == "dropped":
        await queue.db.execute("DELETE FROM headgate.archive")
        await queue.db.execute("DELETE FROM headgate.job_events")
    assert fate == "replayed" or not await queue.db.fetchval("SELECT count(*) FROM headgate.archive")


@pytest.mark.parametrize("fate", ["discarded", "dropped", "replayed"])
async def test_a_zombie_cannot_settle_the_successor_under_its_own_id(queue: Queue, fate: str) -> None:
    """`replayed`: a recorded first submit comes again after its job has completed, and makes it once more."""
    first = queue.job()
    await queue.submit(first)
    old = await claim_one(queue, first.id)
    await end(queue, first.id, old, fate)
    (again,) = await queue.submit(first)
    assert again.receipt is SubmitReceipt.CREATED
    new = await claim_one(queue, first.id)
    assert new > old
    assert await receipt_of(queue, first.id, old) is not Receipt.APPLIED
    assert await receipt_of(queue, first.id, new) is Receipt.APPLIED


async def test_submit_and_claim_in_one_call_takes_an_epoch_never_given_before(queue: Queue) -> None:
    job = queue.job()
    seen: list[int] = []
    for _ in range(3):
        request = ClaimRequest(
            tenant_no=await queue.tenant_no(),
            topic_nos=[(await queue.topic()).no],
            limit=1,
            lease_ms=60_000,
            workers=["w"],
            ranges=KeyRanges.whole([(await queue.topic()).no]),
        )
        _, got = await submit_and_claim(queue.db, await fill(queue.db, queue.names, [job]), request, owner=1)
        seen += got.epochs
        await end(queue, job.id, got.epochs[0], "discarded")
    assert len(seen) == 3
    assert seen == sorted(set(seen))


async def test_a_job_that_used_up_its_range_continues_in_one_of_its_own(queue: Queue) -> None:
    """Hand-backs cost no attempt, so a job may be claimed any number of times."""
    (job_id,) = await queue.add()
    await queue.db.execute("UPDATE headgate.jobs SET epoch = epoch + 1022")
    first = await claim_one(queue, job_id)
    assert first & 1023 == 1023
    await receipt_of(queue, job_id, first, Abandon())
    (neighbour,) = await queue.add(topic="other")
    second = await claim_one(queue, job_id)
    taken = (await queue.claim(1, "other")).epochs[0]
    assert second > first
    assert second >> 10 not in (first >> 10, taken >> 10), neighbour


async def test_epochs_of_one_flush_grow_by_one_at_each_claim_and_later_flushes_lie_above(queue: Queue) -> None:
    await queue.add(3)
    first = await queue.claim(3)
    assert len(set(first.epochs)) == 1
    await queue.settle(*((i, e, Abandon()) for i, e in zip(first.ids, first.epochs, strict=True)))
    again = await queue.claim(3)
    assert again.epochs == tuple(epoch + 1 for epoch in first.epochs)
    await queue.add(1, "later")
    assert (await queue.claim(1, "later")).epochs[0] > max(again.epochs)


async def test_a_redrive_continues_counting_and_after_a_restore_begins_above_all_that_was(queue: Queue) -> None:
    """The lost days may have seen the redrive, and a claim of it, already."""
    ids = await queue.add(2)
    epochs = dict(zip(ids, (await queue.claim(2)).epochs, strict=True))
    await queue.settle(*((job_id, epoch, DEAD) for job_id, epoch in epochs.items()))
    tenant = await queue.tenant_no()
    await verbs.redrive(queue.db, tenant, [ids[0]])
    assert await claim_one(queue, ids[0]) == epochs[ids[0]] + 1
    await fence_restore(queue.db, actor="a test")
    newest = await queue.db.fetchval("SELECT last_value FROM headgate.epoch_ranges")
    await verbs.redrive(queue.db, tenant, [ids[1]])
    assert await claim_one(queue, ids[1]) > newest << 10
    (fresh,) = await queue.add(1, "new")
    assert (await queue.claim(1, "new")).epochs[0] > newest << 10, fresh


async def test_epochs_far_beyond_32_bits_pass_through_every_call(database: str, db: Connection) -> None:
    await db.execute("ALTER SEQUENCE headgate.epoch_ranges RESTART 8796093022200")
    async with Instance(database, running=False) as one:
        done, back, stops = await one.submit(3)
        worker = await one.worker(slots=3)
        await one.claimer.run_once()
        runs = await worker.take()
        epochs = dict(zip(runs.ids, runs.epochs, strict=True))
        assert min(epochs.values()) > 2**52
        await one.renewer.run_once()
        await one.store.progress(await one.store.tenant_no("acme"), {stops: (epochs[stops], {"done": 1})})
        assert (await worker.report(done, epochs[done], Completed())).receipt is Receipt.APPLIED
        assert (await worker.report(back, epochs[back], DEAD)).receipt is Receipt.APPLIED
        assert (await worker.report(done, epochs[done], Completed())).receipt is Receipt.DUPLICATE
        async with one.store.lane("upkeep").use() as link:
            await verbs.cancel(link, await one.store.tenant_no("acme"), [stops])
        tick = await one.ticker.run_once()
        assert tick.cancels == [(await one.store.tenant_no("acme"), stops, epochs[stops])]


async def test_epochs_fit_a_double_and_their_source_never_begins_again(queue: Queue) -> None:
    row = await queue.db.fetchrow(
        "SELECT max_value, cycle, cache_size FROM pg_catalog.pg_sequences"
        " WHERE schemaname = 'headgate' AND sequencename = 'epoch_ranges'"
    )
    assert row is not None
    assert (row["max_value"] + 1) << 10 == 2**53
    assert (row["cycle"], row["cache_size"]) == (False, 1)
