"""`headgate pause`, `resume`, `status` and `audit`: stop and resume dispatch, show the state of servers and changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.options import Limit, Output, Reason, Url
from headgate.cli.output import as_json, duration, print_lines, table, utc
from headgate.cli.retention import retention_line
from headgate.cli.unhandled import unhandled_lines
from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown
from headgate.sdk.admin import AuditEntry, PauseInfo, Status

Topic = Annotated[str | None, Parameter(help="One topic.")]
Tenant = Annotated[bool, Parameter(help="All topics of the tenant of your token.")]
Everything = Annotated[bool, Parameter(help="All tenants. Requires a token with the scope system.")]
STATES = ("pending", "running", "scheduled", "retrying", "blocked", "dead")


def pause_command(
    *,
    topic: Topic = None,
    tenant: Tenant = False,
    everything: Everything = False,
    reason: Reason = "",
    until: Annotated[
        str | None, Parameter(help="When the pause ends: 2026-12-24T18:00:00Z, or a duration such as 30m.")
    ] = None,
    output: Output = "text",
    url: Url = "",
) -> None:
    """Stop dispatching jobs for a topic, a tenant, or everything. Running jobs continue; new jobs wait."""
    end = _end(until)
    done = with_client(
        url, lambda hg: hg.admin.pause(topic=topic, tenant=tenant, everything=everything, reason=reason, until=end)
    )
    print(as_json(done) if output == "json" else _pause_line(done))


def resume_command(
    *,
    topic: Topic = None,
    tenant: Tenant = False,
    everything: Everything = False,
    reason: Reason = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """Resume dispatching jobs for a topic, a tenant, or everything. Has no effect on a target that is not paused."""
    changed = with_client(
        url, lambda hg: hg.admin.resume(topic=topic, tenant=tenant, everything=everything, reason=reason)
    )
    target = f"topic {topic}" if topic is not None else "everything" if everything else "tenant"
    if output == "json":
        print(as_json({"target": target, "changed": changed}))
    else:
        print(f"{target} is resumed" if changed else f"{target} was not paused")


def status_command(*, output: Output = "text", url: Url = "") -> None:
    """Show pauses, the jobs of each topic by state and how long they wait, and the servers."""
    status = with_client(url, lambda hg: hg.admin.status())
    print_lines([as_json(status)] if output == "json" else status_lines(status))


def audit_command(
    *,
    limit: Limit = 50,
    before: Annotated[int, Parameter(help="Show entries before this number: the last number of the page before.")] = 0,
    output: Output = "text",
    url: Url = "",
) -> None:
    """Show the audit log, newest entry first. Changes of a single job are in its history: headgate job events."""
    for entry in with_client(url, lambda hg: hg.admin.audit(before=before, limit=limit)):
        print(as_json(entry) if output == "json" else _audit_line(entry))


def status_lines(status: Status) -> Iterator[str]:
    """Return the status as text: pauses, topics, instances, retention, stuck jobs."""
    for pause in status.paused:
        yield f"PAUSED {_pause_line(pause)}"
    if not status.paused:
        yield "nothing is paused"
    if status.topics:
        yield from table(
            ("TOPIC", "DISPATCH", *map(str.upper, STATES), "OLDEST WAIT"),
            [
                (
                    one.topic,
                    "paused" if one.paused else "-",
                    *(one.counts.get(state, 0) for state in STATES),
                    "-" if one.waiting_since is None else duration(status.now - one.waiting_since),
                )
                for one in status.topics
            ],
            right=range(2, len(STATES) + 3),
        )
    yield from (f"WARNING {line}" for line in unhandled_lines(status))
    yield from table(
        ("INSTANCE", "VERSION", "WORKERS", "UPTIME"),
        [
            (
                one.name,
                one.version,
                one.workers,
                "-" if one.started_at is None else duration(status.now - one.started_at),
            )
            for one in status.instances
        ],
        right=(2, 3),
    )
    yield retention_line(status.retention)
    if stuck := max((one.stuck for one in status.instances), default=0):
        yield f"STUCK {stuck} jobs or pages cannot be promoted or reaped; see job_stuck in the server log"


def _end(until: str | None) -> datetime | None:
    if until is None:
        return None
    if until[:1].isdigit() and "T" not in until and ":" not in until:
        try:
            return datetime.now(UTC) + values.duration(until, field="--until")
        except OverflowError:
            problem = f"is out of range (must be before 9999-12-31), got {shown(until)}"
            raise InvalidInput("--until", problem) from None
    return values.timestamp(until, field="--until")


def _pause_line(pause: PauseInfo) -> str:
    parts = [pause.target]
    if pause.since is not None:
        parts.append(f"since {utc(pause.since)}")
    if pause.until is not None:
        parts.append(f"until {utc(pause.until)}")
    if pause.who:
        parts.append(f"by {pause.who}")
    return " ".join(parts) + (f": {pause.reason}" if pause.reason else "")


def _audit_line(entry: AuditEntry) -> str:
    detail = f"  {json.dumps(entry.detail)}" if entry.detail else ""
    reason = f": {entry.reason}" if entry.reason else ""
    return f"{entry.no:>6}  {utc(entry.at)}  {entry.actor}  {entry.verb} {entry.target}{reason}{detail}"
