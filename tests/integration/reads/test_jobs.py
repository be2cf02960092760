"""Reading one job: in every state, with its history."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from headgate.domain import limits
from headgate.domain.errors import NotFound
from headgate.domain.outcomes import Abandon, Completed, Nack, Snooze
from headgate.domain.states import EventKind, OutcomeKind, State
from headgate.store import reads, verbs
from tests.integration.reads.walking import BOOM, FATAL, SECOND, ids_of
from tests.support import store_calls
from tests.support.epochs import claims
from tests.support.explain import cost
from tests.support.queue import Clock, Queue, new_id

# --- one job ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("O23")
async def test_a_job_can_be_read_in_every_state(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    begin, tenant, topic = clock.now, await queue.tenant_no(), await queue.topic()
    (job_id,) = await queue.add(payload=b"body", priority=4, headers={"a": "b"}, max_attempts=2, delay=SECOND)

    base = await queue.db.fetchval("SELECT epoch FROM headgate.jobs")

    async def see(state: State, **facts: object) -> None:
        job = await reads.get(queue.db, tenant, job_id)
        same = {"id": job_id, "topic_no": topic.no, "priority": 4, "max_attempts": 2, "created_at": begin}
        facts |= {"epoch": base + facts["epoch"]} if "epoch" in facts else {}  # type: ignore[operator]
        expected = same | {"headers": {"a": "b"}, "policy_no": 1, "cancel_requested": False} | facts
        assert {name: getattr(job, name) for name in ("state", *expected)} == {"state": state} | expected
        assert await reads.payload(queue.db, tenant, job_id) == b"body"
        result = await reads.result(queue.db, tenant, job_id)
        assert (result.state, result.result) == (state, b"done" if state is State.COMPLETED else None)
        assert result.last_error == job.last_error
        tables = "SELECT (SELECT count(*) FROM headgate.jobs), (SELECT count(*) FROM headgate.archive)"
        assert tuple(await queue.db.fetchrow(tables)) == ((0, 1) if state.is_final else (1, 0))

    nobody: dict[str, object] = {"owner": None, "lease_until": None}
    rank = {"rank_class": -5, "rank_at": int(begin.timestamp()) * 1_000_000 + begin.microsecond + 1}
    await see(
        State.SCHEDULED, attempt=0, epoch=0, run_at=begin + SECOND, claimed_at=None, worker=None, **nobody, **rank
    )
    await clock.advance(seconds=1)
    await store_calls.promote(queue.db)
    await see(State.PENDING, attempt=0, epoch=0, run_at=begin + SECOND, last_outcome=None, **nobody, **rank)
    await queue.claim()
    now = begin + SECOND
    await see(
        State.RUNNING,
        attempt=1,
        epoch=1,
        owner=1,
        worker="worker",
        claimed_at=now,
        lease_until=now + 60 * SECOND,
        **rank,
    )
    await queue.settle((job_id, 1, BOOM))
    failed = {"last_outcome": OutcomeKind.FAILED, "last_error": "ValueError: boom"}
    await see(State.RETRYING, attempt=1, run_at=now + SECOND, finished_at=None, **failed, **nobody, **rank)
    await clock.advance(seconds=1)
    await store_calls.promote(queue.db)
    await queue.claim()
    await queue.settle((job_id, 2, Completed(result=b"done")))
    ended = {"finished_at": now + SECOND, "lease_until": None, "rank_class": None, "rank_at": None}
    await see(
        State.COMPLETED, attempt=2, epoch=2, owner=1, worker="worker", last_outcome=OutcomeKind.COMPLETED, **ended
    )
    await verbs.redrive(queue.db, tenant, [job_id])
    await see(State.PENDING, attempt=0, epoch=2, last_outcome=OutcomeKind.COMPLETED, finished_at=None, **nobody)
    await verbs.cancel(queue.db, tenant, [job_id])
    await see(State.CANCELLED, attempt=0, epoch=2, **ended)


async def test_a_job_has_its_idempotency_key_wherever_it_is_and_however_many_keys_there_are(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    (one,) = await queue.add(1, key="order-7")
    (other,) = await queue.add(1)
    assert await _keys(queue, one, other) == ("order-7", "")
    claimed = await queue.claim(1)
    await queue.settle((one, claimed.epochs[0], Completed()))
    assert await _keys(queue, one, other) == ("order-7", "")

    async def pages() -> int:
        await cost(queue.db, reads.GET, tenant, one)
        return (await cost(queue.db, reads.GET, tenant, one)).pages

    few = await pages()
    await queue.db.execute(
        "INSERT INTO headgate.idempotency_keys (tenant_no, topic_no, key, job_id, body_hash, expires_at)"
        " SELECT $1, 1, 'k' || n, gen_random_uuid(), '', now() FROM generate_series(1, 5000) AS n",
        tenant,
    )
    await queue.db.execute("ANALYZE headgate.idempotency_keys")
    assert await pages() <= few + 4


async def test_an_idempotency_key_is_shown_until_it_expires_and_not_until_it_is_removed(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    (one,) = await queue.add(1, key="order-7", key_window=SECOND)
    assert await _keys(queue, one) == ("order-7",)
    await clock.advance(seconds=1)
    assert await _keys(queue, one) == ("",)
    claimed = await queue.claim(1)
    await queue.settle((one, claimed.epochs[0], Completed()))
    assert await _keys(queue, one) == ("",)


async def _keys(queue: Queue, *ids: UUID) -> tuple[str, ...]:
    tenant = await queue.tenant_no()
    return tuple([(await reads.get(queue.db, tenant, job_id)).key for job_id in ids])


async def test_an_empty_result_is_not_a_missing_one(queue: Queue) -> None:
    (job_id,) = await queue.add()
    tenant = await queue.tenant_no()
    assert (await reads.result(queue.db, tenant, job_id)).result is None
    await queue.claim()
    await queue.settle((job_id, 1, Completed()))
    assert (await reads.result(queue.db, tenant, job_id)).result == b""


async def test_the_history_of_a_job_is_in_order_and_outlives_it(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    (job_id,) = await queue.add()
    outcomes = [
        (BOOM, 1),
        (Nack(delay=timedelta(0), reason="limited"), 0),
        (Abandon(), 0),
        (Snooze(delay=SECOND), 1),
        (FATAL, 0),
    ]
    for epoch, (outcome, wait) in enumerate(outcomes, 1):
        await queue.claim()
        await queue.settle((job_id, epoch, outcome))
        await clock.advance(seconds=wait)
        await store_calls.promote(queue.db)
    await verbs.redrive(queue.db, tenant, [job_id], who="ana", reason="once more", payloads=[b"new"])
    await verbs.reprioritise(queue.db, tenant, [job_id], priority=3, who="ben", reason="vip")
    await verbs.cancel(queue.db, tenant, [job_id], who="ana", reason="no")
    await verbs.discard(queue.db, tenant, [job_id], who="ana")
    with pytest.raises(NotFound):
        await reads.get(queue.db, tenant, job_id)
    events = await reads.events(queue.db, tenant, job_id)
    assert [(event.kind, event.state) for event in events] == [
        (EventKind.FAILED, State.RETRYING),
        (EventKind.NACKED, State.PENDING),
        (EventKind.ABANDONED, State.PENDING),
        (EventKind.SNOOZED, State.SCHEDULED),
        (EventKind.FAILED, State.DEAD),
        (EventKind.REDRIVEN, State.PENDING),
        (EventKind.REPRIORITISED, State.PENDING),
        (EventKind.CANCELLED, State.CANCELLED),
        (EventKind.DISCARDED, State.CANCELLED),
    ]
    assert [claims(event.epoch) for event in events] == [1, 2, 3, 4, 5, 5, 5, 5, 5]
    assert (events[0].error_type, events[0].error_message, events[0].error_trace) == (
        "ValueError",
        "boom",
        "Traceback …",
    )
    assert events[1].reason == "limited"
    assert [event.actor for event in events[5:]] == ["ana", "ben", "ana", "ana"]
    assert events[5].detail == {"from": State.DEAD, "attempts": 3, "edited": True}
    assert events[6].detail == {"old": 0, "new": 3}
    newest = await reads.events(queue.db, tenant, job_id, limit=2)
    assert newest == events[-2:], "of many, people want the newest"
    assert await reads.events(queue.db, tenant, job_id, before=newest[0].no, limit=3) == events[-5:-2]
    assert await reads.events(queue.db, tenant, job_id, before=events[0].no) == []


async def test_a_job_with_more_events_than_an_answer_has_them_in_parts(queue: Queue) -> None:
    tenant, (job_id,) = await queue.tenant_no(), await queue.add()
    await queue.db.execute(
        "INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state)"
        " SELECT $1, $2, headgate.clock_v1() - n * interval '1 ms', 4, 1025, 1, 2 FROM generate_series(1, 1001) AS n",
        tenant,
        job_id,
    )
    first = await reads.events(queue.db, tenant, job_id)
    assert len(first) == limits.JOB_EVENTS_MAX
    (oldest,) = await reads.events(queue.db, tenant, job_id, before=first[0].no)
    assert oldest.at < first[0].at < first[-1].at


async def test_what_does_not_exist_is_not_found(queue: Queue) -> None:
    tenant, nowhere = await queue.tenant_no(), new_id()
    for read in (reads.get, reads.payload, reads.result):
        with pytest.raises(NotFound, match=str(nowhere)):
            await read(queue.db, tenant, nowhere)  # type: ignore[operator]
    assert await reads.events(queue.db, tenant, nowhere) == []
    assert await reads.counts(queue.db, tenant) == {}
    assert await ids_of(queue.db, tenant) == []
