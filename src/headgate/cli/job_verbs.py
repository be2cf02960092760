"""`headgate job cancel|redrive|discard|reprioritise|move|events`: admin verbs on jobs, by id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.options import Delay, JobId, JobIds, JobReason, Output, Payload, Priority, Raw, Url
from headgate.cli.output import as_json, utc_milliseconds
from headgate.sdk.admin import JobChange, Jobs
from headgate.sdk.admin.history import JobEvent


def add_verbs(job: App) -> None:
    """Add the verbs to `headgate job`."""
    for name, command in (
        ("cancel", cancel_command),
        ("redrive", redrive_command),
        ("discard", discard_command),
        ("reprioritise", reprioritise_command),
        ("move", move_command),
        ("events", events_command),
    ):
        job.command(command, name=name)


def cancel_command(*job_ids: JobIds, reason: JobReason = "", output: Output = "text", url: Url = "") -> None:
    """Cancel jobs: queued jobs at once, running jobs when their worker stops."""
    _act(url, output, lambda jobs: jobs.cancel(job_ids, reason=reason))


def redrive_command(
    *job_ids: JobIds,
    payload: Payload | None = None,
    raw: Raw = False,
    delay: Delay = None,
    per_second: Annotated[float, Parameter(help="Maximum jobs per second.")] = 0.0,
    reason: JobReason = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """Put completed, dead or cancelled jobs back on their topic. --payload replaces the payload of a single job."""
    body = None if payload is None else values.payload(payload, raw=raw)
    wait = 0 if delay is None else values.duration(delay, field="--delay")
    _act(
        url,
        output,
        lambda jobs: jobs.redrive(job_ids, payload=body, delay=wait, per_second=per_second, reason=reason),
    )


def discard_command(*job_ids: JobIds, reason: JobReason = "", output: Output = "text", url: Url = "") -> None:
    """Delete dead or cancelled jobs. Their history stays."""
    _act(url, output, lambda jobs: jobs.discard(job_ids, reason=reason))


def reprioritise_command(
    *job_ids: JobIds, priority: Priority, reason: JobReason = "", output: Output = "text", url: Url = ""
) -> None:
    """Change the priority of queued jobs, starting with the next claim."""
    _act(url, output, lambda jobs: jobs.reprioritise(job_ids, values.priority(priority), reason=reason))


def move_command(
    *job_ids: JobIds,
    to: Annotated[str, Parameter(help="Target topic; created if it does not exist.")],
    reason: JobReason = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """Move queued jobs to another topic. Priority and age stay."""
    _act(url, output, lambda jobs: jobs.move(job_ids, to, reason=reason))


def events_command(job_id: JobId, *, output: Output = "text", url: Url = "") -> None:
    """Show the history of a job, oldest event first: what changed, when, by whom and why."""
    for event in with_client(url, lambda hg: hg.admin.jobs.events(job_id)):
        print(as_json(event) if output == "json" else _line(event))


def _act(url: str, output: str, verb: Callable[[Jobs], Awaitable[list[JobChange]]]) -> None:
    """Print one line per job; raise the first error, with the texts of the other errors as its notes."""
    changes = with_client(url, lambda hg: verb(hg.admin.jobs))
    for change in changes:
        if output == "json":
            print(as_json(change))
        elif not change.code:
            print(f"{change.id}  {change.state}" + ("" if change.changed else "  (unchanged)"))
    if errors := [error for change in changes if (error := change.error) is not None]:
        for other in errors[1:]:
            errors[0].add_note(str(other))
        raise errors[0]


def _line(event: JobEvent) -> str:
    parts = [utc_milliseconds(event.at), event.kind, f"-> {event.state}", f"epoch {event.epoch}"]
    if event.actor:
        parts.append(f"by {event.actor}")
    if event.worker:
        parts.append(f"on {event.worker}")
    if text := event.reason or (f"{event.error_type}: {event.error_message}" if event.error_type else ""):
        parts.append(text)
    return "  ".join(parts)
