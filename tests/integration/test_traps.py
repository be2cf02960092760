"""Traps known in advance, each a test: interleavings that an innocent-looking statement gets wrong.

Nothing here is left to luck or to time. A session is held at a chosen point, by a transaction that is not yet committed
or by a gate put into the store's own function, and the test goes on when PostgreSQL itself says that the session waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import pytest

from headgate.dispatch.watermark import Watermark
from headgate.domain.errors import NotFound, StoreError
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome
from headgate.domain.states import EventKind, Receipt, State, SubmitReceipt
from headgate.store import control, leases, listing, reads, upkeep, verbs
from headgate.store.connect import Connection, connect
from headgate.store.names import Topic
from headgate.store.partitions import fetch_into_days
from headgate.store.settle import OutcomeFlush, settle
from tests.support.queue import Clock, Queue
from tests.support.waiting import until_async

pytestmark = pytest.mark.timeout(20)

T = TypeVar("T")
DONE = Completed(result=b"done")
BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom"))
FATAL = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
GATE = 7_770_777


class Rivals:
    """Other sessions on the same database, and what they are waiting for."""

    def __init__(self, database: str, queue: Queue, watcher: Connection) -> None:
        self._database = database
        self._queue = queue
        self._watcher = watcher
        self._connections: list[asyncpg.Connection[asyncpg.Record]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def queue(self) -> Queue:
        """The same tenant's queue, seen through a session of its own."""
        connection = await connect(self._database, application_name="headgate rival")
        self._connections.append(connection)
        rival = Queue(connection, owner=len(self._connections) + 1)
        rival.names = self._queue.names
        return rival

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def waiting(self, rival: Queue, *, on: Queue | None = None) -> None:
        """Return when the rival's session waits for a lock; `on` says who must be in its way."""
        pid = _pid(rival)

        async def check() -> bool:
            blockers: list[int] = await self._watcher.fetchval("SELECT pg_blocking_pids($1)", pid)
            return bool(blockers) if on is None else _pid(on) in blockers

        await until_async(check, "a session waits for a lock", within=timedelta(seconds=10))

    async def gate(self, function: str, *, before: str) -> Gate:
        """Put a gate into a function of the store, in front of the given piece of its text. It is closed at first."""
        source: str = await self._watcher.fetchval(
            "SELECT pg_get_functiondef($1::text::regproc)", f"headgate.{function}"
        )
        assert source.count(before) == 1, f"{function} has changed: the gate's place is gone"
        wait = f"PERFORM pg_advisory_xact_lock_shared({GATE}, 1)"
        stop = f"IF current_setting('test.stops', true) = 'yes' THEN {wait}; END IF; "
        await self._watcher.execute(source.replace(before, stop + before))
        return await Gate.closed(self._watcher)

    async def gate_after_the_first_row(self) -> Gate:
        """A gate at which a submit stops when one of its rows is in."""
        # A row-level trigger sees what its own statement has inserted so far, and nothing uncommitted of the others.
        await self._watcher.execute(
            f"""CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF current_setting('test.stops', true) = 'yes' AND EXISTS (SELECT FROM headgate.jobs) THEN
                        PERFORM pg_advisory_xact_lock_shared({GATE}, 1);
                    END IF;
                    RETURN NEW;
                END $$;
                CREATE TRIGGER stop BEFORE INSERT ON headgate.jobs FOR EACH ROW EXECUTE FUNCTION public.stop()"""
        )
        return await Gate.closed(self._watcher)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections:
            connection.terminate()


class Gate:
    """Holds the sessions that were told to stop at it."""

    def __init__(self, keeper: Connection) -> None:
        self._keeper = keeper

    @classmethod
    async def closed(cls, keeper: Connection) -> Gate:
        await keeper.fetchval(f"SELECT pg_advisory_lock({GATE}, 1)")
        return cls(keeper)

    async def holds(self, rival: Queue) -> None:
        await rival.db.execute("SET test.stops = 'yes'")

    async def open(self) -> None:
        await self._keeper.fetchval(f"SELECT pg_advisory_unlock({GATE}, 1)")


def _pid(queue: Queue) -> int:
    return queue.db.get_server_pid()


@pytest.fixture
async def queue(db: Connection) -> Queue:
    queue = Queue(db)
    await queue.topic()  # made now: a name made inside a test's open transaction would block the others
    return queue


@pytest.fixture
async def rivals(database: str, queue: Queue) -> AsyncIterator[Rivals]:
    watcher = await connect(database, application_name="headgate watcher")
    rivals = Rivals(database, queue, watcher)
    yield rivals
    await rivals.close()
    await watcher.close()


def resent(job: Submission) -> Submission:
    return replace(job, fresh=False)


async def run(queue: Queue, job_id: UUID, outcome: Outcome = DONE) -> State | None:
    """Claim the one job there is and settle it."""
    claimed = await queue.claim()
    assert claimed.ids == (job_id,)
    (settled,) = await queue.settle((job_id, claimed.epochs[0], outcome))
    assert settled.receipt is Receipt.APPLIED
    return settled.state


async def state_of(queue: Queue, job_id: UUID) -> State:
    return (await reads.get(queue.db, await queue.tenant_no(), job_id)).state


async def all_jobs(queue: Queue) -> dict[State, int]:
    """How many jobs stand where, counted row by row; no job is there twice, and the rollups say the same."""
    rows = await queue.db.fetch(
        "SELECT id, state FROM headgate.jobs UNION ALL SELECT id, state FROM headgate.archive ORDER BY id"
    )
    assert len({row["id"] for row in rows}) == len(rows), "a job is there twice"
    counted: dict[State, int] = {}
    for row in rows:
        counted[State(row["state"])] = counted.get(State(row["state"]), 0) + 1
    told: dict[State, int] = {}
    for topic in (await reads.counts(queue.db, await queue.tenant_no())).values():
        for state, n in topic.items():
            told[state] = told.get(state, 0) + n
    assert told == counted, "the counts people read differ from the rows"
    return counted


# ------------------------------------------------------------------- (a) a resend, and the job it is about, finishing


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
    assert (await queue.claim()).epochs == (2,)


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
    assert late.fresh
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


async def test_a_repeat_in_a_flush_takes_nothing_from_its_neighbours(queue: Queue) -> None:
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
    (answer,) = await queue.submit(replace(job, payload=b"second", fresh=False))
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
@pytest.mark.parametrize("fresh", [False, True], ids=["resend", "first copy"])
async def test_the_id_still_protects_when_the_keys_window_is_over(queue: Queue, fresh: bool, swept: bool) -> None:
    clock = await Clock.install(queue.db)
    job = queue.job(key="order-7", key_window=timedelta(seconds=5))
    await queue.submit(resent(job))
    await run(queue, job.id)
    await clock.advance(seconds=6)
    if swept:
        assert await upkeep.forget_expired(queue.db) == 1
    (answer,) = await queue.submit(replace(job, fresh=fresh))
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
    (answer,) = await queue.submit(replace(job, payload=b"second", key="order-7", fresh=False))
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


# ------------------------------------------------------------------------- (b) a claim whose snapshot predates a pause


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
    assert claimed.epochs == (1, 1, 1, 1)
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


async def test_when_all_the_best_jobs_are_held_a_claim_goes_on_below_them(queue: Queue, rivals: Rivals) -> None:
    ids = await queue.add(40)
    other = await rivals.queue()
    async with queue.db.transaction():
        await queue.claim(37)
        assert list((await other.claim(3)).ids) == ids[37:], "within four rounds: 15 × 3 candidates"


# ------------------------------------------------------------------------------------ (d) work below the watermark


SECOND = 1_000_000


class Marked:
    """A claimer that keeps a watermark, as an instance does."""

    def __init__(self, queue: Queue, topic: Topic) -> None:
        self.queue = queue
        self.mark = Watermark()
        self._topic_nos = [topic.no]

    async def claim(self, n: int = 10, *, sweep_us: int = 0, hints: list[UUID] | None = None) -> tuple[UUID, ...]:
        ranges = self.mark.ranges(self._topic_nos, sweep_us=sweep_us)
        claimed = await self.queue.claim(n, ranges=ranges, hints=hints or [])
        self.mark.claimed(claimed.topic_nos, claimed.rank_classes, claimed.ranks_at)
        return claimed.ids

    async def sweeps_until(self, job_id: UUID, *, sweep_us: int, at_most: int) -> int:
        """How many sweeps it took to find the job; no more than `at_most` are made."""
        for n in range(1, at_most + 1):
            if job_id in await self.claim(sweep_us=sweep_us):
                return n
        raise AssertionError(f"not found by {at_most} sweeps")


@pytest.fixture
async def clock(queue: Queue) -> Clock:
    return await Clock.install(queue.db)


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
    (promoted,) = await leases.promote(queue.db)
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
    await leases.promote(queue.db)
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
    await leases.promote(queue.db)
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


async def test_lowering_the_mark_finds_an_ageing_topics_urgent_job(queue: Queue, clock: Clock) -> None:
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
    claimer.mark.lower((await queue.topic()).no, place.rank_class, place.rank_at)
    assert await claimer.claim() == (urgent,)


# ------------------------------------------------------------------------------------- (e) midnight, and missing days


def last_instant(days_ahead: int = 1) -> datetime:
    """A millisecond before a midnight (UTC) for which there are partitions on both sides."""
    day = datetime.now(UTC).date() + timedelta(days=days_ahead)
    return datetime(day.year, day.month, day.day, 23, 59, 59, 999_000, tzinfo=UTC)


async def days_of(queue: Queue, table: str = "archive") -> list[str]:
    """The partitions that hold a row, in order."""
    rows = await queue.db.fetch(f"SELECT DISTINCT tableoid::regclass::text AS name FROM headgate.{table} ORDER BY 1")
    return [row["name"] for row in rows]


def day(table: str, at: datetime) -> str:
    return f"headgate.{table}_{at:%Y%m%d}"


async def everything_is_found(queue: Queue, ids: list[UUID]) -> None:
    """get, result and lists see each job, whatever day it finished."""
    tenant = await queue.tenant_no()
    for job_id in ids:
        assert (await reads.get(queue.db, tenant, job_id)).id == job_id
        assert (await reads.result(queue.db, tenant, job_id)).state.is_final
    listed: list[UUID] = []
    cursor = None
    while True:
        page = await listing.list_jobs(queue.db, tenant, limit=1, cursor=cursor)
        listed += [row.id for row in page.rows]
        if (cursor := page.cursor) is None:
            break
    assert sorted(listed) == sorted(ids)
    finished = listing.Filter(states=frozenset({State.COMPLETED, State.DEAD}))
    assert len((await listing.list_jobs(queue.db, tenant, matching=finished)).rows) == len(ids)


async def test_flushes_around_midnight_land_in_the_right_day(queue: Queue) -> None:
    clock = await Clock.install(queue.db, last_instant())
    ids = await queue.add(4)
    await queue.claim()
    before = clock.now
    await queue.settle((ids[0], 1, DONE), (ids[1], 1, FATAL))
    assert await days_of(queue) == [day("archive", before)]
    await clock.advance(milliseconds=1)
    assert (clock.now.hour, clock.now.microsecond) == (0, 0)
    await queue.settle((ids[2], 1, DONE), (ids[3], 1, FATAL))
    assert await days_of(queue) == [day("archive", before), day("archive", clock.now)]
    assert await days_of(queue, "job_events") == [day("job_events", before), day("job_events", clock.now)]
    await everything_is_found(queue, [*ids])
    assert await all_jobs(queue) == {State.COMPLETED: 2, State.DEAD: 2}


async def test_one_transaction_may_cross_midnight(queue: Queue, rivals: Rivals) -> None:
    clock = await Clock.install(queue.db, last_instant())
    ids = await queue.add(2)
    await queue.claim()
    other = await rivals.queue()
    async with other.db.transaction():
        await other.settle((ids[0], 1, DONE))
        await clock.advance(milliseconds=1)
        await other.settle((ids[1], 1, DONE))
    assert len(await days_of(queue)) == 2
    await everything_is_found(queue, [*ids])


async def test_a_job_finished_before_midnight_is_redriven_after_it_and_finishes_again(queue: Queue) -> None:
    clock = await Clock.install(queue.db, last_instant())
    (job_id,) = await queue.add()
    await run(queue, job_id)
    await clock.advance(milliseconds=1)
    await verbs.redrive(queue.db, await queue.tenant_no(), [job_id])
    assert await days_of(queue) == []
    await run(queue, job_id, FATAL)
    assert await days_of(queue) == [day("archive", clock.now)]
    assert await all_jobs(queue) == {State.DEAD: 1}


VERBS = ["complete", "fail", "die", "reap", "cancel", "cancel running", "redrive", "reprioritise", "discard"]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_makes_the_days_that_are_missing_when_the_clock_jumps_a_month(queue: Queue, verb: str) -> None:
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    finished, running = await queue.add(2)
    await queue.claim()
    await queue.settle((finished, 1, FATAL))
    (queued,) = await queue.add()
    await clock.advance(days=30)
    match verb:
        case "complete":
            assert (await queue.settle((running, 1, DONE)))[0].receipt is Receipt.APPLIED
            assert await state_of(queue, running) is State.COMPLETED
        case "fail":
            assert (await queue.settle((running, 1, BOOM)))[0].state is State.RETRYING
        case "die":
            assert (await queue.settle((running, 1, FATAL)))[0].state is State.DEAD
        case "reap":
            assert [one.id for one in await leases.reap(queue.db)] == [running]
        case "cancel":
            assert (await verbs.cancel(queue.db, tenant, [queued]))[queued].state is State.CANCELLED
        case "cancel running":
            assert (await verbs.cancel(queue.db, tenant, [running]))[running].changed
        case "redrive":
            assert set(await verbs.redrive(queue.db, tenant, [finished])) == {finished}
        case "reprioritise":
            assert (await verbs.reprioritise(queue.db, tenant, [queued], priority=1))[queued][0].changed
        case "discard":
            assert await verbs.discard(queue.db, tenant, [finished]) == {finished}
    assert sum((await all_jobs(queue)).values()) == (2 if verb == "discard" else 3)
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NOT NULL", day("archive", clock.now + timedelta(days=7)))


async def test_many_instances_that_miss_the_same_day_all_get_their_outcomes_in(queue: Queue, rivals: Rivals) -> None:
    clock = await Clock.install(queue.db)
    ids = await queue.add(8)
    await queue.claim()
    others = [await rivals.queue() for _ in range(4)]
    await clock.advance(days=30)
    await asyncio.gather(
        *(other.settle((ids[2 * n], 1, DONE), (ids[2 * n + 1], 1, FATAL)) for n, other in enumerate(others))
    )
    assert await all_jobs(queue) == {State.COMPLETED: 4, State.DEAD: 4}
    assert await days_of(queue) == [day("archive", clock.now)]


async def test_an_outcome_survives_that_somebody_dropped_todays_partitions(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    (job_id,) = await queue.add()
    await queue.claim()
    await queue.db.execute(f"DROP TABLE {day('archive', clock.now)}, {day('job_events', clock.now)}")
    assert (await queue.settle((job_id, 1, FATAL)))[0].state is State.DEAD
    assert await days_of(queue) == [day("archive", clock.now)]


async def test_a_missing_day_is_known_in_whatever_language_the_server_speaks(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await clock.advance(days=30)
    await queue.db.execute(
        f"""CREATE FUNCTION public.eintragen() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
                IF to_regclass('{day("archive", clock.now)}') IS NULL THEN
                    RAISE EXCEPTION 'keine Partition von Relation »archive« für die Zeile gefunden'
                    USING ERRCODE = 'check_violation', SCHEMA = 'headgate', TABLE = 'archive';
                END IF;
                RETURN 1;
            END $$"""
    )
    assert await fetch_into_days(queue.db, "SELECT public.eintragen()") == [(1,)]


@pytest.mark.parametrize("back", [1, 30])
async def test_a_clock_that_steps_back_by_days_loses_nothing(queue: Queue, back: int) -> None:
    clock = await Clock.install(queue.db)
    ids = await queue.add(2)
    await queue.claim()
    await queue.settle((ids[0], 1, DONE))
    today = clock.now
    await clock.advance(days=-back)
    assert await leases.reap(queue.db) == [], "its lease is far from over now"
    await queue.settle((ids[1], 1, DONE))
    assert await days_of(queue) == [day("archive", clock.now), day("archive", today)]
    await everything_is_found(queue, [*ids])
    tenant = await queue.tenant_no()
    assert set(await verbs.redrive(queue.db, tenant, [*ids])) == {*ids}
    assert sorted((await queue.claim()).ids) == sorted(ids)
    assert await all_jobs(queue) == {State.RUNNING: 2}


# --------------------------------------------------------------------------- (f) two verbs, one job: exactly one wins


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
async def lapsed(queue: Queue, clock: Clock) -> UUID:
    """One job whose lease has run out, and nobody has noticed yet."""
    (job_id,) = await queue.add()
    await queue.claim()
    await clock.advance(seconds=61)
    return job_id


@pytest.mark.parametrize("outcome", [DONE, BOOM], ids=["completed", "failed"])
async def test_an_outcome_that_waits_for_the_watchdog_is_stale(
    queue: Queue, rivals: Rivals, lapsed: UUID, outcome: Outcome
) -> None:
    other = await rivals.queue()
    async with queue.db.transaction():
        assert [one.id for one in await leases.reap(queue.db)] == [lapsed]
        late = rivals.start(other.settle((lapsed, 1, outcome)))
        await rivals.waiting(other, on=queue)
    assert (await late)[0].receipt is Receipt.STALE
    assert await all_jobs(queue) == {State.RETRYING: 1}


@pytest.mark.parametrize("outcome", [DONE, BOOM], ids=["completed", "failed"])
async def test_the_watchdog_leaves_alone_what_is_being_settled(
    queue: Queue, rivals: Rivals, lapsed: UUID, outcome: Outcome
) -> None:
    other = await rivals.queue()
    async with queue.db.transaction():
        (settled,) = await queue.settle((lapsed, 1, outcome))
        assert await leases.reap(other.db) == []  # and it did not wait
    assert settled.receipt is Receipt.APPLIED, "late, but nobody had taken the lease away"
    assert await leases.reap(other.db) == []
    events = await reads.events(queue.db, await queue.tenant_no(), lapsed)
    assert EventKind.LAPSED not in [event.kind for event in events]


def held(tenant: int, *ids: UUID) -> list[leases.Held]:
    return [leases.Held(tenant_no=tenant, ids=ids, epochs=[1] * len(ids), lease_ms=60_000)]


def skipped(tenant: int, *ids: UUID) -> dict[tuple[int, UUID, int], leases.Renewal]:
    return {(tenant, job_id, 1): leases.Renewal(lost=False, cancel=False, skipped=True) for job_id in ids}


@pytest.mark.req("L3")
async def test_a_renewal_does_not_wait_for_the_watchdog_and_hears_later_that_the_lease_is_lost(
    queue: Queue, rivals: Rivals, lapsed: UUID
) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        await leases.reap(queue.db)
        assert await leases.renew(other.db, held(tenant, lapsed)) == skipped(tenant, lapsed)
    assert (await leases.renew(other.db, held(tenant, lapsed)))[tenant, lapsed, 1].lost


async def test_the_watchdog_leaves_alone_what_is_being_renewed(queue: Queue, rivals: Rivals, lapsed: UUID) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        assert await leases.renew(queue.db, held(tenant, lapsed)) == {}
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
        await leases.renew(queue.db, held(await queue.tenant_no(), running))
        late = rivals.start(other.settle((running, 1, outcome)))
        await rivals.waiting(other, on=queue)
    assert (await late)[0].receipt is Receipt.APPLIED
    assert await all_jobs(queue) == {State.COMPLETED if outcome is DONE else State.RETRYING: 1}


@pytest.mark.req("L3")
@pytest.mark.parametrize("outcome", [DONE, BOOM], ids=["completed", "failed"])
async def test_a_renewal_does_not_wait_for_an_outcome_and_hears_later_that_the_lease_is_lost(
    queue: Queue, rivals: Rivals, running: UUID, outcome: Outcome
) -> None:
    tenant, other = await queue.tenant_no(), await rivals.queue()
    async with queue.db.transaction():
        await queue.settle((running, 1, outcome))
        assert await leases.renew(other.db, held(tenant, running)) == skipped(tenant, running)
    assert (await leases.renew(other.db, held(tenant, running)))[tenant, running, 1].lost
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
async def test_an_outcome_that_waits_for_a_cancel_sees_the_wish(
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
    assert (await leases.renew(queue.db, held(tenant, job_id)))[tenant, job_id, 1].cancel
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
    queue: Queue, rivals: Rivals, verb: str
) -> None:
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
    renewal = rivals.start(leases.renew(renewer.db, held(tenant, high) + held(tenant, low)))
    await rivals.waiting(renewer)
    cancel = rivals.start(verbs.cancel(other.db, tenant, [low, high]))
    await rivals.waiting(other, on=renewer)
    await gate.open()
    assert await renewal == skipped(tenant, low), "the cancel came to it first, and waits for the other"
    assert all(answer.changed for answer in (await cancel).values())


async def test_a_renewal_does_not_wait_for_a_flush_of_several_tenants(queue: Queue, rivals: Rivals) -> None:
    stranger = Queue(queue.db, tenant="other")
    (mine,), (theirs,) = await queue.add(), await stranger.add()
    await queue.claim()
    await stranger.claim()
    ours, others = await queue.tenant_no(), await stranger.tenant_no()
    gate, writer, renewer = (
        await rivals.gate("settle_v1", before="v_from := v_to + 1;\n    END LOOP;\n\n    v_from := 1;"),
        await rivals.queue(),
        await rivals.queue(),
    )
    await gate.holds(writer)
    flush = OutcomeFlush()
    flush.add(others, theirs, 1, DONE)
    flush.add(ours, mine, 1, DONE)
    settling = rivals.start(settle(writer.db, flush))
    await rivals.waiting(writer)
    # The flush has come to one of them so far.
    assert await leases.renew(renewer.db, held(others, theirs) + held(ours, mine)) == skipped(ours, mine)
    await gate.open()
    assert await settling == {}
    answers = await leases.renew(renewer.db, held(ours, mine) + held(others, theirs))
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
