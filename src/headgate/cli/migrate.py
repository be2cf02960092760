"""`headgate migrate`: bring the schema of a database to this release, or show what that would do."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence

from headgate.cli.database import chosen_database, connected
from headgate.ops.settings import Settings
from headgate.store.migrate import Phase, Progress, migrate, plan
from headgate.store.migration_state import Plan
from headgate.store.roles import missing_roles


def migrate_command(*, plan: bool = False, break_running: bool = False, database_url: str | None = None) -> None:
    """Create or upgrade the schema of the database; safe to run again, and on several hosts at once.

    Parameters
    ----------
    plan
        Show what would be done, change nothing.
    break_running
        Apply even a step that servers running now cannot live with.
    database_url
        postgresql://user@host/database. Without it: HEADGATE_DIRECT_DATABASE_URL, else HEADGATE_DATABASE_URL, else the
        embedded PostgreSQL.
    """
    asyncio.run(_run(only_plan=plan, break_running=break_running, database_url=database_url))


async def _run(*, only_plan: bool, break_running: bool, database_url: str | None) -> None:
    settings = Settings.from_environ(os.environ)
    url = database_url or settings.url_for_migrations
    async with (
        chosen_database(url, data=settings.data) as database,
        connected(database, command="migrate") as connection,
    ):
        if only_plan:
            found = await plan(connection)
            applied_now: set[int] = set()
        else:
            done = await migrate(connection, progress=reporter(), break_running=break_running)
            applied_now = {step.number for step in done}
            found = await plan(connection)
        for line in table(found, applied_now):
            print(line)
        print(f"{database.title}: {summary(found, len(applied_now))}")
        for line in advice(await missing_roles(connection)):
            print(line)
        found.raise_unless_sound()


def table(found: Plan, applied_now: set[int]) -> list[str]:
    """Numbers, names and states, in columns that scripts may cut by white space."""
    rows = [("NUMBER", "NAME", "STATE", "DETAIL")]
    unfinished = {row.number for row in found.applied if row.applied_at is None}
    for row in found.applied:
        if row.applied_at is not None:
            state = "new" if row.number in applied_now else "applied"
            detail = f"{row.applied_at:%Y-%m-%dT%H:%M:%SZ} by {row.applied_by} in {row.seconds or 0:.2f} s"
            rows.append((f"{row.number:04}", row.name, state, detail))
    for step in found.pending:
        state = "unfinished" if step.number in unfinished else "pending"
        rows.append((f"{step.number:04}", step.name, state, "" if step.transactional else "outside a transaction"))
    return _aligned(rows)


def summary(found: Plan, applied_now: int) -> str:
    """One sentence on where the database stands."""
    if found.problems:
        return f"{len(found.problems)} problem(s), see below"
    if found.pending:
        return f"{len(found.pending)} to apply; run `headgate migrate`"
    if applied_now:
        return f"{applied_now} applied, now at migration {found.version}"
    return f"at migration {found.version}, nothing to do"


def advice(statements: Sequence[str]) -> list[str]:
    """What an administrator may run, where this user may not make roles. Nothing depends on it but who may do what."""
    if not statements:
        return []
    return [
        "roles: this user may not create them, so servers log in as the owner of the schema. To separate them, have an",
        "administrator run these, then run `headgate migrate` again (docs/operations/database-roles.md):",
        *(f"  {statement}" for statement in statements),
    ]


def reporter() -> Callable[[Progress], None]:
    """Progress on stderr, a line per change: a wait that goes on is said once."""
    last = ""

    def report(event: Progress) -> None:
        nonlocal last
        line = f"{event.migration.number:04} {event.migration.name}: {event.phase}"
        line += f" ({event.detail})" if event.detail else ""
        if event.phase is not Phase.APPLIED and line != last:
            print(line, file=sys.stderr, flush=True)
        last = line

    return report


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
