"""Command-line options that several commands share: each has one name, one type and one help text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from headgate.cli.configured import flag
from headgate.domain.errors import InvalidInput
from headgate.domain.limits import PAGE_MAX
from headgate.domain.units import duration, duration_text
from headgate.domain.validation import check_integer, shown


@Parameter(name="*")  # its fields are options of the command itself
@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server that a command calls."""

    url: Annotated[str, flag("url")] = ""
    token: Annotated[str, flag("token")] = ""
    profile: Annotated[str, flag("profile")] = ""
    config: Annotated[str, flag("config")] = ""


DEFAULT_SERVER: Final = Server()
SHORTEST_INTERVAL: Final = timedelta(milliseconds=200)
LONGEST_INTERVAL: Final = timedelta(hours=1)

Output = Annotated[
    Literal["table", "wide", "json", "ndjson", "yaml", "name"],
    Parameter(
        name=("--output", "-o"),
        help="Output format: table (for people), wide (all columns, not cut), json (one document), ndjson (one object "
        "per line), yaml, name (only names or ids).",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Whether a command prints once, or again and again."""

    watch: Annotated[
        bool, Parameter(help="Print again and again, until Ctrl-C; in a pipe, what is new or has changed.")
    ] = False
    interval: Annotated[str, Parameter(help="With --watch, the time between two reads: 500ms, 2s.")] = "2s"

    @property
    def pause(self) -> timedelta:
        """The time between two reads; raises InvalidInput."""
        return interval_of(self.interval)


def interval_of(text: str) -> timedelta:
    """Parse --interval; raises InvalidInput."""
    span = duration(text, field="--interval")
    if not SHORTEST_INTERVAL <= span <= LONGEST_INTERVAL:
        raise InvalidInput(
            "--interval",
            f"must be from {duration_text(SHORTEST_INTERVAL)} to {duration_text(LONGEST_INTERVAL)}, got {shown(text)}",
        )
    return span


ONCE: Final = Watch()
Since = Annotated[
    str | None,
    Parameter(help="End only the pause that began at this time, as `--output json` shows it; a later one stays."),
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


def _check_limit(_type: object, value: int) -> None:
    """Raise InvalidInput: lists that are cut here would be empty, or without their last entries."""
    check_integer(value, field="--limit", low=1, high=10**9)


Limit = Annotated[int, Parameter(help="Maximum number of entries.", validator=_check_limit)]
Topics = Annotated[str, Parameter(help="Topic, or a prefix such as `mail*`.")]
Group = Annotated[str, Parameter(help="Error group, as shown by `headgate dead list`.")]
Filter = Annotated[str, Parameter(help='Filter, for example `state:dead topic:mail* created:>2h error:"timed out"`.')]
Part = Annotated[str, Parameter(name="--filter", help="Only entries that contain this text in one of their columns.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is printed of a server: once or again and again, and in which form."""

    watch: Watch = ONCE
    output: Output = "table"
    server: Server = DEFAULT_SERVER


SHOWN: Final = Shown()


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What lists take whose entries have no filter of their own."""

    part: Part = ""
    limit: Limit = 1_000
    shown: Shown = SHOWN

    @property
    def read_limit(self) -> int:
        """How many entries to read: those with `part` are chosen from what was read."""
        return PAGE_MAX if self.part else self.limit


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShortListing(Listing):
    """The same for lists of which people look at the beginning."""

    limit: Limit = 50


LISTING: Final = Listing()
SHORT_LISTING: Final = ShortListing()
Delay = Annotated[str | None, Parameter(help="Delay before the jobs are due: 30s, 5m, 2h.")]
PerSecond = Annotated[int, Parameter(help="Maximum jobs per second.")]
Yes = Annotated[bool, Parameter(help="Do not ask for confirmation. Required with an output format other than table.")]
YesOnTerminal = Annotated[bool, Parameter(name="--yes", help="Do not ask for confirmation on a terminal.")]
DryRun = Annotated[bool, Parameter(help="Show which jobs would be affected, and change nothing.")]
Detach = Annotated[bool, Parameter(help="Return at once instead of waiting until the operation has ended.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """How a bulk operation is started, and what is printed of it."""

    yes: Yes = False
    dry_run: DryRun = False
    detach: Detach = False
    output: Output = "table"
    server: Server = DEFAULT_SERVER


STARTING: Final = Starting()
