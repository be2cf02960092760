"""`headgate job cancel|redrive|discard|reprioritise|move|events`: admin verbs on jobs, by id.

With --filter in place of ids a verb is a bulk operation: the same as `headgate bulk start`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli import bulk, values
from headgate.cli.bulk import plan_options
from headgate.cli.connection import redaction_of, with_client
from headgate.cli.lists import show_list
from headgate.cli.options import (
    DEFAULT_SERVER,
    SHOWN,
    Delay,
    JobId,
    JobIds,
    JobReason,
    Output,
    Payload,
    Priority,
    Raw,
    Server,
    Shown,
    Starting,
)
from headgate.cli.output import Columns, for_people, print_lines, print_list, when
from headgate.domain.errors import InvalidInput, not_both
from headgate.domain.ids import JobId as KnownId
from headgate.domain.limits import JOB_EVENTS_MAX
from headgate.domain.validation import parse_priority
from headgate.sdk import Headgate
from headgate.sdk.admin import JobChange, Jobs
from headgate.sdk.admin.bulk import PlanOptions
from headgate.sdk.admin.history import JobEvent


@Parameter(name="*")  # its fields are options of the command itself
@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All jobs that match a filter, in place of ids."""

    filter: Annotated[str, Parameter(help="In place of ids: all jobs that match this filter, as a bulk operation.")] = (
        ""
    )
    yes: Annotated[bool, Parameter(help="With --filter: do not ask for confirmation.")] = False
    dry_run: Annotated[bool, Parameter(help="With --filter: show which jobs would be affected.")] = False
    detach: Annotated[bool, Parameter(help="With --filter: return at once, while the operation continues.")] = False

    def replaces(self, job_ids: Sequence[str]) -> bool:
        """Whether a filter was given; raises InvalidInput if ids were given as well, or options that need one."""
        if self.filter and job_ids:
            raise not_both("--filter", "job ids")
        if not self.filter and (self.yes or self.dry_run or self.detach):
            raise InvalidInput("--filter", "is required by --yes, --dry-run and --detach")
        return bool(self.filter)

    def run(self, server: Server, verb: str, options: PlanOptions, output: Output) -> None:
        """Preview, confirm, start and watch the operation."""
        how = Starting(yes=self.yes, dry_run=self.dry_run, detach=self.detach, output=output, server=server)
        bulk.run(how, verb, self.filter, options)


NO_FILTER: Final = Matching()
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
    *job_ids: JobIds,
    matching: Matching = NO_FILTER,
    reason: JobReason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Cancel jobs: queued jobs at once, running jobs when their worker stops."""
    if matching.replaces(job_ids):
        matching.run(server, "cancel", plan_options(reason), output)
        return
    _act(server, output, job_ids, lambda jobs, ids: jobs.cancel(ids, reason=reason))


def redrive_command(
    *job_ids: JobIds,
    matching: Matching = NO_FILTER,
    payload: Payload | None = None,
    raw: Raw = False,
    delay: Delay = None,
    per_second: Annotated[float, Parameter(help="Maximum jobs per second.")] = 0.0,
    reason: JobReason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Put completed, dead or cancelled jobs back on their topic. --payload replaces the payload of a single job."""
    if matching.replaces(job_ids):
        if payload is not None:
            raise InvalidInput("--payload", "is for one job, and cannot be given together with --filter")
        if per_second % 1:
            raise InvalidInput("--per-second", "must be a whole number with --filter")
        options = plan_options(reason, delay=delay, per_second=int(per_second))
        matching.run(server, "redrive", options, output)
        return
    body = None if payload is None else values.payload(payload, raw=raw)
    wait = 0 if delay is None else values.duration(delay, field="--delay")
    _act(
        server,
        output,
        job_ids,
        lambda jobs, ids: jobs.redrive(ids, payload=body, delay=wait, per_second=per_second, reason=reason),
    )


def discard_command(
    *job_ids: JobIds,
    matching: Matching = NO_FILTER,
    reason: JobReason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Delete dead or cancelled jobs. Their history stays."""
    if matching.replaces(job_ids):
        matching.run(server, "discard", plan_options(reason), output)
        return
    _act(server, output, job_ids, lambda jobs, ids: jobs.discard(ids, reason=reason))


def reprioritise_command(
    *job_ids: JobIds,
    matching: Matching = NO_FILTER,
    priority: Priority,
    reason: JobReason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Change the priority of queued jobs, starting with the next claim."""
    if matching.replaces(job_ids):
        matching.run(server, "reprioritise", plan_options(reason, priority=priority), output)
        return
    _act(server, output, job_ids, lambda jobs, ids: jobs.reprioritise(ids, parse_priority(priority), reason=reason))


def move_command(
    *job_ids: JobIds,
    matching: Matching = NO_FILTER,
    to: Annotated[str, Parameter(help="Target topic; created if it does not exist.")],
    reason: JobReason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Move queued jobs to another topic. Priority and age stay."""
    if matching.replaces(job_ids):
        matching.run(server, "move", plan_options(reason, topic=to), output)
        return
    _act(server, output, job_ids, lambda jobs, ids: jobs.move(ids, to, reason=reason))


def events_command(
    job_id: JobId,
    *,
    before: Annotated[int, Parameter(help="Only events before the one of this number.")] = 0,
    shown: Shown = SHOWN,
) -> None:
    """Show the newest 1,000 events of a job, oldest of them first: what changed, when, by whom and why."""
    mask = redaction_of(shown.server).masked_text

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

    show_list(shown, read, EVENTS, name=lambda event: event.kind, empty="no events", notes=older)


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
