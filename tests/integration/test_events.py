"""Streams of events: what they send, in which order, from where on, and how they end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.events import EventFilter, Gap, Happened, Position
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.outcomes import Completed
from headgate.domain.topic_sets import TopicSet
from headgate.domain.views import Target, TargetKind
from headgate.store import settle as settling
from headgate.store.connect import Connection
from headgate.store.events import EventStore, forget_completions
from headgate.store.restore_fence import fence_restore
from tests.support.admin import Desk
from tests.support.dispatch_waits import soon
from tests.support.dispatching import Instance
from tests.support.event_streams import FAILED, NO_COMPLETIONS, OPERATES, Stand
from tests.support.queue import Clock, Queue, links


@pytest.fixture
async def queue(db: Connection) -> Queue:
    return Queue(db)


@pytest.fixture
async def stand(one: Instance) -> AsyncIterator[Stand]:
    stand = Stand(one)
    one.start("events", stand.reader.run())
    yield stand
    stand.reader.stop()


async def settle(one: Instance, job_id: UUID, outcome: Any) -> None:
    """Claim a job and settle it."""
    worker = await one.worker(slots=1)
    await soon(lambda: job_id in worker.session.held, "it has the job")
    await worker.report(job_id, worker.session.held[job_id][0], outcome)
    worker.lose()


# ---------------------------------------------------------------------- what is sent


async def test_a_stream_sends_what_happens_to_jobs_and_topics(one: Instance, stand: Stand) -> None:
    async with stand.stream() as stream:
        await stream.opened()
        (job,) = await one.submit(1)
        await settle(one, job, FAILED)
        assert await stream.take(1) == [("job.failed", "mail", job)]
        await Desk(one).pause(Target(kind=TargetKind.TOPIC, topic="mail"), "because")
        assert await stream.take(1) == [("topic.paused", "mail", None)]


async def test_completions_are_recorded_while_a_stream_wants_them_and_not_before(
    one: Instance, stand: Stand, db: Connection
) -> None:
    (before,) = await one.submit(1)
    await settle(one, before, Completed())
    assert not one.store.records_completions
    assert await db.fetchval("SELECT count(*) FROM headgate.completions") == 0
    async with stand.stream(EventFilter()) as stream:
        await ticking(one, stream.opened())
        assert one.store.records_completions
        (job,) = await one.submit(1)
        await settle(one, job, Completed())
        assert await stream.take(1) == [("job.completed", "mail", job)]


async def ticking(one: Instance, waiting: Any) -> Any:
    """What comes while ticks go on: those of the instance are an hour apart."""
    task = asyncio.create_task(waiting)
    while not task.done():
        one.times.soon()
        await asyncio.wait((task,), timeout=0.05)
    return task.result()


async def test_every_completion_of_a_flush_is_noted_once_and_one_that_was_not_applied_is_not(
    queue: Queue, db: Connection
) -> None:
    """Two tenants in one flush, one outcome that is stale, one locked row is settled later."""
    other = Queue(db, tenant="other")
    flush = settling.OutcomeFlush()
    flush.recorded = True
    expected: set[UUID] = set()
    for one in (queue, other):
        await one.submit(*(one.job() for _ in range(3)))
        claimed = await one.claim(3)
        for index, (job_id, epoch) in enumerate(zip(claimed.ids, claimed.epochs, strict=True)):
            stale = index == 2
            flush.add(await one.tenant_no(), job_id, epoch - 1 if stale else epoch, Completed())
            expected |= set() if stale else {job_id}
    answers = await settling.settle(db, flush)
    assert len(answers) == 2
    rows = await db.fetch("SELECT tenant_no, ids, topic_nos, epochs, attempts FROM headgate.completions")
    assert len(rows) == 2
    assert {job_id for row in rows for job_id in row[1]} == expected
    assert all(len(row[1]) == len(row[2]) == len(row[3]) == len(row[4]) == 2 for row in rows)


async def test_a_completion_that_is_sent_again_is_noted_once(queue: Queue, db: Connection) -> None:
    """Two tenants in one flush; what was applied before lies at another place in each."""
    jobs = []
    for one in (queue, Queue(db, tenant="other")):
        await one.submit(one.job(), one.job())
        claimed = await one.claim(2)
        jobs.append([(await one.tenant_no(), *pair) for pair in zip(claimed.ids, claimed.epochs, strict=True)])
    for some in ((jobs[0][0], jobs[1][1]), (*jobs[0], *jobs[1])):
        flush = settling.OutcomeFlush()
        flush.recorded = True
        for tenant_no, job_id, epoch in some:
            flush.add(tenant_no, job_id, epoch, Completed())
        await settling.settle(db, flush)
    noted = Counter(row[0] for row in await db.fetch("SELECT unnest(ids) FROM headgate.completions"))
    assert noted == Counter(job_id for some in jobs for _, job_id, _ in some)


async def test_completions_are_noted_although_the_clock_steps_back_meanwhile(queue: Queue, db: Connection) -> None:
    (job_id,) = await queue.add()
    flush = settling.OutcomeFlush()
    flush.recorded = True
    flush.add(await queue.tenant_no(), job_id, (await queue.claim()).epochs[0], Completed())
    await db.execute(
        """CREATE SEQUENCE public.looks;
           CREATE OR REPLACE FUNCTION headgate.clock_v1() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
               SELECT pg_catalog.now() + interval '1 hour' - pg_catalog.nextval('public.looks') * interval '1 s' $$"""
    )
    await settling.settle(db, flush)
    assert await db.fetchval("SELECT ids FROM headgate.completions") == [job_id]


async def test_filters_select_topics_jobs_and_the_members_of_a_batch(
    one: Instance, stand: Stand, db: Connection
) -> None:
    first, second = await one.submit(2)
    (other,) = await one.submit(1, topic="pay")
    batch = one.ids.make(1)[0]
    tenant_no = await one.store.tenant_no("acme")
    await db.execute("INSERT INTO headgate.batch_jobs VALUES ($1, $2, $3)", tenant_no, batch, second)
    wanted = {
        "topic": EventFilter(topics=frozenset({"pay"}), kinds=NO_COMPLETIONS.kinds),
        "job": EventFilter(jobs=frozenset({first}), kinds=NO_COMPLETIONS.kinds),
        "batch": EventFilter(batch=batch, kinds=NO_COMPLETIONS.kinds),
    }
    async with (
        stand.stream(wanted["topic"]) as by_topic,
        stand.stream(wanted["job"]) as by_job,
        stand.stream(wanted["batch"]) as by_batch,
    ):
        for stream in (by_topic, by_job, by_batch):
            await stream.opened()
        desk = Desk(one)
        await desk.verbs.cancel(OPERATES, [first, second, other])
        assert await by_topic.take(1) == [("job.cancelled", "pay", other)]
        assert await by_job.take(1) == [("job.cancelled", "mail", first)]
        assert await by_batch.take(1) == [("job.cancelled", "mail", second)]


async def test_a_stream_has_the_events_of_its_tenant_and_of_permitted_topics_only(one: Instance, stand: Stand) -> None:
    narrow = Identity(
        tenant="acme", subject="narrow", scopes=frozenset({Scope.READ}), topics=TopicSet.of("mail"), credential="n"
    )
    async with stand.stream(who=narrow) as stream:
        await stream.opened()
        (theirs,) = await one.submit(1, tenant="other")
        (hidden,) = await one.submit(1, topic="pay")
        (mine,) = await one.submit(1)
        desk = Desk(one)
        await desk.verbs.cancel(Identity(tenant="other", subject="o", scopes=frozenset(Scope)), [theirs])
        await desk.verbs.cancel(OPERATES, [hidden])
        await desk.verbs.cancel(OPERATES, [mine])
        assert await stream.take(1) == [("job.cancelled", "mail", mine)]
    with pytest.raises(PermissionDenied):
        await stand.events.open(narrow, EventFilter(topics=frozenset({"pay"})))
    with pytest.raises(PermissionDenied):
        await stand.events.open(Identity(tenant="acme", subject="w", scopes=frozenset({Scope.WORK})), EventFilter())


# ---------------------------------------------------------------------- order and positions


async def test_a_transaction_that_commits_late_is_sent_late_and_not_lost(
    one: Instance, stand: Stand, database: str
) -> None:
    first, second = await one.submit(2)
    async with links(database, 1) as (late,), stand.stream() as stream:
        await stream.opened()
        transaction = late.transaction()
        await transaction.start()
        tenant_no = await one.store.tenant_no("acme")
        await late.execute("SELECT headgate.cancel_v1($1, $2, 'ana', '')", tenant_no, [first])
        await Desk(one).verbs.cancel(OPERATES, [second])
        assert await stream.take(1) == [("job.cancelled", "mail", second)]
        last = stream.last
        await transaction.commit()
        assert await stream.take(1) == [("job.cancelled", "mail", first)]
    async with stand.stream(last=last) as again:
        await again.opened()
        assert await again.take(1) == [("job.cancelled", "mail", first)]


async def test_a_stream_goes_on_after_the_last_id_on_any_instance_with_nothing_lost_or_twice(
    one: Instance, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await one.submit(40)
    async with stand.stream() as stream:
        last = str((await stream.opened()).position)
    desk = Desk(one)
    for job_id in ids[:25]:
        await desk.verbs.cancel(OPERATES, [job_id])
    elsewhere = Stand(one)
    one.start("events elsewhere", elsewhere.reader.run())
    whole, pages = elsewhere.store.since, 0

    async def in_small_pages(*arguments: Any, **options: Any) -> Any:
        nonlocal pages
        pages += 1
        return await whole(*arguments, **options, rows=4)

    monkeypatch.setattr(elsewhere.store, "since", in_small_pages)
    async with elsewhere.stream(last=last) as again:
        await again.opened()
        got = await again.take(25)
        assert pages >= 6
        await desk.verbs.cancel(OPERATES, list(ids[25:]))  # one transaction, more than a page
        got += await again.take(15)
        assert [job_id for _, _, job_id in got[:25]] == ids[:25]
        assert {job_id for _, _, job_id in got} == set(ids)
        assert again.last


async def test_an_event_has_the_same_id_when_it_is_sent_again(one: Instance, stand: Stand) -> None:
    (job,) = await one.submit(1)
    async with stand.stream() as stream:
        last = str((await stream.opened()).position)
        await Desk(one).verbs.cancel(OPERATES, [job])
        item = await stream.next()
        assert isinstance(item, Happened)
        first = item.event
    async with stand.stream(last=last) as again:
        await again.opened()
        item = await again.next()
        assert isinstance(item, Happened)
        assert item.event == first


async def test_what_is_not_known_any_more_is_said(one: Instance, stand: Stand, db: Connection) -> None:
    now = await stand.store.position()
    old = Position(
        at_ms=now.at_ms - timedelta(days=2) // timedelta(milliseconds=1),
        restores=now.restores,
        xmin=now.xmin,
        xmax=now.xmax,
        running=now.running,
    )
    async with stand.stream(last=str(old)) as stream:
        gap = await stream.next()
        assert isinstance(gap, Gap)
        assert gap.reason == "retention"
        await stream.opened()
    async with stand.stream(EventFilter(), last=str(now)) as stream:  # completions were not recorded then
        gap = await ticking(one, stream.next())
        assert isinstance(gap, Gap)
    await fence_restore(db, actor="ana")
    async with stand.stream(last=str(now)) as stream:
        gap = await stream.next()
        assert isinstance(gap, Gap)
        assert gap.reason == "restored"


async def test_recorded_completions_are_forgotten_after_ten_minutes(
    one: Instance, db: Connection, clock: Clock
) -> None:
    await EventStore(one.store).record()
    one.times.soon()
    await soon(lambda: one.store.records_completions, "the tick has seen it")
    (job,) = await one.submit(1)
    await settle(one, job, Completed())
    assert await forget_completions(db) == 0
    await clock.advance(minutes=11)
    assert await forget_completions(db) == 1
    one.times.soon()
    await soon(lambda: not one.store.records_completions, "the recording is over")
