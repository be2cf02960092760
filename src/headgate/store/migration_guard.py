"""Before steps that end compatibility: are there servers that they would break?

A step says how old a release may be to run on the schema it makes, and an instance says which step is the newest that
it knows. Steps that demand more than that are for a time when it does not run.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.domain.errors import MigrationFailed
from headgate.store.connect import Connection
from headgate.store.migration_files import Migration

SEEN_SECONDS = 5
"""An instance says every second that it lives."""
_SHOWN = 5


async def require_no_broken_server(connection: Connection, pending: Sequence[Migration]) -> None:
    """Raise MigrationFailed if instances live that could not work on the schema after one of these steps.

    All that is pending at once, so that a refusal leaves everything as it was.
    """
    if await connection.fetchval("SELECT to_regclass('headgate.instances') IS NULL"):
        return
    living = await connection.fetch(_LIVING, SEEN_SECONDS)
    for migration in pending:
        needed = migration.compatible_with or migration.number
        if broken := [f"{row['name']} ({row['version']})" for row in living if row["knows"] < needed]:
            others = f" and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
            raise MigrationFailed(
                f"migration {migration.number} ({migration.name}) would break servers of earlier releases, and some "
                f"run: {', '.join(broken[:_SHOWN])}{others}. Stop them, wait {SEEN_SECONDS} seconds, and run "
                "`headgate migrate` again; or pass --break-running"
            )


_LIVING = """
SELECT name, version, knows FROM headgate.instances
 WHERE seen_at > clock_timestamp() - $1 * interval '1 second' ORDER BY instance_no
"""
