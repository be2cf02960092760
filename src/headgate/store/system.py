"""What the database says of itself: migrations, sizes and dead rows of tables, the slowest statements."""

from __future__ import annotations

from typing import Final

from headgate.domain.errors import HeadgateError
from headgate.domain.load import Statement
from headgate.domain.system import AppliedMigration, DatabaseFacts, TableSize
from headgate.store.database import Database
from headgate.store.errors import translating
from headgate.store.load import HAS_STATEMENTS, name_of
from headgate.store.migration_state import read_applied

TABLES_MAX: Final = 40
STATEMENTS_MAX: Final = 15
# Sessions of other roles show their times only to a role with pg_read_all_stats.
TOTALS: Final = """
SELECT pg_database_size(current_database()),
       (SELECT count(*) FROM pg_catalog.pg_stat_activity a WHERE a.backend_type = 'client backend'),
       current_setting('max_connections')::int,
       (SELECT coalesce(max(extract(epoch FROM now() - a.xact_start)), 0)::float8 FROM pg_catalog.pg_stat_activity a
         WHERE a.backend_xmin IS NOT NULL AND a.datname = current_database()
           AND a.pid <> pg_catalog.pg_backend_pid())"""
# Days of partitioned tables are added up under the name of the table: there are hundreds of them.
TABLES: Final = """
SELECT coalesce(p.relname, c.relname), sum(coalesce(s.n_live_tup, 0))::bigint, sum(coalesce(s.n_dead_tup, 0))::bigint,
       sum(pg_total_relation_size(c.oid))::bigint, max(greatest(s.last_vacuum, s.last_autovacuum))
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
  LEFT JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
  LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
 WHERE n.nspname = 'headgate' AND c.relkind = 'r'
 GROUP BY 1 ORDER BY 4 DESC LIMIT $1"""
STATEMENTS: Final = """
SELECT s.query, s.calls, s.total_exec_time, s.rows
  FROM pg_stat_statements s JOIN pg_catalog.pg_database d ON d.oid = s.dbid
 WHERE d.datname = current_database() AND s.query ILIKE '%headgate.%'
 ORDER BY s.total_exec_time DESC LIMIT $1"""


class SystemStore:
    """Reads over the connections of one instance; fits the port of control/system.py."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def facts(self) -> DatabaseFacts:
        """All of it, by statistics of PostgreSQL: no table of ours is read."""
        async with self._database.lane("upkeep").use() as db:
            with translating(writing=False):
                size, connections, most, oldest = await db.fetchrow(TOTALS)  # type: ignore[misc]
                tables = await db.fetch(TABLES, TABLES_MAX)
                applied = await read_applied(db)
                installed = await db.fetchval(HAS_STATEMENTS)
        return DatabaseFacts(
            bytes=size,
            connections=connections,
            max_connections=most,
            oldest_transaction_seconds=oldest,
            migrations=[
                AppliedMigration(**{field: getattr(one, field) for field in AppliedMigration.__slots__})
                for one in applied
            ],
            tables=[
                TableSize(name=name, live=live, dead=dead, bytes=total, vacuumed_at=at)
                for name, live, dead, total, at in tables
            ],
            statements=await self._statements() if installed else None,
        )

    async def _statements(self) -> list[Statement] | None:
        """The slowest; None where the view is there, and the library is not loaded."""
        try:
            async with self._database.lane("upkeep").use() as db:
                with translating(writing=False):
                    rows = await db.fetch(STATEMENTS, STATEMENTS_MAX)
        except HeadgateError:
            return None
        return [Statement(name=name_of(row[0]), calls=row[1], total_ms=row[2], rows=row[3]) for row in rows]
