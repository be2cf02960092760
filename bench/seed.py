"""Fills a database with stored jobs by SQL, so that counts, figures and history agree with the rows.

Ids are UUIDs of version 7 in the order of time, as Headgate makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headgate.store.connect import Connection

TENANT: Final = "default"
TOPICS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much there is."""

    finished: int = 4_780_000
    due: int = 200_000
    waiting: int = 20_000  # scheduled and retrying
    failures: int = 50_000  # events
    history: int = 1_200  # events of one job
    chunk: int = 250_000

    @property
    def stored(self) -> int:
        """All jobs."""
        return self.finished + self.due + self.waiting


HELPERS: Final = """
CREATE FUNCTION pg_temp.id_at(at_ timestamptz, n_ bigint) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at_) * 1000)::bigint), 12, '0') || '7' || substr(md5(n_::text), 1, 3) || '8'
            || substr(md5(n_::text), 4, 15))::uuid $$"""
TENANTS: Final = "INSERT INTO headgate.tenants (name) VALUES ($1) ON CONFLICT DO NOTHING"
TENANT_NO: Final = "SELECT tenant_no FROM headgate.tenants WHERE name = $1"
ADD_TOPICS: Final = """
INSERT INTO headgate.topics (tenant_no, name)
SELECT $1, 'topic-' || lpad(n::text, 2, '0') FROM generate_series(1, $2::int) AS n
ON CONFLICT DO NOTHING"""
# Over yesterday and today. Of a hundred, 94 completed, 4 dead, 2 cancelled.
FINISHED: Final = """
WITH topics AS (SELECT array_agg(topic_no ORDER BY topic_no) AS nos FROM headgate.topics WHERE tenant_no = $1)
INSERT INTO headgate.archive (id, created_at, run_at, claimed_at, finished_at, tenant_no, topic_no, priority, attempt,
                              max_attempts, epoch, policy_no, owner, state, flags, last_outcome, worker, last_error,
                              headers, payload)
SELECT pg_temp.id_at(m.at, m.n), m.at, m.at, m.at + interval '20 ms', m.at + interval '180 ms', $1,
       t.nos[1 + m.n % cardinality(t.nos)], 0, 1, 3, 1025, 1, 1,
       CASE WHEN m.n % 100 < 94 THEN 5 WHEN m.n % 100 < 98 THEN 6 ELSE 7 END, 0,
       CASE WHEN m.n % 100 < 94 THEN 0 WHEN m.n % 100 < 98 THEN 1 END, 'worker-' || m.n % 8,
       CASE WHEN m.n % 100 BETWEEN 94 AND 97 THEN 'TimeoutError: no answer from 10.0.0.' || m.n % 250 || ' in 15 s' END,
       NULL, convert_to('{"n": ' || m.n || '}', 'UTF8')
  FROM (SELECT n, clock_timestamp() - interval '5 minutes' - ($3 - n) * $4::interval AS at
          FROM generate_series($2::bigint, $2::bigint + $5::bigint - 1) AS n) AS m, topics t"""
LIVE: Final = """
WITH topics AS (SELECT array_agg(topic_no ORDER BY topic_no) AS nos FROM headgate.topics WHERE tenant_no = $1)
INSERT INTO headgate.jobs (id, rank_at, created_at, run_at, tenant_no, topic_no, rank_class, priority, attempt,
                           max_attempts, policy_no, state, payload, last_error, last_outcome)
SELECT pg_temp.id_at(m.at, 90000000 + m.n), (extract(epoch FROM m.at) * 1000000)::bigint + m.n % 1000, m.at,
       CASE WHEN $3 = 0 THEN m.at ELSE m.at + interval '2 hours' END, $1, t.nos[1 + m.n % cardinality(t.nos)], -1, 0,
       CASE WHEN $3 = 3 THEN 1 ELSE 0 END, 3, 1, $3, convert_to('{"n": ' || m.n || '}', 'UTF8'),
       CASE WHEN $3 = 3 THEN 'ConnectionError: refused' END, CASE WHEN $3 = 3 THEN 1 END
  FROM (SELECT n, clock_timestamp() - interval '4 minutes' + n * interval '1 ms' AS at
          FROM generate_series(1, $2::bigint) AS n) AS m, topics t"""
EVENTS: Final = """
INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, claimed_at, worker, error_type,
                                 error_message)
SELECT a.tenant_no, a.id, a.finished_at, 1, a.epoch, 1, a.state, a.claimed_at, a.worker, 'TimeoutError',
       'no answer in 15 s'
  FROM headgate.archive a WHERE a.tenant_no = $1 AND a.state = 6 ORDER BY a.id DESC LIMIT $2"""
# One job with a long history: the newest dead one, which is the job that pages show.
HISTORY: Final = """
INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, run_at, claimed_at, worker,
                                 error_type, error_message, error_trace)
SELECT a.tenant_no, a.id, a.finished_at - n * interval '1 second', 1, a.epoch, 1, 3, a.finished_at,
       a.finished_at - n * interval '1 second' - interval '20 ms', a.worker, 'TimeoutError', 'no answer in 15 s',
       'Traceback (most recent call last):' || repeat(E'\n  File "/app/shop/billing.py", line 41, in send', 20)
         || E'\nTimeoutError: no answer in 15 s, try ' || n
  FROM (SELECT * FROM headgate.archive WHERE tenant_no = $1 AND state = 6 ORDER BY id DESC LIMIT 1) AS a,
       generate_series(1, $2::int) AS n"""
COUNTS: Final = """
INSERT INTO headgate.state_counts (tenant_no, topic_no, state, n)
SELECT tenant_no, topic_no, state, count(*) FROM headgate.jobs GROUP BY 1, 2, 3
 UNION ALL SELECT tenant_no, topic_no, state, count(*) FROM headgate.archive GROUP BY 1, 2, 3"""
# As fold_flows_v1 would have: of each job its submit, its claim and its end.
BUCKETS: Final = """
WITH minutes AS MATERIALIZED (
    SELECT topic_no, date_trunc('minute', created_at) AS at, count(*) AS submitted, 0::bigint AS pending,
           count(*) FILTER (WHERE state = 5) AS completed, count(*) FILTER (WHERE state = 6) AS dead,
           count(*) FILTER (WHERE state = 7) AS cancelled
      FROM headgate.archive WHERE tenant_no = $1 GROUP BY 1, 2
     UNION ALL
    SELECT topic_no, date_trunc('minute', created_at), count(*), count(*) FILTER (WHERE state = 0), 0, 0, 0
      FROM headgate.jobs WHERE tenant_no = $1 GROUP BY 1, 2)
INSERT INTO headgate.flow_buckets (tenant_no, topic_no, seconds, at, submitted, started, completed, retried, failed,
                                   dead, cancelled, pending_change, changes)
SELECT $1, k.topic_no, w.seconds, date_bin(w.seconds * interval '1 second', m.at, timestamptz 'epoch'),
       sum(m.submitted), sum(m.completed + m.dead), sum(m.completed), 0, sum(m.dead), sum(m.dead), sum(m.cancelled),
       sum(m.pending), sum(m.submitted + m.completed + m.dead)
  FROM minutes m CROSS JOIN LATERAL (VALUES (m.topic_no), (0)) AS k(topic_no)
 CROSS JOIN (VALUES (60), (300), (3600)) AS w(seconds) GROUP BY 2, 3, 4"""
SERVED: Final = """
INSERT INTO headgate.flow_buckets (tenant_no, topic_no, seconds, at)
SELECT DISTINCT 0, 0, seconds, at FROM headgate.flow_buckets WHERE topic_no = 0 AND tenant_no > 0"""
LATENCIES: Final = """
INSERT INTO headgate.latency_buckets (tenant_no, topic_no, seconds, at, pickup, run)
SELECT tenant_no, topic_no, seconds, at, array_fill(started, ARRAY[20]), array_fill(started, ARRAY[20])
  FROM headgate.flow_buckets WHERE tenant_no > 0"""
TABLES: Final = ("jobs", "archive", "job_events", "state_counts", "flow_buckets", "latency_buckets")


async def seed(db: Connection, sizes: Sizes) -> None:
    """Fill an empty, migrated database whose partitions exist; nothing is served meanwhile."""
    await db.execute("SET synchronous_commit = off; SET work_mem = '256MB'")
    await db.execute(HELPERS)
    await db.execute(TENANTS, TENANT)
    tenant_no = await db.fetchval(TENANT_NO, TENANT)
    await db.execute(ADD_TOPICS, tenant_no, TOPICS)
    # From the beginning of yesterday on: older days have no partition.
    span = await db.fetchval(
        "SELECT (clock_timestamp() - interval '10 minutes' - ((clock_timestamp() AT TIME ZONE 'UTC')::date - 1)"
        "::timestamp AT TIME ZONE 'UTC') / $1",
        sizes.finished,
    )
    for first in range(1, sizes.finished + 1, sizes.chunk):
        count = min(sizes.chunk, sizes.finished - first + 1)
        await db.execute(FINISHED, tenant_no, first, sizes.finished, span, count, timeout=600)
    await db.execute(LIVE, tenant_no, sizes.due, 0, timeout=600)
    for state in (2, 3):
        await db.execute(LIVE.replace("90000000", f"9{state}000000"), tenant_no, sizes.waiting // 2, state, timeout=600)
    await db.execute(EVENTS, tenant_no, sizes.failures, timeout=600)
    await db.execute(HISTORY, tenant_no, sizes.history)
    for statement in (COUNTS, BUCKETS):
        await db.execute(statement, *((tenant_no,) if "$1" in statement else ()), timeout=600)
    await db.execute(SERVED)
    await db.execute(LATENCIES)
    for table in TABLES:
        await db.execute(f"VACUUM (ANALYZE) headgate.{table}", timeout=600)
