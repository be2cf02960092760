"""Outcomes of jobs whose rows a foreign transaction holds: no other outcome waits for that lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from headgate.dispatch.outcome_writes import OutcomeWrite
from headgate.domain.dispatching import Settled
from headgate.domain.errors import HeadgateError, StoreBusy
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.states import Receipt, State
from headgate.store import settle as settling
from headgate.store import verbs
from headgate.store.connect import Connection, connect
from headgate.store.settle import OutcomeFlush
from headgate.store.topics import TopicStore
from tests.support.dispatch_waits import soon
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Queue, stranger

DONE = Completed(result=b"r")
FAILED = Failed(error=ErrorInfo(type="ValueError", message="boom"))
KINDS: list[Outcome] = [
    DONE,
    FAILED,
    Nack(delay=timedelta(seconds=9), reason="later"),
    Abandon(),
    Snooze(delay=timedelta(hours=1)),
]
HOUR = timedelta(hours=1)
ANSWERED = 10.0  # seconds for an answer; what holds the lock ends only after it


@pytest.fixture
async def stepped(database: str) -> AsyncIterator[Instance]:
    async with Instance(database, running=False) as instance:
        yield instance


def job_lock(strength: str = "UPDATE") -> str:
    return f"SELECT FROM headgate.jobs WHERE id = ANY ($1) FOR {strength}"


async def holding(one: Instance, count: int, topic: str = "mail", **options: object) -> tuple[Worker, list[UUID], int]:
    """A worker that was sent so many new jobs, their ids, and the epoch of them all."""
    await one.submit(count, topic, **options)
    worker = await one.worker("", topic, slots=count)
    assert await one.claimer.run_once() == count
    delivery = await worker.take()
    (epoch,) = set(delivery.epochs)
    return worker, list(delivery.ids), epoch


async def receipts(answer: asyncio.Future[Mapping[int, Settled]], count: int) -> list[Receipt]:
    told = await asyncio.wait_for(answer, ANSWERED)
    return [told[place].receipt if place in told else Receipt.APPLIED for place in range(count)]


@pytest.mark.parametrize("strength", ["UPDATE", "KEY SHARE"])
@pytest.mark.parametrize("outcome", KINDS, ids=lambda outcome: type(outcome).__name__)
async def test_an_outcome_behind_a_locked_row_is_settled_while_the_lock_is_held(
    database: str, stepped: Instance, outcome: Outcome, strength: str
) -> None:
    worker, (locked, mate, behind), epoch = await holding(stepped, 3)
    async with stranger(database, job_lock(strength), [locked]):
        first = worker.settle((locked, epoch, outcome), (mate, epoch, DONE))
        second = worker.settle((behind, epoch, outcome))
        assert await receipts(first, 2) == [Receipt.LOCKED, Receipt.APPLIED]
        assert await receipts(second, 1) == [Receipt.APPLIED]
        assert stepped.store.calls["settle"] <= 4, (
            "one that waits a moment, one without the locked row, and what came later"
        )
        assert (await stepped.job(locked)).state is State.RUNNING
        assert set(worker.session.held) == {locked}, "its lease is kept"
    # It is not sent again, and it is settled nevertheless.
    state = {Completed: State.COMPLETED, Failed: State.RETRYING, Nack: State.RETRYING, Abandon: State.PENDING}
    await stepped.reach(
        1 if isinstance(outcome, Failed | Nack | Abandon | Snooze) else 3, state.get(type(outcome), State.SCHEDULED)
    )
    await soon(lambda: not worker.session.held, "the session holds it no longer")
    assert await receipts(worker.settle((locked, epoch, outcome)), 1) == [Receipt.DUPLICATE]


async def test_nothing_waits_while_a_row_is_known_to_be_locked(
    database: str, stepped: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    worker, (locked, *free), epoch = await holding(stepped, 40)
    async with stranger(database, job_lock(), [locked]):
        assert await receipts(worker.settle((locked, epoch, DONE)), 1) == [Receipt.LOCKED]
        assert stepped.store.timeouts == 1
        for job in free:
            assert await receipts(worker.settle((job, epoch, DONE), (locked, epoch, DONE)), 2) == [
                Receipt.APPLIED,
                Receipt.LOCKED,
            ]
        assert stepped.store.timeouts == 1, "no call waits for it a second time"
        assert caplog.text.count("outcomes_delayed") == 0
    await stepped.reach(40, State.COMPLETED)


async def test_several_tenants_in_one_flush_get_their_own_answers(database: str, db: Connection) -> None:
    one, two = Queue(db, tenant="acme"), Queue(db, tenant="globex")
    (job,) = await one.add()
    await two.submit(two.job(id=job), two.job())
    mine = (await one.claim()).epochs[0]
    claimed = await two.claim()
    theirs = dict(zip(claimed.ids, claimed.epochs, strict=True))
    flush = OutcomeFlush()
    flush.skip_locked = True
    places = [flush.add(await one.tenant_no(), job, mine, DONE)]
    places += [flush.add(await two.tenant_no(), other, epoch, DONE) for other, epoch in theirs.items()]
    lock = "SELECT FROM headgate.jobs WHERE tenant_no = $1 AND id = $2 FOR UPDATE"
    async with stranger(database, lock, await one.tenant_no(), job):
        answers = await settling.settle(db, flush)
    assert {place: answer.receipt for place, answer in answers.items()} == {places[0]: Receipt.LOCKED}
    rows = await db.fetch("SELECT tenant_no, id FROM headgate.jobs")
    assert [(row[0], row[1]) for row in rows] == [(await one.tenant_no(), job)]


async def test_only_what_is_undecided_is_called_locked(database: str, db: Connection) -> None:
    queue = Queue(db)
    older, other, newer, gone = await queue.add(4)
    claimed = await queue.claim()
    epochs = dict(zip(claimed.ids, claimed.epochs, strict=True))
    assert (await queue.settle((gone, epochs[gone], DONE)))[0].receipt is Receipt.APPLIED
    flush = OutcomeFlush()
    flush.skip_locked = True
    tenant = await queue.tenant_no()
    for job, epoch, outcome in (
        (older, epochs[older] - 1, DONE),
        (newer, epochs[newer], FAILED),
        (gone, epochs[gone], DONE),
        (UUID("01900000-0000-7000-8000-000000000000"), 1, FAILED),
        (other, epochs[other] - 1, FAILED),
        (newer, epochs[newer], DONE),  # the job's second outcome waits for the verdict on its first
    ):
        flush.add(tenant, job, epoch, outcome)
    async with stranger(database, job_lock(), [older, other, newer]):
        answers = await settling.settle(db, flush)
    assert [answers[place].receipt for place in range(6)] == [
        Receipt.STALE,
        Receipt.LOCKED,
        Receipt.DUPLICATE,
        Receipt.UNKNOWN,
        Receipt.STALE,
        Receipt.LOCKED,
    ]


async def test_without_skipping_a_locked_row_fails_the_call_in_time(database: str, db: Connection) -> None:
    queue = Queue(db)
    (job,) = await queue.add()
    epoch = (await queue.claim()).epochs[0]
    flush = OutcomeFlush()
    flush.add(await queue.tenant_no(), job, epoch, DONE)
    async with stranger(database, job_lock(), [job]):
        with pytest.raises(StoreBusy) as busy:
            await asyncio.wait_for(settling.settle(db, flush), ANSWERED)
        assert busy.value.locked
    assert (await queue.settle((job, epoch, DONE)))[0].receipt is Receipt.APPLIED


async def test_a_lock_on_the_usage_of_a_limit_delays_only_jobs_of_that_limit(database: str, stepped: Instance) -> None:
    await TopicStore(stepped.store).set_topic(
        stepped.tenant, "limited", rules={}, limits={"max_running": 5}, actor="test", reason=""
    )
    plain, free, epoch = await holding(stepped, 30)
    counted, (one, *_), first = await holding(stepped, 3, "limited")
    lock = "SELECT FROM headgate.limit_usage WHERE topic_no = $1 FOR UPDATE"
    (topic_no,) = await stepped.topic_nos("limited")
    async with stranger(database, lock, topic_no):
        parts = [plain.settle((job, epoch, DONE)) for job in free[:15]]
        parts.append(counted.settle((one, first, DONE)))
        parts += [plain.settle((job, epoch, DONE)) for job in free[15:]]
        told = [(await receipts(part, 1))[0] for part in parts]
        assert told == [Receipt.APPLIED] * 15 + [Receipt.LOCKED] + [Receipt.APPLIED] * 15
        # It is tried again, and costs the others nothing any more.
        (job,) = await stepped.submit(1)
        again = await stepped.worker("again", slots=1)
        assert await stepped.claimer.run_once() == 1
        delivery = await again.take()
        assert await receipts(again.settle((job, delivery.epochs[0], DONE)), 1) == [Receipt.APPLIED]
    await stepped.reach(32, State.COMPLETED)


async def test_a_table_that_is_locked_as_a_whole_is_waited_for_by_trying_again(
    database: str, stepped: Instance
) -> None:
    worker, ids, epoch = await holding(stepped, 20)
    session = await connect(database, application_name="a migration")
    try:
        async with session.transaction():
            await session.execute("LOCK TABLE headgate.jobs IN ACCESS EXCLUSIVE MODE")
            told = await receipts(worker.settle(*((job, epoch, DONE) for job in ids)), 20)
            assert set(told) == {Receipt.LOCKED}
    finally:
        await session.close()
    await stepped.reach(20, State.COMPLETED)


async def test_jobs_returned_while_they_are_locked_go_back_when_they_are_free(database: str, stepped: Instance) -> None:
    worker, ids, _ = await holding(stepped, 2)
    async with stranger(database, job_lock(), ids[:1]):
        for delivery in worker.delivered:
            stepped.outcomes.abandon_unsent(delivery)
        await stepped.reach(1, State.PENDING)
    await stepped.reach(2, State.PENDING)


async def test_the_results_of_a_frame_are_not_mixed_up_when_some_are_tried_again(
    database: str, stepped: Instance, db: Connection
) -> None:
    worker, ids, epoch = await holding(stepped, 6)
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    write = OutcomeWrite(
        worker.session.tenant_no,
        ids[:4],
        [epoch] * 4,
        [b"0", b"1", b"2", b"3"],
        [(ids[4], epoch, FAILED), (ids[5], epoch, Completed(result=b"5"))],
        done=done.set_result,
        failed=done.set_exception,
        session=worker.session,
    )
    async with stranger(database, job_lock(), [ids[1], ids[2], ids[4]]):
        stepped.outcomes.put(write)
        told = await asyncio.wait_for(done, ANSWERED)
        assert isinstance(told, dict)
        assert {place for place, answer in told.items() if answer.receipt is Receipt.LOCKED} == {1, 2, 4}
    await stepped.reach(5, State.COMPLETED)
    await stepped.reach(1, State.RETRYING)
    rows = await db.fetch("SELECT id, result FROM headgate.archive")
    places: Sequence[int] = (0, 1, 2, 3, 5)
    assert {row[0]: row[1] for row in rows} == {ids[place]: b"%d" % place for place in places}


POISON = """
CREATE FUNCTION public.poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken row'; END $$;
CREATE TRIGGER poison BEFORE UPDATE ON headgate.jobs
    FOR EACH ROW WHEN (old.id = '%s') EXECUTE FUNCTION public.poison()"""


async def write(one: Instance, outcomes: Sequence[tuple[UUID, int, Outcome]]) -> Mapping[int, object]:
    told: asyncio.Future[Mapping[int, object]] = asyncio.get_running_loop().create_future()
    tenant_no = await one.store.tenant_no("acme")
    one.outcomes.put(OutcomeWrite(tenant_no, (), (), (), outcomes, done=told.set_result, failed=told.set_exception))
    return await asyncio.wait_for(told, ANSWERED)


async def test_of_two_outcomes_of_a_job_the_first_counts_also_in_a_flush_that_is_split(
    stepped: Instance, db: Connection
) -> None:
    _, (job, bad), epoch = await holding(stepped, 2)
    await db.execute(POISON % bad)
    told = await write(stepped, [(job, epoch, FAILED), (bad, epoch, FAILED), (job, epoch, Snooze(delay=HOUR))])
    assert isinstance(told[1], HeadgateError)
    assert [answer.receipt for answer in (told[0], told[2]) if isinstance(answer, Settled)] == [
        Receipt.APPLIED,
        Receipt.STALE,
    ]
    assert (await stepped.job(job)).state is State.RETRYING


async def test_of_two_outcomes_of_a_job_the_first_counts_also_when_a_lock_splits_the_flush(
    database: str, stepped: Instance
) -> None:
    await TopicStore(stepped.store).set_topic(
        stepped.tenant, "limited", rules={}, limits={"max_running": 5}, actor="test", reason=""
    )
    _, (job,), epoch = await holding(stepped, 1)
    _, (counted,), first = await holding(stepped, 1, "limited")
    lock = "SELECT FROM headgate.limit_usage WHERE topic_no = $1 FOR UPDATE"
    async with stranger(database, lock, *await stepped.topic_nos("limited")):
        told = await write(stepped, [(job, epoch, FAILED), (counted, first, FAILED), (job, epoch, Snooze(delay=HOUR))])
        assert [answer.receipt for answer in told.values() if isinstance(answer, Settled)] == [
            Receipt.APPLIED,
            Receipt.LOCKED,
            Receipt.STALE,
        ]
        assert (await stepped.job(job)).state is State.RETRYING
    await stepped.reach(2, State.RETRYING)


async def test_what_ends_or_comes_back_is_told_to_those_who_wait_for_it(stepped: Instance, db: Connection) -> None:
    ended: list[UUID] = []
    due: list[datetime] = []
    stepped.outcomes._on_final, stepped.outcomes._on_due = lambda _, job_id: ended.append(job_id), due.append
    _, (dead, cancelled, soon_, late), epoch = await holding(stepped, 4)
    await verbs.cancel(db, await stepped.store.tenant_no("acme"), [cancelled])
    await write(
        stepped,
        [
            (dead, epoch, Failed(error=ErrorInfo(type="E"), permanent=True)),
            (cancelled, epoch, FAILED),
            (soon_, epoch, Snooze(delay=timedelta(seconds=9))),
            (late, epoch, Snooze(delay=HOUR)),
        ],
    )
    assert ended == [dead, cancelled]
    assert due == [(await stepped.job(soon_)).run_at], "the earliest"
