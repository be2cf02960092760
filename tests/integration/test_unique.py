"""At most one live job per unique key, against a real PostgreSQL: every choice, and every race with the job's end."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from headgate.domain.dependencies import Unique
from headgate.domain.errors import InvalidInput, TooLarge, UniqueTaken
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Snooze
from headgate.domain.states import EventKind, State, SubmitReceipt
from headgate.store import reads, verbs
from headgate.store.connect import Connection
from headgate.store.upkeep import forget_expired
from tests.integration.test_dependencies import DIES, state
from tests.integration.test_dependency_races import blocked_on_a_lock, rivals, until
from tests.integration.test_limits import limit, no_drift
from tests.integration.test_priority import set_ageing
from tests.support.queue import Clock, Queue, new_id


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


def unique(key: str = "customer-7", **words: Any) -> dict[str, Unique]:
    return {"unique": Unique(key=key, **words)}


@pytest.mark.req("O27")
async def test_a_second_submit_is_the_live_job_until_that_has_ended(queue: Queue) -> None:
    (first,) = await queue.submit(queue.job(**unique()))
    assert first.receipt is SubmitReceipt.CREATED
    for _ in range(2):
        (again,) = await queue.submit(queue.job(payload=b"another", **unique()))
        assert (again.id, again.receipt) == (first.id, SubmitReceipt.DUPLICATE)
    await queue.claim()
    (again,) = await queue.submit(queue.job(**unique()))
    assert again.id == first.id  # running is live
    await queue.settle((first.id, 1, Snooze(delay=timedelta(hours=1))))
    assert (await queue.submit(queue.job(**unique())))[0].id == first.id  # so is waiting
    assert await reads.payload(queue.db, await queue.tenant_no(), first.id) == b"x"
    await verbs.cancel(queue.db, await queue.tenant_no(), [first.id])
    (next_one,) = await queue.submit(queue.job(**unique()))
    assert (next_one.receipt, next_one.id != first.id) == (SubmitReceipt.CREATED, True)


@pytest.mark.parametrize("ending", ["completed", "dead", "cancelled", "dead by its lease"])
async def test_every_end_frees_the_key(queue: Queue, ending: str) -> None:
    clock = await Clock.install(queue.db)
    (job_id,) = await queue.add(1, max_attempts=1, **unique())
    if ending == "cancelled":
        await verbs.cancel(queue.db, await queue.tenant_no(), [job_id])
    else:
        await queue.claim()
        if ending == "dead by its lease":
            await clock.advance(minutes=5)
            await queue.db.execute("SELECT headgate.reap_v1(10, '-infinity')")
        else:
            await queue.settle((job_id, 1, Completed() if ending == "completed" else DIES))
    (after,) = await queue.submit(queue.job(**unique()))
    assert after.receipt is SubmitReceipt.CREATED


async def test_the_key_belongs_to_its_topic_and_tenant(queue: Queue) -> None:
    stranger = Queue(queue.db, tenant="other")
    answers = [
        *await queue.submit(queue.job(**unique()), queue.job("push", **unique()), queue.job(**unique("customer-8"))),
        *await stranger.submit(stranger.job(**unique())),
    ]
    assert {answer.receipt for answer in answers} == {SubmitReceipt.CREATED}


async def test_one_flush_with_a_key_many_times_makes_one_job(queue: Queue) -> None:
    answers = await queue.submit(*(queue.job(payload=str(n).encode(), **unique()) for n in range(50)))
    assert {answer.id for answer in answers} == {answers[0].id}
    assert [answer.receipt for answer in answers] == [SubmitReceipt.CREATED] + [SubmitReceipt.DUPLICATE] * 49
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.jobs") == 1


async def test_replace_gives_the_queued_job_the_new_body_priority_and_time(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    words = unique(on_conflict="replace")
    first = queue.job(id=new_id(), payload=b"old", **words)
    await queue.submit(first)
    answers = await queue.submit(
        queue.job(payload=b"n" * 5000, priority=7, delay=timedelta(hours=1), **words),
    )
    assert [(answer.id, answer.receipt) for answer in answers] == [(first.id, SubmitReceipt.DUPLICATE)]
    job = await reads.get(queue.db, tenant, first.id)
    assert (job.state, job.priority) == (State.SCHEDULED, 7)
    assert await reads.payload(queue.db, tenant, first.id) == b"n" * 5000
    await queue.submit(queue.job(payload=b"m" * 5000, **words))
    assert await reads.payload(queue.db, tenant, first.id) == b"m" * 5000
    await queue.submit(queue.job(payload=b"newest", priority=3, **words))
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    job = await reads.get(queue.db, tenant, first.id)
    assert (job.state, job.priority) == (State.PENDING, 3)
    assert (await queue.submit(first))[0].receipt is SubmitReceipt.DUPLICATE  # a repeat of the first submit stays one
    claimed = await queue.claim()
    assert claimed.payloads == (b"newest",)
    assert [event.kind for event in await reads.events(queue.db, tenant, first.id)] == [EventKind.REPLACED] * 3
    counts = (await reads.counts(queue.db, tenant))[(await queue.topic()).no]
    assert counts == {State.RUNNING: 1}


async def test_in_an_ageing_topic_a_replaced_job_ranks_by_its_new_priority_and_its_age(queue: Queue) -> None:
    await set_ageing(queue, "mail", timedelta(seconds=10))
    rank = "SELECT rank_class, rank_at FROM headgate.jobs"
    await queue.add(1, priority=2, **unique())
    _, first = await queue.db.fetchrow(rank)
    for priority, earlier in ((5, 30_000_000), (-1, -30_000_000), (2, 0)):
        await queue.add(1, priority=priority, **unique(on_conflict="replace"))
        assert tuple(await queue.db.fetchrow(rank)) == (-1, first - earlier)


@pytest.mark.parametrize(("choice", "attempts", "then"), [("replace", 0, 2), ("reschedule", 1, 3)])
async def test_a_replaced_job_has_all_its_attempts_again_and_one_that_is_put_off_has_not(
    queue: Queue, choice: str, attempts: int, then: int
) -> None:
    words = unique(on_conflict=choice)
    (job_id,) = await queue.add(1, **words)
    await queue.claim()
    await queue.settle((job_id, 1, Failed(error=ErrorInfo(type="E"))))
    await queue.submit(queue.job(delay=timedelta(hours=1), **words))
    job = await reads.get(queue.db, await queue.tenant_no(), job_id)
    assert (job.attempt, job.state) == (attempts, State(then))


@pytest.mark.parametrize("choice", ["replace", "reschedule"])
async def test_a_job_in_the_line_of_a_limit_keeps_its_place_and_its_time(queue: Queue, choice: str) -> None:
    await limit(queue, max_running_per_key=1)
    tenant = await queue.tenant_no()
    ids = [(await queue.add(1, limit_key="a", **unique(key)))[0] for key in ("u", "v")]
    before = [await reads.get(queue.db, tenant, job_id) for job_id in ids]
    assert [job.state for job in before] == [State.PENDING, State.BLOCKED]
    for key in ("u", "v"):
        late = queue.job(payload=b"new", limit_key="a", delay=timedelta(hours=1), **unique(key, on_conflict=choice))
        await queue.submit(late)
    after = [await reads.get(queue.db, tenant, job_id) for job_id in ids]
    assert [(job.state, job.run_at) for job in after] == [(job.state, job.run_at) for job in before]
    await no_drift(queue.db)
    assert (await queue.claim()).payloads == (b"new" if choice == "replace" else b"x",)


@pytest.mark.parametrize("choice", ["replace", "reschedule"])
async def test_a_running_job_is_left_as_it_is(queue: Queue, choice: str) -> None:
    words = unique(on_conflict=choice)
    (job_id,) = await queue.add(1, **words)
    await queue.claim()
    (again,) = await queue.submit(queue.job(payload=b"new", delay=timedelta(hours=1), **words))
    assert (again.id, again.receipt) == (job_id, SubmitReceipt.DUPLICATE)
    assert await state(queue, job_id) is State.RUNNING
    assert await reads.payload(queue.db, await queue.tenant_no(), job_id) == b"x"


async def test_reschedule_puts_the_job_off_until_there_is_quiet(queue: Queue) -> None:
    clock, tenant = await Clock.install(queue.db), await queue.tenant_no()
    words = unique(on_conflict="reschedule")
    (job_id,) = await queue.add(1, delay=timedelta(seconds=10), **words)
    for _ in range(3):
        await clock.advance(seconds=8)
        await queue.submit(queue.job(payload=b"later", delay=timedelta(seconds=10), **words))
    job = await reads.get(queue.db, tenant, job_id)
    assert (job.state, job.run_at - job.created_at) == (State.SCHEDULED, timedelta(seconds=34))
    assert await reads.payload(queue.db, tenant, job_id) == b"x"  # the first body stays
    assert [event.kind for event in await reads.events(queue.db, tenant, job_id)] == [EventKind.RESCHEDULED] * 3


async def test_endless_pushes_end_at_the_longest_wait(queue: Queue) -> None:
    clock, tenant = await Clock.install(queue.db), await queue.tenant_no()
    words = unique(on_conflict="reschedule", debounce_max=timedelta(seconds=20))
    (job_id,) = await queue.add(1, delay=timedelta(seconds=10), **words)
    for _ in range(3):
        await clock.advance(seconds=7)
        await queue.submit(queue.job(delay=timedelta(seconds=10), **words))
    job = await reads.get(queue.db, tenant, job_id)
    assert (job.state, job.run_at - job.created_at) == (State.PENDING, timedelta(seconds=20))


async def test_a_finished_unique_job_is_not_redriven_beside_a_live_one(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    (first,) = await queue.add(1, **unique())
    await verbs.cancel(queue.db, tenant, [first])
    (second,) = await queue.add(1, **unique())
    with pytest.raises(UniqueTaken, match=f"job {second} is live under the same unique key") as caught:
        await verbs.redrive(queue.db, tenant, [first])
    assert (caught.value.code, caught.value.holder) == ("unique_taken", second)
    (other,) = await queue.add(1)
    await verbs.cancel(queue.db, tenant, [other])
    assert set(await verbs.redrive(queue.db, tenant, [first, other])) == {other}  # of many, it is left out
    assert await state(queue, first) is State.CANCELLED
    await verbs.cancel(queue.db, tenant, [second])
    assert set(await verbs.redrive(queue.db, tenant, [first])) == {first}
    (again,) = await queue.submit(queue.job(**unique()))
    assert (again.id, again.receipt) == (first, SubmitReceipt.DUPLICATE)  # it has its key again


async def test_a_repeated_submit_is_answered_as_the_first_time(queue: Queue) -> None:
    """Also when its job has ended and another one holds the key: a resend must not replace or put off that one."""
    job = queue.job(id=new_id(), payload=b"first", **unique(on_conflict="replace"))
    await queue.submit(job)
    await queue.claim()
    await queue.settle((job.id, 1, Completed()))
    (other,) = await queue.submit(queue.job(payload=b"second", **unique()))
    (again,) = await queue.submit(job)
    assert (again.id, again.receipt) == (job.id, SubmitReceipt.DUPLICATE)
    assert await reads.payload(queue.db, await queue.tenant_no(), other.id) == b"second"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"key": ""}, "unique: must have 1 to 255 characters"),
        ({"key": "a\x00"}, "unique: must have 1 to 255 characters and no control character"),
        ({"key": 7}, "unique: must be a str"),
        ({"key": "k", "on_conflict": "drop"}, "on_conflict: must be one of keep, replace, reschedule"),
        ({"key": "k", "debounce_max": timedelta(0), "on_conflict": "replace"}, "debounce_max: must be from "),
        ({"key": "k", "debounce_max": timedelta(hours=1)}, "debounce_max: has no meaning with keep"),
    ],
)
def test_bad_unique_keys_are_refused(words: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Unique(**words)


def test_a_long_unique_key_is_refused() -> None:
    with pytest.raises(TooLarge, match="unique: 256 characters"):
        Unique(key="k" * 256)


# ---------------------------------------------------------------- races


@pytest.mark.parametrize("submit_first", [True, False])
async def test_no_submit_is_swallowed_by_a_job_that_has_ended(queue: Queue, database: str, submit_first: bool) -> None:
    async with rivals(database, 2) as (one, two):
        (live,) = await queue.add(1, **unique())
        await queue.claim()
        job = queue.job(**unique())
        if submit_first:  # it sees the live job, and the end has to wait for it
            async with one.db.transaction():
                (answer,) = await one.submit(job)
                ending = asyncio.create_task(two.settle((live, 1, Completed())))
                await until(lambda: blocked_on_a_lock(queue.db))
            await ending
            assert (answer.id, answer.receipt) == (live, SubmitReceipt.DUPLICATE)
        else:  # the end came first: the submit waits for it, and makes a job of its own
            async with one.db.transaction():
                await one.settle((live, 1, Completed()))
                asking = asyncio.create_task(two.submit(job))
                await until(lambda: blocked_on_a_lock(queue.db))
            (answer,) = await asking
            assert (answer.id, answer.receipt) == (job.id, SubmitReceipt.CREATED)


@pytest.mark.req("O27")
async def test_two_first_submits_at_once_make_one_job(queue: Queue, database: str) -> None:
    async with rivals(database, 2) as (one, two):
        async with one.db.transaction():
            (first,) = await one.submit(one.job(**unique()))
            other = asyncio.create_task(two.submit(two.job(**unique())))
            await until(lambda: blocked_on_a_lock(queue.db))
        (second,) = await other
        assert (second.id, second.receipt) == (first.id, SubmitReceipt.DUPLICATE)


async def test_random_races_leave_one_live_job_per_key_and_swallow_nothing(queue: Queue, database: str) -> None:
    """Every submit is answered by a job that ends after the submit began; never are two of a key live at once."""
    keys, rounds = 3, 60
    ended_at: dict[JobId, int] = {}
    step = 0
    answers: list[tuple[JobId, int]] = []
    receipts: Counter[SubmitReceipt] = Counter()
    producing = 3
    async with rivals(database, 5) as (*producers, first, second):

        async def produce(who: Queue, dice: Random) -> None:
            nonlocal step, producing
            for _ in range(rounds):
                step += 1
                began = step
                jobs = [
                    who.job(**unique(f"k{n}", on_conflict=dice.choice(("keep", "replace", "reschedule"))))
                    for n in dice.sample(range(keys), k=dice.randint(1, keys))
                ]
                for answer in await who.submit(*jobs):
                    answers.append((answer.id, began))
                    receipts[answer.receipt] += 1
            producing -= 1

        async def work(who: Queue) -> None:
            nonlocal step
            while producing or await who.db.fetchval("SELECT count(*) FROM headgate.jobs"):
                claimed = await who.claim(2)
                for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True):
                    await who.settle((job_id, epoch, Completed()))
                    step += 1
                    ended_at[JobId(job_id)] = step
                await asyncio.sleep(0)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for nth, who in enumerate(producers):
                tasks.create_task(produce(who, Random(nth)))
            tasks.create_task(work(first))
            tasks.create_task(work(second))
    assert receipts[SubmitReceipt.CREATED] == len(ended_at)
    assert set(receipts) == {SubmitReceipt.CREATED, SubmitReceipt.DUPLICATE}
    for job_id, began in answers:
        assert ended_at[job_id] > began
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.unique_jobs WHERE live") == 0
    assert min(receipts.values()) > 20  # there were races indeed


@pytest.mark.parametrize("on_conflict", ["replace", "reschedule"])
@pytest.mark.parametrize("ended", [False, True])
async def test_a_submit_that_changed_the_live_job_and_is_sent_again_makes_no_job_of_its_own(
    queue: Queue, on_conflict: str, ended: bool
) -> None:
    """Its answer was lost. The job it changed may have run since, with its body: that was this submit's job."""
    (first,) = await queue.submit(queue.job(**unique()))
    call = queue.job(payload=b"newer", **unique(on_conflict=on_conflict))
    (changed,) = await queue.submit(call)
    assert (changed.id, changed.receipt) == (first.id, SubmitReceipt.DUPLICATE)
    if ended:
        await queue.claim()
        await queue.settle((first.id, 1, Completed()))
    resent = queue.job(id=call.id, payload=b"newer", **unique(on_conflict=on_conflict))
    for _ in range(2):
        (again,) = await queue.submit(resent)
        assert (again.id, again.receipt) == (first.id, SubmitReceipt.DUPLICATE)
    events = await reads.events(queue.db, await queue.tenant_no(), first.id)
    kind = EventKind.REPLACED if on_conflict == "replace" else EventKind.RESCHEDULED
    assert [event.kind for event in events].count(kind) == 1  # nor was the live one changed once more
    rows = "SELECT (SELECT count(*) FROM headgate.jobs) + (SELECT count(*) FROM headgate.archive)"
    assert await queue.db.fetchval(rows) == 1
    (other,) = await queue.submit(queue.job(**unique(on_conflict=on_conflict)))  # another call is another call
    assert (other.receipt is SubmitReceipt.CREATED) is ended


async def test_the_second_copy_of_a_submit_that_waits_for_the_first_sees_what_that_did(
    queue: Queue, database: str
) -> None:
    """It has looked before the first copy was committed; the job that this one changed then ends at once."""
    (first,) = await queue.submit(queue.job(**unique()))
    call = queue.job(payload=b"newer", **unique(on_conflict="replace"))
    resent = queue.job(id=call.id, payload=b"newer", **unique(on_conflict="replace"))
    async with rivals(database, 2) as (other, watcher):
        async with queue.db.transaction():
            await queue.submit(call)
            waits = asyncio.create_task(other.submit(resent))
            await until(lambda: blocked_on_a_lock(watcher.db))
            await queue.claim()
            await queue.settle((first.id, 1, Completed()))
        (again,) = await waits
    assert (again.id, again.receipt) == (first.id, SubmitReceipt.DUPLICATE)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.jobs") == 0


async def test_changed_jobs_are_remembered_for_a_day_by_call(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await queue.submit(queue.job(**unique()))
    await queue.submit(queue.job(**unique()))  # kept as it was: there is nothing to remember
    await queue.submit(queue.job(**unique(on_conflict="replace")))
    count = "SELECT count(*) FROM headgate.unique_calls"
    await clock.advance(hours=23, minutes=59)
    await forget_expired(queue.db)
    assert await queue.db.fetchval(count) == 1
    await clock.advance(minutes=1)
    await forget_expired(queue.db)
    assert await queue.db.fetchval(count) == 0
