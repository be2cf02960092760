"""Submitting: the same submit is the same job, by id and by key; `headgate.submit` in a caller's own transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import HeadgateError, StoreBusy, StoreError
from headgate.domain.ids import JobId, TenantName, TopicName
from headgate.domain.jobs import Submission, Submitted, TopicRules
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.rank import rank_of, unix_us
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.validation import to_ms
from headgate.store import leases, reads, settle, submit, upkeep, verbs
from headgate.store.connect import Connection, connect
from headgate.store.names import Names
from headgate.store.submit import SubmitFlush
from tests.support.queue import Clock, Queue, new_id

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


# --- by id ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2_000])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("ended", [False, True])
async def test_an_id_sent_again_is_the_same_job(queue: Queue, *, size: int, fresh: bool, ended: bool) -> None:
    job_id = new_id()
    first = queue.job(id=job_id, payload=b"a" * size, fresh=True)
    await queue.submit(first)
    if ended:
        await finish(queue, job_id)
    # A copy of a finished job that calls itself fresh breaks its promise: it is not among the cases.
    again_fresh = fresh and not ended
    again = queue.job(id=job_id, payload=b"a" * size, fresh=again_fresh)
    other_body = queue.job(id=job_id, payload=b"b" * size, fresh=again_fresh)
    other_topic = queue.job("letters", id=job_id, payload=b"a" * size, fresh=again_fresh)
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
    """The resend overtakes the first send; that one says "fresh" in good faith, and arrives when all is over."""
    clock = await Clock.install(queue.db)
    job_id = new_id()
    assert receipts(await queue.submit(queue.job(id=job_id, fresh=False))) == [CREATED]
    await finish(queue, job_id)
    assert receipts(await queue.submit(queue.job(id=job_id, fresh=True))) == [DUPLICATE]
    # Also when an operator has discarded it meanwhile.
    gone = new_id()
    await queue.submit(queue.job(id=gone, fresh=False))
    await finish(queue, gone, how=FATAL)
    assert await verbs.discard(queue.db, await queue.tenant_no(), [gone]) == {gone}
    assert receipts(await queue.submit(queue.job(id=gone, fresh=True))) == [DUPLICATE]
    assert await live(queue.db) == 0
    # The memory is kept for an hour.
    await clock.advance(minutes=59)
    assert receipts(await queue.submit(queue.job(id=gone, fresh=True))) == [DUPLICATE]
    await clock.advance(minutes=2)
    assert await upkeep.forget_expired(queue.db) == 2
    assert receipts(await queue.submit(queue.job(id=gone, fresh=True))) == [CREATED]


async def test_one_id_in_two_tenants_is_two_jobs(db: Connection) -> None:
    acme, umbrella = Queue(db), Queue(db, tenant="umbrella")
    job_id = new_id()
    for queue, body in ((acme, b"a" * 2_000), (umbrella, b"u" * 2_000)):
        assert receipts(await queue.submit(queue.job(id=job_id, payload=body))) == [CREATED]
    await finish(acme, job_id)
    # In one flush too: acme's is finished, umbrella's is not.
    flush = await submit.fill(db, acme.names, [acme.job(id=job_id, payload=b"a" * 2_000)])
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
        queue.job(id=a, payload=b"1", fresh=True),
        queue.job(id=b, payload=b"2", fresh=True),
        queue.job(id=a, payload=b"1", fresh=True),
        queue.job(id=a, payload=b"other", fresh=True),
        queue.job(id=c, payload=b"3", fresh=True),
        queue.job(id=b, payload=b"2", fresh=False),
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
    job = queue.job(id=new_id(), fresh=True)
    flush = await submit.fill(queue.db, queue.names, [job, job])
    worker = await connect(database, application_name="worker")

    class QuickWorker:
        """The connection of the submitter, with a worker who ends the job after each statement."""

        async def fetch(self, *arguments: Any) -> list[asyncpg.Record]:
            rows = await queue.db.fetch(*arguments)
            await finish(Queue(worker), *(() if not await live(worker) else (job.id,)))
            return rows

    answers = await submit.submit(QuickWorker(), flush)  # type: ignore[arg-type]
    await worker.close()
    assert {place: answer.receipt for place, answer in answers.items()} == {1: DUPLICATE}
    assert await live(queue.db) == 0


# --- by key -----------------------------------------------------------------------------------------------------------


async def test_the_same_key_and_body_is_the_first_job(queue: Queue) -> None:
    (first,) = await queue.add(key="invoice-7", payload=b"pay")
    answers = await queue.submit(
        queue.job(key="invoice-7", payload=b"pay"),
        queue.job(key="invoice-7", payload=b"pay more"),
        queue.job("letters", key="invoice-7", payload=b"pay"),
        queue.job(key="invoice-8", payload=b"pay"),
    )
    assert receipts(answers) == [DUPLICATE, CONFLICT, CONFLICT, CREATED]
    assert [answer.id for answer in answers[:3]] == [first] * 3
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


async def test_one_key_twice_in_a_flush_makes_one_job(queue: Queue) -> None:
    jobs = [queue.job(key="k"), queue.job(key="k"), queue.job(key="k", payload=b"other"), queue.job()]
    answers = await queue.submit(*jobs)
    assert receipts(answers) == [CREATED, DUPLICATE, CONFLICT, CREATED]
    assert [answer.id for answer in answers] == [jobs[0].id, jobs[0].id, jobs[0].id, jobs[3].id]
    assert await live(queue.db) == 2


async def test_a_key_whose_job_was_not_made_is_free_for_its_neighbours(queue: Queue) -> None:
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


async def test_only_who_met_a_neighbours_key_tries_again(queue: Queue) -> None:
    """Of four, three are refused for good: the last is written anew, alone, and so the first of its flush."""
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
    jobs = [queue.job(id=job_id, payload=b"mine", key="k", fresh=True) for job_id in taken] + [queue.job(key="k")]
    answers = await submit.submit(queue.db, await submit.fill(queue.db, queue.names, jobs))
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
            return lambda link: submit.submit_all(link, Names(), [job])

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
        return lambda link: submit.submit_all(link, Names(), jobs[order:] + jobs[:order])

    answers = await together(database, [send(order) for order in (0, 50, 100, 150)])
    assert {answer.id for some in answers for answer in some} == {job.id for job in jobs}
    assert sum(receipts(some).count(CREATED) for some in answers) == len(jobs)
    assert sum(receipts(some).count(CONFLICT) for some in answers) == 0
    assert await live(queue.db) == len(jobs)
    counts = await reads.counts(queue.db, await queue.tenant_no())
    assert counts == {(await queue.topic()).no: {State.PENDING: len(jobs)}}


# --- what a job is made of --------------------------------------------------------------------------------------------


async def test_delay_and_run_at_decide_when_a_job_is_due(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    now = clock.now
    cases = [
        ({}, now, State.PENDING),
        ({"delay": timedelta(0)}, now, State.PENDING),
        ({"delay": MICRO}, now + timedelta(milliseconds=1), State.SCHEDULED),
        ({"delay": timedelta(days=1825)}, now + timedelta(days=1825), State.SCHEDULED),
        ({"run_at": now}, now, State.PENDING),
        ({"run_at": now - DAY}, now - DAY, State.PENDING),
        ({"run_at": limits.RUN_AT_EARLIEST}, limits.RUN_AT_EARLIEST, State.PENDING),
        ({"run_at": now + MICRO}, now + MICRO, State.SCHEDULED),
    ]
    answers = await queue.submit(*(queue.job(**options) for options, _, _ in cases))
    for answer, (_, run_at, state) in zip(answers, cases, strict=True):
        job = await reads.get(queue.db, await queue.tenant_no(), answer.id)
        assert (job.run_at, job.state, job.created_at) == (run_at, state, now)
    assert await leases.next_due(queue.db) == now + MICRO
    await clock.advance(milliseconds=1)
    assert {job.id for job in await leases.promote(queue.db)} == {answers[2].id, answers[7].id}


@pytest.mark.parametrize("size", [0, 1, 1_023, 1_024, 1_025, 2**20 - 1, 2**20])
async def test_a_payload_of_any_size_comes_back_as_it_was(queue: Queue, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"\x00" * (size % 256)
    (job_id,) = await queue.add(payload=body)
    beside = await queue.db.fetchval("SELECT count(*) FROM headgate.payloads")
    assert beside == (1 if size > limits.PAYLOAD_INLINE_MAX_BYTES else 0)
    tenant = await queue.tenant_no()
    assert await reads.payload(queue.db, tenant, job_id) == body
    claimed = await queue.claim()
    assert claimed.payloads == (body,)
    await queue.settle((job_id, 1, Completed(result=body)))
    assert await reads.payload(queue.db, tenant, job_id) == body
    assert (await reads.result(queue.db, tenant, job_id)).result == body


async def test_headers_and_tags_come_back_as_they_were(queue: Queue) -> None:
    headers = {"traceparent": "00-ab", "a.b_c:d/e-f": "ü — 🦆 'quoted' \"twice\" \\ back", "empty": ""}
    (job_id,) = await queue.add(headers=headers, tags=["red", "ünï", "red", "x" * 100])
    plain = await queue.add()
    tenant = await queue.tenant_no()
    assert (await reads.get(queue.db, tenant, job_id)).headers == headers
    assert (await reads.get(queue.db, tenant, plain[0])).headers == {}
    rows = await queue.db.fetch("SELECT tag FROM headgate.job_tags WHERE job_id = $1", job_id)
    assert sorted(row["tag"] for row in rows) == sorted(["red", "ünï", "x" * 100])
    claimed = await queue.claim()
    first, second = claimed.headers
    assert first is not None
    assert (json.loads(first), second) == (headers, None)


async def test_a_topic_lends_its_rules_where_the_submission_is_silent(queue: Queue) -> None:
    policy = RetryPolicy.fixed(timedelta(seconds=7))
    number = await queue.names.policy_no(queue.db, policy)
    await queue.topic()
    await queue.db.execute("UPDATE headgate.topics SET max_attempts = 3, policy_no = $1", number)
    await queue.names.refresh(queue.db)
    assert (await queue.topic()).rules == TopicRules(max_attempts=3, policy=policy)
    own = RetryPolicy.linear(timedelta(seconds=2))
    first, second, third = await queue.submit(
        queue.job(), queue.job(max_attempts=20, policy=own), queue.job(max_attempts=1)
    )
    tenant = await queue.tenant_no()
    views = [await reads.get(queue.db, tenant, answer.id) for answer in (first, second, third)]
    assert [view.max_attempts for view in views] == [3, 20, 1]
    policies = [await Names().policy_by_no(queue.db, view.policy_no) for view in views]
    assert policies == [policy, own, policy]


async def test_every_kind_of_policy_is_stored_once_and_read_back(queue: Queue) -> None:
    second = timedelta(seconds=1)
    policies = [
        RetryPolicy(),
        RetryPolicy.quadratic(2 * second),
        RetryPolicy.fixed(second),
        RetryPolicy.linear(second, cap=5 * second),
        RetryPolicy.exponential(second),
        RetryPolicy.exponential_equal_jitter(second),
        RetryPolicy.exponential_full_jitter(second),
        RetryPolicy.explicit(second, 3 * second),
    ]
    numbers = [await Names().policy_no(queue.db, policy) for policy in policies]
    assert numbers == [await Names().policy_no(queue.db, policy) for policy in policies]
    assert len(set(numbers)) == len(policies)
    assert [await Names().policy_by_no(queue.db, number) for number in numbers] == policies


@pytest.mark.parametrize("step", [None, timedelta(milliseconds=1), timedelta(hours=1)])
async def test_the_rank_of_a_job_is_that_of_the_domain(queue: Queue, step: timedelta | None) -> None:
    clock = await Clock.install(queue.db)
    await queue.topic()
    await queue.db.execute("UPDATE headgate.topics SET ageing_step_us = $1", None if step is None else step // MICRO)
    await queue.names.refresh(queue.db)
    priorities = [0, 5, -5, limits.PRIORITY_MIN, limits.PRIORITY_MAX, 0]
    answers = await queue.submit(*(queue.job(priority=priority) for priority in priorities))
    for place, (answer, priority) in enumerate(zip(answers, priorities, strict=True), 1):
        job = await reads.get(queue.db, await queue.tenant_no(), answer.id)
        rank_class, offset = rank_of(priority, step)
        assert (job.rank_class, job.rank_at) == (rank_class, unix_us(clock.now) + place + offset)


async def test_jobs_of_one_flush_are_claimed_in_the_order_they_were_submitted(queue: Queue) -> None:
    jobs = [queue.job(payload=b"%d" % n) for n in range(300)]
    jobs.sort(key=lambda job: job.payload)  # in any order but that of their ids
    await queue.submit(*jobs)
    claimed = await queue.claim(300)
    assert list(claimed.ids) == [job.id for job in jobs]


async def test_lists_that_end_early_mean_the_default_for_the_rest(queue: Queue) -> None:
    topic = await queue.topic()
    flush = SubmitFlush()
    options: list[dict[str, Any]] = [
        {},
        {"priority": 3},
        {},
        {"max_attempts": 2, "headers": {"a": "b"}},
        {"delay": HOUR},
        {},
    ]
    for option in options:
        flush.add(queue.job(**option), topic)
    assert (len(flush), len(flush.priorities), len(flush.max_attempts), len(flush.delays_ms)) == (6, 2, 4, 5)
    assert await submit.submit(queue.db, flush) == {}
    views = [await reads.get(queue.db, await queue.tenant_no(), job_id) for job_id in flush.ids]
    assert [view.priority for view in views] == [0, 3, 0, 0, 0, 0]
    assert [view.max_attempts for view in views] == [20, 20, 20, 2, 20, 20]
    assert [view.state for view in views] == [State.PENDING] * 4 + [State.SCHEDULED, State.PENDING]
    assert [dict(view.headers) for view in views] == [{}, {}, {}, {"a": "b"}, {}, {}]


async def test_more_jobs_than_one_flush_holds_are_sent_in_several(queue: Queue) -> None:
    jobs = [queue.job() for _ in range(limits.SUBMIT_FLUSH_MAX_ROWS + 1)]
    assert receipts(await queue.submit(*jobs)) == [CREATED] * len(jobs)
    assert await live(queue.db) == len(jobs)


async def test_submitting_in_a_transaction_that_fails_says_so(queue: Queue) -> None:
    """Nothing is halved there: the transaction is over, and its owner must know."""
    flush = await submit.fill(queue.db, queue.names, [queue.job(), queue.job()])
    flush.max_attempts = [0]
    transaction = queue.db.transaction()
    await transaction.start()
    with pytest.raises(StoreError):
        await submit.submit(queue.db, flush)
    await transaction.rollback()
    assert await live(queue.db) == 0


# --- headgate.submit: from SQL ----------------------------------------------------------------------------------------

CASTS = {
    "topic": "text",
    "payload": "bytea",
    "tenant": "text",
    "priority": "int",
    "delay": "interval",
    "key": "text",
    "run_at": "timestamptz",
    "max_attempts": "int",
    "key_window": "interval",
    "id": "uuid",
    "headers": "jsonb",
    "tags": "text[]",
}
FUNCTION = "headgate.submit(text, {}, text, int, interval, timestamptz, int, text, interval, uuid, jsonb, text[], text)"


async def sql_submit(db: Connection, *, payload_type: str = "bytea", **options: Any) -> UUID:
    """Call the function with named arguments, as an application would."""
    values: dict[str, Any] = {"topic": "mail", "payload": b"x"} | options
    casts = CASTS | {"payload": payload_type}
    arguments = ", ".join(f"{name} => ${n}::{casts[name]}" for n, name in enumerate(values, 1))
    made: UUID = await db.fetchval(f"SELECT headgate.submit({arguments})", *values.values())
    return made


async def test_a_sql_submit_is_there_if_and_only_if_its_transaction_commits(db: Connection, database: str) -> None:
    queue = Queue(db, tenant="default")
    await db.execute("CREATE TABLE public.orders (no int)")
    for rolled_back in (False, True):
        transaction = db.transaction()
        await transaction.start()
        await db.execute("INSERT INTO public.orders VALUES (1)")
        job_id = await sql_submit(db, payload=b"order", key=f"order-{rolled_back}", tags=["new"])
        (elsewhere,) = await together(database, [lambda link: link.fetchval("SELECT count(*) FROM headgate.jobs")])
        assert elsewhere == (1 if rolled_back else 0)  # what this transaction did is not seen yet
        await (transaction.rollback() if rolled_back else transaction.commit())
        found = await db.fetchval("SELECT count(*) FROM headgate.jobs WHERE id = $1", job_id)
        assert found == (0 if rolled_back else 1)
    assert await db.fetchval("SELECT count(*) FROM public.orders") == 1
    assert await db.fetchval("SELECT count(*) FROM headgate.idempotency_keys") == 1
    counts = await reads.counts(db, await queue.tenant_no())
    assert counts == {(await queue.topic()).no: {State.PENDING: 1}}
    assert len((await queue.claim()).ids) == 1


async def test_a_sql_submit_makes_the_same_job_as_the_store(db: Connection) -> None:
    clock = await Clock.install(db)
    queue = Queue(db)
    await queue.topic()
    policy_no = await queue.names.policy_no(db, RetryPolicy.fixed(timedelta(seconds=3)))
    await db.execute("UPDATE headgate.topics SET max_attempts = 7, policy_no = $1", policy_no)
    await queue.names.refresh(db)
    columns = await db.fetchval(
        "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_catalog.pg_attribute"
        " WHERE attrelid = 'headgate.jobs'::regclass AND attnum > 0 AND attname NOT IN ('id', 'rank_at')"
    )
    for options in (
        {},
        {"payload": b""},
        {"payload": b"\x00\xff" * 2_000},
        {"priority": limits.PRIORITY_MIN},
        {"priority": limits.PRIORITY_MAX, "max_attempts": 2},
        {"delay": HOUR},
        {"delay": timedelta(microseconds=1)},
        {"run_at": clock.now - DAY},
        {"run_at": clock.now + DAY, "tags": ["a", "b", "a"]},
        {"headers": {"trace": "ü", "empty": ""}},
    ):
        (of_store,) = (answer.id for answer in await queue.submit(queue.job(**{"payload": b"x"} | options)))
        texts = {**options, "headers": json.dumps(options["headers"])} if "headers" in options else options
        of_sql = await sql_submit(db, tenant="acme", **texts)
        rows = [await db.fetchrow(f"SELECT {columns} FROM headgate.jobs WHERE id = $1", i) for i in (of_store, of_sql)]
        assert rows[0] == rows[1]
        tenant = await queue.tenant_no()
        assert await reads.payload(db, tenant, JobId(of_sql)) == options.get("payload", b"x")
        tags = [
            await db.fetchval("SELECT array_agg(tag ORDER BY tag) FROM headgate.job_tags WHERE job_id = $1", job_id)
            for job_id in (of_store, of_sql)
        ]
        assert tags[0] == tags[1]


async def test_an_id_made_by_sql_is_of_version_7_with_the_time_of_the_submit(db: Connection) -> None:
    clock = await Clock.install(db)
    made = [await sql_submit(db) for _ in range(20)]
    assert len(set(made)) == 20
    for job_id in made:
        assert (job_id.version, job_id.variant) == (7, "specified in RFC 4122")
        assert abs((job_id.int >> 80) - clock.now.timestamp() * 1_000) <= 1


async def test_a_json_payload_is_its_text(db: Connection) -> None:
    queue = Queue(db, tenant="default")
    job_id = await db.fetchval(
        """SELECT headgate.submit('mail', '{"to": "ü@b.example", "n": 1}'::jsonb, priority => 10)"""
    )
    claimed = await queue.claim()
    assert claimed.ids == (job_id,)
    assert claimed.priorities == (10,)
    assert json.loads(claimed.payloads[0]) == {"to": "ü@b.example", "n": 1}
    with pytest.raises(asyncpg.InvalidParameterValueError, match="payload: is missing"):
        await db.fetchval("SELECT headgate.submit('mail', NULL::jsonb)")


async def test_a_sql_submit_with_a_key_or_an_id_is_the_same_job_again(db: Connection) -> None:
    clock = await Clock.install(db)
    queue = Queue(db, tenant="default")
    first = await sql_submit(db, key="k", payload=b"a", key_window=HOUR)
    assert await sql_submit(db, key="k", payload=b"a") == first
    for options in ({"payload": b"b"}, {"payload": b"a", "topic": "letters"}):
        with pytest.raises(asyncpg.UniqueViolationError, match=f"key: job {first} was submitted before") as caught:
            await sql_submit(db, key="k", **options)
        assert caught.value.hint == "headgate code: conflict"
    # The store and the function agree on what the same body is.
    assert await queue.submit(queue.job(key="k", payload=b"a")) == [Submitted(id=JobId(first), receipt=DUPLICATE)]
    await clock.advance(hours=1)
    assert await sql_submit(db, key="k", payload=b"b") != first
    mine = new_id()
    assert await sql_submit(db, id=mine) == mine
    assert await sql_submit(db, id=mine) == mine
    with pytest.raises(asyncpg.UniqueViolationError, match=f"id: job {mine} was submitted before"):
        await sql_submit(db, id=mine, payload=b"other")
    await finish(queue, mine)
    assert await sql_submit(db, id=mine) == mine
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs WHERE id = $1", mine) == 0


async def test_a_sql_submit_to_an_ageing_topic_has_its_rank(db: Connection) -> None:
    clock = await Clock.install(db)
    queue = Queue(db, tenant="default")
    await queue.topic()
    await db.execute("UPDATE headgate.topics SET ageing_step_us = 3600000000")
    for priority in (0, 10, limits.PRIORITY_MIN, limits.PRIORITY_MAX):
        job_id = await sql_submit(db, priority=priority)
        job = await reads.get(db, await queue.tenant_no(), JobId(job_id))
        rank_class, offset = rank_of(priority, HOUR)
        assert (job.rank_class, job.rank_at) == (rank_class, unix_us(clock.now) + 1 + offset)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"topic": topic}, "topic: must be 1 to 200 characters")
        for topic in (None, "", "-a", "a b", "a..b", "a//b", "ü", "a\n")
    ),
    *(
        ({"tenant": tenant}, "tenant: must be 1 to 63 characters")
        for tenant in (None, "", "Acme", "-a", "a.b", "a\n", "x" * 64)
    ),
    ({"payload": None}, "payload: is missing"),
    ({"payload": b"x" * (2**20 + 1)}, "payload: 1048577 bytes is over the limit of 1048576 bytes"),
    ({"priority": None}, "priority: must be an int32"),
    ({"delay": HOUR, "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "delay: give either delay or run_at, not both"),
    ({"delay": -MICRO * 1_000}, "delay: must be between 0 and 1825 days"),
    ({"run_at": datetime(1999, 12, 31, tzinfo=UTC)}, "run_at: must be between 2000-01-01 and 1825 days from now"),
    ({"run_at": datetime.max}, "run_at: must be between"),  # noqa: DTZ901 - the driver's infinity
    ({"run_at": datetime.min}, "run_at: must be between"),  # noqa: DTZ901
    *(({"max_attempts": attempts}, "max_attempts: must be between 1 and 10000") for attempts in (0, -1, 10_001)),
    *(({"key": key}, "key: must be 1 to 255 characters") for key in ("", "x" * 256, "a\nb", "a\u202eb")),
    *(
        ({"key_window": span}, "key_window: must be between 1 second and 365 days")
        for span in (None, timedelta(0), 366 * DAY)
    ),
    *(({"id": bad}, "id: must be a UUID of version 7 or 8") for bad in (uuid4(), UUID(int=0), UUID(int=2**128 - 1))),
    ({"id": UUID("01900000-0000-7000-0000-000000000000")}, "id: must be a UUID of version 7 or 8"),  # another variant
    *(
        ({"tags": tags}, "tags: at most 20, each of 1 to 100 characters")
        for tags in (["x"] * 21, [""], [None], ["a\tb"])
    ),
    *(
        ({"headers": headers}, "headers: must be a JSON object of at most 32 texts")
        for headers in (
            "[]",
            "null",
            "1",
            '"a"',
            '{"a": 1}',
            '{"a": null}',
            '{"a": {}}',
            '{"a b": ""}',
            '{"": ""}',
            '{"a": "\\n"}',
        )
    ),
]


async def test_every_mistake_in_a_sql_submit_is_named(db: Connection) -> None:
    for options, says in REFUSALS:
        with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
            await sql_submit(db, **options)
        assert str(caught.value).startswith(says), options
        assert caught.value.hint == "headgate code: invalid_input"
    for table in ("jobs", "tenants", "topics", "idempotency_keys", "job_tags", "payloads", "resent_ids", "flow_deltas"):
        assert await db.fetchval(f"SELECT count(*) FROM headgate.{table}") == 0, table


async def test_spans_with_months_are_measured_as_they_will_be_counted(db: Connection) -> None:
    """PostgreSQL compares with months of 30 days and counts with years of 365.25: five of them are over the limit."""
    for delay in ("5 years", "1826 days", "43801 hours", "1825 days 1 second"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="delay: must be"):
            await db.fetchval(f"SELECT headgate.submit('mail', ''::bytea, delay => '{delay}')")
    for window in ("1 year", "366 days"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="key_window: must be"):
            await db.fetchval(f"SELECT headgate.submit('mail', ''::bytea, key => 'k', key_window => '{window}')")
    if db.get_server_version().major >= 17:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="delay: must be"):
            await db.fetchval("SELECT headgate.submit('mail', ''::bytea, delay => 'infinity')")
    await db.fetchval("SELECT headgate.submit('mail', ''::bytea, delay => '59 months')")


async def test_missing_tags_and_tags_of_two_dimensions_are_as_good_as_any(db: Connection) -> None:
    assert await sql_submit(db, tags=None)
    assert await sql_submit(db, tags=[["a", "b"], ["c", "d"]])
    assert await db.fetchval("SELECT count(*) FROM headgate.job_tags") == 4


def probes(now: datetime) -> list[tuple[dict[str, Any], bool]]:
    """Values at and just past each limit of domain/limits.py, and whether they are to be accepted."""
    ms = timedelta(milliseconds=1)
    longest = limits.DELAY_MAX_MS * ms
    total = limits.HEADERS_TOTAL_MAX_BYTES
    many = {f"h{n:02}": "" for n in range(limits.HEADERS_MAX)}
    pairs: list[tuple[str, Any, Any]] = [
        ("topic", "t" * limits.TOPIC_MAX_CHARS, "t" * (limits.TOPIC_MAX_CHARS + 1)),
        ("topic", "A9._:/-z", ".a"),
        ("tenant", "t" * limits.TENANT_MAX_CHARS, "t" * (limits.TENANT_MAX_CHARS + 1)),
        ("tenant", "9-a", "a_b"),
        ("payload", b"x" * limits.PAYLOAD_MAX_BYTES, b"x" * (limits.PAYLOAD_MAX_BYTES + 1)),
        ("delay", timedelta(0), -ms),
        ("delay", longest, longest + ms),
        ("run_at", limits.RUN_AT_EARLIEST, limits.RUN_AT_EARLIEST - MICRO),
        ("run_at", now + longest, now + longest + MICRO),
        ("max_attempts", 1, 0),
        ("max_attempts", limits.MAX_ATTEMPTS_LIMIT, limits.MAX_ATTEMPTS_LIMIT + 1),
        ("key", "k" * limits.KEY_MAX_CHARS, "k" * (limits.KEY_MAX_CHARS + 1)),
        ("key", "🦆" * limits.KEY_MAX_CHARS, "🦆" * (limits.KEY_MAX_CHARS + 1)),
        ("key_window", limits.KEY_WINDOW_MIN, limits.KEY_WINDOW_MIN - ms),
        ("key_window", limits.KEY_WINDOW_MAX, limits.KEY_WINDOW_MAX + ms),
        ("tags", [f"t{n}" for n in range(limits.TAGS_MAX)], [f"t{n}" for n in range(limits.TAGS_MAX + 1)]),
        ("tags", ["ü" * limits.TAG_MAX_CHARS], ["ü" * (limits.TAG_MAX_CHARS + 1)]),
        ("headers", many, many | {"one-more": ""}),
        ("headers", {"h" * limits.HEADER_NAME_MAX_CHARS: ""}, {"h" * (limits.HEADER_NAME_MAX_CHARS + 1): ""}),
        ("headers", {"h": "x" * (total - 1)}, {"h": "x" * total}),
        ("headers", {"h": "ü" * (total // 2 - 1) + "x"}, {"h": "ü" * (total // 2)}),
        ("headers", {"A9._:/-z": ""}, {".a": ""}),
        ("id", new_id(), uuid4()),
        # Every character that may not stand in a text, and its neighbours that may.
        *(
            ("key", f"a{fit}b", f"a{unfit}b")
            for fit, unfit in zip(" ~\u00a0\u061b\u200d\u2027\u202f\u2065\u206a", UNFIT, strict=True)
        ),
        *(("tags", ["a\u200db"], [f"a{unfit}b"]) for unfit in UNFIT),
        *(("headers", {"h": "a\u200db"}, {"h": f"a{unfit}b"}) for unfit in UNFIT),
    ]
    accepted = [({name: good}, True) for name, good, _ in pairs]
    return accepted + [({name: bad}, False) for name, _, bad in pairs]


UNFIT = "\x1f\x7f\x9f\u061c\u200f\u2028\u202e\u2066\u2069"


async def test_the_limits_of_the_sql_function_are_those_of_the_domain(db: Connection) -> None:
    clock = await Clock.install(db)
    for options, expected in probes(clock.now):
        key = {"key": "k"} if "key_window" in options else {}
        try:
            values = {"tenant": TenantName("acme"), "topic": TopicName("mail"), "id": new_id()} | key | options
            Submission(**values).due_at(clock.now)
            domain = True
        except HeadgateError:
            domain = False
        transaction = db.transaction()
        await transaction.start()
        try:
            texts = {name: json.dumps(value) if name == "headers" else value for name, value in options.items()}
            await sql_submit(db, **key, **texts)
            sql = True
        except asyncpg.InvalidParameterValueError:
            sql = False
        await transaction.rollback()
        assert (domain, sql) == (expected, expected), str(options)[:200]


async def test_waits_are_rounded_up_as_in_the_domain(db: Connection) -> None:
    clock = await Clock.install(db)
    queue = Queue(db, tenant="default")
    for delay in (MICRO, timedelta(microseconds=999), timedelta(microseconds=1_001), timedelta(seconds=1)):
        job = await reads.get(db, await queue.tenant_no(), JobId(await sql_submit(db, delay=delay)))
        assert job.run_at == clock.now + to_ms(delay) * timedelta(milliseconds=1)


# --- who may call it --------------------------------------------------------------------------------------------------


@pytest.fixture
async def app(db: Connection) -> AsyncIterator[str]:
    """A role that may do nothing at all."""
    name: str = await db.fetchval("SELECT 'app_of_' || current_database()")
    await db.execute(f"CREATE ROLE {name}")
    yield name
    await db.execute("RESET ROLE; RESET search_path")
    await db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_nobody_may_submit_by_sql_unless_granted(db: Connection, app: str) -> None:
    for payload_type in ("bytea", "jsonb"):
        function = FUNCTION.format(payload_type)
        assert not await db.fetchval("SELECT has_function_privilege($1::name, $2, 'EXECUTE')", app, function)
    await db.execute(f"GRANT USAGE ON SCHEMA headgate TO {app}; SET ROLE {app}")
    for body in ("''::bytea", "'{}'::jsonb"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="function submit"):
            await db.fetchval(f"SELECT headgate.submit('mail', {body})")


async def test_a_role_with_only_this_function_can_submit_and_nothing_else(db: Connection, app: str) -> None:
    for payload_type in ("bytea", "jsonb"):
        await db.execute(f"GRANT EXECUTE ON FUNCTION {FUNCTION.format(payload_type)} TO {app}")
    await db.execute(f"GRANT USAGE ON SCHEMA headgate TO {app}; SET ROLE {app}")
    made = [await sql_submit(db, key="k", tags=["t"], headers='{"a": "b"}', payload=b"x" * 2_000)]
    made.append(await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb)"))
    for statement in (
        "SELECT id FROM headgate.jobs",
        "DELETE FROM headgate.jobs",
        "SELECT key FROM headgate.idempotency_keys",
        "SELECT headgate.pause_v1(0, 0, '', '', NULL)",
        "SELECT headgate.intern_tenant_v1('mine')",
        "SELECT headgate.cancel_v1(1, '{}', '', '')",
        "SELECT headgate.fold_flows_v1(1)",
        "SELECT headgate.ensure_partitions_v1(300)",
        "SELECT nextval('headgate.event_no')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await db.fetch(statement)
    await db.execute("RESET ROLE")
    assert set((await Queue(db, tenant="default").claim()).ids) == set(made)


TRAPS = """
CREATE FUNCTION evil.spring() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'hijacked'; END $$;
CREATE FUNCTION evil.octet_length(bytea) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.octet_length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.cardinality(anyarray) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.convert_to(text, name) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.same(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.same(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE FUNCTION evil.sum_of(int, int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.spring(); END $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.same);
CREATE OPERATOR evil.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = evil.same);
CREATE OPERATOR evil.> (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.same);
CREATE OPERATOR evil.< (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.same);
CREATE OPERATOR evil.!~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
CREATE OPERATOR evil.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
CREATE OPERATOR evil.- (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.sum_of);
CREATE TEMPORARY TABLE jobs (id int);
CREATE TEMPORARY TABLE topics (name text);
CREATE TEMPORARY TABLE unnest (name text);
"""


async def test_a_hostile_search_path_is_not_looked_at(db: Connection, app: str) -> None:
    """The function runs with its owner's rights: whatever the caller could slip in would run with them too."""
    for payload_type in ("bytea", "jsonb"):
        await db.execute(f"GRANT EXECUTE ON FUNCTION {FUNCTION.format(payload_type)} TO {app}")
    await db.execute(f"GRANT USAGE ON SCHEMA headgate TO {app}; CREATE SCHEMA evil AUTHORIZATION {app}")
    await db.execute(f"SET ROLE {app}")
    await db.execute(TRAPS)
    await db.execute("SET search_path = evil, pg_temp, pg_catalog; SET standard_conforming_strings = off")
    await db.execute("SET timezone = 'Asia/Tokyo'")
    for trap in ("octet_length(''::bytea)", "clock_timestamp()", "'a'::text = 'a'::text", "1 > 2"):
        with pytest.raises(asyncpg.RaiseError, match="hijacked"):  # the traps work
            await db.fetchval(f"SELECT {trap}")
    headers = json.dumps({"trace": "x"})
    options: dict[str, Any] = {"key": "k", "tags": ["t"], "headers": headers, "priority": 3, "delay": timedelta(0)}
    first = await sql_submit(db, payload=b"x" * 2_000, **options)
    assert await sql_submit(db, payload=b"x" * 2_000, **options) == first
    with pytest.raises(asyncpg.UniqueViolationError, match="another body"):
        await sql_submit(db, payload=b"y", **options)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="topic: must be"):
        await sql_submit(db, topic="a..b")
    second = await db.fetchval("SELECT headgate.submit('mail', '{}'::jsonb, id => $1)", new_id())
    await db.execute("RESET ROLE; RESET search_path; RESET standard_conforming_strings; SET search_path = ''")
    queue = Queue(db, tenant="default")
    claimed = await queue.claim()
    assert claimed.ids == (first, second)
    assert [answer.receipt.label for answer in await queue.settle(*((i, 1, Completed()) for i in claimed.ids))] == [
        "applied"
    ] * 2


async def test_what_sql_submitted_runs_to_its_end_like_any_other_job(db: Connection) -> None:
    queue = Queue(db, tenant="default")
    job_id = await sql_submit(db, payload=b"\x00\x01", max_attempts=1)
    (answer,) = await queue.submit(queue.job())
    claimed = await queue.claim()
    assert claimed.ids == (job_id, answer.id)
    assert claimed.payloads[0] == b"\x00\x01"
    (settled, _) = await queue.settle((job_id, 1, FATAL), (answer.id, 1, Completed()))
    assert settled.state is State.DEAD
    assert (await settle.settle_one(db, await queue.tenant_no(), JobId(job_id), 1, FATAL)).receipt.label == "duplicate"
