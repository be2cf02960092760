"""Submits: times, payloads, headers, rules and ranks as they are stored, and flushes that fail in part."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.dependencies import Unique
from headgate.domain.errors import OutcomeUnknown, StoreBusy
from headgate.domain.jobs import TopicRules
from headgate.domain.outcomes import Completed
from headgate.domain.rank import rank_of
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.timestamps import unix_us
from headgate.store import reads, submit
from headgate.store.connect import Connection
from headgate.store.flush import SubmitFlush, fill
from headgate.store.names import Names
from tests.integration.test_submit import CREATED, DAY, HOUR, MICRO, live, receipts
from tests.support import store_calls
from tests.support.queue import Clock, Queue


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


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
    assert await store_calls.next_due(queue.db) == now + MICRO
    await clock.advance(milliseconds=1)
    assert {job.id for job in await store_calls.promote(queue.db)} == {answers[2].id, answers[7].id}


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
    number = await queue.names.policy_no(queue.db, await queue.tenant_no(), policy)
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
    tenant = await queue.tenant_no()
    numbers = [await Names().policy_no(queue.db, tenant, policy) for policy in policies]
    assert numbers == [await Names().policy_no(queue.db, tenant, policy) for policy in policies]
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


async def test_a_bad_row_is_refused_alone_within_a_transaction_too(queue: Queue) -> None:
    """As behind a pooler, where all calls of the server are in one."""
    jobs = [queue.job(), queue.job()]
    flush = await fill(queue.db, queue.names, jobs)
    flush.max_attempts = [0]
    async with queue.db.transaction():
        answers = await submit.submit(queue.db, flush)
    assert {place: answer.receipt for place, answer in answers.items()} == {0: SubmitReceipt.REFUSED}
    assert [row[0] for row in await queue.db.fetch("SELECT id FROM headgate.jobs")] == [jobs[1].id]


BROKEN = """
CREATE FUNCTION public.broken() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'invalid page in block 11' USING ERRCODE = '%s'; END $$;
CREATE TRIGGER broken BEFORE INSERT ON headgate.unique_jobs FOR EACH ROW EXECUTE FUNCTION public.broken()"""


async def test_what_a_flush_has_committed_is_not_called_refused_because_of_a_later_part(queue: Queue) -> None:
    """Jobs with dependencies are written after the plain ones, in a transaction of their own, which fails."""
    await queue.db.execute(BROKEN % "data_corrupted")
    jobs = [queue.job(unique=Unique(key="k")), queue.job(), queue.job(unique=Unique(key="l")), queue.job()]
    answers = await submit.submit(queue.db, await fill(queue.db, queue.names, jobs))
    assert {place: (answer.receipt, answer.job_id) for place, answer in answers.items()} == {
        place: (SubmitReceipt.REFUSED, jobs[place].id) for place in (0, 2)
    }
    assert "invalid page" in str(answers[0].error)
    found = {row[0] for row in await queue.db.fetch("SELECT id FROM headgate.jobs")}
    assert found == {jobs[1].id, jobs[3].id}


async def test_a_flush_of_which_a_part_is_committed_is_not_called_busy(queue: Queue) -> None:
    await queue.db.execute(BROKEN % "deadlock_detected")
    jobs = [queue.job(unique=Unique(key="k")), queue.job()]
    with pytest.raises(OutcomeUnknown, match="a part was committed before: send it again"):
        await submit.submit(queue.db, await fill(queue.db, queue.names, jobs))
    assert [row[0] for row in await queue.db.fetch("SELECT id FROM headgate.jobs")] == [jobs[1].id]
    with pytest.raises(StoreBusy):  # nothing was
        await submit.submit(queue.db, await fill(queue.db, queue.names, jobs[:1]))
