"""Operations over a filter: durable, exact over crashes and races, ending, cancellable, audited."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.bulk import ACTIVE_MAX, BulkConflict, BulkOperation, Chunk, Plan, Progress, Verb
from headgate.domain.errors import InvalidInput, NotFound, Refused
from headgate.domain.filter_parser import parse
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.domain.states import EventKind, State
from headgate.store import audit, bulk, bulk_chunks, reads
from headgate.store.connect import Connection, connect
from tests.support.queue import Clock, Queue, new_id, stranger
from tests.support.waiting import until_async

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom", traceback="Traceback …"), permanent=True)
KIND = {
    Verb.CANCEL: EventKind.CANCELLED,
    Verb.REDRIVE: EventKind.REDRIVEN,
    Verb.DISCARD: EventKind.DISCARDED,
    Verb.REPRIORITISE: EventKind.REPRIORITISED,
    Verb.MOVE: EventKind.MOVED,
}
WAITS = "SELECT cardinality(pg_catalog.pg_blocking_pids($1)) > 0"


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def dead(queue: Queue, count: int, topic: str = "mail", **options: Any) -> list[JobId]:
    """Jobs that failed for good."""
    ids = await queue.add(count, topic, **options)
    while (claimed := await queue.claim(1_000, topic)).ids:
        await queue.settle(*((job_id, epoch, BOOM) for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True)))
    return ids


async def start(queue: Queue, verb: Verb, text: str, **more: Any) -> BulkOperation:
    plan = Plan(verb=verb, matching=parse(text), reason=more.pop("reason", "since"), **more)
    tenant = await queue.tenant_no()
    expected = await bulk.count(queue.db, tenant, plan.effective)
    return await bulk.start(queue.db, queue.names, tenant, new_id(), plan, who="ana", expected=expected)


async def chunk(queue: Queue) -> Chunk | None:
    return await bulk_chunks.run_chunk(queue.db, queue.names, instance_no=0)


async def finish(queue: Queue, one: BulkOperation) -> BulkOperation:
    async with asyncio.timeout(60):
        while await chunk(queue) is not None:
            pass
    return await bulk.get(queue.db, await queue.tenant_no(), one.id)


async def changes(queue: Queue, kind: EventKind) -> Counter[UUID]:
    """How often each job has such an event."""
    rows = await queue.db.fetch("SELECT job_id FROM headgate.job_events WHERE kind = $1", int(kind))
    return Counter(row[0] for row in rows)


def counts(one: BulkOperation) -> tuple[int, int, int, int]:
    return one.matched, one.changed, one.skipped, one.errors


# --- the verbs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", list(Verb))
async def test_each_verb_changes_what_matches_once_with_actor_and_reason(queue: Queue, verb: Verb) -> None:
    tenant = await queue.tenant_no()
    ended = verb in (Verb.REDRIVE, Verb.DISCARD)
    ids = await dead(queue, 30, "mail", tags=["red"]) if ended else await queue.add(30, "mail", tags=["red"])
    await queue.add(5, "mail")
    await queue.add(5, "sms", tags=["red"])
    more: dict[Verb, dict[str, Any]] = {Verb.REPRIORITISE: {"priority": 7}, Verb.MOVE: {"topic": "letters"}}
    one = await finish(queue, await start(queue, verb, "topic:mail tag:red", **more.get(verb, {})))
    assert (one.state, counts(one), one.expected) == (Progress.DONE, (30, 30, 0, 0), 30)
    assert await changes(queue, KIND[verb]) == Counter(ids)
    event = (await reads.events(queue.db, tenant, ids[0]))[-1]
    assert (event.actor, event.reason) == ("ana", "since")
    if verb is not Verb.DISCARD:
        job = await reads.get(queue.db, tenant, ids[0])
        expected = {Verb.CANCEL: State.CANCELLED}.get(verb, State.PENDING)
        assert job.state is expected
        assert job.priority == (7 if verb is Verb.REPRIORITISE else 0)
    told = [(entry.actor, entry.verb, entry.reason) for entry in await audit.entries(queue.db, tenant)]
    assert told == [("ana", "end_bulk", "since"), ("ana", "start_bulk", "since")]


async def test_redriven_jobs_keep_their_order_and_their_delay(queue: Queue) -> None:
    ids = await dead(queue, 6)
    await finish(queue, await start(queue, Verb.REDRIVE, "topic:mail"))
    assert list((await queue.claim(10)).ids) == ids
    later = await dead(queue, 2, "sms")
    await start(queue, Verb.REDRIVE, "topic:sms", delay=timedelta(hours=1))
    assert (done := await chunk(queue)) is not None
    assert (done.changed, done.over, list(done.requeued)) == (2, True, [])  # no one is to look for them now
    assert {(await reads.get(queue.db, await queue.tenant_no(), i)).state for i in later} == {State.SCHEDULED}


async def test_without_a_state_a_verb_means_what_it_is_for(queue: Queue) -> None:
    """A redrive of a topic does not repeat what succeeded, nor bring back what was cancelled."""
    (bad,) = await dead(queue, 1)
    (good,) = await queue.add(1)
    await queue.claim(1)
    await queue.settle((good, 1, Completed()))
    one = await finish(queue, await start(queue, Verb.REDRIVE, "topic:mail"))
    assert one.filter == "state:dead topic:mail"
    assert await changes(queue, EventKind.REDRIVEN) == Counter([bad])
    one = await finish(queue, await start(queue, Verb.REDRIVE, "topic:mail state:completed"))
    assert await changes(queue, EventKind.REDRIVEN) == Counter([bad, good])


async def test_what_a_verb_cannot_change_is_skipped_and_counted(queue: Queue) -> None:
    await queue.add(5)
    await queue.claim(2)
    one = await finish(queue, await start(queue, Verb.REPRIORITISE, "topic:mail state:pending,running", priority=5))
    assert counts(one) == (5, 3, 2, 0)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"verb": Verb.CANCEL, "matching": ""}, "an operation on every job must say so"),
        ({"verb": Verb.REDRIVE, "matching": "state:pending"}, "redrive changes none of them"),
        ({"verb": Verb.CANCEL, "matching": "state:dead"}, "it applies to pending, running"),
        ({"verb": Verb.CANCEL, "matching": "state:dead state:pending"}, "no state at all"),
        ({"verb": Verb.REPRIORITISE, "matching": "topic:a"}, "priority: is required"),
        ({"verb": Verb.CANCEL, "matching": "topic:a", "priority": 1}, "priority: is required by reprioritise"),
        ({"verb": Verb.MOVE, "matching": "topic:a"}, "topic: is required by move"),
        ({"verb": Verb.MOVE, "matching": "topic:a", "topic": "not a topic"}, "topic"),
        ({"verb": Verb.CANCEL, "matching": "topic:a", "delay": timedelta(1)}, "delay: is for redrive only"),
        ({"verb": Verb.CANCEL, "matching": "topic:a", "per_second": 0}, "per_second"),
        ({"verb": 9, "matching": "topic:a"}, "verb"),
        ({"verb": Verb.CANCEL, "matching": "topic:a", "reason": "a\nb"}, "reason"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Plan(**plan | {"matching": parse(plan["matching"])})
    assert words in str(caught.value)


# --- what belongs to it -----------------------------------------------------------------------------------------------


async def test_what_comes_after_the_start_is_not_part_of_it(queue: Queue) -> None:
    """Not what is submitted later, nor what dies later; and a job that dies again is not redriven again."""
    before = await dead(queue, 3)
    running = await queue.add(2)
    claimed = await queue.claim(2)
    one = await start(queue, Verb.REDRIVE, "topic:mail")
    await queue.settle(*((job_id, 1, BOOM) for job_id in claimed.ids))
    await dead(queue, 4)
    # Ids are made by clients, whose clocks may be slow: an older id is no older job.
    await dead(queue, 1, id=JobId(UUID(int=before[0].int - (1 << 90))))
    one = await finish(queue, one)
    assert (one.state, one.changed) == (Progress.DONE, 3)
    assert set(await changes(queue, EventKind.REDRIVEN)) == set(before)
    assert not set(running) & set(before)


async def test_an_operation_ends_although_its_verb_makes_new_matches(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_chunks, "SMALLER", (5, 2, 1))
    ids = await dead(queue, 20)
    one = await start(queue, Verb.REDRIVE, "state:dead,pending,completed,cancelled,running,retrying")
    while (done := await chunk(queue)) is not None and not done.over:
        claimed = await queue.claim(100)  # each redriven job dies at once, and matches again
        await queue.settle(*((i, e, BOOM) for i, e in zip(claimed.ids, claimed.epochs, strict=True)))
    assert await changes(queue, EventKind.REDRIVEN) == Counter(ids)
    assert (await bulk.get(queue.db, await queue.tenant_no(), one.id)).state is Progress.DONE


async def test_what_no_longer_matches_when_its_turn_comes_is_left_alone(queue: Queue, database: str) -> None:
    """Between reading and locking, someone redrives a job and it completes: it is dead no more, and stays so."""
    (job_id,) = await dead(queue, 1)
    tenant = await queue.tenant_no()
    await start(queue, Verb.REDRIVE, "state:dead")
    other = await connect(database, application_name="other")
    rival = Queue(other)
    holding = other.transaction()
    await holding.start()
    await other.execute("SELECT FROM headgate.archive WHERE id = $1 FOR UPDATE", job_id)
    work = asyncio.create_task(chunk(queue))
    await until_async(lambda: other.fetchval(WAITS, queue.db.get_server_pid()), "the chunk waits for the job")
    await other.execute("SELECT headgate.redrive_v1($1, $2, '{}', 0, 'ben', '')", tenant, [job_id])
    claimed = await rival.claim(1)
    await rival.settle((job_id, claimed.epochs[0], Completed()))
    await holding.commit()
    done = await work
    assert done is not None
    assert (done.matched, done.changed, done.skipped) == (1, 0, 1)
    assert (await reads.get(queue.db, tenant, job_id)).state is State.COMPLETED
    await other.close()


async def test_a_job_that_is_claimed_before_its_turn_is_not_cancelled_with_the_pending_ones(
    queue: Queue, database: str
) -> None:
    """A cancel reaches running jobs too, but this operation is for those that have not begun."""
    (job_id,) = await queue.add()
    await start(queue, Verb.CANCEL, "state:pending")
    async with stranger(database) as other:
        assert (await Queue(other).claim(1)).ids == (job_id,)
        work = asyncio.create_task(chunk(queue))
        await until_async(lambda: other.fetchval(WAITS, queue.db.get_server_pid()), "the chunk waits for the job")
    done = await work
    assert done is not None
    assert (done.matched, done.changed, done.skipped) == (1, 0, 1)
    assert await changes(queue, EventKind.CANCEL_REQUESTED) == Counter()
    assert (await reads.get(queue.db, await queue.tenant_no(), job_id)).state is State.RUNNING


# --- preview, start, look ---------------------------------------------------------------------------------------------


async def test_a_preview_counts_by_state_and_shows_the_newest(queue: Queue) -> None:
    await queue.add(12, tags=["red"])
    await queue.claim(2)
    plan = Plan(verb=Verb.REPRIORITISE, matching=parse("tag:red state:pending,running"), priority=3)
    seen = await bulk.preview(queue.db, queue.names, await queue.tenant_no(), plan)
    assert (seen.counted.by_state, seen.counted.exact, seen.eligible) == (
        {State.PENDING: 10, State.RUNNING: 2},
        True,
        10,
    )
    assert len(seen.sample) == 10
    assert seen.sample[0].topic == "mail"
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.bulk_operations") == 0


async def test_the_same_start_again_is_the_same_operation_and_another_is_a_conflict(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    await queue.add(3)
    same = new_id()
    plan = Plan(verb=Verb.CANCEL, matching=parse("topic:mail"))
    first = await bulk.start(queue.db, queue.names, tenant, same, plan, who="ana")
    await finish(queue, first)
    again = await bulk.start(queue.db, queue.names, tenant, same, plan, who="ana")
    assert (again.id, again.state, again.changed) == (first.id, Progress.DONE, 3)
    assert len(await audit.entries(queue.db, tenant)) == 2
    other = Plan(verb=Verb.CANCEL, matching=parse("topic:sms"))
    with pytest.raises(BulkConflict, match="exists with another plan"):
        await bulk.start(queue.db, queue.names, tenant, same, other, who="ana")


async def test_no_more_operations_are_kept_waiting_than_the_limit(queue: Queue) -> None:
    for _ in range(ACTIVE_MAX):
        await start(queue, Verb.CANCEL, "topic:mail")
    with pytest.raises(Refused, match="100 operations are not over yet"):
        await start(queue, Verb.CANCEL, "topic:mail")


async def test_operations_are_listed_newest_first_and_only_to_their_tenant(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    made = [await start(queue, Verb.CANCEL, f"topic:t{n}") for n in range(4)]
    await bulk.cancel(queue.db, tenant, made[1].id, who="ben")
    listed = await bulk.list_operations(queue.db, tenant, limit=3)
    assert [one.id for one in listed] == [one.id for one in made[:0:-1]]
    rest = await bulk.list_operations(queue.db, tenant, before=listed[-1].id)
    assert [one.id for one in rest] == [made[0].id]
    assert len(await bulk.list_operations(queue.db, tenant, active=True)) == 3
    other = await Queue(queue.db, tenant="other").tenant_no()
    assert await bulk.list_operations(queue.db, other) == []
    for verb in (bulk.get(queue.db, other, made[0].id), bulk.cancel(queue.db, other, made[0].id, who="x")):
        with pytest.raises(NotFound):
            await verb


async def test_operations_that_are_long_over_are_forgotten(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    await finish(queue, await start(queue, Verb.CANCEL, "topic:a"))
    slow = await start(queue, Verb.CANCEL, "topic:d")
    await queue.db.execute("UPDATE headgate.bulk_operations SET rest_until = 'infinity' WHERE id = $1", slow.id)
    await clock.advance(days=29)
    kept = [slow, await finish(queue, await start(queue, Verb.CANCEL, "topic:b"))]
    kept.append(await start(queue, Verb.CANCEL, "topic:c"))
    await bulk.forget_old(queue.db)
    assert len(await bulk.list_operations(queue.db, tenant)) == 4
    await clock.advance(days=2)
    await bulk.forget_old(queue.db)
    assert {one.id for one in await bulk.list_operations(queue.db, tenant)} == {one.id for one in kept}


# --- cancel, rate, trouble --------------------------------------------------------------------------------------------


async def test_after_a_cancel_nothing_more_is_changed(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_chunks, "SMALLER", (4, 2, 1))
    await queue.add(20)
    tenant = await queue.tenant_no()
    one = await start(queue, Verb.CANCEL, "topic:mail")
    await chunk(queue)
    assert (await bulk.get(queue.db, tenant, one.id)).state is Progress.RUNNING
    ended = await bulk.cancel(queue.db, tenant, one.id, who="ben", reason="enough")
    assert (ended.state, ended.changed) == (Progress.CANCELLED, 4)
    assert await chunk(queue) is None
    assert len(await changes(queue, EventKind.CANCELLED)) == 4
    again = await bulk.cancel(queue.db, tenant, one.id, who="ben")
    assert again.finished_at == ended.finished_at
    told = [(entry.actor, entry.verb, entry.reason) for entry in await audit.entries(queue.db, tenant)]
    assert told == [("ben", "cancel_bulk", "enough"), ("ana", "start_bulk", "since")]


async def test_a_rate_limit_is_kept_over_any_second(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await dead(queue, 100)
    one = await start(queue, Verb.REDRIVE, "topic:mail", per_second=20)
    for _ in range(200):
        await chunk(queue)
        await clock.advance(milliseconds=50)
    one = await bulk.get(queue.db, await queue.tenant_no(), one.id)
    assert (one.state, one.changed) == (Progress.DONE, 100)
    times = sorted(
        row[0] for row in await queue.db.fetch("SELECT at FROM headgate.job_events WHERE kind = 8 ORDER BY at")
    )
    for first in times:
        assert sum(first <= at < first + timedelta(seconds=1) for at in times) <= 20
    assert times[-1] - times[0] <= timedelta(seconds=5)  # and it is used


async def test_only_jobs_that_were_changed_count_for_the_rate(queue: Queue) -> None:
    await Clock.install(queue.db)
    await queue.add(3, limit_key="a")  # which cannot be moved
    one = await start(queue, Verb.MOVE, "topic:mail", topic="sms", per_second=1)
    for _ in range(3):
        await chunk(queue)
    one = await bulk.get(queue.db, await queue.tenant_no(), one.id)
    assert counts(one) == (3, 0, 3, 0)


async def test_a_slow_operation_does_not_delay_another(queue: Queue) -> None:
    await dead(queue, 50, "mail")
    await dead(queue, 10, "sms")
    slow = await start(queue, Verb.REDRIVE, "topic:mail", per_second=1)
    quick = await start(queue, Verb.REDRIVE, "topic:sms")
    await chunk(queue)
    await chunk(queue)
    tenant = await queue.tenant_no()
    assert (await bulk.get(queue.db, tenant, quick.id)).state is Progress.DONE
    assert (await bulk.get(queue.db, tenant, slow.id)).changed == 1


@pytest.mark.parametrize("place", [20, -1])
async def test_a_job_that_cannot_be_changed_is_passed_over_and_counted(queue: Queue, place: int) -> None:
    clock = await Clock.install(queue.db)
    ids = await dead(queue, 60)
    poison = ids[place]
    await queue.db.execute(
        f"""CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF OLD.id = '{poison}' THEN RAISE EXCEPTION 'broken row'; END IF; RETURN OLD; END $$;
            CREATE TRIGGER refuse BEFORE DELETE ON headgate.archive FOR EACH ROW EXECUTE FUNCTION public.refuse()"""
    )
    one = await start(queue, Verb.REDRIVE, "topic:mail")
    await clock.advance(seconds=1)
    await dead(queue, 1)  # after the start: it is neither changed nor passed over
    for _ in range(100):
        await chunk(queue)
        await clock.advance(seconds=1)
    one = await bulk.get(queue.db, await queue.tenant_no(), one.id)
    assert (one.state, counts(one)) == (Progress.DONE, (60, 59, 0, 1))
    assert "broken row" in one.error
    assert await changes(queue, EventKind.REDRIVEN) == Counter(set(ids) - {poison})


async def test_a_job_that_cannot_be_changed_is_passed_over_after_three_tries(queue: Queue) -> None:
    clock = await Clock.install(queue.db)
    await dead(queue, 1)
    await queue.db.execute(
        """CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'broken row'; END $$;
           CREATE TRIGGER refuse BEFORE DELETE ON headgate.archive FOR EACH ROW EXECUTE FUNCTION public.refuse()"""
    )
    one = await start(queue, Verb.REDRIVE, "topic:mail")
    for _ in range(3):
        assert (await bulk.get(queue.db, await queue.tenant_no(), one.id)).state is Progress.PENDING
        await chunk(queue)
        await clock.advance(seconds=1)
    one = await bulk.get(queue.db, await queue.tenant_no(), one.id)
    assert (one.state, counts(one)) == (Progress.DONE, (1, 0, 0, 1))


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_chunk_that_failed_leaves_alone_what_another_instance_did_since(
    queue: Queue, database: str, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A job cannot be changed once. Before that is noted, another instance has changed it and gone on."""
    await queue.add(2)
    await queue.db.execute(
        """CREATE SEQUENCE public.tries;
           CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
           BEGIN IF nextval('public.tries') = 1 THEN RAISE EXCEPTION 'broken row'; END IF; RETURN OLD; END $$;
           CREATE TRIGGER refuse BEFORE DELETE ON headgate.jobs FOR EACH ROW EXECUTE FUNCTION public.refuse()"""
    )
    one = await start(queue, Verb.CANCEL, "topic:mail", per_second=1)  # so a chunk is one job
    await queue.db.execute("UPDATE headgate.bulk_operations SET failures = $1", failures)
    other = Queue(await connect(database, application_name="another instance"))
    begun: list[Connection] = []
    real = bulk.transaction

    @asynccontextmanager
    async def transaction(db: Connection) -> AsyncIterator[None]:
        begun.append(db)
        if begun == [queue.db, queue.db]:  # the chunk is rolled back, and its failure not noted yet
            assert (await chunk(other) or Chunk(tenant_no=0, operation_id=new_id())).changed == 1
        async with real(db):
            yield

    monkeypatch.setattr(bulk_chunks, "transaction", transaction)
    try:
        await chunk(queue)
    finally:
        await other.db.close()
    one = await bulk.get(queue.db, await queue.tenant_no(), one.id)
    assert (one.state, counts(one), one.error) == (Progress.RUNNING, (1, 1, 0, 0), "")
    assert await queue.db.fetchval("SELECT failures FROM headgate.bulk_operations") == 0


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ("moon:full", 'there is no "moon"'),
        ("topic:" + "*a" * 40 + "*b", "has 41 wildcards; the limit is 10"),
        ("tag:" + "x" * 5_000, "over the limit of 4000 characters"),
    ],
    ids=["unknown", "hostile", "endless"],
)
async def test_an_unreadable_filter_fails_the_operation_after_a_while(queue: Queue, stored: str, problem: str) -> None:
    """Not at once: during an upgrade, an instance of the release that started it may be there."""
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    await queue.add(1, "a" * 200)
    one = await start(queue, Verb.CANCEL, "topic:mail")
    await queue.db.execute("UPDATE headgate.bulk_operations SET filter = $1", stored)
    began = clock.now
    while (seen := await bulk.get(queue.db, tenant, one.id)).state < Progress.DONE:
        await chunk(queue)
        await clock.advance(seconds=1)
    assert seen.state is Progress.FAILED
    assert problem in seen.error
    assert timedelta(seconds=60) <= clock.now - began <= timedelta(seconds=70)
    assert (await audit.entries(queue.db))[0].verb == "fail_bulk"


@pytest.mark.parametrize("failures", [0, bulk_chunks.UNREADABLE_MOST])
async def test_an_operation_that_is_cancelled_meanwhile_does_not_fail(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    tenant = await queue.tenant_no()
    one = await start(queue, Verb.CANCEL, "topic:mail")
    await queue.db.execute("UPDATE headgate.bulk_operations SET filter = 'moon:full', failures = $1", failures)
    begun: list[Connection] = []
    real = bulk.transaction

    @asynccontextmanager
    async def transaction(db: Connection) -> AsyncIterator[None]:
        begun.append(db)
        if len(begun) == 2:  # the chunk is rolled back, and its failure not noted yet
            await bulk.cancel(queue.db, tenant, one.id, who="ben")
        async with real(db):
            yield

    monkeypatch.setattr(bulk_chunks, "transaction", transaction)
    await chunk(queue)
    assert len(begun) == 2
    ended = await bulk.get(queue.db, tenant, one.id)
    assert (ended.state, ended.error) == (Progress.CANCELLED, "")
    assert (await audit.entries(queue.db, tenant))[0].verb == "cancel_bulk"


async def test_an_operation_that_is_always_too_slow_fails_and_lets_others_go_on(queue: Queue, database: str) -> None:
    """Cancelled by statement_timeout each time, it would be taken up again before all others each time."""
    clock = await Clock.install(queue.db)
    tenant = await queue.tenant_no()
    await queue.add(3)
    slow = await start(queue, Verb.CANCEL, "topic:mail priority:>=0")
    blocker = await connect(database, application_name="blocker")
    try:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE headgate.archive IN ACCESS EXCLUSIVE MODE")
            await queue.db.execute("SET statement_timeout = '300ms'")
            for _ in range(bulk_chunks.SLOW_MOST + 1):
                assert (seen := await bulk.get(queue.db, tenant, slow.id)).state is Progress.PENDING
                await chunk(queue)
                await clock.advance(seconds=4)
        seen = await bulk.get(queue.db, tenant, slow.id)
        assert (seen.state, seen.changed) == (Progress.FAILED, 0)
        assert "too broad" in seen.error
    finally:
        await blocker.close()
    await queue.db.execute("SET statement_timeout = '30s'")
    other = await start(queue, Verb.CANCEL, "topic:mail")
    assert (await finish(queue, other)).changed == 3
