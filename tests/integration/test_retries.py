"""Retry policies of topics and of jobs: which one applies, in every path that ends an attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.domain.backoff import RetryPolicy, jitter_of
from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.domain.states import State
from headgate.store import leases, reads, verbs
from headgate.store.connect import Connection
from tests.support import store_calls
from tests.support.queue import Clock, Queue

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom", traceback="Traceback …"))
MS = timedelta(milliseconds=1)
JITTERED = RetryPolicy.exponential_full_jitter(1_000 * MS, cap=3_000 * MS)


async def topic_with(queue: Queue, name: str, policy: RetryPolicy, *, max_attempts: int) -> None:
    """A topic that lends this policy to its jobs."""
    topic = await queue.topic(name)
    number = await queue.names.policy_no(queue.db, topic.tenant_no, policy)
    await queue.db.execute(
        "UPDATE headgate.topics SET policy_no = $1, max_attempts = $2 WHERE topic_no = $3",
        number,
        max_attempts,
        topic.no,
    )
    await queue.names.refresh(queue.db)


@pytest.mark.req("O18")
async def test_a_topic_lends_its_policy_and_a_job_may_bring_its_own(db: Connection) -> None:
    queue, clock = Queue(db), await Clock.install(db)
    await topic_with(queue, "mail", JITTERED, max_attempts=3)
    (lent,) = await queue.add(1, "mail")
    (own,) = await queue.add(1, "mail", policy=RetryPolicy.fixed(7 * MS), max_attempts=2)
    tenant = await queue.tenant_no()
    for attempt in (1, 2, 3):
        await queue.claim(2, "mail")
        for job_id, policy, most in ((lent, JITTERED, 3), (own, RetryPolicy.fixed(7 * MS), 2)):
            if attempt > most:
                continue
            (answer,) = await queue.settle((job_id, attempt, BOOM))
            wait = policy.delay_ms(attempt, jitter=jitter_of(job_id, attempt)) * MS
            assert answer.state is (State.DEAD if attempt == most else State.RETRYING)
            assert attempt == most or answer.run_at == clock.now + wait
        await clock.advance(seconds=5)
        await store_calls.promote(db)
    # A new life is under the same policy.
    await verbs.redrive(db, tenant, [lent])
    claimed = await queue.claim(1, "mail")
    await clock.advance(seconds=61)
    await leases.reap(db)  # and so is a lease that expires
    job = await reads.get(db, tenant, lent)
    assert (job.state, job.attempt, claimed.attempts) == (State.RETRYING, 1, (1,))
    assert job.run_at == clock.now + JITTERED.delay_ms(1, jitter=jitter_of(lent, 1)) * MS


async def test_a_job_whose_policy_is_missing_is_retried_by_the_default(db: Connection) -> None:
    queue, clock = Queue(db), await Clock.install(db)
    (job_id,) = await queue.add()
    await queue.claim()
    await db.execute("UPDATE headgate.jobs SET policy_no = 12345")
    (answer,) = await queue.settle((job_id, 1, BOOM))
    wait = RetryPolicy().delay_ms(1, jitter=jitter_of(job_id, 1)) * MS
    assert (answer.state, answer.run_at) == (State.RETRYING, clock.now + wait)


@pytest.mark.req("O18")
async def test_jitter_spreads_jobs_that_failed_together_and_the_cap_holds(db: Connection) -> None:
    queue, clock = Queue(db), await Clock.install(db)
    await topic_with(queue, "mail", JITTERED, max_attempts=20)
    ids = await queue.add(200, "mail")
    await queue.claim(200, "mail")
    answers = await queue.settle(*((job_id, 1, BOOM) for job_id in ids))
    waits = [(answer.run_at or clock.now) - clock.now for answer in answers]
    assert len(set(waits)) > 150
    assert timedelta(0) <= min(waits) < 100 * MS
    assert 900 * MS < max(waits) <= 1_000 * MS
    for attempt in range(2, 6):
        await clock.advance(seconds=4)
        await store_calls.promote(db)
        await queue.claim(200, "mail")
        answers = await queue.settle(*((job_id, attempt, BOOM) for job_id in ids))
    assert 2_900 * MS < max((answer.run_at or clock.now) - clock.now for answer in answers) <= 3_000 * MS
