"""`headgate schedule …`: create, show and change schedules, which make jobs at given times."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, cast

from cyclopts import App, Parameter

from headgate.cli import options as shared
from headgate.cli import values
from headgate.cli.connection import warn_of_unknown_settings, with_client
from headgate.cli.options import MaxAttempts, Output, Payload, Priority, Raw, Reason, Tags, Url
from headgate.cli.output import as_json, utc
from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate
from headgate.sdk.admin import ScheduleInfo
from headgate.sdk.schedule_specs import ScheduleOptions

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


@schedule.command(name="list")
def list_command(
    *,
    source: Annotated[str, Parameter(help="Only schedules declared by this application.")] = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """List all schedules."""
    found = with_client(url, lambda hg: hg.admin.schedules.list(source=source or None))
    if output == "json":
        print(as_json([_fields(info) for info in found]))
        return
    for info in found:
        due = f"next {utc(info.next_at)}" if info.state == "active" else info.state
        print(f"{info.name}  {info.topic}  {info.when}  {due}")


@schedule.command(name="get")
def get_command(name: Name, *, output: Output = "text", url: Url = "") -> None:
    """Show one schedule and its last jobs."""

    async def act(hg: Headgate) -> None:
        _report(await hg.admin.schedules.get(name), output)
        if output == "text":
            for run in await hg.admin.schedules.jobs(name, limit=5):
                origin = "triggered" if run.triggered else "scheduled"
                print(f"  {origin:<9} {run.job_id}  for {utc(run.occurrence)}  {run.state}")

    with_client(url, act)


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
    priority: Priority = "0",
    max_attempts: MaxAttempts = None,
    tags: Tags = "",
    ends_at: Annotated[str | None, Parameter(help="Make no job for an occurrence after this time.")] = None,
    version: Version = -1,
    output: Output = "text",
    url: Url = "",
) -> None:
    """Create or replace a schedule. Pass exactly one of --cron, --every, --at and --after."""
    given = {  # the SDK checks the words
        "overlap": overlap,
        "catch_up": catch_up if (most := values.number(catch_up)) is None else most,
        "when_full": when_full,
        "priority": values.priority(priority),
    }
    options = cast("ScheduleOptions", given)
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

    _report(with_client(url, act), output)


@schedule.command(name="pause")
def pause_command(name: Name, *, reason: Reason = "", output: Output = "text", url: Url = "") -> None:
    """Make no more jobs until the schedule is resumed. Existing jobs stay."""
    _report(with_client(url, lambda hg: hg.admin.schedules.pause(name, reason=reason)), output)


@schedule.command(name="resume")
def resume_command(name: Name, *, reason: Reason = "", output: Output = "text", url: Url = "") -> None:
    """Resume a paused schedule with its next occurrence."""
    _report(with_client(url, lambda hg: hg.admin.schedules.resume(name, reason=reason)), output)


@schedule.command(name="run")
def run_command(
    name: Name,
    *,
    request_id: Annotated[str, Parameter(help="A UUIDv7; repeating it does not make a second job.")] = "",
    reason: Reason = "",
    url: Url = "",
) -> None:
    """Make one job of a schedule now, and print its id."""
    print(with_client(url, lambda hg: hg.admin.schedules.trigger(name, request_id=request_id or None, reason=reason)))


@schedule.command(name="next")
def next_command(
    name: Annotated[str, Parameter(help="A stored schedule. Without it, pass --cron or --every.")] = "",
    *,
    count: Annotated[int, Parameter(help="Number of occurrences.")] = 5,
    cron: Cron = "",
    zone: Zone = "UTC",
    every: Every = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """Show the next occurrences of a schedule, in its time zone and in UTC."""
    if bool(name) == bool(cron or every):
        raise InvalidInput("name", "is missing or not alone", hint="pass either a schedule name, or --cron or --every")
    interval = values.duration(every, field="--every") if every else None
    found = with_client(
        url,
        lambda hg: (
            hg.admin.schedules.next(name, count)
            if name
            else hg.admin.schedules.preview(count, cron=cron or None, zone=zone, every=interval)
        ),
    )
    if output == "json":
        print(as_json(found))
        return
    for at in found:
        print(f"{at:%a %Y-%m-%d %H:%M:%S %Z}   {utc(at)}")


@schedule.command(name="delete")
def delete_command(name: Name, *, version: Version = -1, reason: Reason = "", url: Url = "") -> None:
    """Delete a schedule. Its jobs stay."""
    expected = None if version < 0 else version
    with_client(url, lambda hg: hg.admin.schedules.delete(name, version=expected, reason=reason))
    print(f"{name} is deleted")


@schedule.command(name="sync")
def sync_command(
    app: shared.App,
    *,
    source: Annotated[
        str, Parameter(help="Name of the declaring application; give each application its own.")
    ] = "code",
    prune: Annotated[bool, Parameter(help="Delete schedules of this source that are no longer declared.")] = False,
) -> None:
    """Store the schedules that an application declares, with the address and token of the application."""
    from headgate.cli.worker import load

    warn_of_unknown_settings()

    async def act() -> None:
        async with load(app) as hg:
            report = await hg.sync_schedules(source=source, prune=prune)
        for change, names in (("stored", report.changed), ("unchanged", report.unchanged), ("deleted", report.deleted)):
            for name in names:
                print(f"{change}  {name}")
        if not prune:
            for name in report.removed:
                print(f"no longer declared  {name}  (--prune deletes it)")

    asyncio.run(act())


def _report(info: ScheduleInfo, output: str) -> None:
    if output == "json":
        print(as_json(_fields(info)))
        return
    print(f"{info.name}  {info.state}   version {info.version}")
    print(f"  when      {info.when}")
    print(f"  topic     {info.topic}   priority {info.priority}   overlap {info.overlap}   catch-up {info.catch_up}")
    print(f"  when full {info.when_full}")
    if info.next_at is not None:
        print(f"  next      {utc(info.next_at)}")
    if info.full_since is not None:
        print(f"  waits     since {utc(info.full_since)}: the backlog of {info.topic} is full")
    if info.last_at is not None:
        print(f"  last      {utc(info.last_at)}   {info.fired} made, {info.skipped} skipped")
    if info.last_skip:
        print(f"  skipped   {utc(info.last_skip_at)}  ({info.last_skip})")
    if info.paused:
        print(f"  paused    {utc(info.paused_at)} by {info.paused_by}" + (f": {info.reason}" if info.reason else ""))
    if info.last_error:
        print(f"  error     {info.last_error}")


def _fields(info: ScheduleInfo) -> dict[str, object]:
    return {"state": info.state} | asdict(info)
