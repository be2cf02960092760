"""A dead-letter topic: what dies is also submitted there, once for each death, and never in a cycle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.domain.states import Receipt, State
from headgate.store import leases, topics, verbs
from headgate.store.connect import Connection
from tests.integration.test_priority import set_ageing
from tests.support.dispatch_workers import failing
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue

COPIES = """
SELECT j.id, j.payload, x.payload, j.headers, j.state, j.max_attempts, j.priority
  FROM headgate.jobs j JOIN headgate.topics t ON t.topic_no = j.topic_no
  LEFT JOIN headgate.payloads x ON x.tenant_no = j.tenant_no AND x.id = j.id
 WHERE t.name = $1 ORDER BY j.rank_at"""
DEAD = Failed(error=ErrorInfo(type="ValueError", message="no\nsuch\taddress"), permanent=True)


@pytest.fixture
async def queue(db: Connection) -> Queue:
    queue = Queue(db)
    for name in ("mail", "lost", "other"):
        await queue.topic(name)
    await set_topic(queue, "mail", dead_letter_topic="lost")
    return queue


async def set_topic(queue: Queue, name: str, **rules: object) -> None:
    await topics.set_topic(queue.db, queue.names, await queue.tenant_no(), name, rules=rules, actor="ana")


async def copies(queue: Queue, topic: str = "lost") -> list[Any]:
    return list(await queue.db.fetch(COPIES, topic))


async def die(queue: Queue, ids: Sequence[UUID], *topic: str) -> None:
    claimed = await queue.claim(100, *topic)
    assert set(claimed.ids) == set(ids)
    answers = await queue.settle(*((one, epoch, DEAD) for one, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
    assert {answer.state for answer in answers} == {State.DEAD}


async def test_a_job_that_dies_is_also_submitted_with_headers_that_name_its_origin(queue: Queue) -> None:
    await set_topic(queue, "lost", max_attempts=4)
    (job,) = await queue.add(payload=b"body", headers={"trace": "abc"}, priority=3, deadline=timedelta(hours=1))
    await die(queue, [job])
    ((copy, payload, _, headers, state, attempts, priority),) = await copies(queue)
    assert (payload, state, attempts, priority) == (b"body", State.PENDING, 4, 3)
    assert copy != job
    assert json.loads(headers) == {
        "trace": "abc",
        ".dead_letter_of": str(job),
        "headgate-dead-job": str(job),
        "headgate-dead-topic": "mail",
        "headgate-dead-attempts": "1",
        "headgate-dead-error": "ValueError: no such address",
    }
    assert list((await queue.claim(1, "lost")).ids) == [copy]


async def test_a_priority_of_the_dead_letter_topic_counts_before_that_of_the_job(queue: Queue) -> None:
    await set_topic(queue, "lost", priority=-2)
    await die(queue, await queue.add(priority=3))
    assert [row[-1] for row in await copies(queue)] == [-2]


async def test_in_an_ageing_dead_letter_topic_a_copy_ranks_as_a_submitted_job_does(queue: Queue) -> None:
    await Clock.install(queue.db)
    await set_ageing(queue, "lost", timedelta(seconds=10))
    await queue.add(topic="lost", priority=3)
    (job,) = await queue.add(priority=3)
    await die(queue, [job])
    rows = await queue.db.fetch("SELECT rank_class, rank_at FROM headgate.jobs WHERE priority = 3")
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert len(rows) == 2


async def test_the_same_outcome_again_makes_no_second_copy(queue: Queue) -> None:
    (job,) = await queue.add()
    claimed = await queue.claim()
    for expected in (Receipt.APPLIED, Receipt.DUPLICATE, Receipt.DUPLICATE):
        (answer,) = await queue.settle((job, claimed.epochs[0], DEAD))
        assert answer.receipt is expected
    (answer, _) = await queue.settle((job, claimed.epochs[0], DEAD), (job, claimed.epochs[0], DEAD))
    assert answer.receipt is Receipt.DUPLICATE
    assert len(await copies(queue)) == 1


async def test_death_and_copy_are_one_transaction(queue: Queue) -> None:
    (job,) = await queue.add()
    claimed = await queue.claim()
    transaction = queue.db.transaction()
    await transaction.start()
    await queue.settle((job, claimed.epochs[0], DEAD))
    assert len(await copies(queue)) == 1
    await transaction.rollback()
    assert await copies(queue) == []
    await queue.settle((job, claimed.epochs[0], DEAD))
    assert len(await copies(queue)) == 1


async def test_a_copy_that_dies_is_not_copied_again_whichever_topics_name_each_other(queue: Queue) -> None:
    await set_topic(queue, "lost", dead_letter_topic="mail")
    (job,) = await queue.add()
    await die(queue, [job])
    ((copy, *_),) = await copies(queue)
    await die(queue, [copy], "lost")
    assert await copies(queue) == await copies(queue, "mail") == []
    (own,) = await queue.add(topic="lost")  # but one that was submitted there is
    await die(queue, [own], "lost")
    assert len(await copies(queue, "mail")) == 1


async def test_a_job_that_is_redriven_and_dies_again_is_submitted_again(queue: Queue) -> None:
    (job,) = await queue.add()
    await die(queue, [job])
    await queue.db.fetch("SELECT headgate.redrive_v1($1, $2, '{}', 0, 'ana', '')", await queue.tenant_no(), [job])
    await die(queue, [job])
    assert len(await copies(queue)) == 2


async def test_a_full_dead_letter_topic_loses_nothing_and_fails_no_outcome(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await topics.set_topic(queue.db, queue.names, tenant, "lost", changes={"max_backlog": 0}, actor="ana")
    jobs = await queue.add(3)
    await die(queue, jobs)
    assert len(await copies(queue)) == 3


async def test_a_large_payload_is_copied_and_a_lost_one_ends_dead_all_the_same(queue: Queue) -> None:
    large, lost = await queue.add(payload=b"x" * 5_000), await queue.add(payload=b"y" * 5_000)
    await queue.db.execute("DELETE FROM headgate.payloads WHERE id = $1", lost[0])
    claimed = await queue.claim()
    await queue.settle(*((one, epoch, DEAD) for one, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
    assert sorted((inline or b"", len(apart or b"")) for _, inline, apart, *_ in await copies(queue)) == [
        (b"", 0),
        (b"", 5_000),
    ]
    assert large


async def test_a_lapsed_last_attempt_is_submitted_and_a_retry_or_a_cancel_is_not(queue: Queue) -> None:
    (last,) = await queue.add(max_attempts=1)
    (other,) = await queue.add(max_attempts=2)
    await queue.claim(lease=timedelta(milliseconds=1))
    await queue.db.execute("UPDATE headgate.jobs SET lease_until = lease_until - interval '1 minute'")
    await leases.reap(queue.db, limit=10, floor=await queue.db.fetchval("SELECT '2000-01-01'::timestamptz"))
    ((_, _, _, headers, *_),) = await copies(queue)
    assert json.loads(headers)["headgate-dead-job"] == str(last)
    assert json.loads(headers)["headgate-dead-error"].startswith("LeaseExpired: ")
    assert other


async def test_a_cancelled_job_that_ends_beside_a_dead_one_is_not_submitted(queue: Queue) -> None:
    dead, cancelled = await queue.add(2)
    await queue.claim()
    await verbs.cancel(queue.db, await queue.tenant_no(), [cancelled])
    answers = await queue.settle((dead, 1, DEAD), (cancelled, 1, DEAD))
    assert [answer.state for answer in answers] == [State.DEAD, State.CANCELLED]
    assert [json.loads(headers)["headgate-dead-job"] for _, _, _, headers, *_ in await copies(queue)] == [str(dead)]


async def test_topics_without_one_and_jobs_that_complete_are_not_touched(queue: Queue) -> None:
    plain = await queue.add(topic="other")
    await die(queue, plain, "other")
    assert await copies(queue) == []


async def test_a_worker_gets_the_copy_at_once_although_the_next_tick_is_an_hour_away(one: Instance) -> None:
    async with one.store.lane("upkeep").use() as db:
        names, tenant = one.store.names, await one.store.tenant_no("acme")
        for name in ("mail", "lost"):
            await names.topic(db, tenant, name)  # type: ignore[arg-type]
        await topics.set_topic(db, names, tenant, "mail", rules={"dead_letter_topic": "lost"}, actor="ana")
    waiting = await one.worker("undertaker", "lost", slots=1)
    await one.worker("w", "mail", slots=1, handler=failing(permanent=True))
    (job,) = await one.submit(1)
    delivery = await waiting.take()
    assert json.loads(delivery.headers[0] or "{}")["headgate-dead-job"] == str(job)
