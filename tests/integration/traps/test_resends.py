"""A resend, and the job it is about, finishing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headgate.domain.outcomes import Outcome
from headgate.domain.states import State, SubmitReceipt
from headgate.store import reads, upkeep, verbs
from tests.integration.traps.rivals import DONE, FATAL, Rivals, all_jobs, resent, run
from tests.support.epochs import claims
from tests.support.queue import Clock, Queue


@pytest.mark.parametrize(("outcome", "end"), [(DONE, State.COMPLETED), (FATAL, State.DEAD)], ids=["done", "dead"])
async def test_a_resend_that_waits_for_its_jobs_uncommitted_end_makes_no_second_job(
    queue: Queue, rivals: Rivals, outcome: Outcome, end: State
) -> None:
    job = queue.job(payload=b"p" * 2_000)
    await queue.submit(job)
    await queue.claim()
    other = await rivals.queue()
    async with queue.db.transaction():
        await queue.settle((job.id, 1, outcome))
        resend = rivals.start(other.submit(resent(job)))
        await rivals.waiting(other, on=queue)
    (answer,) = await resend
    assert (answer.receipt, answer.id) == (SubmitReceipt.DUPLICATE, job.id)
    assert await all_jobs(queue) == {end: 1}
    assert len(await queue.claim()) == 0
    assert await reads.payload(queue.db, await queue.tenant_no(), job.id) == job.payload


async def test_a_resend_that_waits_for_an_end_that_is_rolled_back_finds_its_job_alive(
    queue: Queue, rivals: Rivals
) -> None:
    job = queue.job()
    await queue.submit(job)
    await queue.claim()
    other = await rivals.queue()
    transaction = queue.db.transaction()
    await transaction.start()
    await queue.settle((job.id, 1, DONE))
    resend = rivals.start(other.submit(resent(job)))
    await rivals.waiting(other, on=queue)
    await transaction.rollback()
    (answer,) = await resend
    assert answer.receipt is SubmitReceipt.DUPLICATE
    assert await all_jobs(queue) == {State.RUNNING: 1}


async def test_a_resend_that_waits_for_an_uncommitted_cancel_makes_no_second_job(queue: Queue, rivals: Rivals) -> None:
    job = queue.job()
    await queue.submit(job)
    other = await rivals.queue()
    async with queue.db.transaction():
        await verbs.cancel(queue.db, await queue.tenant_no(), [job.id])
        resend = rivals.start(other.submit(resent(job)))
        await rivals.waiting(other, on=queue)
    (answer,) = await resend
    assert answer.receipt is SubmitReceipt.DUPLICATE
    assert await all_jobs(queue) == {State.CANCELLED: 1}


AFTER_THE_INSERT = "-- The plain case ends here"
BEFORE_THE_INSERT = "WITH made AS ("


@pytest.mark.parametrize("place", [BEFORE_THE_INSERT, AFTER_THE_INSERT], ids=["before insert", "after insert"])
async def test_a_job_that_completes_while_its_resend_is_on_the_way_stays_the_only_one(
    queue: Queue, rivals: Rivals, place: str
) -> None:
    job = queue.job()
    await queue.submit(job)
    gate, other = await rivals.gate("submit_v1", before=place), await rivals.queue()
    await gate.holds(other)
    resend = rivals.start(other.submit(resent(job)))
    await rivals.waiting(other)
    await run(queue, job.id)
    await gate.open()
    (answer,) = await resend
    assert answer.receipt is SubmitReceipt.DUPLICATE
    assert await all_jobs(queue) == {State.COMPLETED: 1}


async def test_a_resend_and_a_redrive_of_the_finished_job_leave_one_job(queue: Queue, rivals: Rivals) -> None:
    # The resend has put its row into jobs and not yet looked into the archive; the redrive takes the job out of there.
    job = queue.job()
    await queue.submit(job)
    await run(queue, job.id)
    gate, sender, operator = (
        await rivals.gate("submit_v1", before=AFTER_THE_INSERT),
        await rivals.queue(),
        await rivals.queue(),
    )
    await gate.holds(sender)
    resend = rivals.start(sender.submit(resent(job)))
    await rivals.waiting(sender)
    redrive = rivals.start(verbs.redrive(operator.db, await queue.tenant_no(), [job.id]))
    await rivals.waiting(operator, on=sender)
    await gate.open()
    assert (await resend)[0].receipt is SubmitReceipt.DUPLICATE
    assert set(await redrive) == {job.id}
    assert await all_jobs(queue) == {State.PENDING: 1}
    assert [claims(epoch) for epoch in (await queue.claim()).epochs] == [2]


async def test_a_resend_that_waits_for_an_uncommitted_redrive_makes_no_second_job(queue: Queue, rivals: Rivals) -> None:
    job = queue.job()
    await queue.submit(job)
    await run(queue, job.id)
    other = await rivals.queue()
    async with queue.db.transaction():
        await verbs.redrive(queue.db, await queue.tenant_no(), [job.id])
        resend = rivals.start(other.submit(resent(job)))
        await rivals.waiting(other, on=queue)
    assert (await resend)[0].receipt is SubmitReceipt.DUPLICATE
    assert await all_jobs(queue) == {State.PENDING: 1}


@pytest.mark.parametrize("fate", ["alive", "completed", "dead", "cancelled", "discarded", "redriven", "done twice"])
async def test_a_first_copy_that_arrives_after_its_resend_makes_no_second_job(queue: Queue, fate: str) -> None:
    late = queue.job(payload=b"p" * 2_000, tags=["blue"])
    tenant = await queue.tenant_no()
    (answer,) = await queue.submit(resent(late))
    assert answer.receipt is SubmitReceipt.CREATED
    match fate:
        case "completed":
            await run(queue, late.id)
        case "dead":
            await run(queue, late.id, FATAL)
        case "cancelled":
            await verbs.cancel(queue.db, tenant, [late.id])
        case "discarded":
            await run(queue, late.id, FATAL)
            assert await verbs.discard(queue.db, tenant, [late.id]) == {late.id}
        case "redriven":
            await run(queue, late.id)
            await verbs.redrive(queue.db, tenant, [late.id], payloads=[b"edited"])
        case "done twice":
            await run(queue, late.id)
            await verbs.redrive(queue.db, tenant, [late.id])
            await run(queue, late.id)
    before = await all_jobs(queue)
    assert late.new_id
    (answer,) = await queue.submit(late)
    assert (answer.receipt, answer.id) == (SubmitReceipt.DUPLICATE, late.id)
    assert await all_jobs(queue) == before
    if fate == "discarded":
        assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
        assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_tags") == 0


async def test_a_first_copy_that_is_overtaken_before_its_insert_makes_no_second_job(
    queue: Queue, rivals: Rivals
) -> None:
    job = queue.job()
    gate, slow = await rivals.gate("submit_v1", before=BEFORE_THE_INSERT), await rivals.queue()
    await gate.holds(slow)
    first = rivals.start(slow.submit(job))
    await rivals.waiting(slow)
    (answer,) = await queue.submit(resent(job))
    assert answer.receipt is SubmitReceipt.CREATED
    await run(queue, job.id)
    await gate.open()
    assert (await first)[0].receipt is SubmitReceipt.DUPLICATE
    assert await all_jobs(queue) == {State.COMPLETED: 1}


async def test_a_resend_waits_for_its_first_copy_and_finds_the_job(queue: Queue, rivals: Rivals) -> None:
    job = queue.job()
    other = await rivals.queue()
    async with queue.db.transaction():
        await queue.submit(job)
        resend = rivals.start(other.submit(resent(job)))
        await rivals.waiting(other, on=queue)
    assert (await resend)[0].receipt is SubmitReceipt.DUPLICATE
    assert await all_jobs(queue) == {State.PENDING: 1}


async def test_a_first_copy_waits_for_its_resend_and_finds_the_job(queue: Queue, rivals: Rivals) -> None:
    job = queue.job()
    other = await rivals.queue()
    async with queue.db.transaction():
        await queue.submit(resent(job))
        first = rivals.start(other.submit(job))
        await rivals.waiting(other, on=queue)
    assert (await first)[0].receipt is SubmitReceipt.DUPLICATE
    assert await all_jobs(queue) == {State.PENDING: 1}


async def test_a_repeat_in_a_flush_does_not_affect_the_other_rows(queue: Queue) -> None:
    old = queue.job(payload=b"p" * 2_000)
    await queue.submit(resent(old))
    await run(queue, old.id)
    new = [queue.job(payload=b"q" * 2_000), queue.job(tags=["blue"]), queue.job(priority=3)]
    answers = await queue.submit(new[0], resent(old), new[1], old, new[2])
    created, repeated = SubmitReceipt.CREATED, SubmitReceipt.DUPLICATE
    assert [answer.receipt for answer in answers] == [created, repeated, created, repeated, created]
    assert await all_jobs(queue) == {State.COMPLETED: 1, State.PENDING: 3}
    claimed = await queue.claim()
    assert claimed.ids == (new[2].id, new[0].id, new[1].id)
    assert claimed.payloads == (b"x", b"q" * 2_000, b"x")


async def test_another_body_under_a_finished_jobs_id_is_a_conflict(queue: Queue) -> None:
    job = queue.job(payload=b"first")
    await queue.submit(job)
    await run(queue, job.id)
    (answer,) = await queue.submit(replace(job, payload=b"second", new_id=False))
    assert (answer.receipt, answer.id) == (SubmitReceipt.CONFLICT, job.id)
    assert await all_jobs(queue) == {State.COMPLETED: 1}


async def test_a_resend_with_its_key_after_the_end_is_answered_with_the_first_job(queue: Queue) -> None:
    job = queue.job(key="order-7")
    await queue.submit(job)
    await run(queue, job.id)
    answers = await queue.submit(resent(job), queue.job(key="order-7"), queue.job(key="order-7", payload=b"other"))
    assert [(answer.receipt, answer.id) for answer in answers] == [
        (SubmitReceipt.DUPLICATE, job.id),
        (SubmitReceipt.DUPLICATE, job.id),
        (SubmitReceipt.CONFLICT, job.id),
    ]
    assert await all_jobs(queue) == {State.COMPLETED: 1}


@pytest.mark.parametrize("swept", [False, True], ids=["key expired", "key forgotten"])
@pytest.mark.parametrize("first_copy", [False, True], ids=["resend", "first copy"])
async def test_the_id_still_protects_when_the_keys_window_is_over(queue: Queue, first_copy: bool, swept: bool) -> None:
    clock = await Clock.install(queue.db)
    job = queue.job(key="order-7", key_window=timedelta(seconds=5))
    await queue.submit(resent(job))
    await run(queue, job.id)
    await clock.advance(seconds=6)
    if swept:
        assert await upkeep.forget_expired(queue.db) == 1
    (answer,) = await queue.submit(replace(job, new_id=first_copy))
    assert (answer.receipt, answer.id) == (SubmitReceipt.DUPLICATE, job.id)
    assert await all_jobs(queue) == {State.COMPLETED: 1}


@pytest.mark.parametrize("committed", [True, False])
async def test_two_submits_of_one_key_meet_and_one_makes_the_job(queue: Queue, rivals: Rivals, committed: bool) -> None:
    first, second = queue.job(key="order-7"), queue.job(key="order-7")
    other = await rivals.queue()
    transaction = queue.db.transaction()
    await transaction.start()
    await queue.submit(first)
    attempt = rivals.start(other.submit(second))
    await rivals.waiting(other, on=queue)
    await (transaction.commit() if committed else transaction.rollback())
    (answer,) = await attempt
    expected = (SubmitReceipt.DUPLICATE, first.id) if committed else (SubmitReceipt.CREATED, second.id)
    assert (answer.receipt, answer.id) == expected
    assert await all_jobs(queue) == {State.PENDING: 1}


async def test_a_key_won_for_a_job_that_was_not_made_stays_free(queue: Queue) -> None:
    job = queue.job(payload=b"first")
    await queue.submit(job)
    (answer,) = await queue.submit(replace(job, payload=b"second", key="order-7", new_id=False))
    assert answer.receipt is SubmitReceipt.CONFLICT
    (answer,) = await queue.submit(queue.job(payload=b"second", key="order-7"))
    assert answer.receipt is SubmitReceipt.CREATED


async def test_two_flushes_with_the_same_jobs_in_opposite_order_do_not_deadlock(queue: Queue, rivals: Rivals) -> None:
    # Two clients fail over from one instance to another, which hears from them in another order.
    jobs = [resent(queue.job()), resent(queue.job())]
    gate, one, two = await rivals.gate_after_the_first_row(), await rivals.queue(), await rivals.queue()
    await gate.holds(one)
    await gate.holds(two)
    forth = rivals.start(one.submit(*jobs))
    await rivals.waiting(one)
    back = rivals.start(two.submit(*reversed(jobs)))
    await rivals.waiting(two)
    await gate.open()
    receipts = [answer.receipt for answer in [*await forth, *await back]]
    assert sorted(receipts) == [SubmitReceipt.CREATED] * 2 + [SubmitReceipt.DUPLICATE] * 2
    assert await all_jobs(queue) == {State.PENDING: 2}
