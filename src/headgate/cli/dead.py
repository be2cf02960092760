"""`headgate dead …`: dead letters by topic and error group; redrive or discard them."""

from __future__ import annotations

from typing import Final

from cyclopts import App

from headgate.cli import bulk
from headgate.cli.connection import redaction_of
from headgate.cli.lists import show_list
from headgate.cli.options import (
    SHORT_LISTING,
    STARTING,
    BulkReason,
    Delay,
    Filter,
    Group,
    PerSecond,
    ShortListing,
    Starting,
    Topics,
)
from headgate.cli.output import Columns
from headgate.domain.bulk import DeadGroup, dead_filter, masked_group
from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate

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
def list_command(topic: Topics = "", *, listing: ShortListing = SHORT_LISTING) -> None:
    """Show dead letters by topic and error group, largest group first."""
    redaction = redaction_of(listing.shown.server)
    notes: list[str] = []

    async def read(hg: Headgate) -> list[DeadGroup]:
        found = await hg.admin.dead.groups(topic, limit=listing.read_limit)
        partial = f"counted over the newest {found.looked_at:,} dead letters only; there are more"
        notes[:] = [] if found.exact else [partial]
        return [masked_group(one, redaction) for one in found.groups]

    show_list(
        listing.shown,
        read,
        GROUPS,
        name=lambda one: one.group,
        empty="no dead letters",
        notes=lambda _: notes,
        part=listing.part,
        limit=listing.limit,
    )


@dead.command(name="redrive")
def redrive_command(
    topic: Topics = "",
    *,
    group: Group = "",
    filter: Filter = "",  # noqa: A002 - the option's name
    reason: BulkReason = "",
    delay: Delay = None,
    per_second: PerSecond = 0,
    how: Starting = STARTING,
) -> None:
    """Put dead jobs back on their topics, with the attempts counted from 0."""
    options = bulk.plan_options(reason, delay=delay, per_second=per_second)
    text = _filter_text(topic, group, filter)
    bulk.run(how, "redrive", text, options)


@dead.command(name="discard")
def discard_command(
    topic: Topics = "",
    *,
    group: Group = "",
    filter: Filter = "",  # noqa: A002 - the option's name
    reason: BulkReason = "",
    how: Starting = STARTING,
) -> None:
    """Delete dead jobs. Their history stays."""
    text = _filter_text(topic, group, filter)
    bulk.run(how, "discard", text, bulk.plan_options(reason))


def _filter_text(topic: str, group: str, more: str) -> str:
    if not (topic or group or more):
        raise InvalidInput(
            "topic", "is missing", hint="pass a topic, a --group or a --filter; '*' selects all dead jobs"
        )
    return dead_filter(topic, group=group, filter=more)
