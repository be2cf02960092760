"""What an installation runs with: settings, versions, migrations, tables, slow statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headgate.domain.load import Statement

MASKED = "•••"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedMigration:
    """A migration in the database. `applied_at` None: it has begun, and has not ended."""

    number: int
    name: str
    applied_by: str
    applied_at: datetime | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """A table with its indexes. Rows as PostgreSQL last counted them; `dead` ones are removed by vacuum."""

    name: str
    live: int
    dead: int
    bytes: int
    vacuumed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """What the database says of itself."""

    bytes: int
    connections: int
    max_connections: int
    oldest_transaction_seconds: float
    migrations: Sequence[AppliedMigration] = ()
    tables: Sequence[TableSize] = ()
    statements: Sequence[Statement] | None = None
    """The slowest in all since its statistics were reset; None: pg_stat_statements is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """All of it. `settings` are those of the instance that answers; secrets are masked."""

    instance: str
    settings: Mapping[str, str] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)
    database: DatabaseFacts
