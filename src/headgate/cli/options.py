"""Command-line options that several commands share: each has one name, one type and one help text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from cyclopts import Parameter


@Parameter(name="*")  # its fields are options of the command itself
@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server that a command calls."""

    url: Annotated[str, Parameter(help="Server address. Default: HEADGATE_URL, else 127.0.0.1:7070.")] = ""
    token: Annotated[
        str,
        Parameter(help="Token. Default: HEADGATE_TOKEN, which other users of the machine cannot see."),
    ] = ""


DEFAULT_SERVER: Final = Server()

DatabaseUrl = Annotated[
    str | None,
    Parameter(
        help="postgresql://user@host/database. Default: HEADGATE_DIRECT_DATABASE_URL, else HEADGATE_DATABASE_URL."
    ),
]
ServedDatabaseUrl = Annotated[
    str | None, Parameter(help="postgresql://user@host/database. Default: HEADGATE_DATABASE_URL.")
]
DevDatabaseUrl = Annotated[
    str | None,
    Parameter(help="postgresql://user@host/database. Default: HEADGATE_DATABASE_URL, else the embedded PostgreSQL."),
]
Embedded = Annotated[
    bool,
    Parameter(help="Use the embedded PostgreSQL, in the folder HEADGATE_DATA, else ./.headgate/postgres."),
]
Output = Annotated[
    Literal["table", "json", "ndjson", "name"],
    Parameter(
        name=("--output", "-o"),
        help="Output format: table (for people), json (one document), ndjson (one object per line), name (only names "
        "or ids).",
    ),
]
Reason = Annotated[str, Parameter(help="Reason, recorded in the audit log.")]
JobReason = Annotated[str, Parameter(help="Reason, recorded in the history of each job.")]
BulkReason = Annotated[str, Parameter(help="Reason, recorded in the audit log and in the history of each job.")]

JobId = Annotated[str, Parameter(help="Job id, or its first digits (at least 4) if no other job id begins with them.")]
JobIds = Annotated[str, Parameter(help="Job ids, or their first digits.")]
App = Annotated[str, Parameter(help="The Headgate object: `package.module:name`.")]
Payload = Annotated[str, Parameter(help="Payload as JSON, `@file`, or `-` for standard input.")]
Raw = Annotated[bool, Parameter(help="Send the payload bytes unchanged, without checking that they are JSON.")]
Priority = Annotated[str, Parameter(help="A number, or a tier: bulk, normal, high, urgent.")]
MaxAttempts = Annotated[int | None, Parameter(help="Maximum number of attempts. Default: the default of the topic.")]
Tags = Annotated[str, Parameter(help="Tags to search by, separated by commas.")]
Limit = Annotated[int, Parameter(help="Maximum number of entries.")]
LogLevel = Annotated[str, Parameter(help="DEBUG, INFO, WARNING or ERROR.", env_var="HEADGATE_LOG_LEVEL")]
LogFormat = Annotated[
    Literal["text", "json"],
    Parameter(help="Format of log lines: text for people, json for machines.", env_var="HEADGATE_LOG_FORMAT"),
]
Topics = Annotated[str, Parameter(help="Topic, or a prefix such as `mail*`.")]
Group = Annotated[str, Parameter(help="Error group, as shown by `headgate dead list`.")]
Filter = Annotated[str, Parameter(help='Filter, for example `state:dead topic:mail* created:>2h error:"timed out"`.')]
Delay = Annotated[str | None, Parameter(help="Delay before the jobs are due: 30s, 5m, 2h.")]
PerSecond = Annotated[int, Parameter(help="Maximum jobs per second.")]
Yes = Annotated[bool, Parameter(help="Do not ask for confirmation. Required with an output format other than table.")]
DryRun = Annotated[bool, Parameter(help="Show which jobs would be affected, and change nothing.")]
Detach = Annotated[bool, Parameter(help="Return at once instead of waiting until the operation has ended.")]
