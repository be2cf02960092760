"""Batches against a real PostgreSQL: nothing is announced before all were added and have ended, then exactly once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.dependencies import Needs, NewBatch, OnParentFailure
from headgate.domain.errors import BatchSealed, InvalidInput, NotFound
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Completed
from headgate.domain.states import EventKind, State
from headgate.domain.topic_sets import TopicSet
from headgate.store import dependencies, reads
from headgate.store.batches import batch_status, expire_batches, open_batch, seal_batch
from headgate.store.connect import Connection
from tests.integration.test_dependencies import DIES, free, refused, state
from tests.integration.test_dependency_races import blocked_on_a_lock, rivals, until
from tests.support import explain
from tests.support.queue import Clock, Queue, new_id

COUNT_WRITES = """
CREATE TABLE public.written (what text);
GRANT ALL ON public.written TO PUBLIC;
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
    INSERT INTO public.written VALUES (TG_ARGV[0]); RETURN NULL; END';
CREATE TRIGGER noted AFTER UPDATE ON headgate.jobs FOR EACH ROW WHEN (OLD.id = 'CALLBACK')
    EXECUTE FUNCTION public.note('jobs');
CREATE TRIGGER noted AFTER UPDATE ON headgate.job_dependencies FOR EACH ROW EXECUTE FUNCTION public.note('links');
"""


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def opened(queue: Queue, *, callback: bool = True, **words: Any) -> tuple[JobId, JobId]:
    batch, done = NewBatch(id=new_id(), **words), queue.job("done")
    await open_batch(queue.db, queue.names, await queue.tenant_no(), batch, callback=done if callback else None)
    return batch.id, done.id


async def finish(queue: Queue, ids: list[JobId]) -> None:
    claimed = await queue.claim(len(ids))
    await queue.settle(
        *((job_id, epoch, Completed()) for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True))
    )


async def test_the_callback_runs_when_the_batch_is_sealed_and_all_have_ended(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    batch, callback = await opened(queue, name="import")
    members = await queue.add(3, batch=batch)
    claimed = await queue.claim()
    await queue.settle((members[0], 1, Completed()), (members[1], 1, DIES))
    assert await free(queue) == []
    assert len(claimed) == 3
    await queue.settle((members[2], 1, Completed()))
    assert await free(queue) == []  # all have ended, but it is not sealed: more may come
    (late,) = await queue.add(1, batch=batch)
    await seal_batch(queue.db, tenant, batch)
    await seal_batch(queue.db, tenant, batch)  # harmless
    assert await free(queue) == []
    status = await batch_status(queue.db, tenant, batch)
    assert (status.name, status.total, status.counted, status.callback_id) == ("import", 4, 4, callback)
    assert status.counts == {State.COMPLETED: 2, State.DEAD: 1, State.PENDING: 1}
    assert (status.callback_state, status.topics) == (State.BLOCKED, TopicSet.of("done"))
    assert status.sealed_at is not None
    claimed = await queue.claim()
    await queue.settle((late, 1, Completed()))
    assert await free(queue) == [callback]
    assert (await queue.claim(1, "done")).ids == (callback,)
    assert [event.kind for event in await reads.events(queue.db, tenant, callback)] == [
        EventKind.BLOCKED,
        EventKind.UNBLOCKED,
    ]


async def test_an_empty_batch_is_done_when_it_is_sealed(queue: Queue) -> None:
    batch, callback = await opened(queue)
    await seal_batch(queue.db, await queue.tenant_no(), batch)
    assert await free(queue) == [callback]


async def test_a_sealed_or_unknown_batch_takes_no_members(queue: Queue) -> None:
    batch, _ = await opened(queue, callback=False)
    stranger = Queue(queue.db, tenant="other")
    await seal_batch(queue.db, await queue.tenant_no(), batch)
    sealed, unknown, foreign, fine = [
        *await refused(queue, queue.job(batch=batch), queue.job(batch=new_id())),
        *await refused(stranger, stranger.job(batch=batch), stranger.job()),
    ]
    assert [type(error) for error in (sealed, unknown, foreign, fine)] == [
        BatchSealed,
        NotFound,
        NotFound,
        type(None),
    ]
    with pytest.raises(NotFound):
        await seal_batch(queue.db, await stranger.tenant_no(), batch)
    with pytest.raises(NotFound):
        await batch_status(queue.db, await stranger.tenant_no(), batch)


async def test_the_same_id_opens_a_batch_once(queue: Queue) -> None:
    tenant, batch = await queue.tenant_no(), NewBatch(id=new_id(), name="a")
    assert await open_batch(queue.db, queue.names, tenant, batch, callback=queue.job("done"))
    assert not await open_batch(queue.db, queue.names, tenant, batch, callback=queue.job("done"))
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.jobs") == 1
    with pytest.raises(InvalidInput, match="opened before with another name"):
        await open_batch(queue.db, queue.names, tenant, NewBatch(id=batch.id, name="b"))


async def test_an_unsealed_batch_is_closed_and_its_callback_cancelled(queue: Queue) -> None:
    clock, tenant = await Clock.install(queue.db), await queue.tenant_no()
    batch, callback = await opened(queue, expires_in=timedelta(hours=1))
    (member,) = await queue.add(1, batch=batch)
    assert await expire_batches(queue.db) == 0
    await clock.advance(hours=2)
    assert await expire_batches(queue.db) == 1
    await free(queue)
    status = await batch_status(queue.db, tenant, batch)
    assert (status.expired, status.total, status.callback_state) == (True, 1, State.CANCELLED)
    assert await state(queue, callback) is State.CANCELLED
    assert await state(queue, member) is State.PENDING


async def test_sealing_waits_for_a_member_that_is_being_added(queue: Queue, database: str) -> None:
    tenant = await queue.tenant_no()
    batch, callback = await opened(queue)
    async with rivals(database, 2) as (one, two):
        async with one.db.transaction():
            (member,) = await one.add(1, batch=batch)
            sealing = asyncio.create_task(seal_batch(two.db, tenant, batch))
            await until(lambda: blocked_on_a_lock(queue.db))
        await sealing
    assert await free(queue) == []
    assert (await batch_status(queue.db, tenant, batch)).total == 1
    await finish(queue, [member])
    assert await free(queue) == [callback]


@pytest.mark.parametrize("analysed", [False, True])
async def test_the_end_of_members_reads_no_other_members_whatever_the_statistics_say(
    queue: Queue, *, analysed: bool
) -> None:
    batch, _ = await opened(queue)
    if analysed:  # with the dependency of the callback on its batch as the only row
        await queue.db.execute("ANALYZE headgate.job_dependencies")
    members = await queue.add(500, batch=batch)
    values = {"tenant_": await queue.tenant_no(), "ids_": members[:20], "states_": [5] * 20, "children_": None}
    for mode in explain.PLAN_MODES:
        plan = (await explain.explain(queue.db, explain.inner("meet_v1", "meet"), values, mode=mode)).plan
        scans = plan.scans_of("job_dependencies")
        assert {(node.type, node.index) for node in scans} == {
            ("Index Scan", "job_dependencies_pkey"),
            ("Tid Scan", None),
        }, plan.outline()
        assert [node.rows_read for node in scans] == [20, 20], plan.outline()


async def test_ten_thousand_members_fan_in_without_a_hot_row(queue: Queue, database: str) -> None:
    """The callback's row is written once, every dependency once, and the callback runs exactly once."""
    batch, callback = await opened(queue)
    tenant = await queue.tenant_no()
    members: list[JobId] = []
    for _ in range(10):
        members += await queue.add(1_000, batch=batch)
    await queue.db.execute(COUNT_WRITES.replace("CALLBACK", str(callback)))
    claimed = [await queue.claim(1_000) for _ in range(10)]
    await seal_batch(queue.db, tenant, batch)
    freed: list[UUID] = []
    async with rivals(database, 4) as crowd:

        async def settle(who: Queue, nth: int) -> None:
            for part in range(nth, 40, 4):  # 40 flushes of 250, four at a time
                ids = claimed[part // 4].ids[part % 4 * 250 :][:250]
                await who.settle(*((job_id, 1, Completed()) for job_id in ids))
                found, _ = await dependencies.unblock_ready(who.db)
                freed.extend(job_id for _, _, job_id in found)

        async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
            for nth, who in enumerate(crowd):
                tasks.create_task(settle(who, nth))
    freed += await free(queue)
    assert freed == [callback]
    assert (await queue.claim(10, "done")).ids == (callback,)
    events = await reads.events(queue.db, tenant, callback)
    assert [event.kind for event in events] == [EventKind.BLOCKED, EventKind.UNBLOCKED]
    written = dict(await queue.db.fetch("SELECT what, count(*) FROM public.written GROUP BY 1"))
    assert written == {"jobs": 2, "links": 10_001}  # freed, and then claimed
    status = await batch_status(queue.db, tenant, batch)
    assert (status.total, status.counts) == (10_000, {State.COMPLETED: 10_000})


@pytest.mark.parametrize(
    ("on_failure", "end"),
    [
        (OnParentFailure.CANCEL, State.CANCELLED),
        (OnParentFailure.IGNORE, State.PENDING),
        (OnParentFailure.BLOCK, State.BLOCKED),
    ],
)
async def test_a_batch_says_what_the_death_of_a_member_means_for_its_callback(
    queue: Queue, on_failure: OnParentFailure, end: State
) -> None:
    batch, callback = await opened(queue, needs=Needs.SUCCEEDED, on_failure=on_failure)
    (member,) = await queue.add(1, batch=batch)
    await seal_batch(queue.db, await queue.tenant_no(), batch)
    await queue.claim()
    await queue.settle((member, 1, DIES))
    await free(queue)
    assert await state(queue, callback) is end


async def test_a_token_of_some_topics_adds_to_batches_of_those_only(queue: Queue) -> None:
    """A batch of the whole tenant is not one of them, and neither is one that has other topics, too."""
    mail, sees = TopicSet.of("mail"), TopicSet.of("mail")
    batches = [
        (await opened(queue, callback=False, topics=topics))[0] for topics in (None, TopicSet.of("mail", "sms"), mail)
    ]
    told = await refused(queue, *(queue.job(batch=batch, sees=sees) for batch in batches))
    assert [type(error) for error in told] == [NotFound, NotFound, type(None)]
    (parent,) = await queue.add(1, "sms")
    (error,) = await refused(queue, queue.job(depends_on=[parent], sees=sees))
    assert isinstance(error, NotFound)
