"""Submitting: the same submit is the same job, by id and by key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from headgate.domain import limits
from headgate.domain.errors import StoreBusy
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.states import State, SubmitReceipt
from headgate.store import reads, submit, upkeep, verbs
from headgate.store.connect import Connection, connect
from headgate.store.flush import fill
from headgate.store.names import Names
from tests.support import store_calls
from tests.support.queue import Clock, Queue, new_id
from tests.support.store_calls import Submitted

CREATED, DUPLICATE, CONFLICT = SubmitReceipt.CREATED, SubmitReceipt.DUPLICATE, SubmitReceipt.CONFLICT
HOUR, DAY, MICRO = timedelta(hours=1), timedelta(days=1), timedelta(microseconds=1)
FATAL = Failed(error=ErrorInfo(type="Fatal"), permanent=True)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


def receipts(answers: list[Submitted]) -> list[SubmitReceipt]:
    return [answer.receipt for answer in answers]


async def live(db: Connection) -> int:
    count: int = await db.fetchval("SELECT count(*) FROM headgate.jobs")
    return count


async def finish(queue: Queue, *job_ids: UUID, how: Completed | Failed | None = None) -> None:
    """Claim everything on the topic, and end these jobs."""
    claimed = await queue.claim(5_000)
    epochs = dict(zip(claimed.ids, claimed.epochs, strict=True))
    await queue.settle(*((job_id, epochs[job_id], how or Completed()) for job_id in job_ids))


@pytest.mark.parametrize("size", [1, 2_000])
@pytest.mark.parametrize("first_copy", [True, False])
@pytest.mark.parametrize("ended", [False, True])
async def test_an_id_sent_again_is_the_same_job(queue: Queue, *, size: int, first_copy: bool, ended: bool) -> None:
    job_id = new_id()
    first = queue.job(id=job_id, payload=b"a" * size, new_id=True)
    await queue.submit(first)
    if ended:
        await finish(queue, job_id)
    # A copy of a finished job that says its id is new breaks its promise: it is not among the cases.
    again_new = first_copy and not ended
    again = queue.job(id=job_id, payload=b"a" * size, new_id=again_new)
    other_body = queue.job(id=job_id, payload=b"b" * size, new_id=again_new)
    other_topic = queue.job("letters", id=job_id, payload=b"a" * size, new_id=again_new)
    for _ in range(2):
        for job, said in ((again, DUPLICATE), (other_body, CONFLICT), (other_topic, CONFLICT)):
            (answer,) = await queue.submit(job)
            assert answer == Submitted(id=job_id, receipt=said)
    assert await live(queue.db) == (0 if ended else 1)
    assert await reads.payload(queue.db, await queue.tenant_no(), job_id) == b"a" * size
    counts = await reads.counts(queue.db, await queue.tenant_no())
    assert counts == {(await queue.topic()).no: {State.COMPLETED if ended else State.PENDING: 1}}


async def test_options_other_than_topic_and_body_do_not_make_a_conflict(queue: Queue) -> None:
    job_id = new_id()
    await queue.submit(queue.job(id=job_id, priority=1))
    again = queue.job(id=job_id, priority=9, tags=["late"], delay=HOUR, max_attempts=3)
    assert receipts(await queue.submit(again)) == [DUPLICATE]
    job = await reads.get(queue.db, await queue.tenant_no(), job_id)
    assert (job.priority, job.state, job.max_attempts) == (1, State.PENDING, limits.MAX_ATTEMPTS_DEFAULT)
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_tags") == 0


async def test_a_body_edited_by_a_redrive_counts_as_the_first_one(queue: Queue) -> None:
    job = queue.job(id=new_id(), payload=b"first")
    await queue.submit(job)
    await finish(queue, job.id, how=FATAL)
    await verbs.redrive(queue.db, await queue.tenant_no(), [job.id], payloads=[b"edited"])
    assert receipts(await queue.submit(job)) == [DUPLICATE]
    assert await reads.payload(queue.db, await queue.tenant_no(), job.id) == b"edited"


async def test_a_delayed_first_copy_cannot_run_a_finished_job_again(queue: Queue) -> None:
    """The resend overtakes the first send; that one claims a new id, in good faith, and arrives when all is over."""
    clock = await Clock.install(queue.db)
    job_id = new_id()
    assert receipts(await queue.submit(queue.job(id=job_id, new_id=False))) == [CREATED]
    await finish(queue, job_id)
    assert receipts(await queue.submit(queue.job(id=job_id, new_id=True))) == [DUPLICATE]
    # Also when an operator has discarded it meanwhile.
    gone = new_id()
    await queue.submit(queue.job(id=gone, new_id=False))
    await finish(queue, gone, how=FATAL)
    assert await verbs.discard(queue.db, await queue.tenant_no(), [gone]) == {gone}
    assert receipts(await queue.submit(queue.job(id=gone, new_id=True))) == [DUPLICATE]
    assert await live(queue.db) == 0
    # The memory is kept for an hour.
    await clock.advance(minutes=59)
    assert receipts(await queue.submit(queue.job(id=gone, new_id=True))) == [DUPLICATE]
    await clock.advance(minutes=2)
    assert await upkeep.forget_expired(queue.db) == 2
    assert receipts(await queue.submit(queue.job(id=gone, new_id=True))) == [CREATED]


async def test_one_id_in_two_tenants_is_two_jobs(db: Connection) -> None:
    acme, umbrella = Queue(db), Queue(db, tenant="umbrella")
    job_id = new_id()
    for queue, body in ((acme, b"a" * 2_000), (umbrella, b"u" * 2_000)):
        assert receipts(await queue.submit(queue.job(id=job_id, payload=body))) == [CREATED]
    await finish(acme, job_id)
    # In one flush too: acme's is finished, umbrella's is not.
    flush = await fill(db, acme.names, [acme.job(id=job_id, payload=b"a" * 2_000)])
    flush.add(umbrella.job(id=job_id, payload=b"u" * 2_000), await umbrella.topic())
    answers = await submit.submit(db, flush)
    assert {place: answer.receipt for place, answer in answers.items()} == {0: DUPLICATE, 1: DUPLICATE}
    assert (await reads.get(db, await acme.tenant_no(), job_id)).state is State.COMPLETED
    assert (await reads.get(db, await umbrella.tenant_no(), job_id)).state is State.PENDING
    claimed = await umbrella.claim()
    assert (claimed.ids, claimed.payloads) == ((job_id,), (b"u" * 2_000,))


async def test_an_id_repeated_within_a_flush_is_answered_in_its_order(queue: Queue) -> None:
    a, b, c = new_id(), new_id(), new_id()
    jobs = [
        queue.job(id=a, payload=b"1", new_id=True),
        queue.job(id=b, payload=b"2", new_id=True),
        queue.job(id=a, payload=b"1", new_id=True),
        queue.job(id=a, payload=b"other", new_id=True),
        queue.job(id=c, payload=b"3", new_id=True),
        queue.job(id=b, payload=b"2", new_id=False),
    ]
    answers = await queue.submit(*jobs)
    assert receipts(answers) == [CREATED, CREATED, DUPLICATE, CONFLICT, CREATED, DUPLICATE]
    assert [answer.id for answer in answers] == [job.id for job in jobs]
    claimed = await queue.claim()
    assert (claimed.ids, claimed.payloads) == ((a, b, c), (b"1", b"2", b"3"))


async def test_an_id_repeated_more_often_than_python_can_recurse(queue: Queue) -> None:
    job = queue.job(id=new_id())
    answers = await queue.submit(*[job] * 1_100)
    assert receipts(answers) == [CREATED] + [DUPLICATE] * 1_099
    (claimed,) = (await queue.claim()).ids
    outcomes = [(claimed, 1, Completed())] * 1_100 + [(claimed, 1, FATAL)] * 2
    settled = [answer.receipt.label for answer in await queue.settle(*outcomes)]
    assert settled == ["applied"] + ["duplicate"] * 1_099 + ["stale"] * 2


async def test_the_second_copy_within_a_flush_cannot_run_a_job_finished_in_between(queue: Queue, database: str) -> None:
    """The copies of one flush are sent one after the other, and a worker may be quicker than the second."""
    job = queue.job(id=new_id(), new_id=True)
    flush = await fill(queue.db, queue.names, [job, job])
    worker = await connect(database, application_name="worker")

    class QuickWorker:
        """The connection of the submitter, with a worker who ends the job after each statement."""

        async def fetch(self, *arguments: Any) -> list[asyncpg.Record]:
            rows = await queue.db.fetch(*arguments)
            await finish(Queue(worker), *(() if not await live(worker) else (job.id,)))
            return rows

        def is_in_transaction(self) -> bool:
            return False

    answers = await submit.submit(QuickWorker(), flush)  # type: ignore[arg-type]
    await worker.close()
    assert {place: answer.receipt for place, answer in answers.items()} == {1: DUPLICATE}
    assert await live(queue.db) == 0


async def test_the_same_key_and_body_is_the_first_job(queue: Queue) -> None:
    (first,) = await queue.add(key="invoice-7", payload=b"pay")
    answers = await queue.submit(
        queue.job(key="invoice-7", payload=b"pay"),
        queue.job(key="invoice-7", payload=b"pay more"),
        queue.job(key="invoice-8", payload=b"pay"),
    )
    assert receipts(answers) == [DUPLICATE, CONFLICT, CREATED]
    assert [answer.id for answer in answers[:2]] == [first] * 2
    assert await live(queue.db) == 2
    # Finished or discarded: the key still stands for it.
    await finish(queue, first, how=FATAL)
    assert await queue.submit(queue.job(key="invoice-7", payload=b"pay")) == [Submitted(id=first, receipt=DUPLICATE)]
    await verbs.discard(queue.db, await queue.tenant_no(), [first])
    assert await queue.submit(queue.job(key="invoice-7", payload=b"pay")) == [Submitted(id=first, receipt=DUPLICATE)]


async def test_the_window_of_a_key_ends_to_the_microsecond(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    begin = clock.now
    (first,) = await queue.add(key="k", key_window=HOUR)
    await clock.set(begin + HOUR - MICRO)
    assert await queue.submit(queue.job(key="k", key_window=DAY)) == [Submitted(id=first, receipt=DUPLICATE)]
    assert await upkeep.forget_expired(queue.db) == 0
    await clock.set(begin + HOUR)
    second = queue.job(key="k", payload=b"another body", key_window=HOUR)
    assert await queue.submit(second) == [Submitted(id=second.id, receipt=CREATED)]
    # A new window has begun.
    await clock.set(begin + 2 * HOUR - MICRO)
    assert receipts(await queue.submit(queue.job(key="k", payload=b"another body"))) == [DUPLICATE]
    await clock.set(begin + 2 * HOUR)
    assert await upkeep.forget_expired(queue.db) == 1
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.idempotency_keys") == 0
    assert receipts(await queue.submit(queue.job(key="k"))) == [CREATED]


async def test_a_key_belongs_to_its_tenant(db: Connection) -> None:
    acme, umbrella = Queue(db), Queue(db, tenant="umbrella")
    (ours,) = await acme.add(key="k")
    (theirs,) = await umbrella.add(key="k")
    assert ours != theirs
    assert (await acme.add(key="k"), await umbrella.add(key="k")) == ([ours], [theirs])


async def test_a_key_belongs_to_its_topic(queue: Queue) -> None:
    """Whatever others submit under the key: it is not taken from this topic, and its job is not named to them."""
    jobs = [queue.job(topic, key="k", payload=body) for topic in ("mail", "pay") for body in (b"a", b"a", b"b")]
    answers = await queue.submit(*jobs)  # one flush
    assert receipts(answers) == [CREATED, DUPLICATE, CONFLICT] * 2
    assert [answer.id for answer in answers] == [jobs[0].id] * 3 + [jobs[3].id] * 3
    again = await queue.submit(queue.job("pay", key="k", payload=b"a"), queue.job("letters", key="k", payload=b"b"))
    assert [(answer.receipt, answer.id == jobs[3].id) for answer in again] == [(DUPLICATE, True), (CREATED, False)]


async def test_a_job_that_is_moved_leaves_its_key_with_the_topic_it_was_submitted_to(queue: Queue) -> None:
    (first,) = await queue.add(key="k")
    target = await queue.topic("letters")
    await queue.db.execute("UPDATE headgate.jobs SET topic_no = $1", target.no)  # what move_v1 does to the row
    answers = await queue.submit(queue.job(key="k"), queue.job("letters", key="k"))
    assert receipts(answers) == [DUPLICATE, CREATED]
    assert answers[0].id == first


async def test_one_key_twice_in_a_flush_makes_one_job(queue: Queue) -> None:
    jobs = [queue.job(key="k"), queue.job(key="k"), queue.job(key="k", payload=b"other"), queue.job()]
    answers = await queue.submit(*jobs)
    assert receipts(answers) == [CREATED, DUPLICATE, CONFLICT, CREATED]
    assert [answer.id for answer in answers] == [jobs[0].id, jobs[0].id, jobs[0].id, jobs[3].id]
    assert await live(queue.db) == 2


async def test_a_key_whose_job_was_not_made_is_free_for_other_rows(queue: Queue) -> None:
    """The first of three has the id of another body, so it gets no job; the second then is the first with this key."""
    (taken,) = await queue.add(payload=b"taken")
    jobs = [
        queue.job(id=taken, payload=b"mine", key="k"),
        queue.job(payload=b"mine", key="k"),
        queue.job(payload=b"mine", key="k"),
    ]
    answers = await queue.submit(*jobs)
    assert receipts(answers) == [CONFLICT, CREATED, DUPLICATE]
    assert [answer.id for answer in answers] == [taken, jobs[1].id, jobs[1].id]
    assert receipts(await queue.submit(queue.job(key="k", payload=b"mine"))) == [DUPLICATE]


async def test_only_jobs_with_the_key_of_another_row_are_tried_again(queue: Queue) -> None:
    """Of four, three are refused for good: the last is written again, alone, and so the first of its flush."""
    (first,) = await queue.submit(queue.job(payload=b"taken", key="k"))
    (other,) = await queue.add(payload=b"taken")
    jobs = [
        queue.job(payload=b"mine", key="k"),  # refused because of its key, which the second's id holds
        queue.job(id=first.id, payload=b"mine"),
        queue.job(id=other, payload=b"mine", key="l"),
        queue.job(payload=b"mine", key="l"),
    ]
    assert receipts(await queue.submit(*jobs)) == [CONFLICT, CONFLICT, CONFLICT, CREATED]
    place = "SELECT rank_at - (extract(epoch FROM created_at) * 1000000)::bigint FROM headgate.jobs WHERE id = $1"
    assert await queue.db.fetchval(place, jobs[-1].id) == 1


async def test_a_crowd_that_frees_one_key_in_turn_costs_a_bounded_number_of_flushes(queue: Queue) -> None:
    taken = await queue.add(500, payload=b"taken")
    jobs = [queue.job(id=job_id, payload=b"mine", key="k", new_id=True) for job_id in taken] + [queue.job(key="k")]
    answers = await submit.submit(queue.db, await fill(queue.db, queue.names, jobs))
    said = [answers[place] for place in range(501)]
    assert [answer.receipt.label for answer in said] == ["conflict"] * 8 + ["refused"] * 493
    assert [answer.job_id for answer in said] == [job.id for job in jobs]
    assert isinstance(said[-1].error, StoreBusy)
    assert "send it again" in str(said[-1].error)
    assert receipts(await queue.submit(jobs[-1])) == [CREATED]


async def test_a_key_and_an_id_that_name_the_same_job(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    job = queue.job(id=new_id(), key="k", key_window=HOUR)
    for said in (CREATED, DUPLICATE, DUPLICATE):
        assert await queue.submit(job) == [Submitted(id=job.id, receipt=said)]
    await clock.advance(hours=1)
    assert await queue.submit(job) == [Submitted(id=job.id, receipt=DUPLICATE)]
    assert await live(queue.db) == 1


async def together(database: str, calls: list[Callable[[Connection], Coroutine[Any, Any, Any]]]) -> list[Any]:
    """Run all calls at the same moment, each on a connection of its own."""
    async with AsyncExitStack() as stack:
        links = [await connect(database, application_name="together") for _ in calls]
        for link in links:
            stack.push_async_callback(link.close)
        return await asyncio.gather(*(call(link) for call, link in zip(calls, links, strict=True)))


async def test_sixteen_submits_of_one_key_at_once_make_one_job(database: str, queue: Queue) -> None:
    await queue.topic()
    for attempt in range(3):
        jobs = [queue.job(key=f"only-{attempt}", payload=b"same") for _ in range(15)]
        jobs.append(queue.job(key=f"only-{attempt}", payload=b"different"))

        def send(job: Submission) -> Callable[[Connection], Coroutine[Any, Any, list[Submitted]]]:
            return lambda link: store_calls.submit_all(link, Names(), [job])

        answers = [answer for (answer,) in await together(database, [send(job) for job in jobs])]
        (winner,) = {answer.id for answer in answers}
        assert receipts(answers).count(CREATED) == 1
        place = receipts(answers).index(CREATED)
        assert jobs[place].id == winner
        for job, answer in zip(jobs, answers, strict=True):
            if answer.receipt is not CREATED:
                assert answer.receipt is (DUPLICATE if job.payload == jobs[place].payload else CONFLICT)
        assert await live(queue.db) == attempt + 1


async def test_the_same_flush_sent_by_four_at_once_makes_each_job_once(database: str, queue: Queue) -> None:
    await queue.topic()
    jobs = [queue.job(id=new_id(), key=f"k{n}", payload=b"x" * (n % 3 * 1_000), tags=["t"]) for n in range(200)]

    def send(order: int) -> Callable[[Connection], Coroutine[Any, Any, list[Submitted]]]:
        return lambda link: store_calls.submit_all(link, Names(), jobs[order:] + jobs[:order])

    answers = await together(database, [send(order) for order in (0, 50, 100, 150)])
    assert {answer.id for some in answers for answer in some} == {job.id for job in jobs}
    assert sum(receipts(some).count(CREATED) for some in answers) == len(jobs)
    assert sum(receipts(some).count(CONFLICT) for some in answers) == 0
    assert await live(queue.db) == len(jobs)
    counts = await reads.counts(queue.db, await queue.tenant_no())
    assert counts == {(await queue.topic()).no: {State.PENDING: len(jobs)}}
