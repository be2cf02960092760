"""`headgate dead …`: dead letters by topic and error group; redrive or discard them."""

from __future__ import annotations

from cyclopts import App

from headgate.cli import bulk, values
from headgate.cli.connection import with_client
from headgate.cli.options import (
    BulkReason,
    Delay,
    Detach,
    DryRun,
    Filter,
    Group,
    Limit,
    PerSecond,
    TableOutput,
    Topics,
    Url,
    Yes,
)
from headgate.cli.output import age, as_json, print_lines, short, table
from headgate.domain.errors import InvalidInput
from headgate.sdk.admin.bulk import PlanOptions
from headgate.sdk.admin.dead import dead_filter

dead = App(name="dead", help="Dead letters: jobs that failed permanently.")


@dead.command(name="list")
def list_command(topic: Topics = "", *, limit: Limit = 50, output: TableOutput = "table", url: Url = "") -> None:
    """Show dead letters by topic and error group, largest group first."""
    found = with_client(url, lambda hg: hg.admin.dead.groups(topic, limit=limit))
    if output == "json":
        print_lines(map(as_json, found.groups))
    elif output == "name":
        print_lines(group.group for group in found.groups)
    elif not found.groups:
        print("no dead letters")
    else:
        head = ("GROUP", "TOPIC", "COUNT", "FIRST", "LAST", "ERROR")
        rows = [
            (one.group, one.topic, one.count, age(one.first_at), age(one.last_at), short(one.title, 80))
            for one in found.groups
        ]
        print_lines(table(head, rows, right=(2,)))
        if not found.exact:
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
    output: TableOutput = "table",
    url: Url = "",
) -> None:
    """Put dead jobs back on their topics, with the attempts counted from 0."""
    options: PlanOptions = {"reason": reason}
    if delay is not None:
        options["delay"] = values.duration(delay, field="--delay")
    if per_second:
        options["per_second"] = per_second
    text = _filter_text(topic, group, filter)
    bulk.run(url, "redrive", text, options, yes=yes, dry_run=dry_run, detach=detach, output=output)


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
    output: TableOutput = "table",
    url: Url = "",
) -> None:
    """Delete dead jobs. Their history stays."""
    options: PlanOptions = {"reason": reason}
    text = _filter_text(topic, group, filter)
    bulk.run(url, "discard", text, options, yes=yes, dry_run=dry_run, detach=detach, output=output)


def _filter_text(topic: str, group: str, more: str) -> str:
    if not (topic or group or more):
        raise InvalidInput(
            "topic", "is missing", hint="pass a topic, a --group or a --filter; '*' selects all dead jobs"
        )
    return dead_filter(topic, group=group, filter=more)
