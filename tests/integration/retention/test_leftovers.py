"""Removing a job removes all that belongs to it, and nothing else."""

from __future__ import annotations

from datetime import timedelta

from headgate.domain.bulk import Plan, Verb
from headgate.domain.dependencies import NewBatch, Unique
from headgate.domain.filter_parser import parse
from headgate.domain.job_logs import AttemptLines, LogLine
from headgate.domain.outcomes import Completed
from headgate.domain.schedules import At, Every, Overlap, ScheduleSpec, plan
from headgate.domain.states import EventKind
from headgate.domain.stats import TopicLatencies
from headgate.domain.webhooks import WebhookSpec
from headgate.store import (
    bulk,
    control,
    dependencies,
    job_logs,
    latencies,
    quiet,
    reads,
    retention,
    schedule_firing,
    schedules,
    topics,
    upkeep,
    verbs,
    webhook_deliveries,
    webhooks,
    worker_stops,
)
from headgate.store.batches import open_batch, seal_batch
from tests.integration.retention.finishing import DAY, DIES, all_passes, counts_agree, end, end_all, known, later, rows
from tests.support.queue import Clock, Queue, new_id

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
    "tenant_defaults": 1,  # one row for all tenants
    "stored_parts": 0,  # one row for each table and tenant, while a tenant has a quota of stored bytes
    "topic_limits": 1,
    "topic_rules": 1,
    "topic_versions": 1,  # the last hundred of each topic
    "topic_consumers": 0,  # one for each worker session that is connected and wants a topic with a maximum of them
    "dispatch_control": 2,
    "api_keys": 0,  # revoked ones too: the audit names them
    "key_changes": 1,
    "web_sessions": 0,  # expire after twelve hours: test_web_sessions.py
    "event_recording": 1,
    "state_counts": None,  # one row for each topic and state
}
CLEARED = {
    "jobs",
    "archive",
    "job_events",
    "payloads",
    "job_tags",
    "job_logs",
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
    "flow_buckets",
    "latency_buckets",
    "quiet_names",
    "worker_stops",
    "bulk_operations",
    "webhooks",
    "webhook_secrets",
    "webhook_deliveries",
    "webhook_attempts",
    "webhook_ready",
    "audit",
    "completions",
    "instances",
    "retention_days",
    "arrivals",
}


async def everything(queue: Queue, clock: Clock) -> None:
    """Something in every table, all of it at an end."""
    db, tenant = queue.db, await queue.tenant_no()
    await db.execute("INSERT INTO headgate.instances (name, version, seen_at) VALUES ('old', '0', headgate.clock_v1())")
    await topics.set_topic(
        db, queue.names, tenant, (await queue.topic("keyed")).name, changes={"max_running_per_key": 1}
    )
    await verbs_of_operators(queue)
    ends = WebhookSpec(url="https://93.184.215.14/", events=("job.completed", "queue.ready"), ttl=DAY)
    await webhooks.create(db, tenant, new_id(), ends, secret="whsec_AAAA", who="ana")
    for on_conflict in ("keep", "replace"):
        await queue.submit(queue.job(unique=Unique(key="changed", on_conflict=on_conflict)))
    await db.execute(webhook_deliveries.NOTE_READY, 100)
    await end_all(queue, "mail", Completed())
    ((delivery, *_), *_) = await db.fetch(webhook_deliveries.CLAIM, 1, 1, 1, 1_000, 1_000)
    await db.execute(webhook_deliveries.RECORD, delivery, 1, 1, 1_000, 500, 7, "oops", "status 500", 1_000)
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
    await log_of_all(queue)
    await later(clock, db, days=1)
    due = await schedule_firing.due(db, limit=10)
    assert (await schedule_firing.fire(db, [plan(one, now=due.now) for one in due.schedules])).made == 2
    await end_all(queue, "mail", Completed())
    await schedules.delete(db, queue.names, tenant, "often", expected=None, who="ana", reason="")


async def log_of_all(queue: Queue) -> None:
    """A log line of every job that there is."""
    known = "SELECT id, epoch FROM headgate.jobs UNION ALL SELECT id, epoch FROM headgate.archive"
    lines = [LogLine(1, 1, 2, "app", "said")]
    logged = [AttemptLines(row[0], row[1], 1, lines) for row in await queue.db.fetch(known)]
    assert await job_logs.add_log_lines(queue.db, await queue.tenant_no(), logged) == len(logged)


async def verbs_of_operators(queue: Queue) -> None:
    db, tenant = queue.db, await queue.tenant_no()
    await quiet.quiet(db, tenant, "worker", reason="", who="ana", span=DAY)
    await worker_stops.stop(db, tenant, "worker", reason="", who="ana")
    await control.pause(db, (tenant, (await queue.topic("paused")).no))
    await control.resume(db, (tenant, (await queue.topic("paused")).no))
    (old,) = await end(queue, DIES)
    await verbs.redrive(db, tenant, [old])
    await end_all(queue, "mail", DIES)
    await log_of_all(queue)
    await verbs.discard(db, tenant, [old])
    assert await db.fetchval("SELECT count(*) FROM headgate.job_logs") == 0  # nothing but that job was there
    made = await bulk.start(
        db, queue.names, tenant, new_id(), Plan(verb=Verb.CANCEL, matching=parse("topic:mail")), who="ana"
    )
    await bulk.cancel(db, tenant, made.id, who="ana", reason="")


async def aged(queue: Queue, clock: Clock, *, days: int) -> None:
    await later(clock, queue.db, days=days)
    await all_passes(queue.db)
    while (await dependencies.unblock_ready(queue.db))[1]:
        pass


async def test_when_everything_is_old_no_row_is_left_in_any_table_of_the_schema(queue: Queue, clock: Clock) -> None:
    db = queue.db
    assert set(await rows(db)) == NEVER_CLEARED.keys() | CLEARED
    await everything(queue, clock)
    await upkeep.fold_flows(db)
    await latencies.record(db, [(1, TopicLatencies(topic_no=1, pickup=[1] * 20, run=[1] * 20))])
    filled = await rows(db)
    # Filled for moments only; completions while a stream of events is open (tests/integration/test_events.py).
    momentary = {"dependency_checks", "flow_deltas", "limit_line", "jobs", "retention_days", "completions"}
    assert [name for name in CLEARED - momentary if not filled[name]] == []
    assert filled["jobs"] == 2  # they wait for the redrive of a dead and of a cancelled parent
    await aged(queue, clock, days=8)  # some go one by one …
    assert 0 < (await rows(db))["archive"] < filled["archive"]
    await aged(queue, clock, days=32)  # … the rest by the day
    assert (await rows(db))["jobs"] == 0
    await aged(queue, clock, days=366)
    await quiet.forget_quiet(db)
    await worker_stops.forget_stops(db)
    await schedule_firing.forget_ended(db)
    forgotten, _ = await retention.forget_batches(db)
    assert forgotten == filled["batches"]
    await upkeep.mend_limits(db)
    await upkeep.fold_flows(db)
    for _ in range(2):  # in the second round: what was there at the first
        await upkeep.forget_arrivals(db, apart_ms=0)
    await aged(queue, clock, days=31)  # the counts of those hours
    left = await rows(db)
    assert {name: count for name, count in left.items() if name in CLEARED and count} == {}
    assert {name: left[name] for name, count in NEVER_CLEARED.items() if count is not None} == {
        name: count for name, count in NEVER_CLEARED.items() if count is not None
    }
    assert await db.fetchval("SELECT coalesce(sum(n), 0) FROM headgate.state_counts") == 0


async def test_the_record_of_a_triggered_run_goes_with_its_job(queue: Queue, clock: Clock) -> None:
    """Of a schedule that stays."""
    db, tenant = queue.db, await queue.tenant_no()
    spec = ScheduleSpec(topic="mail", timing=Every(interval=timedelta(days=300))).checked(now=clock.now)
    await schedules.put(db, queue.names, tenant, "nightly", spec, expected=None, who="ana")
    await schedules.trigger(db, queue.names, tenant, "nightly", request=new_id(), who="ana", reason="")
    await end_all(queue, "mail", Completed())
    await end(queue, DIES)  # the day stays
    assert await db.fetchval("SELECT count(*) FROM headgate.schedule_jobs") == 1
    await later(clock, db, days=9)
    assert (await all_passes(db)).jobs == 1
    assert await db.fetchval("SELECT count(*) FROM headgate.schedule_jobs") == 0


async def test_a_discarded_job_leaves_only_its_history(queue: Queue, clock: Clock) -> None:
    db, tenant = queue.db, await queue.tenant_no()
    (parent,), batch = await queue.add(1, "parents"), NewBatch(id=new_id())
    await open_batch(db, queue.names, tenant, batch, callback=queue.job("done"))
    (job_id,) = await queue.add(
        1,
        payload=b"l" * 3_000,
        tags=["red"],
        limit_key="customer",
        unique=Unique(key="only"),
        depends_on=[parent],
        batch=batch.id,
    )
    spec = ScheduleSpec(topic="nightly", timing=Every(interval=timedelta(minutes=1))).checked(now=clock.now)
    await schedules.put(db, queue.names, tenant, "nightly", spec, expected=None, who="ana")
    scheduled, _, _ = await schedules.trigger(
        db, queue.names, tenant, "nightly", request=new_id(), who="ana", reason=""
    )
    await verbs.cancel(db, tenant, [job_id, scheduled], who="ana")
    assert set(await verbs.discard(db, tenant, [job_id, scheduled], who="ana")) == {job_id, scheduled}
    for table, column in (
        *((name, "job_id") for name in ("job_tags", "job_limit_keys", "unique_jobs", "batch_jobs", "schedule_jobs")),
        *(("payloads", "id"), ("archive", "id"), ("job_dependencies", "child_id"), ("limit_line", "job_id")),
    ):
        left = await db.fetchval(
            f"SELECT count(*) FROM headgate.{table} WHERE {column} = ANY ($1)", [job_id, scheduled]
        )
        assert left == 0, table
    assert [event.kind for event in await reads.events(db, tenant, job_id)][-1] is EventKind.DISCARDED
    await counts_agree(queue)


async def test_what_hangs_on_jobs_that_stay_is_left_alone(queue: Queue, clock: Clock) -> None:
    """The same day, the same kinds: completed and cancelled jobs go row by row, dead ones stay with all they have."""
    options = {"payload": b"l" * 3_000, "tags": ["red"], "limit_key": "customer"}
    gone = [*await end(queue, Completed(), 2, **options), *await end(queue, None, 1, **options)]
    kept = await end(queue, DIES, 3, **options)
    live = await queue.add(3, **options)
    await log_of_all(queue)
    await later(clock, queue.db, days=9)
    assert (await all_passes(queue.db)).jobs == 3
    assert await known(queue, [*gone, *kept, *live]) == [*kept, *live]
    for table, column in (
        ("payloads", "id"),
        ("job_tags", "job_id"),
        ("job_limit_keys", "job_id"),
        ("job_logs", "job_id"),
    ):
        found = {row[0] for row in await queue.db.fetch(f"SELECT {column} FROM headgate.{table}")}
        assert found == {*kept, *live}, table
    tenant = await queue.tenant_no()
    events = await queue.db.fetch("SELECT DISTINCT job_id FROM headgate.job_events")
    assert {row[0] for row in events} == {*kept}
    assert set(await verbs.redrive(queue.db, tenant, kept)) == set(kept)
    assert set((await queue.claim(10)).payloads) == {b"l" * 3_000}
    await counts_agree(queue)


async def test_of_the_history_all_goes_that_is_of_the_life_of_the_job(queue: Queue, clock: Clock) -> None:
    """From a minute before its submit to its end: what is older or newer is of another job with this id."""
    db, tenant = queue.db, await queue.tenant_no()
    (gone,) = await end(queue, Completed())
    await end(queue, DIES)  # the day stays
    (life,) = await db.fetch("SELECT created_at, finished_at FROM headgate.archive WHERE id = $1", gone)
    note = """
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state)
        VALUES ($1, $2, $3, 8, 1, 1, 0)"""
    moment, minute = timedelta(microseconds=1), timedelta(minutes=1)
    others = [life[0] - minute - moment, life[1] + moment]
    for at in (*others, life[0] - minute, life[1]):
        await db.execute(note, tenant, gone, at)
    await later(clock, db, days=9)
    assert (await all_passes(db)).jobs == 1
    left = await db.fetch("SELECT at FROM headgate.job_events WHERE job_id = $1 ORDER BY at", gone)
    assert [row[0] for row in left] == others
