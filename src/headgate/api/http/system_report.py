"""The report of what the installation runs with, as it is sent and as it is in a support bundle."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.api.http.codec import Output, answers
from headgate.domain.system import SystemReport


class MigrationOut(Output, kw_only=True):
    """A migration in the database."""

    number: int
    name: str
    applied_by: str
    applied_us: Annotated[int, msgspec.Meta(description="Left out if it has not ended.")] = 0
    seconds: float = 0.0


class TableOut(Output, kw_only=True):
    """A table with its indexes; rows as PostgreSQL last counted them."""

    name: str
    live: int
    dead: int
    bytes: int
    vacuumed_us: int = 0


class StatementOut(Output, kw_only=True):
    """A statement since its statistics were reset."""

    name: str
    calls: int
    total_ms: float
    rows: int


class SystemOut(Output, kw_only=True):
    """Settings of the instance that answers, versions, and what the database says of itself."""

    instance: str
    settings: dict[str, str]
    versions: dict[str, str]
    database_bytes: int
    connections: int
    max_connections: int
    oldest_transaction_seconds: float
    migrations: list[MigrationOut]
    tables: list[TableOut]
    statements: Annotated[
        list[StatementOut] | None, msgspec.Meta(description="Left out if pg_stat_statements is not installed.")
    ] = None


def system_out(report: SystemReport) -> SystemOut:
    """The report as it is sent, and as it is in a support bundle."""
    database, statements = report.database, report.database.statements
    return answers.of(
        SystemOut,
        report,
        database,
        settings=dict(report.settings),
        versions=dict(report.versions),
        database_bytes=database.bytes,
        migrations=[answers.of(MigrationOut, one) for one in database.migrations],
        tables=[answers.of(TableOut, one) for one in database.tables],
        statements=None if statements is None else [answers.of(StatementOut, one) for one in statements],
    )
