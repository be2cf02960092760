"""`headgate system`: what the installation runs with."""

from __future__ import annotations

from typing import Final

from headgate.cli.connection import with_client
from headgate.cli.options import DEFAULT_SERVER, Output, Server
from headgate.cli.output import Columns, details, print_one, table
from headgate.domain.units import size_text
from headgate.sdk.admin import SystemInfo
from headgate.sdk.admin.system import TableInfo

TABLES: Final[Columns[TableInfo]] = {
    "TABLE": lambda one: one.name,
    "SIZE": lambda one: size_text(one.bytes),
    "LIVE": lambda one: one.live,
    "DEAD": lambda one: one.dead,
}


def system_command(*, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Show settings in effect, versions, migrations, and dead rows of tables. The token needs the scope system.

    With -o json, it is what people who help ask for: secrets are masked.
    """
    found = with_client(server, lambda hg: hg.admin.system())
    print_one(found, output, lambda: _lines(found), name=found.instance)


def _lines(found: SystemInfo) -> list[str]:
    last = found.migrations[-1] if found.migrations else None
    return [
        *details(
            f"server {found.instance}",
            (
                *found.versions.items(),
                (
                    "database",
                    f"{size_text(found.database_bytes)}, {found.connections}/{found.max_connections} connections",
                ),
                ("schema", "not migrated" if last is None else f"migration {last.number} ({last.name})"),
            ),
        ),
        "",
        *details("settings", tuple(found.settings.items())),
        "",
        *table(found.tables, TABLES),
    ]
