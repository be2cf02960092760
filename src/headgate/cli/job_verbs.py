"""`headgate job cancel|redrive|discard|reprioritise|move|events`: admin verbs on jobs, by id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import redaction_of, with_client
from headgate.cli.lists import show_list
from headgate.cli.options import (
    DEFAULT_SERVER,
    ONCE,
    Delay,
    JobId,
    JobIds,
    JobReason,
    Output,
    Payload,
    Priority,
    Raw,
    Server,
    Watch,
)
from headgate.cli.output import Columns, for_people, print_lines, print_list, when
from headgate.domain.ids import JobId as KnownId
from headgate.domain.limits import JOB_EVENTS_MAX
from headgate.sdk import Headgate
from headgate.sdk.admin import JobChange, Jobs
from headgate.sdk.admin.history import JobEvent

EVENTS: Final[Columns[JobEvent]] = {
    "TIME": lambda event: when(event.at, milliseconds=True),
    "EVENT": lambda event: event.kind,
    "STATE": lambda event: event.state,
    "EPOCH": lambda event: str(event.epoch),
    "BY": lambda event: event.actor,
    "WORKER": lambda event: event.worker,
    "DETAIL": lambda event: (
        event.reason or (f"{event.error_type}: {event.error_message}" if event.error_type else event.error_message)
    ),
}


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


def cancel_command(
    *job_ids: JobIds, reason: JobReason = "", output: Output = "table", server: Server = DEFAULT_SERVER
) -> None:
    """Cancel jobs: queued jobs at once, running jobs when their worker stops."""
    _act(server, output, job_ids, lambda jobs, ids: jobs.cancel(ids, reason=reason))


def redrive_command(
    *job_ids: JobIds,
    payload: Payload | None = None,
    raw: Raw = False,
    delay: Delay = None,
    per_second: Annotated[float, Parameter(help="Maximum jobs per second.")] = 0.0,
    reason: JobReason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Put completed, dead or cancelled jobs back on their topic. --payload replaces the payload of a single job."""
    body = None if payload is None else values.payload(payload, raw=raw)
    wait = 0 if delay is None else values.duration(delay, field="--delay")
    _act(
        server,
        output,
        job_ids,
        lambda jobs, ids: jobs.redrive(ids, payload=body, delay=wait, per_second=per_second, reason=reason),
    )


def discard_command(
    *job_ids: JobIds, reason: JobReason = "", output: Output = "table", server: Server = DEFAULT_SERVER
) -> None:
    """Delete dead or cancelled jobs. Their history stays."""
    _act(server, output, job_ids, lambda jobs, ids: jobs.discard(ids, reason=reason))


def reprioritise_command(
    *job_ids: JobIds,
    priority: Priority,
    reason: JobReason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Change the priority of queued jobs, starting with the next claim."""
    _act(server, output, job_ids, lambda jobs, ids: jobs.reprioritise(ids, values.priority(priority), reason=reason))


def move_command(
    *job_ids: JobIds,
    to: Annotated[str, Parameter(help="Target topic; created if it does not exist.")],
    reason: JobReason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Move queued jobs to another topic. Priority and age stay."""
    _act(server, output, job_ids, lambda jobs, ids: jobs.move(ids, to, reason=reason))


def events_command(
    job_id: JobId,
    *,
    before: Annotated[int, Parameter(help="Only events before the one of this number.")] = 0,
    watch: Watch = ONCE,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show the newest 1,000 events of a job, oldest of them first: what changed, when, by whom and why."""
    mask = redaction_of(server).masked_text

    async def read(hg: Headgate) -> list[JobEvent]:
        found = await hg.admin.jobs.events(await hg.admin.full_id("job", job_id), before=before)
        return [
            replace(
                one, error_message=mask(one.error_message), error_trace=mask(one.error_trace), reason=mask(one.reason)
            )
            for one in found
        ]

    def older(found: Sequence[JobEvent]) -> list[str]:
        full = len(found) >= JOB_EVENTS_MAX
        return [f"the newest {JOB_EVENTS_MAX:,} are shown; older ones: --before {found[0].no}"] if full else []

    show_list(server, read, output, EVENTS, name=lambda event: event.kind, empty="no events", notes=older, watch=watch)


def _act(
    server: Server,
    output: str,
    given: Sequence[str],
    verb: Callable[[Jobs, Sequence[KnownId]], Awaitable[list[JobChange]]],
) -> None:
    """Print what happened to each job; raise the first error, with the texts of the other errors as its notes."""

    async def act(hg: Headgate) -> list[JobChange]:
        return await verb(hg.admin.jobs, [await hg.admin.full_id("job", one) for one in given])

    changes = with_client(server, act)
    done = [change for change in changes if not change.code]
    if for_people(output):
        print_lines(f"{one.id}  {one.state}" + ("" if one.changed else "  (unchanged)") for one in done)
    else:
        print_list(done if output == "name" else changes, output, {}, name=lambda one: one.id, empty="")
    if errors := [error for change in changes if (error := change.error) is not None]:
        for other in errors[1:]:
            errors[0].add_note(str(other))
        raise errors[0]
