"""The store carries out the life cycle, against a real PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Snooze
from headgate.domain.states import EventKind, OutcomeKind, Receipt, State
from headgate.store import leases, reads, verbs
from headgate.store import settle as settling
from headgate.store.connect import Connection
from headgate.store.settle import OutcomeFlush
from tests.support import store_calls
from tests.support.epochs import claims
from tests.support.queue import Clock, Queue, new_id

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom", traceback="Traceback …"))


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def test_a_job_is_submitted_claimed_and_completed(queue: Queue) -> None:
    (job_id,) = await queue.add(payload=b"hello")
    claimed = await queue.claim()
    assert (claimed.ids, claimed.attempts, claimed.payloads) == ((job_id,), (1,), (b"hello",))
    assert [*map(claims, claimed.epochs)] == [1]
    running = await reads.get(queue.db, await queue.tenant_no(), job_id)
    assert (running.state, running.worker, running.owner) == (State.RUNNING, "worker", 1)
    assert running.lease_until is not None
    (settled,) = await queue.settle((job_id, 1, Completed(result=b"done")))
    assert settled.receipt is Receipt.APPLIED
    done = await reads.get(queue.db, await queue.tenant_no(), job_id)
    assert (done.state, done.attempt, done.last_outcome) == (State.COMPLETED, 1, OutcomeKind.COMPLETED)
    result = await reads.result(queue.db, await queue.tenant_no(), job_id)
    assert (result.state, result.result) == (State.COMPLETED, b"done")
    assert await reads.payload(queue.db, await queue.tenant_no(), job_id) == b"hello"
    assert len(await queue.claim()) == 0


async def test_every_outcome_in_one_flush_has_its_own_verdict(queue: Queue) -> None:
    ids = await queue.add(6)
    claimed = await queue.claim()
    assert list(claimed.ids) == ids
    answers = await queue.settle(
        (ids[0], 1, Completed()),
        (ids[1], 1, BOOM),
        (ids[2], 1, Nack(delay=timedelta(seconds=30), reason="limited")),
        (ids[3], 1, Abandon()),
        (ids[4], 1, Snooze(delay=timedelta(seconds=5))),
        (ids[5], 1, Failed(error=ErrorInfo(type="Fatal"), permanent=True)),
    )
    assert [answer.receipt for answer in answers] == [Receipt.APPLIED] * 6
    assert [answer.state for answer in answers] == [
        State.COMPLETED,
        State.RETRYING,
        State.RETRYING,
        State.PENDING,
        State.SCHEDULED,
        State.DEAD,
    ]
    tenant = await queue.tenant_no()
    views = [await reads.get(queue.db, tenant, job_id) for job_id in ids]
    assert [view.attempt for view in views] == [1, 1, 1, 0, 0, 1]
    assert all(claims(view.epoch) == 1 for view in views)
    assert views[1].last_error == "ValueError: boom"
    assert views[2].last_error == "limited"
    (event,) = await reads.events(queue.db, tenant, ids[1])
    assert (event.kind, event.error_type, event.error_trace, event.worker) == (
        EventKind.FAILED,
        "ValueError",
        "Traceback …",
        "worker",
    )


async def test_a_snoozed_job_is_due_after_its_delay_and_an_abandoned_one_is_due_since_its_submit(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    submitted = clock.now
    snoozed, abandoned = await queue.add(2)
    await queue.claim()
    await clock.advance(seconds=10)
    await queue.settle((snoozed, 1, Snooze(delay=timedelta(seconds=5))), (abandoned, 1, Abandon()))
    due = [(await reads.get(queue.db, await queue.tenant_no(), job_id)).run_at for job_id in (snoozed, abandoned)]
    assert due == [clock.now + timedelta(seconds=5), submitted]


async def test_each_tenant_of_a_flush_of_outcomes_has_its_own_results_and_receipts(queue: Queue) -> None:
    """The jobs of all of them are done, stale, failed or unknown at the same places."""
    flush, expected = OutcomeFlush(), {}
    tenants = [queue, Queue(queue.db, tenant="other"), Queue(queue.db, tenant="third")]
    for one in tenants:
        no, name = await one.tenant_no(), one.tenant.encode()
        ids = await one.add(4)
        epochs = dict(zip((claimed := await one.claim()).ids, claimed.epochs, strict=True))
        first, stale, failed, second = ids
        flush.add(no, first, epochs[first], Completed(result=b"first of " + name))
        expected[flush.add(no, stale, epochs[stale] + 1, Completed(result=b"stale"))] = Receipt.STALE
        expected[flush.add(no, failed, epochs[failed], BOOM)] = Receipt.APPLIED
        expected[flush.add(no, new_id(), 1, BOOM)] = Receipt.UNKNOWN
        flush.add(no, second, epochs[second], Completed(result=b"second of " + name))
    answers = await settling.settle(queue.db, flush)
    assert {index: answer.receipt for index, answer in answers.items()} == expected
    for one in tenants:
        rows = await queue.db.fetch(
            "SELECT result FROM headgate.archive WHERE tenant_no = $1 ORDER BY id", await one.tenant_no()
        )
        assert [row[0] for row in rows] == [n + b" of " + one.tenant.encode() for n in (b"first", b"second")]


async def test_a_repeated_outcome_is_a_duplicate_another_one_is_stale(queue: Queue) -> None:
    done, failed = await queue.add(2)
    unknown = queue.job().id
    await queue.claim()
    await queue.settle((done, 1, Completed()), (failed, 1, BOOM))
    answers = await queue.settle(
        (done, 1, Completed()), (failed, 1, BOOM), (unknown, 1, Completed()), (done, 1, BOOM), (failed, 1, Completed())
    )
    assert [answer.receipt for answer in answers] == [
        Receipt.DUPLICATE,
        Receipt.DUPLICATE,
        Receipt.UNKNOWN,
        Receipt.STALE,
        Receipt.STALE,
    ]
    (old,) = await queue.settle((failed, 0, BOOM))
    assert old.receipt is Receipt.STALE


@pytest.mark.parametrize("ended", [False, True])
async def test_an_outcome_without_an_error_leaves_the_last_error_as_it_was(queue: Queue, ended: bool) -> None:
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    (job_id,) = await queue.add()
    await queue.claim()
    await queue.settle((job_id, 1, BOOM))
    await clock.advance(hours=1)
    await store_calls.promote(queue.db)
    await queue.claim()
    if ended:
        await verbs.cancel(queue.db, tenant, [job_id])
    await queue.settle((job_id, 2, Snooze(delay=timedelta(hours=1))))
    job = await reads.get(queue.db, tenant, job_id)
    assert job.state is (State.CANCELLED if ended else State.SCHEDULED)
    assert "boom" in (job.last_error or "")


async def test_a_stale_outcome_sent_again_is_answered_with_the_current_state(queue: Queue) -> None:
    (job_id,) = await queue.add()
    await queue.claim()
    said = ((0, Completed()), (0, BOOM), (1, BOOM), (0, BOOM), (1, BOOM))
    answers = await queue.settle(*((job_id, epoch, outcome) for epoch, outcome in said))
    assert [(answer.receipt, answer.state) for answer in answers] == [
        (Receipt.STALE, State.RUNNING),
        (Receipt.STALE, State.RUNNING),
        (Receipt.APPLIED, State.RETRYING),
        (Receipt.STALE, State.RETRYING),
        (Receipt.DUPLICATE, State.RETRYING),
    ]
    assert len({answer.run_at for answer in answers[2:]}) == 1


async def test_cancel_redrive_reprioritise_and_discard(queue: Queue) -> None:
    queued, running = await queue.add(2)
    tenant = await queue.tenant_no()
    moved = await verbs.reprioritise(queue.db, tenant, [running], priority=10, who="ana", reason="vip")
    assert moved[running][0].changed
    claimed = await queue.claim(1)
    assert claimed.ids == (running,)
    changes = await verbs.cancel(queue.db, tenant, [queued, running], who="ana", reason="oops")
    assert changes[queued].state is State.CANCELLED
    assert changes[running].state is State.RUNNING
    (epoch,) = claimed.epochs
    held = leases.Held(tenant_no=tenant, ids=[running], epochs=[epoch], lease_ms=60_000)
    assert (await leases.renew(queue.db, [held]))[tenant, running, epoch].cancel
    (ended,) = await queue.settle((running, 1, BOOM))
    assert ended.state is State.CANCELLED
    requeued = await verbs.redrive(queue.db, tenant, [queued], payloads=[b"edited"], who="ana")
    assert set(requeued) == {queued}
    again = await queue.claim()
    assert (again.ids, again.payloads, [*map(claims, again.epochs)]) == ((queued,), (b"edited",), [1])
    assert await verbs.discard(queue.db, tenant, [running, queued]) == {running}
    history = [event.kind for event in await reads.events(queue.db, tenant, running)]
    assert history == [
        EventKind.REPRIORITISED,
        EventKind.CANCEL_REQUESTED,
        EventKind.FAILED,
        EventKind.DISCARDED,
    ]
    counts = await reads.counts(queue.db, tenant)
    assert counts == {(await queue.topic()).no: {State.RUNNING: 1}}


async def test_an_expired_lease_ends_the_attempt_and_the_job_comes_back(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    (job_id,) = await queue.add(max_attempts=2)
    await queue.claim()
    assert await leases.reap(queue.db) == []
    await clock.advance(seconds=61)
    (reaped,) = await leases.reap(queue.db)
    assert (reaped.id, reaped.state, reaped.run_at) == (job_id, State.RETRYING, clock.now + timedelta(seconds=1))
    (late,) = await queue.settle((job_id, 1, Completed()))
    assert late.receipt is Receipt.STALE
    assert await store_calls.promote(queue.db) == []
    await clock.advance(seconds=1)
    (promoted,) = await store_calls.promote(queue.db)
    assert promoted.id == job_id
    await queue.claim()
    await clock.advance(seconds=61)
    (dead,) = await leases.reap(queue.db)
    assert dead.state is State.DEAD
