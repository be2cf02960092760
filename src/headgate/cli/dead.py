"""`headgate dead …`: dead letters by topic and error group; redrive or discard them."""

from __future__ import annotations

from typing import Final

from cyclopts import App

from headgate.cli import bulk, values
from headgate.cli.connection import with_client
from headgate.cli.options import (
    DEFAULT_SERVER,
    BulkReason,
    Delay,
    Detach,
    DryRun,
    Filter,
    Group,
    Limit,
    Output,
    PerSecond,
    Server,
    Topics,
    Yes,
)
from headgate.cli.output import Columns, print_list
from headgate.domain.bulk import DeadGroup
from headgate.domain.errors import InvalidInput
from headgate.sdk.admin.bulk import PlanOptions
from headgate.sdk.admin.dead import dead_filter

dead = App(name="dead", help="Dead letters: jobs that failed permanently.")
GROUPS: Final[Columns[DeadGroup]] = {
    "GROUP": lambda one: one.group,
    "TOPIC": lambda one: one.topic,
    "COUNT": lambda one: one.count,
    "FIRST": lambda one: one.first_at,
    "LAST": lambda one: one.last_at,
    "ERROR": lambda one: one.title,
}


@dead.command(name="list")
def list_command(
    topic: Topics = "", *, limit: Limit = 50, output: Output = "table", server: Server = DEFAULT_SERVER
) -> None:
    """Show dead letters by topic and error group, largest group first."""
    found = with_client(server, lambda hg: hg.admin.dead.groups(topic, limit=limit))
    print_list(found.groups, output, GROUPS, name=lambda one: one.group, empty="no dead letters")
    if not found.exact and output == "table":
        print(f"counted over the newest {found.looked_at:,} dead letters only; there are more")


@dead.command(name="redrive")
def redrive_command(
    topic: Topics = "",
    *,
    group: Group = "",
    filter: Filter = "",  # noqa: A002 - the option's name
    reason: BulkReason = "",
    delay: Delay = None,
    per_second: PerSecond = 0,
    yes: Yes = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Put dead jobs back on their topics, with the attempts counted from 0."""
    options: PlanOptions = {"reason": reason}
    if delay is not None:
        options["delay"] = values.duration(delay, field="--delay")
    if per_second:
        options["per_second"] = per_second
    text = _filter_text(topic, group, filter)
    bulk.run(server, "redrive", text, options, yes=yes, dry_run=dry_run, detach=detach, output=output)


@dead.command(name="discard")
def discard_command(
    topic: Topics = "",
    *,
    group: Group = "",
    filter: Filter = "",  # noqa: A002 - the option's name
    reason: BulkReason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Delete dead jobs. Their history stays."""
    options: PlanOptions = {"reason": reason}
    text = _filter_text(topic, group, filter)
    bulk.run(server, "discard", text, options, yes=yes, dry_run=dry_run, detach=detach, output=output)


def _filter_text(topic: str, group: str, more: str) -> str:
    if not (topic or group or more):
        raise InvalidInput(
            "topic", "is missing", hint="pass a topic, a --group or a --filter; '*' selects all dead jobs"
        )
    return dead_filter(topic, group=group, filter=more)
