"""`hg.admin.system`: what the installation runs with; the token needs the scope `system`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import admin_pb2 as pb

GET: Final = Method("AdminService/GetSystem", pb.GetSystemRequest, pb.SystemInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationInfo:
    """A migration in the database. `applied` None: it has not ended."""

    number: int
    name: str
    applied_by: str
    applied: datetime | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A table with its indexes; rows as PostgreSQL last counted them."""

    name: str
    live: int
    dead: int
    bytes: int
    vacuumed: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementInfo:
    """A statement since its statistics were reset."""

    name: str
    calls: int
    total_ms: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInfo:
    """Settings of the server that answers (secrets are masked), versions, and what the database says of itself.

    `statements` None: pg_stat_statements is not installed.
    """

    instance: str
    settings: Mapping[str, str] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)
    database_bytes: int
    connections: int
    max_connections: int
    oldest_transaction_seconds: float
    migrations: list[MigrationInfo] = field(hash=False)
    tables: list[TableInfo] = field(hash=False)
    statements: list[StatementInfo] | None = field(hash=False)


async def system(connection: Connection) -> SystemInfo:
    """The report of the server that answers."""
    answer = await connection.call(GET, pb.GetSystemRequest())
    statements = [record(StatementInfo, one) for one in answer.statements]
    return record(
        SystemInfo,
        answer,
        migrations=[record(MigrationInfo, one) for one in answer.migrations],
        tables=[record(TableInfo, one) for one in answer.tables],
        statements=statements if answer.has_statements else None,
    )
