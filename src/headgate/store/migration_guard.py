"""Before a step that ends compatibility: are there servers that it would break?

A step says how old a release may be to run on the schema it makes. Who runs now knows what is applied now, and perhaps
no more; a step that demands more than that is for a time when nobody runs.
"""

from __future__ import annotations

from headgate.domain.errors import MigrationFailed
from headgate.store.connect import Connection
from headgate.store.migration_files import Migration

SEEN_SECONDS = 5
"""An instance says every second that it lives."""
_SHOWN = 5


async def require_nobody_it_breaks(connection: Connection, migration: Migration, *, applied: int) -> None:
    """Raise MigrationFailed if instances live that could not work on the schema after this step."""
    if not applied or (migration.compatible_with or migration.number) <= applied:
        return
    if await connection.fetchval("SELECT to_regclass('headgate.instances') IS NULL"):
        return
    living = [f"{row['name']} ({row['version']})" for row in await connection.fetch(_LIVING, SEEN_SECONDS)]
    if not living:
        return
    others = f" and {len(living) - _SHOWN} more" if len(living) > _SHOWN else ""
    raise MigrationFailed(
        f"migration {migration.number} ({migration.name}) would break servers of earlier releases, and some run: "
        f"{', '.join(living[:_SHOWN])}{others}. Stop them, wait {SEEN_SECONDS} seconds, and run `headgate migrate` "
        "again; or pass --break-running"
    )


_LIVING = """
SELECT name, version FROM headgate.instances
 WHERE seen_at > clock_timestamp() - $1 * interval '1 second' ORDER BY instance_no
"""
