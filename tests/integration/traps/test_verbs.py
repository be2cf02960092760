"""Two verbs, one job: exactly one wins."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.dispatching import Renewal
from headgate.domain.errors import NotFound
from headgate.domain.outcomes import Abandon, Nack, Outcome
from headgate.domain.states import EventKind, Receipt, State
from headgate.store import dependencies, leases, reads, verbs
from headgate.store.settle import SETTLE, OutcomeFlush, settle
from tests.integration.test_limits import limit, no_drift
from tests.integration.traps.rivals import BOOM, DONE, FATAL, Rivals, all_jobs, last_instant, run
from tests.support.epochs import epochs_of
from tests.support.queue import Clock, Queue, stranger


@pytest.fixture
async def running(queue: Queue) -> UUID:
    """One job, claimed: epoch 1."""
    (job_id,) = await queue.add()
    await queue.claim()
    return job_id


NACK = Nack(delay=timedelta(seconds=30), reason="busy")


@pytest.mark.req("R7", "T32")
@pytest.mark.parametrize(
    ("first", "second", "receipt", "end"),
    [
        (DONE, DONE, Receipt.DUPLICATE, State.COMPLETED),
        (DONE, BOOM, Receipt.STALE, State.COMPLETED),
        (BOOM, DONE, Receipt.STALE, State.RETRYING),
        (BOOM, BOOM, Receipt.DUPLICATE, State.RETRYING),
        (FATAL, BOOM, Receipt.DUPLICATE, State.DEAD),
        (NACK, BOOM, Receipt.STALE, State.RETRYING),
        (Abandon(), DONE, Receipt.STALE, State.PENDING),
        (FATAL, DONE, Receipt.STALE, State.DEAD),
    ],
)
async def test_of_two_reporters_of_one_job_exactly_one_wins(
    queue: Queue, rivals: Rivals, running: UUID, first: Outcome, second: Outcome, receipt: Receipt, end: State
) -> None:
    other = await rivals.queue()
    async with queue.db.transaction():
        (won,) = await queue.settle((running, 1, first))
        late = rivals.start(other.settle((running, 1, second)))
        await rivals.waiting(other, on=queue)
    assert won.receipt is Receipt.APPLIED
    (lost,) = await late
    assert (lost.receipt, lost.state) == (receipt, end)
    assert await all_jobs(queue) == {end: 1}
    assert len(await reads.events(queue.db, await queue.tenant_no(), running)) == (0 if first is DONE else 1)


@pytest.mark.req("R7", "T32")
@pytest.mark.parametrize("second", [DONE, BOOM], ids=["completed", "failed"])
async def test_a_reporter_whose_rival_rolls_back_wins_after_all(
    queue: Queue, rivals: Rivals, running: UUID, second: Outcome
) -> None:
    other = await rivals.queue()
    transaction = queue.db.transaction()
    await transaction.start()
    await queue.settle((running, 1, DONE))
    late = rivals.start(other.settle((running, 1, second)))
    await rivals.waiting(other, on=queue)
    await transaction.rollback()
    assert (await late)[0].receipt is Receipt.APPLIED
    assert await all_jobs(queue) == {State.COMPLETED if second is DONE else State.RETRYING: 1}


@pytest.fixture
async def expired(queue: Queue, clock: Clock) -> UUID:
    """One job whose lease has run out, and no one has noticed yet."""
    (job_id,) = await queue.add()
    await queue.claim()
    await clock.advance(seconds=61)
    return job_id


@pytest.mark.parametrize("outcome", [DONE, BOOM], ids=["completed", "failed"])
async def test_an_outcome_that_waits_for_the_watchdog_is_stale(
    queue: Queue, rivals: Rivals, expired: UUID, outcome: Outcome
) -> None:
    other = await rivals.queue()
    async with queue.db.transaction():
        assert [one.id for one in await leases.reap(queue.db)] == [expired]
        late = rivals.start(other.settle((expired, 1, outcome)))
        await rivals.waiting(other, on=queue)
    assert (await late)[0].receipt is Receipt.STALE
    assert await all_jobs(queue) == {State.RETRYING: 1}


@pytest.mark.parametrize("outcome", [DONE, BOOM], ids=["completed", "failed"])
async def test_the_watchdog_leaves_alone_what_is_being_settled(
    queue: Queue, rivals: Rivals, expired: UUID, outcome: Outcome
) -> None:
    other = await rivals.queue()
    async with queue.db.transaction():
        (settled,) = await queue.settle((expired, 1, outcome))
        assert await leases.reap(other.db) == []  # and it did not wait
    assert settled.receipt is Receipt.APPLIED, "late, but nobody had taken the lease away"
    assert await leases.reap(other.db) == []
    events = await reads.events(queue.db, await queue.tenant_no(), expired)
    assert EventKind.LEASE_EXPIRED not in [event.kind for event in events]


async def held(queue: Queue, tenant: int, *ids: UUID) -> list[leases.Held]:
    return [leases.Held(tenant_no=tenant, ids=ids, epochs=await epochs_of(queue.db, ids), lease_ms=60_000)]


async def skipped(queue: Queue, tenant: int, *ids: UUID) -> dict[tuple[int, UUID, int], Renewal]:
    answer = Renewal(lost=False, cancel=False, skipped=True)
    return {(tenant, job_id, epoch): answer for job_id, epoch in zip(ids, await epochs_of(queue.db, ids), strict=True)}


@pytest.mark.req("L3")
async def test_a_renewal_does_not_wait_for_the_watchdog_and_the_next_one_reports_the_lost_lease(
    queue: Queue, rivals: Rivals, expired: UUID
) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        await leases.reap(queue.db)
        assert await leases.renew(other.db, await held(queue, tenant, expired)) == await skipped(queue, tenant, expired)
    assert (await leases.renew(other.db, await held(queue, tenant, expired)))[
        tenant, expired, (await epochs_of(queue.db, [expired]))[0]
    ].lost


async def test_an_older_epoch_of_a_locked_job_is_lost_and_the_present_one_skipped(
    queue: Queue, rivals: Rivals, running: UUID
) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    (old,) = await epochs_of(queue.db, [running])
    await queue.settle((running, 1, Abandon()))
    (now,) = (await queue.claim()).epochs
    asked = leases.Held(tenant_no=tenant, ids=[running, running], epochs=[old, now], lease_ms=60_000)
    async with queue.db.transaction():
        await queue.db.fetch("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", running)
        answers = await leases.renew(other.db, [asked])
    assert {epoch: (one.lost, one.skipped) for (_, _, epoch), one in answers.items()} == {
        old: (True, False),
        now: (False, True),
    }
    answers = await leases.renew(other.db, [asked])
    assert {epoch: one.lost for (_, _, epoch), one in answers.items()} == {old: True}, "the other one is renewed"


async def test_answers_of_a_renewal_for_several_tenants_are_about_their_own_jobs(queue: Queue, running: UUID) -> None:
    other = Queue(queue.db, tenant="other")
    await other.add(2)
    theirs = await other.claim(2)
    await other.settle((theirs.ids[1], theirs.epochs[1], DONE))
    epochs = {queue.tenant: await epochs_of(queue.db, [running]), other.tenant: theirs.epochs}
    asked = [
        leases.Held(tenant_no=await one.tenant_no(), ids=ids, epochs=epochs[one.tenant], lease_ms=60_000)
        for one, ids in ((queue, [running]), (other, theirs.ids))
    ]
    answers = await leases.renew(queue.db, asked)
    assert {key: one.lost for key, one in answers.items()} == {
        (await other.tenant_no(), theirs.ids[1], theirs.epochs[1]): True
    }


async def test_of_a_flush_each_child_hears_how_its_own_parent_ended(queue: Queue) -> None:
    first, second = sorted(await queue.add(2))
    (child,) = await queue.add(1, "children", depends_on=[second])
    claimed = await queue.claim(2)
    epochs = dict(zip(claimed.ids, claimed.epochs, strict=True))
    await queue.settle((first, epochs[first], BOOM), (second, epochs[second], FATAL))
    while (await dependencies.unblock_ready(queue.db))[1]:
        pass
    assert (await reads.get(queue.db, await queue.tenant_no(), child)).state is State.CANCELLED
    assert (await reads.events(queue.db, await queue.tenant_no(), child))[
        -1
    ].reason == f"it waited for {second}, which is dead"


async def test_a_lease_of_a_time_to_come_is_cut_and_not_ended_also_when_each_is_tried_by_itself(
    queue: Queue, running: UUID
) -> None:
    clock = await Clock.install(queue.db)
    await clock.advance(days=-1)
    assert await leases.reap_each(queue.db) == ([], [])
    assert await all_jobs(queue) == {State.RUNNING: 1}
    (lease,) = await queue.db.fetch("SELECT lease_until FROM headgate.jobs WHERE id = $1", running)
    assert lease[0] == clock.now + timedelta(seconds=60)


async def test_the_watchdog_leaves_alone_what_is_being_renewed(queue: Queue, rivals: Rivals, expired: UUID) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        assert await leases.renew(queue.db, await held(queue, tenant, expired)) == {}
        assert await leases.reap(other.db) == []
    assert await leases.reap(other.db) == []
    assert await all_jobs(queue) == {State.RUNNING: 1}


@pytest.mark.parametrize("outcome", [DONE, BOOM], ids=["completed", "failed"])
async def test_an_outcome_that_waits_for_a_renewal_is_applied(
    queue: Queue, rivals: Rivals, running: UUID, outcome: Outcome
) -> None:
    # The row the outcome's statement first saw is outdated by then: its checks must be made on the new version.
    other = await rivals.queue()
    async with queue.db.transaction():
        await leases.renew(queue.db, await held(queue, await queue.tenant_no(), running))
        late = rivals.start(other.settle((running, 1, outcome)))
        await rivals.waiting(other, on=queue)
    assert (await late)[0].receipt is Receipt.APPLIED
    assert await all_jobs(queue) == {State.COMPLETED if outcome is DONE else State.RETRYING: 1}


@pytest.mark.req("L3")
@pytest.mark.parametrize("outcome", [DONE, BOOM], ids=["completed", "failed"])
async def test_a_renewal_does_not_wait_for_an_outcome_and_the_next_one_reports_the_lost_lease(
    queue: Queue, rivals: Rivals, running: UUID, outcome: Outcome
) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        await queue.settle((running, 1, outcome))
        assert await leases.renew(other.db, await held(queue, tenant, running)) == await skipped(queue, tenant, running)
    assert (await leases.renew(other.db, await held(queue, tenant, running)))[
        tenant, running, (await epochs_of(queue.db, [running]))[0]
    ].lost
    assert await all_jobs(queue) == {State.COMPLETED if outcome is DONE else State.RETRYING: 1}


@pytest.mark.parametrize(
    ("outcome", "end", "last_event"),
    [
        (DONE, State.COMPLETED, EventKind.COMPLETED_AFTER_CANCEL),
        (BOOM, State.CANCELLED, EventKind.FAILED),
        (Abandon(), State.CANCELLED, EventKind.ABANDONED),
    ],
    ids=["completed", "failed", "abandoned"],
)
async def test_an_outcome_that_waits_for_a_cancel_sees_the_request(
    queue: Queue, rivals: Rivals, running: UUID, outcome: Outcome, end: State, last_event: EventKind
) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        assert (await verbs.cancel(queue.db, tenant, [running]))[running].changed
        late = rivals.start(other.settle((running, 1, outcome)))
        await rivals.waiting(other, on=queue)
    assert (await late)[0].receipt is Receipt.APPLIED
    assert await all_jobs(queue) == {end: 1}
    events = await reads.events(queue.db, tenant, running)
    assert [event.kind for event in events] == [EventKind.CANCEL_REQUESTED, last_event]


@pytest.mark.parametrize(
    ("outcome", "end", "cancelled"),
    [(DONE, State.COMPLETED, False), (FATAL, State.DEAD, False), (BOOM, State.CANCELLED, True)],
    ids=["completed", "dead", "retrying"],
)
async def test_a_cancel_that_waits_for_an_outcome_finds_what_it_led_to(
    queue: Queue, rivals: Rivals, running: UUID, outcome: Outcome, end: State, cancelled: bool
) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        await queue.settle((running, 1, outcome))
        cancel = rivals.start(verbs.cancel(other.db, tenant, [running]))
        await rivals.waiting(other, on=queue)
    answer = (await cancel)[running]
    assert (answer.changed, answer.state) == (cancelled, end)
    assert await all_jobs(queue) == {end: 1}


async def test_a_cancel_that_waits_for_a_claim_finds_the_job_running(queue: Queue, rivals: Rivals) -> None:
    (job_id,) = await queue.add()
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        assert (await queue.claim()).ids == (job_id,)
        cancel = rivals.start(verbs.cancel(other.db, tenant, [job_id]))
        await rivals.waiting(other, on=queue)
    answer = (await cancel)[job_id]
    assert (answer.changed, answer.state) == (True, State.RUNNING)
    assert (await leases.renew(queue.db, await held(queue, tenant, job_id)))[
        tenant, job_id, (await epochs_of(queue.db, [job_id]))[0]
    ].cancel
    assert await all_jobs(queue) == {State.RUNNING: 1}


async def test_a_claim_passes_by_a_job_that_is_being_cancelled(queue: Queue, rivals: Rivals) -> None:
    first, second = await queue.add(2)
    other = await rivals.queue()
    async with queue.db.transaction():
        await verbs.cancel(queue.db, await queue.tenant_no(), [first])
        assert (await other.claim()).ids == (second,)
    assert await all_jobs(queue) == {State.CANCELLED: 1, State.RUNNING: 1}


async def test_of_two_redrives_of_one_job_exactly_one_wins(queue: Queue, rivals: Rivals) -> None:
    (job_id,) = await queue.add(payload=b"p" * 2_000)
    await run(queue, job_id, FATAL)
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        assert set(await verbs.redrive(queue.db, tenant, [job_id])) == {job_id}
        second = rivals.start(verbs.redrive(other.db, tenant, [job_id], payloads=[b"edited"]))
        await rivals.waiting(other, on=queue)
    assert await second == {}
    assert await all_jobs(queue) == {State.PENDING: 1}
    assert await reads.payload(queue.db, tenant, job_id) == b"p" * 2_000, "the loser's edit leaves no trace"
    events = await reads.events(queue.db, tenant, job_id)
    assert [event.kind for event in events].count(EventKind.REDRIVEN) == 1


async def test_of_a_redrive_and_a_discard_exactly_one_wins(queue: Queue, rivals: Rivals) -> None:
    ids = await queue.add(2)
    tenant, other = await queue.tenant_no(), await rivals.queue()
    await verbs.cancel(queue.db, tenant, ids)
    async with queue.db.transaction():
        await verbs.redrive(queue.db, tenant, [ids[0]])
        discard = rivals.start(verbs.discard(other.db, tenant, ids))
        await rivals.waiting(other, on=queue)
    assert await discard == {ids[1]}
    assert await all_jobs(queue) == {State.PENDING: 1}
    await verbs.cancel(queue.db, tenant, [ids[0]])
    async with queue.db.transaction():
        await verbs.discard(queue.db, tenant, [ids[0]])
        redrive = rivals.start(verbs.redrive(other.db, tenant, [ids[0]]))
        await rivals.waiting(other, on=queue)
    assert await redrive == {}
    with pytest.raises(NotFound):
        await reads.get(queue.db, tenant, ids[0])


@pytest.mark.parametrize("verb", ["cancel", "reprioritise"])
async def test_a_flush_of_mixed_outcomes_does_not_deadlock_with_a_verb_on_the_same_jobs(
    queue: Queue, rivals: Rivals, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No lock times out: a flush that is tried again would hide the deadlock.
    monkeypatch.setattr("headgate.store.settle.SETTLE", SETTLE.replace("$16, 100)", "$16, 60000)"))
    # Completions are written before the others, so the flush comes to the lower id last.
    low, high = await queue.add(2)
    await queue.claim()
    assert low < high
    tenant = await queue.tenant_no()
    gate, writer, other = (
        await rivals.gate("settle_v1", before="v_from := 1;\n    FOR v_run IN 1 .. cardinality(other_tenants_)"),
        await rivals.queue(),
        await rivals.queue(),
    )
    await gate.holds(writer)
    flush = rivals.start(writer.settle((low, 1, BOOM), (high, 1, DONE)))
    await rivals.waiting(writer)
    work: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "cancel": lambda: verbs.cancel(other.db, tenant, [low, high]),
        "reprioritise": lambda: verbs.reprioritise(other.db, tenant, [low, high], priority=1),
    }
    task = rivals.start(work[verb]())
    await rivals.waiting(other, on=writer)
    await gate.open()
    assert [answer.receipt for answer in await flush] == [Receipt.APPLIED, Receipt.APPLIED]
    await task
    assert writer.lock_timeouts == 0


async def test_a_flush_of_several_tenants_locks_all_its_jobs_before_what_they_use_of_limits(
    queue: Queue, rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog locks expired jobs of all tenants, then the limits: in another order the two would deadlock."""
    monkeypatch.setattr("headgate.store.settle.SETTLE", SETTLE.replace("$16, 100)", "$16, 60000)"))
    flush = OutcomeFlush()
    for one in (queue, Queue(queue.db, tenant="other")):
        await limit(one, max_running=5)
        (job_id,) = await one.add()
        flush.add(await one.tenant_no(), job_id, (await one.claim()).epochs[0], DONE)
    gate, writer = (
        await rivals.gate("settle_v1", before="v_from := v_to + 1;\n    END LOOP;\n\n    v_from := 1;"),
        await rivals.queue(),
    )
    await gate.holds(writer)
    settling = rivals.start(settle(writer.db, flush))
    await rivals.waiting(writer)
    assert await queue.db.fetch("SELECT id FROM headgate.jobs FOR UPDATE SKIP LOCKED") == []
    await gate.open()
    assert await settling == {}
    await no_drift(queue.db)


@pytest.mark.parametrize("what", ["jobs", "limit_usage"])
async def test_a_flush_of_mixed_outcomes_locks_the_rows_of_its_tenants_in_their_order(
    queue: Queue, rivals: Rivals, database: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits for a row of the first tenant, it holds none of the second."""
    monkeypatch.setattr("headgate.store.settle.SETTLE", SETTLE.replace("$16, 100)", "$16, 60000)"))
    flush, tenants = OutcomeFlush(), []
    for one in (queue, Queue(queue.db, tenant="other")):
        await limit(one, max_running=5)
        done, failed = await one.add(2)
        epochs = dict(zip((claimed := await one.claim()).ids, claimed.epochs, strict=True))
        tenants.append(await one.tenant_no())
        flush.add(tenants[-1], done, epochs[done], DONE)
        flush.add(tenants[-1], failed, epochs[failed], BOOM)
    assert tenants == sorted(tenants)
    writer = await rivals.queue()
    free = f"SELECT DISTINCT r.tenant_no FROM (SELECT tenant_no FROM headgate.{what} FOR UPDATE SKIP LOCKED) AS r"
    async with stranger(database, f"SELECT FROM headgate.{what} WHERE tenant_no = $1 FOR UPDATE", tenants[0]):
        settling = rivals.start(settle(writer.db, flush))
        await rivals.waiting(writer)
        assert [row[0] for row in await queue.db.fetch(free)] == [tenants[1]]
    assert {answer.receipt for answer in (await settling).values()} == {Receipt.APPLIED}
    await no_drift(queue.db)


async def test_a_renewal_in_parts_does_not_deadlock_with_a_verb_on_the_same_jobs(queue: Queue, rivals: Rivals) -> None:
    low, high = await queue.add(2)
    await queue.claim()
    tenant = await queue.tenant_no()
    gate, renewer, other = (
        await rivals.gate("renew_v1", before="v_from := v_to + 1;"),
        await rivals.queue(),
        await rivals.queue(),
    )
    await gate.holds(renewer)
    # Two demands with leases of their own: a part each, in no order.
    renewal = rivals.start(leases.renew(renewer.db, await held(queue, tenant, high) + await held(queue, tenant, low)))
    await rivals.waiting(renewer)
    cancel = rivals.start(verbs.cancel(other.db, tenant, [low, high]))
    await rivals.waiting(other, on=renewer)
    await gate.open()
    assert await renewal == await skipped(queue, tenant, low), "the cancel came to it first, and waits for the other"
    assert all(answer.changed for answer in (await cancel).values())


async def test_a_renewal_does_not_wait_for_a_flush_of_several_tenants(
    queue: Queue, rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The gate is a lock: on a busy machine the flush would give up waiting for it, after a tenth of a second.
    monkeypatch.setattr("headgate.store.settle.SETTLE", SETTLE.replace("$16, 100)", "$16, 60000)"))
    their_queue = Queue(queue.db, tenant="other")
    (mine,), (theirs,) = await queue.add(), await their_queue.add()
    await queue.claim()
    await their_queue.claim()
    ours, others = await queue.tenant_no(), await their_queue.tenant_no()
    gate, writer, renewer = (
        await rivals.gate("settle_v1", before="v_from := v_to + 1;\n    END LOOP;\n\n    v_from := 1;"),
        await rivals.queue(),
        await rivals.queue(),
    )
    await gate.holds(writer)
    flush = OutcomeFlush()
    my_epoch, their_epoch = await epochs_of(queue.db, [mine, theirs])
    flush.add(others, theirs, their_epoch, DONE)
    flush.add(ours, mine, my_epoch, DONE)
    settling = rivals.start(settle(writer.db, flush))
    await rivals.waiting(writer)
    # The flush has come to one of them so far.
    assert await leases.renew(
        renewer.db, await held(queue, others, theirs) + await held(queue, ours, mine)
    ) == await skipped(queue, ours, mine)
    await gate.open()
    assert await settling == {}
    answers = await leases.renew(renewer.db, await held(queue, ours, mine) + await held(queue, others, theirs))
    assert [answer.lost for answer in answers.values()] == [True, True]


async def test_a_discard_and_a_redrive_of_jobs_from_two_days_do_not_deadlock(queue: Queue, rivals: Rivals) -> None:
    # The higher id lies in the earlier day: a statement that goes day by day comes to it first.
    clock = await Clock.install(queue.db, last_instant())
    low, high = await queue.add(2)
    tenant = await queue.tenant_no()
    await verbs.cancel(queue.db, tenant, [high])
    await clock.advance(milliseconds=1)
    await verbs.cancel(queue.db, tenant, [low])
    cleaner, operator = await rivals.queue(), await rivals.queue()
    async with queue.db.transaction():
        await queue.db.execute("SELECT FROM headgate.archive WHERE id = $1 FOR UPDATE", high)
        discard = rivals.start(verbs.discard(cleaner.db, tenant, [low, high]))
        await rivals.waiting(cleaner, on=queue)
        redrive = rivals.start(verbs.redrive(operator.db, tenant, [low, high]))
        await rivals.waiting(operator)
    assert await discard == {low, high}
    assert await redrive == {}
    assert await all_jobs(queue) == {}
