"""`headgate dead …`: dead letters by topic and kind of error; redrive or discard them."""

from __future__ import annotations

import asyncio

from cyclopts import App

from headgate.cli import op, values
from headgate.cli.listing import Output
from headgate.cli.tables import age, as_json, short, table
from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate
from headgate.sdk.admin.dead import DeadGroups, dead_filter
from headgate.sdk.admin.operations import PlanOptions

dead = App(name="dead", help="Dead letters: jobs that failed for good.")


@dead.command(name="list")
def list_command(topic: str = "", *, limit: int = 50, output: Output = "table", url: str = "") -> None:
    """Show dead letters by topic and kind of error, largest group first.

    Parameters
    ----------
    topic
        Only of this topic; `mail*` is all that begin so.
    limit
        How many groups at most.
    output
        table, json (an object per line) or name (group ids only).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    found = asyncio.run(_groups(url or None, topic, limit))
    if output == "json":
        for group in found.groups:
            print(as_json(group))
    elif output == "name":
        for group in found.groups:
            print(group.group)
    elif not found.groups:
        print("no dead letters")
    else:
        head = ("GROUP", "TOPIC", "COUNT", "FIRST", "LAST", "ERROR")
        rows = [
            (one.group, one.topic, one.count, age(one.first_at), age(one.last_at), short(one.title, 80))
            for one in found.groups
        ]
        print("\n".join(table(head, rows, right=(2,))))
        if not found.exact:
            print(f"made of the newest {found.looked_at:,} jobs that ended badly; there are more")


@dead.command(name="redrive")
def redrive_command(
    topic: str = "",
    *,
    group: str = "",
    filter: str = "",  # noqa: A002 - the option's name
    reason: str = "",
    delay: str = "",
    per_second: int = 0,
    yes: bool = False,
    dry_run: bool = False,
    detach: bool = False,
    output: Output = "table",
    url: str = "",
) -> None:
    """Put dead jobs back on their topics, with attempts counted anew.

    Parameters
    ----------
    topic
        Those of this topic; `mail*` is all that begin so.
    group
        Those of this group, as `headgate dead list` shows it.
    filter
        Those that match this, too.
    reason
        Why; it stands in the audit and in each job's history.
    delay
        How long they wait before they are due: 30s, 5m.
    per_second
        No more than so many a second.
    yes
        Do not ask.
    dry_run
        Show what would be met, and change nothing.
    detach
        Do not wait for the end.
    output
        table, json or name; json and name do not ask, so they need --yes.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    options: PlanOptions = {"reason": reason}
    if delay:
        options["delay"] = values.span(delay, field="--delay")
    if per_second:
        options["per_second"] = per_second
    text = _text(topic, group, filter)
    asyncio.run(op.run(url or None, "redrive", text, options, yes=yes, dry_run=dry_run, detach=detach, output=output))


@dead.command(name="discard")
def discard_command(
    topic: str = "",
    *,
    group: str = "",
    filter: str = "",  # noqa: A002 - the option's name
    reason: str = "",
    yes: bool = False,
    dry_run: bool = False,
    detach: bool = False,
    output: Output = "table",
    url: str = "",
) -> None:
    """Remove dead jobs for good; their history stays.

    Parameters
    ----------
    topic
        Those of this topic; `mail*` is all that begin so.
    group
        Those of this group, as `headgate dead list` shows it.
    filter
        Those that match this, too.
    reason
        Why; it stands in the audit and in each job's history.
    yes
        Do not ask.
    dry_run
        Show what would be met, and change nothing.
    detach
        Do not wait for the end.
    output
        table, json or name; json and name do not ask, so they need --yes.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    options: PlanOptions = {"reason": reason}
    text = _text(topic, group, filter)
    asyncio.run(op.run(url or None, "discard", text, options, yes=yes, dry_run=dry_run, detach=detach, output=output))


def _text(topic: str, group: str, more: str) -> str:
    if not (topic or group or more):
        raise InvalidInput("topic", "is missing", hint="name a topic, a --group or a --filter; '*' means all dead jobs")
    return dead_filter(topic, group=group, filter=more)


async def _groups(url: str | None, topic: str, limit: int) -> DeadGroups:
    async with Headgate(url) as hg:
        return await hg.admin.dead.groups(topic, limit=limit)
