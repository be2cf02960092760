"""The reading behind the metrics of the queue: one statement over counts that others keep, never over the jobs.

What is read is bounded by the number of topics shown. Of each topic the first pending job of each rank is looked up by
its index; all else comes from counts and from statistics of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headgate.domain.queue_state import QueueState, TableRows
from headgate.domain.states import State
from headgate.domain.tallies import OTHER
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.upkeep import HOT_TABLES

# One row for each value: what it is, of which topic (or table), its state, and the value.
QUEUE_STATE: Final = """
WITH counts AS MATERIALIZED (
    SELECT c.topic_no, c.state, c.n FROM headgate.state_counts c WHERE c.n > 0),
shown AS MATERIALIZED (
    -- Topics with counters of their own first, or their gauges would be missing beside them; then the fullest.
    SELECT c.topic_no FROM counts c GROUP BY c.topic_no
     ORDER BY (c.topic_no IN (SELECT t.topic_no FROM headgate.topics t WHERE t.name = ANY ($1))) DESC,
              coalesce(sum(c.n) FILTER (WHERE c.state < 5 /* completed */), 0) DESC, c.topic_no
     LIMIT $2),
named AS MATERIALIZED (
    SELECT s.topic_no, n.name AS tenant, t.name AS topic
      FROM shown s JOIN headgate.topics t ON t.topic_no = s.topic_no
      JOIN headgate.tenants n ON n.tenant_no = t.tenant_no),
-- Of other roles' sessions the snapshot and the times are shown only to a role with pg_read_all_stats.
snapshots AS MATERIALIZED (
    SELECT age(a.backend_xmin) AS xids, extract(epoch FROM now() - coalesce(a.xact_start, a.query_start)) AS seconds
      FROM pg_catalog.pg_stat_activity a
     WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
       AND a.datname = current_database()
     UNION ALL
    SELECT age(p.transaction), extract(epoch FROM now() - p.prepared)
      FROM pg_catalog.pg_prepared_xacts p WHERE p.database = current_database()
     UNION ALL
    SELECT greatest(age(r.xmin), age(r.catalog_xmin)), NULL FROM pg_catalog.pg_replication_slots r
     WHERE r.xmin IS NOT NULL OR r.catalog_xmin IS NOT NULL),
keeps AS MATERIALIZED (
    SELECT k.ms FROM headgate.retention r
     CROSS JOIN LATERAL (VALUES (r.completed_ms), (r.dead_ms), (r.cancelled_ms)) AS k(ms)
     UNION
    SELECT k.ms FROM headgate.topics t
     CROSS JOIN LATERAL (VALUES (t.keep_completed_ms), (t.keep_dead_ms), (t.keep_cancelled_ms)) AS k(ms)
     WHERE k.ms IS NOT NULL),
days AS MATERIALIZED (      -- a name is read as a date only when it is known to be that of a day
    SELECT right(c.relname, 8) AS day
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = 'headgate' AND c.relkind = 'r' AND c.relname ~ '^archive_[0-9]{8}$'),
-- How long ago the newest of the rules that are due for a day fell due: the older ones were applied in their time.
waiting AS MATERIALIZED (
    SELECT (SELECT min(a.ms - k.ms) FROM keeps k WHERE k.ms <= a.ms) AS late_ms
      FROM headgate.days_due_v1() AS d
     CROSS JOIN LATERAL (
           SELECT extract(epoch FROM headgate.clock_v1() - (d.day + 1)::timestamp AT TIME ZONE 'UTC') * 1000 AS ms) AS a
     WHERE d.due
     UNION ALL
    SELECT a.ms - b.longest_ms      -- days that are old as a whole, and to be dropped
      FROM days d
     CROSS JOIN headgate.keep_bounds_v1() AS b
     CROSS JOIN LATERAL (
           SELECT extract(epoch FROM headgate.clock_v1()
                          - (to_date(d.day, 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC') * 1000 AS ms) AS a
     WHERE a.ms >= b.longest_ms)
SELECT 'jobs', n.tenant, n.topic, c.state::int, sum(c.n)::float8
  FROM counts c LEFT JOIN named n ON n.topic_no = c.topic_no GROUP BY 2, 3, 4
 UNION ALL
SELECT 'oldest', n.tenant, n.topic, NULL, extract(epoch FROM headgate.clock_v1() - o.since)::float8
  FROM headgate.oldest_pending_v1(ARRAY(SELECT s.topic_no FROM shown s)) AS o JOIN named n ON n.topic_no = o.topic_no
 UNION ALL
SELECT 'table', NULL, c.relname, v.dead, v.n
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_stat_all_tables t ON t.relid = c.oid
 CROSS JOIN LATERAL (VALUES (0, coalesce(t.n_live_tup, 0)::float8),
                            (1, coalesce(t.n_dead_tup, 0)::float8)) AS v(dead, n)
 WHERE s.nspname = 'headgate' AND c.relname = ANY ($3)
 UNION ALL
SELECT 'transaction', NULL, NULL, NULL, coalesce(max(s.seconds), 0)::float8 FROM snapshots s
 UNION ALL
SELECT 'xmin', NULL, NULL, NULL, coalesce(max(s.xids), 0)::float8 FROM snapshots s
 UNION ALL
SELECT 'days', NULL, NULL, NULL, count(*)::float8 FROM waiting w
 UNION ALL
SELECT 'lag', NULL, NULL, NULL, (coalesce(max(w.late_ms), 0) / 1000)::float8 FROM waiting w
 UNION ALL
SELECT 'webhooks pending', NULL, NULL, NULL, count(*)::float8
  FROM (SELECT FROM headgate.webhook_deliveries d WHERE d.next_at IS NOT NULL LIMIT 100000) AS p
 UNION ALL
-- Of enabled ones: the deliveries of the others wait for an operator. index: webhook_deliveries_due
SELECT 'webhooks oldest', NULL, NULL, NULL,
       coalesce(max(extract(epoch FROM headgate.clock_v1() - d.next_at)), 0)::float8
  FROM headgate.webhooks w
 CROSS JOIN LATERAL (SELECT d.next_at FROM headgate.webhook_deliveries d
                      WHERE d.webhook_no = w.webhook_no AND d.next_at IS NOT NULL ORDER BY d.next_at LIMIT 1) AS d
 WHERE w.enabled
 UNION ALL
SELECT 'instances', NULL, NULL, NULL, count(*)::float8 FROM headgate.instances i
 WHERE i.seen_at > headgate.clock_v1() - interval '10 seconds'"""


class QueueStateStore:
    """Reads what metrics show of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def queue_state(self, *, topics: Sequence[str], topics_max: int) -> QueueState:
        """One reading; `topics` are shown before others, and `topics_max` of all."""
        async with self._database.lane("upkeep").use() as db:
            with translating(writing=False):
                rows = await db.fetch(QUEUE_STATE, list(topics), topics_max, list(HOT_TABLES))
        jobs: dict[tuple[str, str], dict[State, int]] = {}
        oldest: dict[tuple[str, str], float] = {}
        tables: dict[str, dict[int, int]] = {}
        single: dict[str, float] = {}
        for kind, tenant, name, number, value in rows:
            label = OTHER if tenant is None else (tenant, name)
            if kind == "jobs":
                jobs.setdefault(label, {})[State(number)] = int(value)
            elif kind == "oldest":
                oldest[label] = value
            elif kind == "table":
                tables.setdefault(name, {})[number] = int(value)
            else:
                single[kind] = value
        return QueueState(
            jobs=jobs,
            oldest_due_seconds=oldest,
            tables={name: TableRows(live=rows[0], dead=rows[1]) for name, rows in tables.items()},
            oldest_transaction_seconds=max(0.0, single["transaction"]),
            xmin_age=int(single["xmin"]),
            retention_days_waiting=int(single["days"]),
            retention_lag_seconds=single["lag"],
            instances=int(single["instances"]),
            webhooks_pending=int(single["webhooks pending"]),
            webhooks_oldest_due_seconds=max(0.0, single["webhooks oldest"]),
        )
