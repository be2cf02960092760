"""No job is started after its deadline, by the database's clock, nor one that was submitted by SQL with a payload that
does not match; that costs no other job anything."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.domain.states import State
from headgate.domain.views import Redrive
from headgate.store import verbs
from headgate.store.admin import AdminStore
from headgate.store.connect import Connection
from headgate.store.topics import TopicStore
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue

YEAR = timedelta(days=365)
SECOND = timedelta(seconds=1)


def credit(instance: Instance) -> dict[str, int]:
    """Free credit by worker."""
    return {
        session.worker_id: sum(session.credit.values())
        for session in instance.sessions
        if not session.worker_id.startswith("flush")
    }


async def test_a_job_past_its_deadline_is_not_delivered_and_the_others_are(stepped: Instance, clock: Clock) -> None:
    first = await stepped.submit()
    late = [
        *await stepped.submit(deadline=clock.now + SECOND, headers={"trace": "abc"}),
        *await stepped.submit(deadline=timedelta(seconds=1)),
    ]
    in_time = await stepped.submit(deadline=timedelta(seconds=2))
    others = await stepped.submit(2, headers={"trace": "abc"})
    await clock.advance(seconds=1.5)
    one, two = await stepped.worker("one", slots=3), await stepped.worker("two", slots=5)
    await stepped.claimer.run_once()
    got = [*(await one.take()).ids, *(await two.take()).ids]
    assert sorted(got) == sorted([*first, *in_time, *others])
    assert credit(stepped) == {"one": 3 - len(one.delivered[0]), "two": 5 - len(two.delivered[0])}  # what came is taken
    await stepped.flushed()
    for job_id in late:
        job = await stepped.job(job_id)
        assert (job.state, job.attempt) == (State.DEAD, 1)
        assert job.deadline.isoformat().replace("+00:00", "")[:22] in job.last_error
        assert "it was not started" in job.last_error
        assert [(event.kind.label, event.error_type) for event in job.events] == [("failed", "deadline_exceeded")]
        assert job_id in stepped.ended  # a caller who waits for its result gets it
    assert (await stepped.states())[State.RUNNING] == 4


async def test_a_claim_of_nothing_but_late_jobs_sends_nothing_and_keeps_the_credit(
    stepped: Instance, clock: Clock
) -> None:
    await stepped.submit(4, deadline=timedelta(seconds=1))
    await clock.advance(seconds=5)
    await stepped.worker("one", slots=2)
    gone = await stepped.worker("gone", slots=2)
    for _ in range(3):
        await stepped.claimer.run_once()
    await stepped.flushed()
    assert credit(stepped) == {"one": 2, "gone": 2}
    gone.lose()
    assert stepped.free() == 2
    assert await stepped.states() == {State.DEAD: 4}


async def test_a_job_whose_payload_is_gone_ends_and_the_others_are_delivered(stepped: Instance, db: Connection) -> None:
    (bare,) = await stepped.submit(payload=b"l" * 3_000)
    others = await stepped.submit(2)
    await db.execute("DELETE FROM headgate.payloads WHERE id = $1", bare)
    worker = await stepped.worker("one", slots=5)
    await stepped.claimer.run_once()
    assert list((await worker.take()).ids) == others
    await stepped.flushed()
    job = await stepped.job(bare)
    assert (job.state, [event.error_type for event in job.events]) == (State.DEAD, ["payload_lost"])


@pytest.mark.parametrize(("left", "starts"), [(timedelta(0), False), (timedelta(microseconds=1), True)])
async def test_at_its_deadline_a_job_is_late(stepped: Instance, clock: Clock, left: timedelta, starts: bool) -> None:
    (job_id,) = await stepped.submit(deadline=clock.now + SECOND + left)
    await clock.advance(seconds=1)
    await stepped.worker("one", slots=1)
    await stepped.claimer.run_once()
    await stepped.flushed()
    assert (await stepped.job(job_id)).state is (State.RUNNING if starts else State.DEAD)


@pytest.mark.parametrize("ahead", [-YEAR, YEAR])
async def test_the_clock_of_the_database_decides(stepped: Instance, clock: Clock, ahead: timedelta) -> None:
    """This machine's is a year away from it, in either direction."""
    await clock.set(clock.now + ahead)
    in_time = await stepped.submit(deadline=clock.now + 3 * SECOND)
    late = [*await stepped.submit(deadline=clock.now + SECOND), *await stepped.submit(deadline=SECOND)]
    assert (await stepped.job(late[1])).deadline == clock.now + SECOND  # a span counts from the submit
    await clock.advance(seconds=2)
    worker = await stepped.worker("one", slots=9)
    await stepped.claimer.run_once()
    assert list((await worker.take()).ids) == in_time
    await stepped.flushed()
    assert [(await stepped.job(job_id)).state for job_id in late] == [State.DEAD, State.DEAD]


async def test_a_retry_that_is_due_after_the_deadline_ends_when_its_turn_comes(stepped: Instance, clock: Clock) -> None:
    (job_id,) = await stepped.submit(deadline=timedelta(seconds=1))
    worker = await stepped.worker("one", slots=1)
    await stepped.claimer.run_once()
    await worker.report(job_id, (await worker.take()).epochs[0], Failed(error=ErrorInfo(type="Oops")))
    assert (await stepped.job(job_id)).state is State.RETRYING
    await clock.advance(days=1)
    await stepped.ticker.run_once()
    worker.ready(1)
    await stepped.claimer.run_once()
    await stepped.flushed()
    job = await stepped.job(job_id)
    assert (job.state, job.attempt) == (State.DEAD, 2)
    assert "deadline" in job.last_error


async def test_a_span_counts_from_the_submit_also_when_a_worker_waits(database: str, clock: Clock) -> None:
    async with Instance(database, running=False, claims_along=True) as instance:
        worker = await instance.worker("one", slots=2)
        await instance.claimer.run_once()  # finds nothing: it waits
        (job_id,) = await instance.submit(deadline=SECOND, headers={"trace": "abc"})
        delivery = await worker.take()
        assert (json.loads(delivery.headers[0] or "")[".deadline_us"]) == str(delivery.claimed_us + 1_000_000)
        job = await instance.job(job_id)
        assert (job.deadline, job.headers) == (clock.now + SECOND, {"trace": "abc"})


@pytest.mark.parametrize("passed", [True, False])
async def test_a_redrive_drops_a_deadline_that_has_passed_and_keeps_another(
    stepped: Instance, clock: Clock, passed: bool
) -> None:
    deadline = clock.now + timedelta(hours=1)
    (job_id,) = await stepped.submit(deadline=deadline, headers={"trace": "abc"})
    worker = await stepped.worker("one", slots=1)
    if passed:
        await clock.advance(hours=2)
    await stepped.claimer.run_once()
    if not passed:
        fatal = Failed(error=ErrorInfo(type="Oops"), permanent=True)
        await worker.report(job_id, (await worker.take()).epochs[0], fatal)
        worker.ready(1)
    await stepped.flushed()
    assert (await stepped.job(job_id)).state is State.DEAD
    how = Redrive()
    await AdminStore(stepped.store).redrive(worker.session.tenant_no, [job_id], how, who="ann", reason="again")
    job = await stepped.job(job_id)
    assert (job.deadline, job.headers) == (None if passed else deadline, {"trace": "abc"})
    stepped.demands.wake_all()
    await stepped.claimer.run_once()
    assert list((await worker.take()).ids) == [job_id]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("deadline => now() - interval '1 s'", "deadline: has passed"),
        ("deadline => '-infinity'", "deadline: has passed"),
        ("deadline => 'infinity'", "deadline: must be between 2000-01-01 and 1825 days from now"),
        ("deadline => now() + interval '1 h', run_at => now() + interval '1 h'", "deadline: must be after the time"),
        ("deadline => now() + interval '1 h', delay => interval '2 h'", "deadline: must be after the time"),
    ],
)
async def test_a_deadline_that_cannot_be_kept_is_refused_in_sql(db: Connection, given: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        await db.fetchval(f"SELECT headgate.submit('mail', '{{}}'::jsonb, {given})")


@pytest.mark.parametrize("more", ["", ', headers => \'{"trace": "abc"}\''])
async def test_a_sql_submit_stores_the_same_deadline(stepped: Instance, db: Connection, more: str) -> None:
    (of_store,) = await stepped.submit(
        deadline=(at := await db.fetchval("SELECT now() + interval '1 h'")), headers={"trace": "abc"} if more else {}
    )
    of_sql = await db.fetchval(
        f"SELECT headgate.submit('mail', '{{}}'::jsonb, tenant => 'acme', deadline => $1{more})", at
    )
    found: list[Any] = [await stepped.job(one) for one in (of_store, of_sql)]
    assert found[0].deadline == found[1].deadline == at
    rows = await db.fetch("SELECT DISTINCT headers FROM headgate.jobs")
    assert len(rows) == 1


SUBMIT = "SELECT headgate.submit('mail', $1::jsonb, tenant => 'acme', headers => $2::jsonb)"
SCHEMA = '{"type": "object", "properties": {"to": {"type": "string"}}}'


async def test_a_payload_of_an_sql_submit_that_does_not_match_is_not_delivered_and_ends_dead(stepped: Instance) -> None:
    topics = TopicStore(stepped.store)
    await topics.set_topic("acme", "mail", rules={"payload_schema": SCHEMA}, limits={}, actor="ana", reason="")
    await stepped.store.refresh_names()
    before = await stepped.submit(payload=b'{"to": 1}')  # stored by a server: whoever checks payloads has checked this
    async with stepped.store.lane("upkeep").use() as db:
        bad, good, headed = [
            await db.fetchval(SUBMIT, *values)
            for values in (('{"to": 3}', None), ('{"to": "a"}', None), ('{"to": 4}', '{"trace": "abc"}'))
        ]
    worker = await stepped.worker("one", slots=5)
    await stepped.claimer.run_once()
    delivery = await worker.take()
    assert sorted(delivery.ids) == sorted([*before, good])
    assert credit(stepped) == {"one": 3}
    await stepped.flushed()
    for job_id, found in ((bad, 3), (headed, 4)):
        job = await stepped.job(job_id)
        assert (job.state, job.attempt) == (State.DEAD, 1)
        assert f'payload/to: {found} is not of type "string"' in job.last_error
        assert "was submitted by SQL, and was not started" in job.last_error
        assert [(event.kind.label, event.error_type) for event in job.events] == [("failed", "payload_mismatch")]
    assert (await stepped.job(headed)).headers == {"trace": "abc"}  # what marks it is not shown


async def test_a_redriven_job_is_checked_by_the_schema_that_its_topic_has_then(stepped: Instance) -> None:
    topics = TopicStore(stepped.store)
    await topics.set_topic("acme", "mail", rules={"payload_schema": SCHEMA}, limits={}, actor="ana", reason="")
    await stepped.store.refresh_names()
    async with stepped.store.lane("upkeep").use() as db:
        job_id = await db.fetchval(SUBMIT, '{"to": 3}', None)
    worker = await stepped.worker("one", slots=1)
    await stepped.claimer.run_once()
    await stepped.flushed()
    assert await stepped.states() == {State.DEAD: 1}
    await topics.set_topic("acme", "mail", rules={"payload_schema": None}, limits={}, actor="ana", reason="")
    await stepped.store.refresh_names()
    await AdminStore(stepped.store).redrive(
        await stepped.store.tenant_no("acme"), [job_id], Redrive(), who="ana", reason=""
    )
    stepped.demands.wake_all()
    await stepped.claimer.run_once()
    assert list((await worker.take()).ids) == [job_id]


@pytest.mark.parametrize(("delay", "kept"), [(30, True), (60, False), (90, False)])
async def test_a_deadline_that_will_have_passed_when_a_redriven_job_is_due_is_dropped(
    db: Connection, delay: int, kept: bool
) -> None:
    await Clock.install(db)
    queue = Queue(db)
    (job,) = await queue.add(1, deadline=timedelta(minutes=60))
    await queue.claim()
    await queue.settle((job, 1, Failed(error=ErrorInfo(type="E"), permanent=True)))
    await verbs.redrive(db, await queue.tenant_no(), [job], delay=timedelta(minutes=delay))
    assert bool(await db.fetchval("SELECT headers ? '.deadline_us' FROM headgate.jobs")) is kept
