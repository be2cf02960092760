"""`headgate pause`, `resume`, `status` and `audit`: what is handed out, what is not, and who changed that."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from headgate.cli import values
from headgate.cli.options import Output, Url
from headgate.cli.retention import sentence
from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown
from headgate.sdk import Headgate
from headgate.sdk.admin import AuditEntry, PauseInfo, Status


def pause_command(
    *,
    topic: str | None = None,
    tenant: bool = False,
    everything: bool = False,
    reason: str = "",
    until: str | None = None,
    output: Output = "text",
    url: Url = "",
) -> None:
    """Hand out no more jobs of a topic, of the tenant, or of everybody. Running jobs go on; new ones wait.

    Parameters
    ----------
    topic
        This topic.
    tenant
        All topics of the token's tenant.
    everything
        All tenants; needs a token with the scope system.
    reason
        Shown by status, and kept in the audit.
    until
        When it ends by itself: 2026-12-24T18:00:00Z, or a span such as 30m.
    """

    async def act() -> None:
        end = _end(until)
        async with Headgate(url or None) as hg:
            done = await hg.admin.pause(topic=topic, tenant=tenant, everything=everything, reason=reason, until=end)
        print(as_json(done) if output == "json" else _sentence(done))

    asyncio.run(act())


def resume_command(
    *,
    topic: str | None = None,
    tenant: bool = False,
    everything: bool = False,
    reason: str = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """Hand out jobs of a target again; harmless when it is not paused.

    Parameters
    ----------
    topic
        This topic.
    tenant
        All topics of the token's tenant.
    everything
        All tenants; needs a token with the scope system.
    reason
        Kept in the audit.
    """

    async def act() -> None:
        async with Headgate(url or None) as hg:
            changed = await hg.admin.resume(topic=topic, tenant=tenant, everything=everything, reason=reason)
        target = f"topic {topic}" if topic is not None else "everything" if everything else "tenant"
        if output == "json":
            print(json.dumps({"target": target, "changed": changed}))
        else:
            print(f"{target} runs again" if changed else f"{target} was not paused")

    asyncio.run(act())


def status_command(*, output: Output = "text", url: Url = "") -> None:
    """Show what is paused and why, each topic's jobs and how long they wait, and the servers."""

    async def act() -> None:
        async with Headgate(url or None) as hg:
            status = await hg.admin.status()
        if output == "json":
            print(as_json(status))
        else:
            show(status)

    asyncio.run(act())


def audit_command(*, limit: int = 50, before: int = 0, output: Output = "text", url: Url = "") -> None:
    """Show who changed what, newest first; as JSON, one object a line.

    What was done to a job is in its own history: headgate job events.

    Parameters
    ----------
    limit
        How many entries.
    before
        The last number of the page before.
    """

    async def act() -> None:
        async with Headgate(url or None) as hg:
            for entry in await hg.admin.audit(before=before, limit=limit):
                print(as_json(entry) if output == "json" else _line(entry))

    asyncio.run(act())


def show(status: Status) -> None:
    """Print tables for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for pause in status.paused:
        console.print(f"[bold]PAUSED[/bold] {_sentence(pause)}", markup=True, soft_wrap=True)
    if not status.paused:
        console.print("nothing is paused")
    table = Table(box=None, pad_edge=False, header_style="bold")
    states = ("pending", "running", "scheduled", "retrying", "blocked", "dead")
    for name in ("topic", "", *states, "oldest waits"):
        table.add_column(name, justify="right" if name in states or name == "oldest waits" else "left")
    for topic in status.topics:
        wait = "" if topic.waiting_since is None else _span(status.now - topic.waiting_since)
        counts = [str(topic.counts.get(state, 0)) for state in states]
        table.add_row(topic.topic, "paused" if topic.paused else "", *counts, wait)
    if status.topics:
        console.print(table)
    instances = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("instance", "version", "workers", "up"):
        instances.add_column(name)
    for one in status.instances:
        up = "" if one.started_at is None else _span(status.now - one.started_at)
        instances.add_row(one.name, one.version, str(one.workers), up)
    console.print(instances)
    console.print(sentence(status.retention), soft_wrap=True)
    if stuck := max((one.stuck for one in status.instances), default=0):
        console.print(
            f"[bold]STUCK[/bold] {stuck} jobs or pages cannot be promoted or reaped: see job_stuck in the log"
        )


def as_json(value: Status | PauseInfo | AuditEntry) -> str:
    """Everything, for programs: times as ISO, spans as seconds."""
    return json.dumps(asdict(value), default=_plain, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def _end(until: str | None) -> datetime | None:
    if until is None:
        return None
    if until[:1].isdigit() and "T" not in until and ":" not in until:
        try:
            return datetime.now(UTC) + values.span(until, field="--until")
        except OverflowError:
            raise InvalidInput("--until", f"lies beyond any calendar, got {shown(until)}") from None
    return values.moment(until, field="--until")


def _sentence(pause: PauseInfo) -> str:
    parts = [pause.target]
    if pause.since is not None:
        parts.append(f"since {pause.since:%Y-%m-%d %H:%M:%S} UTC")
    if pause.until is not None:
        parts.append(f"until {pause.until:%Y-%m-%d %H:%M:%S} UTC")
    if pause.who:
        parts.append(f"by {pause.who}")
    return " ".join(parts) + (f": {pause.reason}" if pause.reason else "")


def _line(entry: AuditEntry) -> str:
    detail = f"  {json.dumps(entry.detail)}" if entry.detail else ""
    reason = f": {entry.reason}" if entry.reason else ""
    return (
        f"{entry.no:>6}  {entry.at:%Y-%m-%d %H:%M:%S} UTC  {entry.actor}  {entry.verb} {entry.target}{reason}{detail}"
    )


def _span(span: timedelta) -> str:
    seconds = max(0.0, span.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.1f}s"
