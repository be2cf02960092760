"""Retention against a real PostgreSQL: what is old goes, with everything that hangs on it; nothing else goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import asyncpg
import pytest

from headgate.dispatch.retention import Retention
from headgate.domain.bulk import Plan, Verb
from headgate.domain.dependencies import NewBatch, Unique
from headgate.domain.errors import InvalidInput, NotFound, StoreUnavailable
from headgate.domain.filter_parser import parse
from headgate.domain.ids import JobId
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Outcome
from headgate.domain.retention import Removed, RetentionRules
from headgate.domain.schedules import At, Every, Overlap, ScheduleSpec, plan
from headgate.domain.states import State, SubmitReceipt
from headgate.server import Server, ServerOptions
from headgate.store import (
    bulk,
    control,
    dependencies,
    partitions,
    quiet,
    reads,
    retention,
    schedule_firing,
    schedules,
    topics,
    upkeep,
    verbs,
)
from headgate.store.batches import batch_status, expire_batches, open_batch, seal_batch
from headgate.store.connect import Connection
from headgate.store.partitions import ensure_partitions
from tests.support.queue import Clock, Queue, links, new_id
from tests.support.waiting import until_async

DAY = timedelta(days=1)
DIES = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
START = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC) + timedelta(hours=12)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


@pytest.fixture
async def clock(db: Connection) -> Clock:
    return await Clock.install(db, START)


async def end(
    queue: Queue, outcome: Outcome | None, count: int = 1, topic: str = "mail", **options: object
) -> list[JobId]:
    """Jobs that ended so; None: they were cancelled."""
    jobs = await queue.add(count, topic, **options)
    if outcome is None:
        await verbs.cancel(queue.db, await queue.tenant_no(), jobs, who="ana")
        return jobs
    claimed = await queue.claim(count, topic)
    assert set(claimed.ids) == set(jobs)
    await queue.settle(*((i, e, outcome) for i, e in zip(claimed.ids, claimed.epochs, strict=True)))
    return jobs


async def one_of_each(queue: Queue, topic: str = "mail") -> dict[State, JobId]:
    ends = ((State.COMPLETED, Completed()), (State.DEAD, DIES), (State.CANCELLED, None))
    return {state: (await end(queue, outcome, 1, topic))[0] for state, outcome in ends}


async def later(clock: Clock, db: Connection, **span: float) -> None:
    await clock.advance(**span)
    await ensure_partitions(db)


async def known(queue: Queue, jobs: Sequence[UUID]) -> list[UUID]:
    found: list[UUID] = []
    for job_id in jobs:
        try:
            found.append((await reads.get(queue.db, await queue.tenant_no(), job_id)).id)
        except NotFound:
            continue
    return found


async def all_passes(db: Connection) -> Removed:
    """Pass after pass until nothing is left to do: every one of them does something, so it comes to an end."""
    jobs = days = other = 0
    while True:
        done = await retention.run_pass(db)
        jobs, days, other = jobs + done.jobs, days + done.days, other + done.other
        if not (done.jobs or done.days or done.other or done.more):
            return Removed(jobs=jobs, days=days, other=other)


async def counts_agree(queue: Queue) -> None:
    """The counts that are reported are those of the rows."""
    tenant = await queue.tenant_no()
    for topic_no, states in (await reads.counts(queue.db, tenant)).items():
        for state in State:
            there = await queue.db.fetchval(
                "SELECT (SELECT count(*) FROM headgate.jobs WHERE (tenant_no, topic_no, state) = ($1, $2, $3))"
                " + (SELECT count(*) FROM headgate.archive WHERE (tenant_no, topic_no, state) = ($1, $2, $3))",
                tenant,
                topic_no,
                int(state),
            )
            assert states.get(state, 0) == there, state


# ---------------------------------------------------------------------- rules


async def test_by_default_completed_and_cancelled_jobs_go_after_7_days_and_dead_ones_after_30(
    queue: Queue, clock: Clock
) -> None:
    jobs = await one_of_each(queue)
    await clock.set(START.replace(hour=0) + 8 * DAY - timedelta(microseconds=1))  # the day has been over for 7, but …
    await ensure_partitions(queue.db)
    await all_passes(queue.db)
    assert await known(queue, list(jobs.values())) == list(jobs.values())
    await clock.advance(microseconds=1)
    assert (await retention.run_pass(queue.db)).jobs == 2
    assert await known(queue, list(jobs.values())) == [jobs[State.DEAD]]
    await counts_agree(queue)
    await clock.set(START.replace(hour=0) + 31 * DAY - timedelta(microseconds=1))
    await ensure_partitions(queue.db)
    await all_passes(queue.db)
    assert await known(queue, list(jobs.values())) == [jobs[State.DEAD]]
    await clock.advance(microseconds=1)
    assert (await all_passes(queue.db)).days >= 1
    assert await known(queue, list(jobs.values())) == []
    await counts_agree(queue)


async def test_a_topic_keeps_its_jobs_by_its_own_rules(queue: Queue, clock: Clock) -> None:
    tenant = await queue.tenant_no()
    short, long, plain = [await one_of_each(queue, name) for name in ("short", "long", "plain")]
    await topics.set_topic(queue.db, queue.names, tenant, "short", rules={"keep_dead": DAY, "keep_cancelled": 2 * DAY})
    await topics.set_topic(queue.db, queue.names, tenant, "long", rules={"keep_completed": 90 * DAY})
    left = {}
    for day in (1, 2, 3, 8, 31, 91):
        await clock.set(START + day * DAY)
        await ensure_partitions(queue.db)
        await all_passes(queue.db)
        left[day] = [
            [state for state, job in jobs.items() if await known(queue, [job])] for jobs in (short, long, plain)
        ]
    done, dead, cancelled = State.COMPLETED, State.DEAD, State.CANCELLED
    assert left == {
        1: [[done, dead, cancelled]] * 3,
        2: [[done, cancelled], [done, dead, cancelled], [done, dead, cancelled]],
        3: [[done], [done, dead, cancelled], [done, dead, cancelled]],
        8: [[], [done, dead], [dead]],
        31: [[], [done], []],
        91: [[], [], []],
    }
    await counts_agree(queue)


async def test_rules_are_changed_at_run_time_and_days_that_were_walked_are_walked_again(
    queue: Queue, clock: Clock
) -> None:
    jobs = await one_of_each(queue)
    await later(clock, queue.db, days=10)
    assert (await all_passes(queue.db)).jobs == 2
    assert await retention.rules(queue.db) == RetentionRules()
    changed = await retention.set_rules(queue.db, {"dead": 9 * DAY}, actor="ana", reason="disk")
    assert changed == RetentionRules(dead=9 * DAY) == await retention.rules(queue.db)
    await all_passes(queue.db)
    assert await known(queue, list(jobs.values())) == []
    (entry,) = await queue.db.fetch("SELECT tenant_no, actor, verb, reason, detail FROM headgate.audit")
    assert entry[:4] == (0, "ana", "set_retention", "disk")
    assert '"dead": 777600.0' in entry[4]
    for changes in ({}, {"dead": timedelta(hours=23)}, {"audit": 3_651 * DAY}):
        with pytest.raises(InvalidInput):
            await retention.set_rules(queue.db, changes, actor="ana", reason="")


async def test_status_says_what_is_kept_and_how_far_behind_the_removal_is(queue: Queue, clock: Clock) -> None:
    status = await retention.status(queue.db)
    assert (status.rules, status.days_waiting, status.oldest_waiting) == (RetentionRules(), 0, None)
    await one_of_each(queue)
    await later(clock, queue.db, days=1)
    await one_of_each(queue)
    await later(clock, queue.db, days=8)
    status = await retention.status(queue.db)
    yesterday = START.date() - DAY  # made with the schema, and empty
    assert (status.oldest_day, status.days_waiting, status.oldest_waiting) == (yesterday, 3, yesterday)
    await all_passes(queue.db)
    status = await retention.status(queue.db)
    assert (status.oldest_day, status.days_waiting, status.oldest_waiting) == (START.date(), 0, None)
    await later(clock, queue.db, days=40)  # as a whole, now
    assert (await retention.status(queue.db)).days_waiting > 2
    await all_passes(queue.db)
    status = await retention.status(queue.db)
    assert (status.days_waiting, status.oldest_waiting) == (0, None)


# ---------------------------------------------------------------------- nothing is left behind

# Every table of the schema, and how many rows it has when all that `everything` made is old and gone: a new table fails
# the test until it is decided here who clears it.
NEVER_CLEARED = {
    "tenants": 1,  # names, interned for good
    "topics": 6,
    "retry_policies": 1,
    "migrations": None,
    "retention": 1,  # settings
    "role_tenants": 0,  # who may submit, as the owner says
    "epoch_floors": 0,  # one for each restore of a backup
    "arrivals_floor": 1,  # how far arrivals are forgotten
    "topic_limits": 1,
    "dispatch_control": 2,
    "state_counts": None,  # one row for each topic and state
}
CLEARED = {
    "jobs",
    "archive",
    "job_events",
    "payloads",
    "job_tags",
    "job_limit_keys",
    "limit_line",
    "limit_usage",
    "job_dependencies",
    "dependency_checks",
    "unique_jobs",
    "unique_calls",
    "batches",
    "batch_jobs",
    "schedules",
    "schedule_jobs",
    "idempotency_keys",
    "resent_ids",
    "flow_deltas",
    "flow_minutes",
    "quiet_names",
    "bulk_operations",
    "audit",
    "instances",
    "retention_days",
    "arrivals",
}
TABLES = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'headgate' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"""


async def everything(queue: Queue, clock: Clock) -> None:
    """Something in every table, all of it at an end."""
    db, tenant = queue.db, await queue.tenant_no()
    await db.execute("INSERT INTO headgate.instances (name, version, seen_at) VALUES ('old', '0', headgate.clock_v1())")
    await topics.set_topic(
        db, queue.names, tenant, (await queue.topic("keyed")).name, changes={"max_running_per_key": 1}
    )
    await verbs_of_operators(queue)
    for on_conflict in ("keep", "replace"):
        await queue.submit(queue.job(unique=Unique(key="changed", on_conflict=on_conflict)))
    await end_all(queue, "mail", Completed())
    for outcome in (Completed(), DIES, None):
        await end(queue, outcome, 2, payload=b"l" * 3_000, tags=["red", "green"])
        await end(queue, outcome, 1, "keyed", limit_key="customer")
        await end(queue, outcome, 1, key=f"key of {outcome}", key_window=timedelta(days=3))
        await end(queue, outcome, 1, id=new_id(), unique=Unique(key="only"))
        (parent,) = await queue.add(1, "parents")
        await queue.add(1, "children", depends_on=[parent], on_parent_failure="block")
        await end_all(queue, "parents", outcome, [parent])
        batch, callback = NewBatch(id=new_id()), queue.job("done")
        await open_batch(db, queue.names, tenant, batch, callback=callback)
        members = await queue.add(2, batch=batch.id)
        await end_all(queue, "mail", outcome, members)
        await seal_batch(db, tenant, batch.id)
    (waiting,) = await queue.add(1, "keyed", limit_key="customer")
    await end_all(queue, "keyed", None, [waiting])
    while (await dependencies.unblock_ready(db))[1]:
        pass
    await end_all(queue, "children", Completed())
    await end_all(queue, "done", Completed())
    for name, timing in (("once", At(at=clock.now + DAY)), ("often", Every(interval=timedelta(hours=12)))):
        spec = ScheduleSpec(topic="mail", timing=timing, overlap=Overlap.SKIP).checked(now=clock.now)
        await schedules.put(db, queue.names, tenant, name, spec, expected=None, who="ana")
    await later(clock, db, days=1)
    due = await schedule_firing.due(db, limit=10)
    assert (await schedule_firing.fire(db, [plan(one, now=due.now) for one in due.schedules])).made == 2
    await end_all(queue, "mail", Completed())
    await schedules.delete(db, queue.names, tenant, "often", expected=None, who="ana", reason="")


async def verbs_of_operators(queue: Queue) -> None:
    db, tenant = queue.db, await queue.tenant_no()
    await quiet.quiet(db, tenant, "worker", reason="", who="ana", span=DAY)
    await control.pause(db, (tenant, (await queue.topic("paused")).no))
    await control.resume(db, (tenant, (await queue.topic("paused")).no))
    (old,) = await end(queue, DIES)
    await verbs.redrive(db, tenant, [old])
    await end_all(queue, "mail", DIES)
    await verbs.discard(db, tenant, [old])
    made = await bulk.start(
        db, queue.names, tenant, new_id(), Plan(verb=Verb.CANCEL, matching=parse("topic:mail")), who="ana"
    )
    await bulk.cancel(db, tenant, made.id, who="ana", reason="")


async def end_all(queue: Queue, topic: str, outcome: Outcome | None, jobs: Sequence[UUID] = ()) -> None:
    if outcome is None:
        await verbs.cancel(queue.db, await queue.tenant_no(), list(jobs), who="ana")
        return
    claimed = await queue.claim(50, topic)
    await queue.settle(*((i, e, outcome) for i, e in zip(claimed.ids, claimed.epochs, strict=True)))


async def aged(queue: Queue, clock: Clock, *, days: int) -> None:
    await later(clock, queue.db, days=days)
    await all_passes(queue.db)
    while (await dependencies.unblock_ready(queue.db))[1]:
        pass


async def rows(db: Connection) -> dict[str, int]:
    return {
        name: await db.fetchval(f"SELECT count(*) FROM headgate.{name}")
        for name in sorted(row[0] for row in await db.fetch(TABLES))
    }


async def test_when_everything_is_old_no_row_is_left_in_any_table_of_the_schema(queue: Queue, clock: Clock) -> None:
    db = queue.db
    assert set(await rows(db)) == NEVER_CLEARED.keys() | CLEARED
    await everything(queue, clock)
    await upkeep.fold_flows(db)
    filled = await rows(db)
    momentary = {"dependency_checks", "flow_deltas", "limit_line", "jobs", "retention_days"}  # filled for moments only
    assert [name for name in CLEARED - momentary if not filled[name]] == []
    assert filled["jobs"] == 2  # they wait for the redrive of a dead and of a cancelled parent
    await aged(queue, clock, days=8)  # some go one by one …
    assert 0 < (await rows(db))["archive"] < filled["archive"]
    await aged(queue, clock, days=32)  # … the rest by the day
    assert (await rows(db))["jobs"] == 0
    await aged(queue, clock, days=366)
    await quiet.forget_quiet(db)
    await schedule_firing.forget_ended(db)
    forgotten, _ = await retention.forget_batches(db)
    assert forgotten == filled["batches"]
    await upkeep.mend_limits(db)
    await upkeep.fold_flows(db)
    for _ in range(2):  # in the second round: what was there at the first
        await upkeep.forget_arrivals(db, apart_ms=0)
    await aged(queue, clock, days=31)  # the counts of those minutes
    left = await rows(db)
    assert {name: count for name, count in left.items() if name in CLEARED and count} == {}
    assert {name: left[name] for name, count in NEVER_CLEARED.items() if count is not None} == {
        name: count for name, count in NEVER_CLEARED.items() if count is not None
    }
    assert await db.fetchval("SELECT coalesce(sum(n), 0) FROM headgate.state_counts") == 0


async def test_what_hangs_on_jobs_that_stay_is_left_alone(queue: Queue, clock: Clock) -> None:
    """The same day, the same kinds: completed jobs go row by row, dead ones stay with all they have."""
    options = {"payload": b"l" * 3_000, "tags": ["red"], "limit_key": "customer"}
    gone = await end(queue, Completed(), 3, **options)
    kept = await end(queue, DIES, 3, **options)
    live = await queue.add(3, **options)
    await later(clock, queue.db, days=9)
    assert (await all_passes(queue.db)).jobs == 3
    assert await known(queue, [*gone, *kept, *live]) == [*kept, *live]
    for table, column in (("payloads", "id"), ("job_tags", "job_id"), ("job_limit_keys", "job_id")):
        found = {row[0] for row in await queue.db.fetch(f"SELECT {column} FROM headgate.{table}")}
        assert found == {*kept, *live}, table
    tenant = await queue.tenant_no()
    assert [len(await reads.events(queue.db, tenant, job_id)) > 0 for job_id in kept] == [True] * 3
    assert set(await verbs.redrive(queue.db, tenant, kept)) == set(kept)
    assert set((await queue.claim(10)).payloads) == {b"l" * 3_000}
    await counts_agree(queue)


# ---------------------------------------------------------------------- what others rely on


async def test_an_idempotency_key_lives_for_its_window_also_when_its_job_is_gone(queue: Queue, clock: Clock) -> None:
    (job,) = await end(queue, Completed(), 1, key="order 1", key_window=20 * DAY)
    await later(clock, queue.db, days=19)
    await all_passes(queue.db)
    assert await known(queue, [job]) == []
    (again,) = await queue.submit(queue.job(key="order 1", key_window=20 * DAY))
    assert (again.id, again.receipt) == (job, SubmitReceipt.DUPLICATE)
    await later(clock, queue.db, days=2)
    await all_passes(queue.db)
    (new,) = await queue.submit(queue.job(key="order 1", key_window=20 * DAY))
    assert new.receipt is SubmitReceipt.CREATED


async def test_a_live_child_of_a_parent_that_is_gone_goes_on_waiting_for_the_other(queue: Queue, clock: Clock) -> None:
    first, second = await queue.add(2, "parents")
    (child,) = await queue.add(1, depends_on=[first, second])
    claimed = await queue.claim(1, "parents")
    await queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
    await later(clock, queue.db, days=9)
    await all_passes(queue.db)
    assert await known(queue, [first, second, child]) == [second, child]
    assert (await dependencies.unblock_ready(queue.db))[0] == []
    assert (await reads.get(queue.db, await queue.tenant_no(), child)).state is State.BLOCKED
    claimed = await queue.claim(1, "parents")
    await queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
    assert [job for _, _, job in (await dependencies.unblock_ready(queue.db))[0]] == [child]


async def test_a_child_that_waits_for_the_redrive_of_a_dead_parent_is_cancelled_when_that_is_removed(
    queue: Queue, clock: Clock
) -> None:
    (parent,) = await queue.add(1, "parents")
    (child,) = await queue.add(1, depends_on=[parent], on_parent_failure="block")
    await end_all(queue, "parents", DIES)
    tenant = await queue.tenant_no()
    await topics.set_topic(queue.db, queue.names, tenant, "parents", rules={"keep_dead": 2 * DAY})
    await later(clock, queue.db, days=4)
    assert (await all_passes(queue.db)).jobs == 1  # by row, not by day
    await dependencies.unblock_ready(queue.db)
    assert (await reads.get(queue.db, tenant, child)).state is State.CANCELLED
    assert (await reads.events(queue.db, tenant, child))[-1].reason == f"it waited for {parent}, which is gone"


async def test_a_batch_goes_on_counting_members_that_are_gone_until_its_last_job_is(queue: Queue, clock: Clock) -> None:
    db, tenant = queue.db, await queue.tenant_no()
    batch, callback = NewBatch(id=new_id(), expires_in=60 * DAY), queue.job("done")
    await open_batch(db, queue.names, tenant, batch, callback=callback)
    await end(queue, Completed(), 2, batch=batch.id)
    await end(queue, None, 1, batch=batch.id)
    (slow,) = await queue.add(1, batch=batch.id)
    await later(clock, db, days=9)
    await all_passes(db)
    status = await batch_status(db, tenant, batch.id)
    assert (status.total, status.counted) == (4, 4)
    assert status.counts == {State.COMPLETED: 2, State.CANCELLED: 1, State.PENDING: 1}
    await seal_batch(db, tenant, batch.id)
    assert (await batch_status(db, tenant, batch.id)).total == 4
    assert (await dependencies.unblock_ready(db))[0] == []
    await end_all(queue, "mail", Completed())
    assert [job for _, _, job in (await dependencies.unblock_ready(db))[0]] == [callback.id]
    await later(clock, db, days=9)
    await all_passes(db)
    assert await known(queue, [slow]) == []
    assert await retention.forget_batches(db) == (0, retention._BEGINNING)  # its callback is not through
    assert (await batch_status(db, tenant, batch.id)).counts == {State.COMPLETED: 3, State.CANCELLED: 1}
    await end_all(queue, "done", Completed())
    await later(clock, db, days=9)
    assert (await retention.forget_batches(db))[0] == 0  # it is known still
    await all_passes(db)
    assert (await retention.forget_batches(db))[0] == 1


async def test_batches_with_old_jobs_do_not_hide_those_behind_them(queue: Queue, clock: Clock) -> None:
    """Sealed first, and their jobs are there for long: what was sealed later is forgotten nevertheless."""
    db, tenant = queue.db, await queue.tenant_no()
    kept = []
    for _ in range(5):
        batch = NewBatch(id=new_id())
        await open_batch(db, queue.names, tenant, batch)
        await queue.add(1, batch=batch.id)
        await seal_batch(db, tenant, batch.id)
        kept.append(batch.id)
        await clock.advance(seconds=1)
    await open_batch(db, queue.names, tenant, NewBatch(id=new_id()))
    (empty,) = [row[0] for row in await db.fetch("SELECT id FROM headgate.batches WHERE sealed_at IS NULL")]
    await seal_batch(db, tenant, empty)
    await open_batch(db, queue.names, tenant, NewBatch(id=new_id(), expires_in=DAY))  # it is never sealed
    await later(clock, db, days=1)
    assert await expire_batches(db) == 1
    assert (await retention.forget_batches(db))[0] == 0  # a day is to be over: sealed exactly one ago is not
    await clock.advance(seconds=1)
    forgotten, after = await retention.forget_batches(db, limit=2)
    found = [forgotten]
    while after != retention._BEGINNING:
        forgotten, after = await retention.forget_batches(db, after, limit=2)
        found.append(forgotten)
    assert found == [0, 0, 1, 0][: len(found)]
    assert {row[0] for row in await db.fetch("SELECT id FROM headgate.batches WHERE NOT expired")} == set(kept)
    await later(clock, db, days=2)
    assert (await retention.forget_batches(db))[0] == 1  # the one that was never sealed, a day after it was closed
    assert {row[0] for row in await db.fetch("SELECT id FROM headgate.batches")} == set(kept)


# ---------------------------------------------------------------------- bounded, repeatable, on every instance


async def test_a_pass_is_bounded_and_the_next_goes_on_where_it_stopped(queue: Queue, clock: Clock) -> None:
    await end(queue, Completed(), 10)
    await end(queue, DIES, 10)
    await later(clock, queue.db, days=9)
    assert await retention.run_pass(queue.db, seconds=0) == Removed(more=True)
    looked = []
    while True:
        row = await queue.db.fetchrow("SELECT * FROM headgate.retire_chunk_v1($1, 6, false)", START.date())
        looked.append(row["looked"])
        if row["done"]:
            break
    assert looked == [6, 6, 6, 2]
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.archive") == 10
    # Walked: the next look at it is a look at one row.
    row = await queue.db.fetchrow("SELECT * FROM headgate.retire_chunk_v1($1, 6, false)", START.date())
    assert (row["looked"], row["removed"], row["done"]) == (0, 0, True)
    await counts_agree(queue)


async def test_a_pass_goes_on_with_expired_keys_while_it_has_time(queue: Queue, clock: Clock) -> None:
    left = "SELECT count(*) FROM headgate.idempotency_keys"
    for n in range(9):
        await queue.add(key=f"k{n}", key_window=timedelta(hours=1))
    await later(clock, queue.db, hours=2)
    assert (await retention.run_pass(queue.db, seconds=0, chunk=2)).more
    assert await queue.db.fetchval(left) == 7, "out of time: one chunk"
    await retention.run_pass(queue.db, seconds=120, chunk=2)
    assert await queue.db.fetchval(left) == 0


async def test_a_day_that_is_old_as_a_whole_is_cleared_in_bounded_passes_too(
    queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(queue, Completed(), 45, payload=b"l" * 3_000)
    await later(clock, queue.db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 10)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 20)
    left = [45]
    while (await retention.run_pass(queue.db, chunk=10)).more:
        left.append(await queue.db.fetchval("SELECT count(*) FROM headgate.payloads"))
    assert max(before - after for before, after in pairwise(left)) == 20  # a day without jobs takes a chunk, too
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NULL", f"headgate.archive_{START:%Y%m%d}")
    await counts_agree(queue)


async def test_a_job_submitted_again_while_its_day_is_cleared_keeps_its_payload_and_its_limit_key(
    queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await end(queue, Completed(), 12, payload=b"l" * 3_000, tags=["red"], limit_key="k")
    await later(clock, queue.db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 5)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 5)
    again, past = max(jobs), f"headgate.archive_{START:%Y%m%d}"
    while not await queue.db.fetchval("SELECT count(*) BETWEEN 1 AND 11 FROM headgate.payloads"):
        assert (await retention.run_pass(queue.db, chunk=5)).more
    new = queue.job(id=again, payload=b"n" * 3_000, tags=["green"], limit_key="other")
    assert [done.receipt for done in await queue.submit(new)] == [SubmitReceipt.CREATED]
    while (await retention.run_pass(queue.db, chunk=5)).more:
        pass
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NULL", past)
    claimed = await queue.claim(10)
    assert (list(claimed.ids), list(claimed.payloads)) == ([again], [b"n" * 3_000])
    keys = [tuple(row) for row in await queue.db.fetch("SELECT job_id, limit_key FROM headgate.job_limit_keys")]
    assert keys == [(again, "other")]
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_tags WHERE tag = 'green'") == 1
    await queue.settle((again, claimed.epochs[0], Completed()))
    await counts_agree(queue)


@pytest.mark.parametrize("second_life", ["plain", "tagged", "linked"])
async def test_a_job_submitted_again_while_its_day_is_cleared_has_nothing_of_its_first_life(
    queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch, second_life: str
) -> None:
    db, tenant = queue.db, await queue.tenant_no()
    first, second = NewBatch(id=new_id()), NewBatch(id=new_id())
    await open_batch(db, queue.names, tenant, first)
    (parent,) = await queue.add(1, "parents")
    for n in range(6):
        own = {"depends_on": [parent], "batch": first.id, "unique": Unique(key=f"u{n}")}
        await queue.submit(queue.job(payload=b"l" * 3_000, tags=["red", "green"], limit_key="k", **own))
    await end_all(queue, "parents", Completed())
    while (await dependencies.unblock_ready(db))[1]:
        pass
    await end_all(queue, "mail", Completed())
    await seal_batch(db, tenant, first.id)
    await later(clock, db, days=40)
    (young,) = await end(queue, Completed(), 1, "other", tags=["blue"])
    monkeypatch.setattr(partitions, "CHUNK", 2)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 2)
    while not await db.fetchval("SELECT count(*) BETWEEN 1 AND 5 FROM headgate.payloads"):
        assert (await retention.run_pass(db, chunk=2)).more
    again = await db.fetchval("SELECT max(id::text)::uuid FROM headgate.payloads")
    options: dict[str, object] = {} if second_life == "plain" else {"tags": ["green"]}
    if second_life == "linked":
        await open_batch(db, queue.names, tenant, second)
        (parent,) = await queue.add(1, "parents")
        options |= {"batch": second.id, "depends_on": [parent], "unique": Unique(key="mine")}
    assert [done.receipt for done in await queue.submit(queue.job(id=again, **options))] == [SubmitReceipt.CREATED]
    repeat = queue.job("other", id=young, tags=["blue"])
    assert [done.receipt for done in await queue.submit(repeat)] == [SubmitReceipt.DUPLICATE]
    while (await retention.run_pass(db, chunk=2)).more:
        pass
    left = {
        name: [tuple(row) for row in await db.fetch(f"SELECT {columns} FROM headgate.{name} ORDER BY 1")]
        for name, columns in (
            ("job_tags", "tag, job_id"),
            ("batch_jobs", "batch_id, job_id"),
            ("job_dependencies", "parent_id, child_id"),
            ("unique_jobs", "key, job_id"),
            ("job_limit_keys", "limit_key, job_id"),
            ("payloads", "id"),
        )
    }
    expected: dict[str, list[tuple[object, ...]]] = {name: [] for name in left}
    expected["job_tags"] = [("blue", young)] if second_life == "plain" else [("blue", young), ("green", again)]
    if second_life == "linked":
        expected["batch_jobs"] = [(second.id, again)]
        expected["job_dependencies"] = [(parent, again)]
        expected["unique_jobs"] = [("mine", again)]
    assert left == expected
    counted = await db.fetchrow("SELECT total, gone_completed FROM headgate.batches WHERE id = $1", first.id)
    assert tuple(counted) == (6, 6)
    assert not await db.fetchval("SELECT count(*) FROM headgate.retention_days WHERE leaving")
    await counts_agree(queue)


async def test_a_day_that_is_half_cleared_is_dropped_also_when_a_rule_becomes_longer(
    queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await end(queue, Completed(), 12, payload=b"l" * 3_000)
    await later(clock, queue.db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 5)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 5)
    while not await queue.db.fetchval("SELECT count(*) BETWEEN 1 AND 11 FROM headgate.payloads"):
        assert (await retention.run_pass(queue.db, chunk=5)).more
    await retention.set_rules(queue.db, {"dead": 300 * DAY, "completed": 300 * DAY}, actor="ana", reason="audit")
    for _ in range(5):
        await retention.run_pass(queue.db, chunk=5)
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NULL", f"headgate.archive_{START:%Y%m%d}")
    assert await known(queue, jobs) == []
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    await counts_agree(queue)


async def test_a_pass_says_when_others_hold_all_that_is_left(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(queue, Completed(), 45)
    await later(clock, queue.db, days=40)
    monkeypatch.setattr(partitions, "CHUNK", 10)
    monkeypatch.setattr(retention, "DROP_AT_ONCE", 20)
    monkeypatch.setattr(retention, "LOCK_WAIT", timedelta(milliseconds=50))
    day = f"headgate.archive_{START:%Y%m%d}"
    assert (await retention.run_pass(queue.db)).more  # it is detached, and cleared in part
    async with links(database, 1) as (reader,), reader.transaction():
        await reader.execute(f"LOCK TABLE {day} IN ACCESS SHARE MODE")
        passes = [await retention.run_pass(queue.db)]
        while not passes[-1].blocked and len(passes) < 20:
            passes.append(await retention.run_pass(queue.db))
        assert passes[-1] == Removed(more=True, blocked=True)
        # To clear the jobs of a day is progress, though nothing is counted as removed.
        assert not passes[0].blocked
        assert all(one.more for one in passes)
    done = await retention.run_pass(queue.db)
    assert (done.days > 0, done.more, done.blocked) == (True, False, False)
    assert await queue.db.fetchval("SELECT to_regclass($1) IS NULL", day)


async def test_a_day_that_a_reader_holds_keeps_no_other_from_being_cleared(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end(queue, Completed(), 2)
    await later(clock, queue.db, days=35)
    await end(queue, Completed(), 3)
    await end(queue, DIES, 1)
    await later(clock, queue.db, days=9)
    monkeypatch.setattr(retention, "LOCK_WAIT", timedelta(seconds=1.2))  # longer than a pass
    async with links(database, 1) as (reader,), reader.transaction():
        await reader.fetch("SELECT count(*) FROM headgate.archive")
        done = await retention.run_pass(queue.db)
    assert done.jobs >= 3
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.archive WHERE state = $1", State.COMPLETED) <= 2


async def test_four_instances_at_once_remove_each_job_once(queue: Queue, clock: Clock, database: str) -> None:
    for _ in range(3):
        await end(queue, Completed(), 40, payload=b"l" * 3_000, tags=["red"])
        await end(queue, DIES, 10)
        await later(clock, queue.db, days=1)
    await later(clock, queue.db, days=9)
    async with links(database, 4) as some:
        done = await asyncio.gather(*(retention.run_pass(link, chunk=7) for link in some))
    rest = await all_passes(queue.db)
    assert sum(one.jobs for one in done) + rest.jobs == 120
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.archive") == 30
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    await counts_agree(queue)


async def test_an_instance_killed_in_the_middle_of_a_chunk_leaves_it_whole(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOCK_WAIT", timedelta(seconds=60))
    jobs = await end(queue, Completed(), 6, payload=b"l" * 3_000)
    await later(clock, queue.db, days=9)
    async with links(database, 2) as (holder, worker):
        holding = holder.transaction()
        await holding.start()
        await holder.execute("SELECT FROM headgate.payloads WHERE id = $1 FOR UPDATE", jobs[3])
        cut_off = asyncio.create_task(retention.run_pass(worker))

        async def waits() -> bool:
            return bool(
                await queue.db.fetchval(
                    "SELECT wait_event_type = 'Lock' FROM pg_catalog.pg_stat_activity WHERE pid = $1",
                    worker.get_server_pid(),
                )
            )

        await until_async(waits, "its chunk is in the middle: jobs deleted, payloads not")
        assert await known(queue, jobs) == jobs
        # Another instance does not wait for it: the day is being worked on.
        assert (await retention.run_pass(queue.db)).jobs == 0
        await queue.db.execute("SELECT pg_terminate_backend($1)", worker.get_server_pid())
        with pytest.raises(StoreUnavailable):
            await cut_off
        await holding.rollback()
    assert await known(queue, jobs) == jobs
    assert (await all_passes(queue.db)).jobs == 6
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.payloads") == 0
    await counts_agree(queue)


async def test_a_job_that_is_being_redriven_is_passed_over_and_one_that_stays_is_removed_later(
    queue: Queue, clock: Clock, database: str
) -> None:
    jobs = await end(queue, DIES, 3)
    tenant = await queue.tenant_no()
    await topics.set_topic(queue.db, queue.names, tenant, "mail", rules={"keep_dead": DAY})
    await later(clock, queue.db, days=3)
    async with links(database, 1) as (other,):
        redriving = other.transaction()
        await redriving.start()
        assert set(await verbs.redrive(other, tenant, [jobs[0]])) == {jobs[0]}
        kept_back = other.transaction()
        await kept_back.start()
        await verbs.redrive(other, tenant, [jobs[1]])
        assert (await retention.run_pass(queue.db)).jobs == 1
        assert (await retention.run_pass(queue.db)).jobs == 0
        await kept_back.rollback()
        await redriving.commit()
    assert await known(queue, jobs) == jobs[:2]
    await clock.advance(seconds=61)
    assert (await retention.run_pass(queue.db)).jobs == 1
    assert await known(queue, jobs) == jobs[:1]
    await counts_agree(queue)


async def test_a_reader_of_the_archive_for_hours_holds_up_neither_claims_nor_settles(
    queue: Queue, clock: Clock, database: str
) -> None:
    gone = await end(queue, Completed(), 5)
    await later(clock, queue.db, days=9)
    fresh = await queue.add(2)
    async with links(database, 2) as (reader, remover), reader.transaction(isolation="repeatable_read"):
        await reader.fetchval("SELECT count(*) FROM headgate.archive")
        removing = asyncio.create_task(retention.run_pass(remover))
        await queue.db.execute("SET lock_timeout = '500ms'")
        claimed = await queue.claim(1)
        await queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
        assert (await removing).jobs == 5
        assert await reader.fetchval("SELECT count(*) FROM headgate.archive") == 5  # as of its beginning
        assert (await queue.claim(1)).ids == (fresh[1],)
    assert await known(queue, gone) == []


async def test_a_day_that_was_emptied_is_dropped_early_and_one_that_is_not_empty_is_attached_again(
    queue: Queue, clock: Clock
) -> None:
    tenant = await queue.tenant_no()
    await end(queue, Completed(), 2)
    await queue.topic("long")
    await topics.set_topic(queue.db, queue.names, tenant, "long", rules={"keep_dead": 300 * DAY})
    await later(clock, queue.db, days=1)
    (kept,) = await end(queue, DIES, 1, "long")
    await later(clock, queue.db, days=39)
    done = await all_passes(queue.db)
    assert (done.jobs, done.days > 0) == (2, True)
    days = [
        row[0]
        for row in await queue.db.fetch(
            "SELECT relname FROM pg_catalog.pg_class"
            " WHERE relname ~ '^(archive|job_events)_[0-9]{8}$' AND relkind = 'r' ORDER BY 1"
        )
    ]
    first = (START + DAY).date()
    assert days[0] == f"archive_{first:%Y%m%d}"
    assert f"job_events_{START:%Y%m%d}" not in days
    assert await known(queue, [kept]) == [kept]
    # Cut off after a detach of a day that was taken for empty, and is not (a clock was set back by weeks).
    await queue.db.execute(f"ALTER TABLE headgate.archive DETACH PARTITION headgate.{days[0]} CONCURRENTLY")
    assert await known(queue, [kept]) == []
    await all_passes(queue.db)
    assert await known(queue, [kept]) == [kept]


# ---------------------------------------------------------------------- the service


async def test_the_service_rests_a_minute_when_nothing_is_left_and_survives_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    answers: list[Removed | Exception] = [
        Removed(jobs=1_000, more=True),
        StoreUnavailable("away"),
        Removed(),
    ]

    class Store:
        async def run_pass(self) -> Removed:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    async def wait_at_most(_stopped: asyncio.Event, seconds: float) -> bool:
        waits.append(seconds)
        return not answers

    monkeypatch.setattr("headgate.dispatch.periodic.wait_at_most", wait_at_most)
    await Retention(Store()).run()
    assert 6 <= waits[0] <= 30
    assert waits[1] < 5
    assert all(48 <= wait <= 72 for wait in waits[2:])
    assert "retention_failed" in caplog.text


async def test_a_dropped_table_or_a_held_lock_ends_a_day_and_not_the_pass(
    queue: Queue, clock: Clock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await end(queue, Completed(), 2, payload=b"l" * 3_000)
    await later(clock, queue.db, days=1)
    second = await end(queue, Completed(), 2)
    await later(clock, queue.db, days=9)
    monkeypatch.setattr(retention, "LOCK_WAIT", timedelta(milliseconds=50))
    async with links(database, 1) as (holder,), holder.transaction():
        await holder.execute("SELECT FROM headgate.payloads WHERE id = $1 FOR UPDATE", first[0])
        assert (await retention.run_pass(queue.db)).jobs == 2
        assert await known(queue, [*first, *second]) == first
    assert (await all_passes(queue.db)).jobs == 2
    with pytest.raises(asyncpg.UndefinedTableError):
        await queue.db.fetchrow("SELECT * FROM headgate.retire_chunk_v1('2020-01-01', 5, false)")


async def test_a_server_removes_old_jobs_by_itself(db: Connection, database: str) -> None:
    await db.execute(
        """CREATE TABLE headgate.archive_20200102 (LIKE headgate.archive INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
           INSERT INTO headgate.archive_20200102 (id, created_at, run_at, finished_at, tenant_no, topic_no, priority,
                                                  attempt, max_attempts, epoch, policy_no, state, flags)
           SELECT gen_random_uuid(), now(), now(), '2020-01-02 05:00+00', 1, 1, 0, 1, 1, 1, 1, 5, 0
             FROM generate_series(1, 100);
           ALTER TABLE headgate.archive ATTACH PARTITION headgate.archive_20200102
               FOR VALUES FROM ('2020-01-02') TO ('2020-01-03')"""
    )
    server = Server(ServerOptions(database_url=database, port=0, dev=True, retention_seconds=0.2, grace=timedelta(0)))
    await server.start()

    async def gone() -> bool:
        return await db.fetchval("SELECT to_regclass('headgate.archive_20200102') IS NULL") is True

    try:
        await until_async(gone, "the day of 2020 is gone")
    finally:
        await server.stop(drain=False)
    assert await db.fetchval("SELECT count(*) FROM headgate.archive") == 0
