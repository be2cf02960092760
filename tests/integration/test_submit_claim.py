"""A job whose worker waits is submitted and claimed in one call and one commit; whenever that fails, in two."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from headgate.domain.errors import (
    HeadgateError,
    InvalidInput,
    OutcomeUnknown,
    QuotaExceeded,
    StoreError,
    StoreUnavailable,
)
from headgate.domain.ids import TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.states import State
from headgate.domain.tenants import checked_quotas
from headgate.store import control, tenants, topics
from headgate.store.connect import Connection
from tests.support.dispatch_waits import soon
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.epochs import claims
from tests.support.queue import Queue, stranger
from tests.support.watched_store import Hold, failing_with


@pytest.fixture
async def one(database: str) -> AsyncIterator[Instance]:
    """A running instance; only wakes find work, for its tick is an hour away."""
    async with Instance(database, claims_along=True) as instance:
        await soon(lambda: instance.ticker.ticks, "the first tick is over")
        yield instance


REMEMBERED = """
CREATE FUNCTION public.remember() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO headgate.resent_ids (tenant_no, id, expires_at) VALUES (new.tenant_no, new.id, 'infinity');
    RETURN new;
END $$;
CREATE TRIGGER remember AFTER INSERT ON headgate.jobs FOR EACH ROW WHEN (new.state = 1)
EXECUTE FUNCTION public.remember()"""


async def waiting(one: Instance, *topics: str, slots: int = 8) -> Worker:
    """A worker whose demand has looked for work and found none."""
    worker = await one.worker("ant", *topics, slots=slots)
    await soon(lambda: not any(demand.busy for demand in one.demands.by_wanted.values()), "it has looked")
    one.store.calls.clear()
    return worker


async def test_a_job_whose_worker_waits_costs_one_call(one: Instance) -> None:
    worker = await waiting(one)
    for _ in range(3):
        (job_id,) = await one.submit()
        assert list((await worker.take()).ids) == [job_id]
        view = await one.job(job_id)
        assert (view.state, view.attempt, claims(view.epoch), view.worker) == (State.RUNNING, 1, 1, "ant")
    assert one.store.calls["submit_and_claim"] == 3
    assert one.store.calls["submit"] == one.store.calls["claim"] == 0
    await soon(lambda: one.free() == 5, "no claim holds the rest")


async def test_without_a_worker_that_waits_a_submit_is_a_submit(one: Instance) -> None:
    await one.submit()
    worker = await one.worker("ant", slots=1)
    assert len(await worker.take()) == 1
    await one.submit()  # it has no credit left
    assert one.store.calls["submit_and_claim"] == 0
    assert (await one.states())[State.PENDING] == 1


@pytest.mark.parametrize("options", [{"delay": timedelta(hours=1)}, {"key": "k"}, {"tags": ["x"]}, {"new_id": False}])
async def test_what_is_not_plainly_due_and_new_goes_the_usual_way(one: Instance, options: dict[str, object]) -> None:
    await waiting(one)
    await one.submit(**options)
    assert (one.store.calls["submit"], one.store.calls["submit_and_claim"]) == (1, 0)


async def test_the_best_job_is_taken_even_if_another_was_just_submitted(one: Instance, db: Connection) -> None:
    worker = await waiting(one, "mail", "bills", slots=1)
    (urgent,) = await Queue(db).add(topic="bills", priority=20)  # by another process, without a notification
    (late,) = await one.submit()
    assert list((await worker.take()).ids) == [urgent]
    worker.ready(1)
    assert list((await worker.take()).ids) == [late]


async def test_a_job_whose_transaction_was_open_when_its_worker_looked_is_taken_before_a_new_one(
    one: Instance, database: str, db: Connection
) -> None:
    await Queue(db).topic()
    async with stranger(database) as session:
        (older,) = await Queue(session).add()
        (younger,) = await Queue(db).add()
        worker = await waiting(one, slots=2)
        assert list((await worker.take()).ids) == [younger]
    await one.submit()
    assert list((await worker.take()).ids) == [older]


async def test_a_job_that_was_locked_when_its_worker_looked_is_taken_before_a_new_one(
    one: Instance, database: str, db: Connection
) -> None:
    locked, free = await Queue(db).add(2)
    async with stranger(database, "SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", locked):
        worker = await waiting(one, slots=2)
        assert list((await worker.take()).ids) == [free]
    await one.submit()
    assert list((await worker.take()).ids) == [locked]


async def test_what_its_call_does_not_claim_is_announced_to_other_instances(one: Instance, database: str) -> None:
    async with Instance(database, name="two") as two:
        one.start("announcements", one.wakes.run())
        two.start("words", two.store.listen(two.wakes.follow))
        other = await waiting(two, slots=1)
        await soon(lambda: two.store._listener is not None and two.ticker.ticks, "it listens, and has ticked")
        worker = await waiting(one, slots=1)
        await one.ticker.run_once()
        assert one.wakes.others == 1
        first, second = await one.submit(2)
        assert one.store.calls["submit_and_claim"] == 1
        assert list((await worker.take()).ids) == [first]
        assert list((await other.take()).ids) == [second]


async def test_a_full_backlog_of_its_tenant_refuses_a_job_whose_worker_waits(one: Instance, db: Connection) -> None:
    queue = Queue(db)
    await queue.add(2, "other")
    await waiting(one)
    quotas = checked_quotas({"max_backlog": 2})
    await tenants.set_quotas(db, await queue.tenant_no(), queue.tenant, quotas, actor="test", reason="")
    job = Submission(tenant=queue.tenant, topic=TopicName("mail"), id=one.ids.make(1)[0], payload=b"x", new_id=True)
    answers = await asyncio.wait_for(one.submitter.submit(await one.store.fill([job]), size=200), 60)
    assert isinstance(answers[0].error, QuotaExceeded)
    assert await one.states() == {State.PENDING: 2}


async def test_more_than_its_credit_is_left_for_others(one: Instance) -> None:
    worker = await waiting(one, slots=2)
    ids = await one.submit(5)
    assert list((await worker.take()).ids) == ids[:2]
    other = await one.worker("bee", slots=3)
    assert list((await other.take()).ids) == ids[2:]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("what", ["everything", "tenant", "topic"])
async def test_a_pause_that_this_instance_does_not_know_of_holds(
    one: Instance, db: Connection, what: str, ends: bool
) -> None:
    worker = await waiting(one)
    (topic_no,) = await one.topic_nos("mail")
    target = {"everything": (0, 0), "tenant": (worker.session.tenant_no, 0)}.get(what)
    target = target or (worker.session.tenant_no, topic_no)
    await control.pause(db, target, reason="now", until=datetime.now(UTC) + timedelta(hours=1) if ends else None)
    (job_id,) = await one.submit()
    assert (await one.job(job_id)).state is State.PENDING
    assert one.store.calls["submit_and_claim"] == 1
    await control.resume(db, target)
    one.demands.wake_all()
    assert list((await worker.take()).ids) == [job_id]


async def test_one_small_job_is_inserted_as_running(one: Instance, db: Connection) -> None:
    worker = await waiting(one)
    (job_id,) = await one.submit(payload=b"x" * 1024, priority=7, headers={"trace": "abc"})
    job = await worker.take()
    assert (list(job.ids), list(job.payloads), list(job.priorities)) == ([job_id], [b"x" * 1024], [7])
    assert json.loads(job.headers[0] or "") == {"trace": "abc"}
    row = await db.fetchrow("SELECT xmax::text, claimed_at = created_at AS at_once FROM headgate.jobs")
    assert row is not None
    assert (row["xmax"], row["at_once"]) == ("0", True), "it was written once"
    flows = await db.fetch("SELECT from_state, to_state, n FROM headgate.flow_deltas ORDER BY 1")
    assert [tuple(flow) for flow in flows] == [(-1, 0, 1), (0, 1, 1)], "counted as submitted and as claimed"


@pytest.mark.parametrize("obstacle", ["heavy", "limit", "resent", "several"])
async def test_what_is_not_quite_so_simple_is_submitted_and_claimed_as_ever(
    one: Instance, db: Connection, obstacle: str
) -> None:
    worker = await waiting(one)
    count, payload = (3, b"x") if obstacle == "several" else (1, b"x" * 1025 if obstacle == "heavy" else b"x")
    if obstacle == "limit":
        queue = Queue(db)
        tenant_no = await queue.tenant_no()
        await topics.set_topic(db, queue.names, tenant_no, "mail", changes={"max_running": 1})
    elif obstacle == "resent":
        await db.execute(
            "INSERT INTO headgate.resent_ids SELECT tenant_no, gen_random_uuid(), now() + interval '1 hour' "
            "FROM headgate.topics WHERE name = 'mail'"
        )
    ids = await one.submit(count, payload=payload)
    job = await worker.take()
    assert list(job.ids) == ids
    assert set(job.payloads) == {payload}
    assert one.store.calls["submit_and_claim"] == 1
    if obstacle == "limit":
        assert await db.fetchval("SELECT flags & 128 FROM headgate.jobs") == 128, "it counts against its limit"
    (later,) = await one.submit()
    assert (await one.job(later)).state is (State.PENDING if obstacle == "limit" else State.RUNNING)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), InvalidInput("job", "cannot be stored")])
async def test_a_call_that_fails_is_made_again_as_two(one: Instance, error: HeadgateError) -> None:
    worker = await waiting(one)
    one.store.before["submit_and_claim"] = failing_with(error)
    (job_id,) = await one.submit()
    assert list((await worker.take()).ids) == [job_id]
    assert one.store.calls["submit"] == 1
    await soon(lambda: one.free() == 7, "no claim holds the rest")


async def test_a_lost_answer_makes_no_second_job_and_its_credit_comes_back(one: Instance) -> None:
    """The claim was committed, and no one knows: as with any lost claim, its lease brings the job back."""
    await waiting(one)
    one.store.after["submit_and_claim"] = failing_with(OutcomeUnknown("the line went dead"))
    job = Submission(
        tenant=TenantName(one.tenant), topic=TopicName("mail"), id=one.ids.make(1)[0], payload=b"x", new_id=True
    )
    flush = await one.store.fill([job])
    answers = await asyncio.wait_for(one.submitter.submit(flush, size=200), 60)
    assert {place: answer.receipt.label for place, answer in answers.items()} == {0: "duplicate"}
    assert await one.states() == {State.RUNNING: 1}
    await soon(lambda: one.free() == 8, "its credit is back, and no claim holds it")


@pytest.mark.parametrize("verb", ["submit_and_claim", "submit"])
async def test_an_error_after_a_lost_answer_does_not_deny_what_may_be_committed(one: Instance, verb: str) -> None:
    if verb == "submit_and_claim":
        await waiting(one)
    one.store.after[verb] = failing_with(OutcomeUnknown("the line went dead"))

    async def refused() -> None:
        if one.store.calls[verb] > (verb == "submit"):
            raise StoreError("the database refused: invalid page")

    one.store.before["submit"] = refused
    job = Submission(
        tenant=TenantName(one.tenant), topic=TopicName("mail"), id=one.ids.make(1)[0], payload=b"x", new_id=True
    )
    with pytest.raises(OutcomeUnknown, match="invalid page; an earlier try may have been committed"):
        await asyncio.wait_for(one.submitter.submit(await one.store.fill([job]), size=200), 60)
    assert sum((await one.states()).values()) == 1


async def test_an_id_that_is_remembered_as_sent_again_while_it_is_inserted_is_looked_for(
    one: Instance, db: Connection
) -> None:
    """Only a later statement can see it: here one that the insert itself sets off."""
    await waiting(one)
    await db.execute(REMEMBERED)
    (job_id,) = await one.submit()
    assert one.store.calls["submit"] == 1, "handed over it might run a second time"
    assert (await one.job(job_id)).attempt <= 1
    assert sum((await one.states()).values()) == 1


async def test_what_comes_while_the_call_is_under_way_is_claimed_after_it(one: Instance) -> None:
    worker = await waiting(one, slots=2)
    hold = one.store.after["submit_and_claim"] = Hold()
    first = asyncio.create_task(one.submit())
    await hold.reached()
    one.demands.wake_all()  # a demand that is being claimed for is not claimed for twice
    hold.release()
    one.store.after.clear()
    (job_id,) = await first
    assert list((await worker.take()).ids) == [job_id]
    await soon(lambda: one.store.calls["claim"] == 1, "it looks again")
