"""`headgate events`: what happens to jobs and topics, as it happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from headgate.cli.connection import redaction_of, with_client
from headgate.cli.options import DEFAULT_SERVER, Output, Server
from headgate.cli.output import as_json, as_yaml, iso, one_line, print_lines
from headgate.domain.validation import check_integer
from headgate.sdk import Headgate
from headgate.sdk.admin.events import Event, EventGap

MOST = 1_000_000


def events_command(
    *,
    topic: Annotated[str, Parameter(help="Topics, separated by commas. Default: all.")] = "",
    kind: Annotated[
        str, Parameter(help="Kinds of events, separated by commas: job.completed, job.failed, topic.paused, …")
    ] = "",
    job: Annotated[str, Parameter(help="Job id, or its first digits.")] = "",
    after: Annotated[str, Parameter(help="Position to begin after, as in the JSON output. Default: now.")] = "",
    limit: Annotated[int, Parameter(help="Stop after this many events. Default: 0, until Ctrl-C.")] = 0,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show what happens to jobs and topics, as it happens, until Ctrl-C."""
    check_integer(limit, field="--limit", low=0, high=MOST)
    found: list[Event | EventGap] = []
    redaction = redaction_of(server)

    async def follow(hg: Headgate) -> None:
        ids = [await hg.admin.full_id("job", job)] if job else []
        count = 0
        async for one in hg.admin.events(topics=_parts(topic), kinds=_parts(kind), job_ids=ids, after=after):
            if isinstance(one, Event):
                mask = redaction.masked_text
                one = replace(one, error_message=mask(one.error_message), reason=mask(one.reason))
            if output == "json":
                found.append(one)
            else:
                print_lines([_line(one, output)])
            count += isinstance(one, Event)
            if limit and count >= limit:
                return

    with_client(server, follow)
    if output == "json":
        print(as_json(found, indent=2))


def _line(one: Event | EventGap, output: str) -> str:
    if output == "ndjson":
        return as_json(one)
    if output == "yaml":
        return "\n".join(as_yaml([one]))  # the entries make one list
    if isinstance(one, EventGap):
        return f"some events between {iso(one.since)} and {iso(one.until)} are not known any more ({one.reason})"
    if output == "name":
        return one.id
    error = f"{one.error_type}: {one.error_message}" if one.error_type else one.error_message
    parts = (iso(one.at, milliseconds=True), one.kind, one.topic, str(one.job_id or ""), one.state, error or one.reason)
    return "  ".join(one_line(part) for part in parts if part)


def _parts(text: str) -> list[str]:
    return [part for one in text.split(",") if (part := one.strip())]
