"""The migrations that this release brings: numbered plain SQL files, read from the package.

    migrations/NNNN_name.sql   0001, 0002, … without a gap. Never edited once released: the database keeps the checksum.
    functions/NAME_vN.sql      hot statements, one function a file; the EXPLAIN tests read the same files.

Three lines have a meaning; the first two stand in the comment at the top:

    -- headgate: no transaction
        (the first line) Run statement by statement, outside a transaction: for CREATE INDEX CONCURRENTLY.
        Such a file must bear being run again from its start.
    -- compatible with: 4
        Releases whose newest migration is number 4 or later may run on this schema, so an old and a new server can
        share the database during an upgrade (expand now, contract one release later).
    -- include: functions/claim_v1.sql
        (anywhere, a line of its own) Replaced by that file. The checksum is taken afterwards.

Statements name their schema (search_path is empty while they run) and contain no BEGIN or COMMIT: the runner owns the
transaction.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable

from headgate.domain.errors import MigrationFailed
from headgate.store.sql_text import Statement, UnreadableSqlError, statements

_NAME = re.compile(r"(\d{4})_([a-z][a-z0-9_]*)\.sql")
_INCLUDE = re.compile(r"-- include: (functions/[a-z][a-z0-9_]*\.sql)\s*")
_COMPATIBLE = re.compile(r"-- compatible with: (\d{1,4})\s*")
_NO_TRANSACTION = "-- headgate: no transaction"
# What looks like one of the three lines but is not spelled like it would otherwise be a comment, silently.
_ALMOST = re.compile(r"\s*--\s*(include|compatible with|headgate)\s*:", re.IGNORECASE)
_TRANSACTION_WORDS = {"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE"}


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One migration file, its includes put in."""

    number: int
    name: str
    text: str
    transactional: bool
    compatible_with: int | None
    origins: tuple[tuple[str, int], ...]  # for each line of `text`: the file it came from, and its line there

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """The text, cut into statements; raises MigrationFailed if it cannot be, or has what it must not have."""
        return _statements(self.file, self.text, self.origins)

    @property
    def file(self) -> str:
        return f"migrations/{self.number:04}_{self.name}.sql"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def where(self, line: int) -> str:
        """The place, for people, of a line of the expanded text."""
        return _where(self.origins, line)


def load(source: Traversable | None = None) -> tuple[Migration, ...]:
    """All migrations in order, to be applied; `source` and errors are those of `read`.

    All of them are cut here: one that cannot be must not be found after those before it were applied.
    """
    found = read(source)
    for migration in found:
        _ = migration.statements
    return found


def read(source: Traversable | None = None) -> tuple[Migration, ...]:
    """All migrations in order, to be compared: cutting their statements would be most of the time of a server's start.

    `source` is a folder with `migrations/` and `functions/`, by default the package's own. Raises MigrationFailed if it
    is not sound: a number used twice or left out, a name or line not understood.
    """
    root = resources.files("headgate.store") if source is None else source
    found: dict[int, Migration] = {}
    for entry in sorted((root / "migrations").iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "__")):
            continue
        fits = _NAME.fullmatch(entry.name)
        if fits is None:
            raise MigrationFailed(f"migrations/{entry.name}: the name must look like 0007_add_schedules.sql")
        number = int(fits[1])
        if number in found:
            raise MigrationFailed(f"{found[number].file} and migrations/{entry.name} have the same number")
        if number != len(found) + 1:
            raise MigrationFailed(f"migrations/{entry.name}: number {len(found) + 1:04} is missing before it")
        found[number] = _read(root, number, fits[2])
    return tuple(found.values())


def newest() -> int:
    """The number of the newest migration of this release, by the names of the files, without reading them."""
    folder = resources.files("headgate.store") / "migrations"
    return max(int(fits[1]) for entry in folder.iterdir() if (fits := _NAME.fullmatch(entry.name)))


def _read(root: Traversable, number: int, name: str) -> Migration:
    file = f"migrations/{number:04}_{name}.sql"
    lines = _lines(root, file)
    if not lines:
        raise MigrationFailed(f"{file} is empty")
    transactional = lines[0].rstrip() != _NO_TRANSACTION
    compatible_with: int | None = None
    expanded: list[str] = []
    origins: list[tuple[str, int]] = []
    in_header = True
    for line_number, line in enumerate(lines, start=1):
        in_header = in_header and line.startswith("--")
        if include := _INCLUDE.fullmatch(line):
            included = _lines(root, include[1], by=f"{file}, line {line_number}")
            expanded += included
            origins += [(include[1], n) for n in range(1, len(included) + 1)]
            continue
        if in_header and (stated := _COMPATIBLE.fullmatch(line)):
            compatible_with = int(stated[1])
            if compatible_with >= number:
                raise MigrationFailed(f"{file}, line {line_number}: compatible with {compatible_with} says nothing")
        elif _ALMOST.match(line) and not (line_number == 1 and not transactional):
            raise MigrationFailed(f'{file}, line {line_number}: not understood or out of place: "{line.strip()}"')
        expanded.append(line)
        origins.append((file, line_number))
    text = "\n".join(expanded) + "\n"
    return Migration(
        number=number,
        name=name,
        text=text,
        transactional=transactional,
        compatible_with=compatible_with,
        origins=tuple(origins),
    )


def _lines(root: Traversable, file: str, *, by: str = "") -> list[str]:
    try:
        text = root.joinpath(*file.split("/")).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MigrationFailed(f"{by}: there is no {file}") from None
    except UnicodeDecodeError as error:
        raise MigrationFailed(f"{file} is not UTF-8 at byte {error.start}") from None
    lines = text.split("\n")  # only \n: splitlines() would also cut at form feeds and the like, and move line numbers
    if lines[-1] == "":
        lines.pop()
    if by and any(_INCLUDE.fullmatch(line) for line in lines):
        raise MigrationFailed(f"{file} has an include line; an included file cannot include another")
    return lines


def _statements(file: str, text: str, origins: tuple[tuple[str, int], ...]) -> tuple[Statement, ...]:
    try:
        found = statements(text)
    except UnreadableSqlError as error:
        raise MigrationFailed(f"{_where(origins, error.line)}: {error.problem}") from None
    if not found:
        raise MigrationFailed(f"{file} has no statement")
    for statement in found:
        if statement.words[:1] and statement.words[0] in _TRANSACTION_WORDS:
            place = _where(origins, statement.line)
            raise MigrationFailed(f"{place}: {statement.words[0]} is not allowed; the runner owns the transaction")
    return tuple(found)


def _where(origins: tuple[tuple[str, int], ...], line: int) -> str:
    file, own_line = origins[min(line, len(origins)) - 1]
    return f"{file}, line {own_line}"
