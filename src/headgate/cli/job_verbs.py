"""`headgate job cancel|redrive|discard|reprioritise|move|events`: what an operator does to jobs by id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Literal

from cyclopts import App

from headgate.cli import values
from headgate.domain.errors import HeadgateError
from headgate.sdk import Headgate
from headgate.sdk.admin import JobChange, Jobs
from headgate.sdk.admin.history import JobEvent

Output = Literal["text", "json"]


def add_verbs(job: App) -> None:
    """Put the verbs beside what `headgate job` has already."""
    for name, command in (
        ("cancel", cancel_command),
        ("redrive", redrive_command),
        ("discard", discard_command),
        ("reprioritise", reprioritise_command),
        ("move", move_command),
        ("events", events_command),
    ):
        job.command(command, name=name)


def cancel_command(*job_ids: str, reason: str = "", output: Output = "text", url: str = "") -> None:
    """End jobs: queued ones at once, running ones when their worker stops.

    Parameters
    ----------
    job_ids
        Their ids.
    reason
        Kept in each job's history.
    output
        text or json (one object a line).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    _act(url, output, lambda jobs: jobs.cancel(job_ids, reason=reason))


def redrive_command(
    *job_ids: str,
    payload: str | None = None,
    raw: bool = False,
    delay: str | None = None,
    per_second: float = 0.0,
    reason: str = "",
    output: Output = "text",
    url: str = "",
) -> None:
    """Put completed, dead or cancelled jobs back on their topic.

    Parameters
    ----------
    job_ids
        Their ids.
    payload
        Another body, for one job only: JSON, `@file`, or `-` for standard input.
    raw
        Send the payload's bytes as they are, JSON or not.
    delay
        How long to wait before the first is due: 30s, 5m, 2h.
    per_second
        At most so many come back a second.
    reason
        Kept in each job's history.
    output
        text or json (one object a line).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    body = None if payload is None else values.payload(payload, raw=raw)
    wait = 0 if delay is None else values.span(delay, field="--delay")
    _act(
        url,
        output,
        lambda jobs: jobs.redrive(job_ids, payload=body, delay=wait, per_second=per_second, reason=reason),
    )


def discard_command(*job_ids: str, reason: str = "", output: Output = "text", url: str = "") -> None:
    """Remove dead or cancelled jobs for good; their history stays.

    Parameters
    ----------
    job_ids
        Their ids.
    reason
        Kept in each job's history.
    output
        text or json (one object a line).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    _act(url, output, lambda jobs: jobs.discard(job_ids, reason=reason))


def reprioritise_command(
    *job_ids: str, priority: str, reason: str = "", output: Output = "text", url: str = ""
) -> None:
    """Give queued jobs another priority, from the next claim on.

    Parameters
    ----------
    job_ids
        Their ids.
    priority
        A number, or a tier: bulk, normal, high, urgent.
    reason
        Kept in each job's history.
    output
        text or json (one object a line).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    _act(url, output, lambda jobs: jobs.reprioritise(job_ids, values.priority(priority), reason=reason))


def move_command(*job_ids: str, to: str, reason: str = "", output: Output = "text", url: str = "") -> None:
    """Put queued jobs on another topic; priority and age stay.

    Parameters
    ----------
    job_ids
        Their ids.
    to
        The topic they go to; made if it does not exist.
    reason
        Kept in each job's history.
    output
        text or json (one object a line).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    _act(url, output, lambda jobs: jobs.move(job_ids, to, reason=reason))


def events_command(job_id: str, *, output: Output = "text", url: str = "") -> None:
    """Show a job's history, oldest first: who did what to it, when and why.

    Parameters
    ----------
    job_id
        Its id.
    output
        text or json (one object a line).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """

    async def act() -> None:
        async with Headgate(url or None) as hg:
            for event in await hg.admin.jobs.events(job_id):
                print(json.dumps(asdict(event), default=str) if output == "json" else _line(event))

    asyncio.run(act())


def _act(url: str, output: Output, verb: Callable[[Jobs], Awaitable[list[JobChange]]]) -> None:
    """Print a line for each job; end with the error of the first that has one, and the others' texts as its notes."""

    async def act() -> list[HeadgateError]:
        async with Headgate(url or None) as hg:
            changes = await verb(hg.admin.jobs)
        for change in changes:
            if output == "json":
                print(json.dumps(asdict(change), default=str, ensure_ascii=False))
            elif not change.code:
                print(f"{change.id}  {change.state}" + ("" if change.changed else "  (as before)"))
        return [error for change in changes if (error := change.error) is not None]

    if errors := asyncio.run(act()):
        for other in errors[1:]:
            errors[0].add_note(str(other))
        raise errors[0]


def _line(event: JobEvent) -> str:
    parts = [f"{event.at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC", event.kind, f"-> {event.state}", f"epoch {event.epoch}"]
    if event.actor:
        parts.append(f"by {event.actor}")
    if event.worker:
        parts.append(f"on {event.worker}")
    if text := event.reason or (f"{event.error_type}: {event.error_message}" if event.error_type else ""):
        parts.append(text)
    return "  ".join(parts)
