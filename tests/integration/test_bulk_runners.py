"""Bulk operations on several instances: killed runners, restricted tokens, and what a runner reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from headgate.control.bulk import Bulk, Request
from headgate.dispatch import bulk_runner
from headgate.dispatch.bulk_runner import BulkRunner, Chunks
from headgate.domain.bulk import Chunk, Progress, Verb
from headgate.domain.errors import InvalidInput, NotFound, StoreUnavailable
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.states import EventKind, State
from headgate.domain.topic_sets import TopicSet
from headgate.store import audit, bulk, bulk_chunks, listing, matching, reads
from headgate.store.bulk import BulkStore
from headgate.store.bulk_chunks import BulkChunks
from headgate.store.clock import clock
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from tests.integration.test_bulk import chunk, counts, finish, start
from tests.support.queue import Queue, new_id, stranger
from tests.support.waiting import until_async


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


JOBS = 20_000

FILL = """
INSERT INTO headgate.archive (id, created_at, run_at, finished_at, tenant_no, topic_no, priority, attempt, max_attempts,
                              epoch, policy_no, state, flags, last_error, payload)
SELECT encode(substring(int8send(1700000000000 + n) FROM 3) || '\\x70008000000000000001'::bytea, 'hex')::uuid, now(),
       now(), now(), $1, $2, 0, 1, 20, 1, 1, 6, 0, 'E: boom', 'x'
  FROM generate_series(1, $3::int) AS n"""

KILLS = 4

# Whoever comes to one of these jobs for the first time loses its backend in the middle of the chunk; a sequence is not
# rolled back, so the second time it gets through.
KILLER = f"""
CREATE SEQUENCE public.kills;
CREATE TABLE public.met (id uuid PRIMARY KEY);
INSERT INTO public.met SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM headgate.archive) AS a
 WHERE n % {JOBS // KILLS} = 100;
CREATE FUNCTION public.kill() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF EXISTS (SELECT FROM public.met WHERE id = OLD.id) AND nextval('public.kills') % 2 = 1 THEN
        PERFORM pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid());
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER kill BEFORE DELETE ON headgate.archive FOR EACH ROW EXECUTE FUNCTION public.kill()"""


@asynccontextmanager
async def instances(database: str, count: int) -> AsyncIterator[list[tuple[BulkRunner, DispatchStore, list[int]]]]:
    """Runners of their own, each with its own connections; the lists hold the topics they were notified to look at."""
    made = []
    try:
        for n in range(count):
            store = DispatchStore(database)
            await store.register(f"instance-{n}", "test")
            heard: list[int] = []

            def hear(pairs: Sequence[tuple[int, UUID]], heard: list[int] = heard) -> None:
                heard.extend(topic_no for topic_no, _ in pairs)

            made.append((BulkRunner(BulkChunks(store), on_requeued=hear, poll=0.05), store, heard))
        yield made
    finally:
        for _, store, _ in made:
            await store.close()


async def all_changed_once(db: Connection, kind: EventKind) -> None:
    n, jobs = await db.fetchrow(
        "SELECT count(*), count(DISTINCT job_id) FROM headgate.job_events WHERE kind = $1", int(kind)
    )
    assert (n, jobs) == (JOBS, JOBS)


async def test_20_000_jobs_are_changed_once_each_although_the_runner_is_killed(queue: Queue, database: str) -> None:
    """The backend of a chunk is killed in the middle of its transaction, again and again: nothing lost or doubled."""
    tenant, topic = await queue.tenant_no(), (await queue.topic()).no
    await queue.db.execute(FILL, tenant, topic, JOBS)
    await queue.db.execute(KILLER)
    one = await start(queue, Verb.REDRIVE, "state:dead")
    async with instances(database, 1) as [(runner, _, heard)]:
        task = asyncio.create_task(runner.run())
        await until_async(
            lambda: queue.db.fetchval("SELECT state >= 2 FROM headgate.bulk_operations"),
            "the operation is over",
        )
        runner.stop()
        await task
    one = await bulk.get(queue.db, tenant, one.id)
    assert (one.state, counts(one)) == (Progress.DONE, (JOBS, JOBS, 0, 0))
    assert await queue.db.fetchval("SELECT last_value FROM public.kills") >= 2 * KILLS  # each was met, and met again
    await all_changed_once(queue.db, EventKind.REDRIVEN)
    assert set(heard) == {topic}


async def test_three_instances_share_one_operation_and_one_that_is_dropped_is_replaced(
    queue: Queue, database: str
) -> None:
    tenant, topic = await queue.tenant_no(), (await queue.topic()).no
    await queue.db.execute(FILL, tenant, topic, JOBS)
    one = await start(queue, Verb.DISCARD, "state:dead")
    async with instances(database, 3) as made:
        tasks = [asyncio.create_task(runner.run()) for runner, _, _ in made]
        await until_async(
            lambda: queue.db.fetchval("SELECT changed > 2000 FROM headgate.bulk_operations"), "some of it is done"
        )
        tasks[0].cancel()  # in the middle of whatever it does
        await until_async(
            lambda: queue.db.fetchval("SELECT state >= 2 FROM headgate.bulk_operations"),
            "the operation is over",
        )
        for runner, _, _ in made:
            runner.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
    one = await bulk.get(queue.db, tenant, one.id)
    assert (one.state, counts(one)) == (Progress.DONE, (JOBS, JOBS, 0, 0))
    await all_changed_once(queue.db, EventKind.DISCARDED)
    ends = [entry for entry in await audit.entries(queue.db, tenant) if entry.verb == "end_bulk"]
    assert len(ends) == 1


def identity(*topics: str, tenant: str = "acme") -> Identity:
    return Identity(
        tenant=tenant, subject="ana", scopes=frozenset(Scope), topics=TopicSet.of(*topics) if topics else None
    )


async def test_a_token_of_some_topics_reaches_those_only(queue: Queue, database: str) -> None:
    for topic in ("mail", "sms"):
        await queue.add(3, topic)
    store = DispatchStore(database)
    many = Bulk(BulkStore(store), started=lambda: None, recheck=lambda who: who)
    mail, everything = identity("mail"), identity()
    try:
        assert {job.topic for job in (await many.list_jobs(mail, "")).jobs} == {"mail"}
        assert (await many.count_jobs(mail, "topic:*", up_to=10)).total == 3
        for text in ("topic:sms", "topic:sms,letters"):
            with pytest.raises(PermissionDenied):
                await many.list_jobs(mail, text)
        wide = await many.start(mail, new_id(), Request(verb="cancel", filter="topic:*"))
        whole = await many.start(everything, new_id(), Request(verb="cancel", filter="state:running"))
        assert wide.expected == 3
        with pytest.raises(PermissionDenied):
            await many.start(mail, new_id(), Request(verb="move", filter="topic:mail", topic="sms"))
        with pytest.raises(NotFound):
            await many.operation(mail, whole.id)
        with pytest.raises(NotFound):
            await many.cancel(mail, whole.id, reason="")
        assert [one.id for one in await many.operations(mail, active=False, before=None, limit=10)] == [wide.id]
        assert (await many.operation(everything, wide.id)).topics == TopicSet.of("mail")
        with pytest.raises(NotFound):
            await many.operation(identity(tenant="other"), wide.id)
        assert (await many.list_jobs(identity(tenant="other"), "")).jobs == []
        with pytest.raises(InvalidInput, match="must be one of cancel, redrive"):
            await many.preview(mail, Request(verb="explode", filter="topic:mail"))
    finally:
        await store.close()
    await finish(queue, wide)
    states = await reads.counts(queue.db, await queue.tenant_no())
    assert states[(await queue.topic("sms")).no] == {State.PENDING: 3}
    assert states[(await queue.topic("mail")).no] == {State.CANCELLED: 3}


async def test_finding_the_next_operation_reads_few_rows_among_many_that_are_over(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await queue.db.execute(
        """INSERT INTO headgate.bulk_operations (tenant_no, id, verb, state, filter, as_of, who, created_at, touched_at,
                                            rest_until, finished_at)
           SELECT $1, gen_random_uuid(), 1, 2, 'topic:x', now(), 'a', now(), now(), now(), now()
             FROM generate_series(1, 5000)""",
        tenant,
    )
    await start(queue, Verb.CANCEL, "topic:mail")
    async with queue.db.transaction():
        assert await queue.db.fetchrow(bulk_chunks.TAKE, bulk_chunks.KNOWN) is not None
        read: int = await queue.db.fetchval(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_catalog.pg_stat_xact_all_tables"
            " WHERE relname = 'bulk_operations'"
        )
    assert read <= 3


async def test_a_chunk_ends_with_the_connection_that_did_it(queue: Queue, database: str) -> None:
    """The lock is the lease: while one holds the operation another finds nothing, and everything once it is gone."""
    await queue.add(3)
    one = await start(queue, Verb.CANCEL, "topic:mail")
    holder = await asyncpg.connect(database)
    holding = holder.transaction()
    await holding.start()
    assert await holder.fetchrow(bulk_chunks.TAKE, bulk_chunks.KNOWN) is not None
    assert await chunk(queue) is None
    holder.terminate()

    async def free() -> bool:
        return await chunk(queue) is not None

    await until_async(free, "the dead holder's lock is gone")
    assert (await finish(queue, one)).changed == 3


async def first_waits(chunks: Chunks, count: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a runner would wait after its first looks; it does not."""
    runner = BulkRunner(chunks, on_requeued=lambda _: None)
    waits: list[float] = []

    async def wait_at_most(_: asyncio.Event, seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == count:
            runner.stop()
        return False

    monkeypatch.setattr(bulk_runner, "wait_at_most", wait_at_most)
    await runner.run()
    return waits


async def test_an_operation_of_another_instance_is_looked_at_four_times_a_second(
    queue: Queue, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as fast as the database answers, for as long as the other one takes."""
    await start(queue, Verb.CANCEL, "topic:mail")
    async with instances(database, 1) as [(_, store, _)], stranger(database, bulk_chunks.TAKE, bulk_chunks.KNOWN):
        assert await first_waits(BulkChunks(store), 2, monkeypatch) == [0.25, 0.25]


class Flaky(BulkChunks):
    """Only its fourth call gets through."""

    calls = 0

    async def run_chunk(self) -> Chunk | None:
        self.calls += 1
        if self.calls != 4:
            raise StoreUnavailable("the database is away")
        return await super().run_chunk()


async def test_a_runner_waits_longer_with_every_failure_until_a_chunk_succeeds(
    queue: Queue, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(queue, Verb.CANCEL, "topic:mail")
    async with instances(database, 1) as [(_, store, _)]:
        assert await first_waits(Flaky(store), 5, monkeypatch) == [0.1, 0.2, 0.4, 0.1, 0.2]


async def test_bounded_filters_leave_out_what_came_later(queue: Queue) -> None:
    now = await clock(queue.db)
    narrow = matching.bounded(listing.Filter(created_before=now - timedelta(hours=1)), now)
    assert narrow.created_before == now - timedelta(hours=1)
    assert narrow.ended_by == now
