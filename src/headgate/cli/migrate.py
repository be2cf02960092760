"""`headgate migrate`: create or upgrade the database schema, or show what that would do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli.configured import configured
from headgate.cli.database import chosen_database, connected, require_choice
from headgate.cli.options import Output
from headgate.cli.output import Columns, duration, for_people, iso, print_lines, print_list
from headgate.ops.configuration import Configuration
from headgate.store.migrate import Phase, Progress, migrate, plan
from headgate.store.migration_state import Plan
from headgate.store.roles import missing_roles


@configured("migrate")
def migrate_command(
    *,
    plan: Annotated[bool, Parameter(help="Show the steps to apply, and change nothing.")] = False,
    break_running: Annotated[
        bool, Parameter(help="Also apply steps that are incompatible with servers running now.")
    ] = False,
    output: Output = "table",
    config: Configuration,
) -> None:
    """Create or upgrade the database schema. Safe to repeat, and to run on several hosts at once."""
    require_choice(config, config.url_for_migrations)
    asyncio.run(_run(config, only_plan=plan, break_running=break_running, output=output))


async def _run(config: Configuration, *, only_plan: bool, break_running: bool, output: str) -> None:
    async with (
        chosen_database(config.url_for_migrations, data=config.data) as database,
        connected(database, command="migrate") as connection,
    ):
        if only_plan:
            found = await plan(connection)
            applied_now: set[int] = set()
        else:
            done = await migrate(connection, progress=reporter(), break_running=break_running)
            applied_now = {step.number for step in done}
            found = await plan(connection)
        steps = steps_of(found, applied_now)
        print_list(steps, output, STEPS, name=lambda step: f"{step.number:04}", empty="no migrations")
        if for_people(output):
            print(f"{database.title}: {summary(found, len(applied_now))}")
            print_lines(advice(await missing_roles(connection)))
        found.raise_unless_sound()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A migration, and whether the database has it."""

    number: int
    name: str
    state: str
    detail: str


STEPS: Final[Columns[Step]] = {
    "NUMBER": lambda step: f"{step.number:04}",
    "NAME": lambda step: step.name,
    "STATE": lambda step: step.state,
    "DETAIL": lambda step: step.detail,
}


def steps_of(found: Plan, applied_now: set[int]) -> list[Step]:
    """Return the migrations that the database has, and those to apply."""
    steps: list[Step] = []
    unfinished = {row.number for row in found.applied if row.applied_at is None}
    for row in found.applied:
        if row.applied_at is not None:
            state = "new" if row.number in applied_now else "applied"
            detail = f"{iso(row.applied_at)} by {row.applied_by} in {duration(timedelta(seconds=row.seconds or 0))}"
            steps.append(Step(number=row.number, name=row.name, state=state, detail=detail))
    for pending in found.pending:
        state = "unfinished" if pending.number in unfinished else "pending"
        detail = "" if pending.transactional else "outside a transaction"
        steps.append(Step(number=pending.number, name=pending.name, state=state, detail=detail))
    return steps


def summary(found: Plan, applied_now: int) -> str:
    """Return the state of the schema as one line."""
    if found.problems:
        return f"{len(found.problems)} problem(s), see below"
    if found.pending:
        return f"{len(found.pending)} to apply; run `headgate migrate`"
    if applied_now:
        return f"{applied_now} applied, now at migration {found.version}"
    return f"at migration {found.version}, nothing to do"


def advice(statements: Sequence[str]) -> list[str]:
    """Return the statements for an administrator, when this user cannot create the roles. Servers run without them."""
    if not statements:
        return []
    return [
        "roles: this user cannot create them, so servers log in as the owner of the schema. To separate them, have an",
        "administrator run these statements, then run `headgate migrate` again (docs/operations/database-roles.md):",
        *(f"  {statement}" for statement in statements),
    ]


def reporter() -> Callable[[Progress], None]:
    """Return a callback that prints progress to stderr, one line per change."""
    last = ""

    def report(event: Progress) -> None:
        nonlocal last
        line = f"{event.migration.number:04} {event.migration.name}: {event.phase}"
        line += f" ({event.detail})" if event.detail else ""
        if event.phase is not Phase.APPLIED and line != last:
            print(line, file=sys.stderr, flush=True)
        last = line

    return report
