"""The last act of a run: the tables as they stand, written into the history as `final_…` lines."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final, TypeAlias

import asyncpg

from headgate.domain.timestamps import unix_us
from headgate.store.upkeep import fold_flows
from tests.fault.lab.history import Recorder

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
FOLDS: Final = 200
JOBS: Final = """
SELECT n.name AS tenant, t.name AS topic, j.id, j.state, j.attempt, j.max_attempts, j.epoch, j.priority, j.flags,
       j.created_at, j.run_at, j.claimed_at, j.lease_until, NULL::timestamptz AS finished_at, j.worker,
       coalesce(j.payload, p.payload) AS payload, NULL::bytea AS result, k.limit_key, true AS live
  FROM headgate.jobs j JOIN headgate.topics t USING (topic_no) JOIN headgate.tenants n ON n.tenant_no = j.tenant_no
  LEFT JOIN headgate.payloads p ON p.tenant_no = j.tenant_no AND p.id = j.id
  LEFT JOIN headgate.job_limit_keys k ON k.tenant_no = j.tenant_no AND k.job_id = j.id
UNION ALL
SELECT n.name, t.name, a.id, a.state, a.attempt, a.max_attempts, a.epoch, a.priority, a.flags, a.created_at, a.run_at,
       a.claimed_at, NULL, a.finished_at, a.worker, coalesce(a.payload, p.payload), a.result, k.limit_key, false
  FROM headgate.archive a JOIN headgate.topics t USING (topic_no) JOIN headgate.tenants n ON n.tenant_no = a.tenant_no
  LEFT JOIN headgate.payloads p ON p.tenant_no = a.tenant_no AND p.id = a.id
  LEFT JOIN headgate.job_limit_keys k ON k.tenant_no = a.tenant_no AND k.job_id = a.id"""
EVENTS: Final = """
SELECT n.name AS tenant, e.job_id, e.at, e.kind, e.epoch, e.attempt, e.state, e.run_at, e.claimed_at, e.worker,
       e.reason, (e.detail->>'from')::int AS was
  FROM headgate.job_events e JOIN headgate.tenants n USING (tenant_no) ORDER BY e.at, e.event_no"""
COUNTS: Final = """
SELECT n.name AS tenant, t.name AS topic, c.state, sum(c.n)::bigint AS n
  FROM headgate.state_counts c JOIN headgate.topics t USING (topic_no)
  JOIN headgate.tenants n ON n.tenant_no = c.tenant_no GROUP BY 1, 2, 3"""
LIMITS: Final = """
SELECT n.name AS tenant, t.name AS topic, u.limit_key, u.running, u.admitted, u.holder
  FROM headgate.limit_usage u JOIN headgate.topics t USING (topic_no)
  JOIN headgate.tenants n ON n.tenant_no = u.tenant_no"""
SCHEDULES: Final = """
SELECT n.name AS tenant, s.name, s.kind, s.at, s.span_ms, s.expression, s.zone, s.overlap, s.catch_up, s.next_at,
       s.last_at, s.fired, s.skipped, s.paused, s.created_at
  FROM headgate.schedules s JOIN headgate.tenants n USING (tenant_no)"""
FIRED: Final = """
SELECT n.name AS tenant, s.name, f.occurrence, f.job_id, f.covers_from, f.triggered
  FROM headgate.schedule_jobs f JOIN headgate.schedules s USING (schedule_no)
  JOIN headgate.tenants n ON n.tenant_no = f.tenant_no"""
KEYS: Final = """
SELECT n.name AS tenant, t.name AS topic, k.key, k.job_id
  FROM headgate.idempotency_keys k JOIN headgate.tenants n USING (tenant_no) JOIN headgate.topics t USING (topic_no)"""

UNIQUE: Final = """
SELECT n.name AS tenant, u.job_id, u.key, u.live
  FROM headgate.unique_jobs u JOIN headgate.tenants n USING (tenant_no)"""
BATCHES: Final = """
SELECT n.name AS tenant, b.id, b.callback_id, b.created_at, b.sealed_at, b.expired, b.total
  FROM headgate.batches b JOIN headgate.tenants n USING (tenant_no)"""
MEMBERS: Final = "SELECT batch_id, job_id FROM headgate.batch_jobs"
DEPENDENCIES: Final = "SELECT parent_id, child_id, needs, on_failure, met FROM headgate.job_dependencies"
LEFT: Final = "SELECT count(*) AS checks FROM headgate.dependency_checks"
OPERATIONS: Final = """
SELECT n.name AS tenant, o.id, o.verb, o.state, o.matched, o.changed, o.skipped, o.errors, o.error, o.as_of,
       o.finished_at FROM headgate.bulk_operations o JOIN headgate.tenants n USING (tenant_no)"""
OF_A_JOB: Final = {
    "payloads": "id",
    "job_tags": "job_id",
    "job_logs": "job_id",
    "job_limit_keys": "job_id",
    "limit_line": "job_id",
    "unique_jobs": "job_id",
    "batch_jobs": "job_id",
    "job_dependencies": "child_id",
}
"""Tables whose rows belong to a job, and the column that names it."""
ORPHANS = " UNION ALL ".join(
    f"""
SELECT '{table}' AS table_name, count(*) AS n, (array_agg(x.{column}))[1] AS example FROM headgate.{table} x
 WHERE NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = x.tenant_no AND j.id = x.{column})
   AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = x.tenant_no AND a.id = x.{column})"""
    for table, column in OF_A_JOB.items()
)
ORPHANS += """
 UNION ALL
SELECT 'webhook_deliveries', count(*), (array_agg(d.id))[1] FROM headgate.webhook_deliveries d
 WHERE NOT EXISTS (SELECT FROM headgate.webhooks w WHERE w.webhook_no = d.webhook_no)
 UNION ALL
SELECT 'webhook_attempts', count(*), NULL FROM headgate.webhook_attempts a
 WHERE NOT EXISTS (SELECT FROM headgate.webhook_deliveries d WHERE d.delivery_no = a.delivery_no)"""


async def dump(db: Connection, recorder: Recorder) -> int:
    """Write everything; gives the number of job rows."""
    unfolded = FOLDS
    while unfolded and await db.fetchval("SELECT EXISTS (SELECT FROM headgate.flow_deltas)"):
        await fold_flows(db)  # a delta that an instance is folding is seen here until that is committed
        unfolded -= 1
    # One snapshot for all of it: nothing may move between two tables while they are read.
    async with db.transaction(isolation="repeatable_read", readonly=True):
        jobs = await db.fetch(JOBS)
        for kind, query in (
            ("final_event", EVENTS),
            ("final_count", COUNTS),
            ("final_limit", LIMITS),
            ("final_schedule", SCHEDULES),
            ("final_fired", FIRED),
            ("final_key", KEYS),
            ("final_unique", UNIQUE),
            ("final_batch", BATCHES),
            ("final_member", MEMBERS),
            ("final_dependency", DEPENDENCIES),
            ("final_left", LEFT),
            ("final_operation", OPERATIONS),
            ("final_orphans", ORPHANS),
        ):
            for row in await db.fetch(query):
                recorder.note(kind, **_plain(row))
    for row in jobs:
        recorder.note("final_job", **_plain(row))
    recorder.note("final", jobs=len(jobs), folded=unfolded > 0)
    return len(jobs)


def _plain(row: asyncpg.Record) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in row.items()}


def _value(name: str, value: object) -> object:
    if isinstance(value, datetime):
        return unix_us(value)
    if name == "payload":
        return _json(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value.hex if hasattr(value, "hex") and hasattr(value, "int") else value


def _json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, bytes) and value else {}
    except ValueError:
        return {"not_json": True}
