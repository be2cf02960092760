"""What the database says was applied, held against what this release knows: the decision, apart from the doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from headgate.domain.errors import MigrationFailed, SchemaMismatch, StoreError
from headgate.store.connect import Connection
from headgate.store.migration_files import Migration


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """One row of headgate.migrations."""

    number: int
    name: str
    checksum: str
    compatible_with: int | None
    applied_by: str
    applied_at: datetime | None  # None: a `no transaction` file that was cut short
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Applied rows, files still to apply (an unfinished one is the first of them), and what forbids continuing."""

    applied: tuple[Applied, ...]
    pending: tuple[Migration, ...]
    problems: tuple[StoreError, ...]
    known: int  # the newest number of this release

    @property
    def version(self) -> int:
        """The newest finished number in the database; 0 when there is none."""
        return max((row.number for row in self.applied if row.applied_at is not None), default=0)

    def raise_unless_sound(self) -> None:
        """Raise the first problem: the rows are not a beginning of what this release knows; add nothing."""
        if self.problems:
            raise self.problems[0]

    def raise_unless_usable(self) -> None:
        """Raise unless this release can work on the schema as it is."""
        self.raise_unless_sound()
        if not self.pending:
            return
        if not self.applied:
            raise SchemaMismatch("the database has no headgate schema yet: run `headgate migrate`")
        first = self.pending[0]
        if any(row.number == first.number for row in self.applied):
            raise SchemaMismatch(f"migration {first.number} ({first.name}) is unfinished: run `headgate migrate` again")
        raise SchemaMismatch(
            f"the database is at migration {self.version}, this release needs {self.known}: run `headgate migrate`"
        )


async def read_applied(connection: Connection) -> list[Applied]:
    """The rows of headgate.migrations in order; none if the table does not exist."""
    # Asked apart: a statement that names a missing table fails, and would end a transaction around it.
    if await connection.fetchval("SELECT to_regclass('headgate.migrations') IS NULL"):
        return []
    return [Applied(**dict(row)) for row in await connection.fetch(_APPLIED)]


_APPLIED = """
SELECT number, name, checksum, compatible_with, applied_by, applied_at, seconds
  FROM headgate.migrations ORDER BY number
"""


def compare(known: Sequence[Migration], applied: Sequence[Applied]) -> Plan:
    """Hold the files of a release against the rows of a database."""
    files = {migration.number: migration for migration in known}
    finished = {row.number for row in applied if row.applied_at is not None}
    problems: list[StoreError] = []
    for row in applied:
        file = files.get(row.number)
        # An unfinished file may still be repaired; a finished one is history.
        if file is not None and row.applied_at is not None and row.checksum != file.checksum:
            problems.append(
                MigrationFailed(
                    f"{file.file} was changed after it was applied (by headgate {row.applied_by}): restore the file, "
                    "and write the change as a new migration"
                )
            )
    newest = max((row.number for row in applied), default=0)
    problems += [
        SchemaMismatch(
            f"migration {number} is not in the database although {newest} is: it was not migrated in order, or rows of "
            "headgate.migrations were removed; restore a backup or repair it by hand"
        )
        for number in range(1, newest)
        if number not in finished
    ]
    if too_new := _newer_than(len(known), applied):
        problems.append(too_new)
    return Plan(
        applied=tuple(applied),
        pending=tuple(migration for migration in known if migration.number not in finished),
        problems=tuple(problems),
        known=len(known),
    )


def _newer_than(known: int, applied: Sequence[Applied]) -> StoreError | None:
    # Each newer step says how old a release may be; the strictest of them counts. Unfinished ones have begun to matter.
    needed = max((row.compatible_with or row.number for row in applied if row.number > known), default=0)
    if needed <= known:
        return None
    last = applied[-1]
    return SchemaMismatch(
        f"the database is at migration {last.number} (applied by headgate {last.applied_by}), this release knows "
        f"{known}: upgrade headgate to a release that knows {needed} or later"
    )
