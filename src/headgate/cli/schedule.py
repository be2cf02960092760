"""`headgate schedule …`: create, show and change schedules, which make jobs at given times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Final, cast

from cyclopts import App, Parameter

from headgate.cli import options as shared
from headgate.cli import values
from headgate.cli.confirming import confirm_on_terminal
from headgate.cli.connection import redaction_of, with_client
from headgate.cli.lists import NameFilter, show_list
from headgate.cli.options import (
    DEFAULT_SERVER,
    SHOWN,
    MaxAttempts,
    Output,
    Payload,
    Priority,
    Raw,
    Reason,
    Server,
    Shown,
    Since,
    Tags,
)
from headgate.cli.output import (
    Columns,
    details,
    for_people,
    iso,
    painted,
    print_lines,
    print_list,
    print_one,
    table,
    when,
)
from headgate.domain.errors import InvalidInput
from headgate.domain.filters import Field
from headgate.domain.redaction import Redaction
from headgate.domain.validation import parse_priority
from headgate.sdk import Headgate
from headgate.sdk.admin import ScheduledRun, ScheduleInfo
from headgate.sdk.schedule_specs import ScheduleOptions
from headgate.sdk.schedules import SyncReport

schedule = App(name="schedule", help="Create, show and change schedules.")
Name = Annotated[str, Parameter(help="Schedule name.")]
Version = Annotated[
    int, Parameter(help="Fail unless the schedule has this version. 0 (put): fail unless the schedule is new.")
]
Cron = Annotated[
    str,
    Parameter(help="minute hour day-of-month month day-of-week, or @hourly, @daily, @weekly, @monthly, @yearly."),
]
Zone = Annotated[str, Parameter(help="Time zone of --cron: an IANA name such as Europe/Zurich.")]
Every = Annotated[str, Parameter(help="Interval: 30s, 5m, 2h, 1d.")]


COLUMNS: Final[Columns[ScheduleInfo]] = {
    "SCHEDULE": lambda one: one.name,
    "TOPIC": lambda one: one.topic,
    "STATE": lambda one: one.state,
    "WHEN": lambda one: one.when,
    "NEXT": lambda one: one.next_at if one.state == "active" else None,
    "LAST": lambda one: one.last_at,
}
# With -o wide.
MORE: Final[Columns[ScheduleInfo]] = {
    "OVERLAP": lambda one: one.overlap,
    "CATCH-UP": lambda one: one.catch_up,
    "MADE": lambda one: one.fired,
    "SKIPPED": lambda one: one.skipped,
    "SOURCE": lambda one: one.source,
}
RUNS: Final[Columns[ScheduledRun]] = {
    "JOB": lambda run: run.job_id,
    "ORIGIN": lambda run: "triggered" if run.triggered else "scheduled",
    "OCCURRENCE": lambda run: run.occurrence,
    "STATE": lambda run: run.state,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A schedule of `schedule sync`, and what became of it."""

    name: str
    change: str


_UNDECLARED: Final = "no longer declared"


@schedule.command(name="list")
def list_command(
    *,
    source: Annotated[str, Parameter(help="Only schedules declared by this application.")] = "",
    filter: Annotated[  # noqa: A002 - the option's name
        str, Parameter(help="Only these schedules: `schedule:nightly`, or those of a topic: `topic:mail*`.")
    ] = "",
    limit: shared.Limit = 1_000,
    shown: Shown = SHOWN,
) -> None:
    """List all schedules."""
    chosen = NameFilter(filter, Field.SCHEDULE, Field.TOPIC)

    async def read(hg: Headgate) -> list[ScheduleInfo]:
        found = await hg.admin.schedules.list(source=source or None)
        return [one for one in found if chosen.matches({Field.SCHEDULE: (one.name,), Field.TOPIC: (one.topic,)})][
            :limit
        ]

    show_list(
        shown,
        read,
        COLUMNS,
        name=lambda one: one.name,
        empty="no schedules",
        fields=partial(_fields, redaction_of(shown.server)),
        more=MORE,
    )


@schedule.command(name="get")
def get_command(name: Name, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Show one schedule and its last jobs."""

    async def act(hg: Headgate) -> None:
        _report(await hg.admin.schedules.get(name), output, server)
        if for_people(output) and (runs := await hg.admin.schedules.jobs(name, limit=5)):
            print_lines(["", *table(runs, RUNS)])

    with_client(server, act)


@schedule.command(name="put")
def put_command(
    name: Name,
    topic: Annotated[str, Parameter(help="Topic of its jobs.")],
    payload: Payload = "",
    *,
    raw: Raw = False,
    cron: Cron = "",
    zone: Zone = "UTC",
    every: Every = "",
    anchor: Annotated[str, Parameter(help="Start of the grid of --every. Default: 1970-01-01T00:00:00Z.")] = "",
    at: Annotated[str, Parameter(help="Once, at this time: 2026-12-24T18:00:00Z.")] = "",
    after: Annotated[str, Parameter(help="Once, after this duration: 30m.")] = "",
    overlap: Annotated[
        str, Parameter(help="When the previous job has not finished: allow, skip or replace.")
    ] = "allow",
    catch_up: Annotated[str, Parameter(help="For missed occurrences: one, none, all, or a maximum number.")] = "one",
    when_full: Annotated[
        str, Parameter(help="When the backlog of the topic is full (max_backlog): wait, or skip the occurrence.")
    ] = "wait",
    priority: Priority | None = None,
    max_attempts: MaxAttempts = None,
    tags: Tags = "",
    ends_at: Annotated[str | None, Parameter(help="Make no job for an occurrence after this time.")] = None,
    version: Version = -1,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Create or replace a schedule. Pass exactly one of --cron, --every, --at and --after."""
    given = {  # the SDK checks the words
        "overlap": overlap,
        "catch_up": catch_up if (most := values.number(catch_up)) is None else most,
        "when_full": when_full,
    }
    options = cast("ScheduleOptions", given)
    if priority is not None:
        options["priority"] = parse_priority(priority)
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    if tags:
        options["tags"] = [tag.strip() for tag in tags.split(",")]
    if ends_at is not None:
        options["ends_at"] = values.timestamp(ends_at, field="--ends-at")
    body = values.payload(payload, raw=raw)
    interval = values.duration(every, field="--every") if every else None
    grid = values.timestamp(anchor, field="--anchor") if anchor else None
    once = values.timestamp(at, field="--at") if at else None
    delay = values.duration(after, field="--after") if after else None

    async def act(hg: Headgate) -> ScheduleInfo:
        return await hg.admin.schedules.put(
            name,
            topic,
            body,
            cron=cron or None,
            zone=zone,
            every=interval,
            anchor=grid,
            at=once,
            after=delay,
            version=None if version < 0 else version,
            **options,
        )

    _report(with_client(server, act), output, server)


@schedule.command(name="pause")
def pause_command(
    name: Name, *, reason: Reason = "", output: Output = "table", server: Server = DEFAULT_SERVER
) -> None:
    """Make no more jobs until the schedule is resumed. Existing jobs stay."""
    _report(with_client(server, lambda hg: hg.admin.schedules.pause(name, reason=reason)), output, server)


@schedule.command(name="resume")
def resume_command(
    name: Name,
    *,
    reason: Reason = "",
    since: Since = None,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Resume a paused schedule with its next occurrence."""
    began = None if since is None else values.timestamp(since, field="--since")
    _report(with_client(server, lambda hg: hg.admin.schedules.resume(name, reason=reason, since=began)), output, server)


@schedule.command(name="run")
def run_command(
    name: Name,
    *,
    request_id: Annotated[str, Parameter(help="A UUIDv7; repeating it does not make a second job.")] = "",
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Make one job of a schedule now, and print its id."""
    made = with_client(
        server, lambda hg: hg.admin.schedules.trigger(name, request_id=request_id or None, reason=reason)
    )
    print_one({"id": made}, output, lambda: [str(made)], name=made)


@schedule.command(name="next")
def next_command(
    name: Annotated[str, Parameter(help="A stored schedule. Without it, pass --cron or --every.")] = "",
    *,
    count: Annotated[int, Parameter(help="Number of occurrences.")] = 5,
    cron: Cron = "",
    zone: Zone = "UTC",
    every: Every = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show the next occurrences of a schedule, in its time zone and in UTC."""
    if bool(name) == bool(cron or every):
        raise InvalidInput("name", "is missing or not alone", hint="pass either a schedule name, or --cron or --every")
    interval = values.duration(every, field="--every") if every else None
    found = with_client(
        server,
        lambda hg: (
            hg.admin.schedules.next(name, count)
            if name
            else hg.admin.schedules.preview(count, cron=cron or None, zone=zone, every=interval)
        ),
    )
    columns: Columns[datetime] = {"LOCAL TIME": lambda at: f"{at:%a %Y-%m-%d %H:%M:%S %Z}", "UTC": lambda at: at}
    print_list(found, output, columns, name=iso, empty="no more occurrences")


@schedule.command(name="delete")
def delete_command(
    name: Name,
    *,
    version: Version = -1,
    reason: Reason = "",
    yes: shared.YesOnTerminal = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Delete a schedule. Its jobs stay."""
    confirm_on_terminal(lambda: [f"The schedule {name} is deleted; its jobs stay."], output, yes=yes)
    expected = None if version < 0 else version
    with_client(server, lambda hg: hg.admin.schedules.delete(name, version=expected, reason=reason))
    print_one({"name": name, "deleted": True}, output, lambda: [f"{name} is deleted"], name=name)


@schedule.command(name="sync")
def sync_command(
    app: shared.App,
    *,
    source: Annotated[
        str, Parameter(help="Name of the declaring application. Default: `app` of the object, else the module's.")
    ] = "",
    prune: Annotated[bool, Parameter(help="Delete schedules of this application that are no longer declared.")] = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Store the schedules that an application declares.

    --url and --token are for an application that does not name a server itself.
    """
    from headgate.cli.worker import load

    async def act() -> SyncReport:
        async with load(app, server) as hg:
            return await hg.sync_schedules(source=source, prune=prune)

    report = asyncio.run(act())
    changes = {"stored": report.changed, "unchanged": report.unchanged, "deleted": report.deleted}
    if not prune:
        changes[_UNDECLARED] = report.removed
    synced = [Synced(name=name, change=change) for change, names in changes.items() for name in names]
    if for_people(output):
        print_lines(
            f"{one.change}  {one.name}{'  (--prune deletes it)' if one.change == _UNDECLARED else ''}" for one in synced
        )
    else:
        print_list(synced, output, {}, name=lambda one: one.name, empty="")


def schedule_lines(info: ScheduleInfo) -> list[str]:
    """Return a schedule as text, most important first."""
    return details(f"{info.name}  {painted(info.state)}   version {info.version}", _details(info))


def _report(info: ScheduleInfo, output: str, server: Server) -> None:
    print_one(_fields(redaction_of(server), info), output, lambda: schedule_lines(info), name=info.name)


def _details(info: ScheduleInfo) -> Iterator[tuple[str, object]]:
    yield "when", info.when
    priority = "of the topic" if info.priority is None else info.priority
    yield "topic", f"{info.topic}   priority {priority}   overlap {info.overlap}   catch-up {info.catch_up}"
    yield "when full", info.when_full
    yield "next", when(info.next_at)
    if info.full_since is not None:
        yield "waits", f"since {when(info.full_since)}: the backlog of {info.topic} is full"
    if info.last_at is not None:
        yield "last", f"{when(info.last_at)}   {info.fired} made, {info.skipped} skipped"
    if info.last_skip:
        yield "skipped", f"{when(info.last_skip_at)}  ({info.last_skip})"
    if info.paused:
        yield "paused", f"{when(info.paused_at)} by {info.paused_by}" + (f": {info.reason}" if info.reason else "")
    yield "error", info.last_error


def _fields(redaction: Redaction, info: ScheduleInfo) -> dict[str, object]:
    shown = {"payload": redaction.shown(info.payload), "headers": redaction.masked_headers(info.headers)}
    return {"state": info.state} | asdict(info) | shown
