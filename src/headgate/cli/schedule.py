"""`headgate schedule …`: make jobs at given times, and look after what makes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.options import Output, Url
from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate
from headgate.sdk.admin import ScheduleInfo, Schedules
from headgate.sdk.schedule_specs import ScheduleOptions

schedule = App(name="schedule", help="Make jobs at given times.")
Reason = Annotated[str, Parameter(help="Kept in the audit.")]
Name = Annotated[str, Parameter(help="The schedule's name.")]
Version = Annotated[int, Parameter(help="Only if it still has this version; 0 (put): only if there is none.")]


@schedule.command(name="list")
def list_command(*, source: str = "", output: Output = "text", url: Url = "") -> None:
    """All schedules.

    Parameters
    ----------
    source
        Only what this program declares.
    """

    async def work(schedules: Schedules) -> None:
        found = await schedules.list(source=source or None)
        if output == "json":
            print(json.dumps([_plain_dict(info) for info in found], ensure_ascii=False))
            return
        for info in found:
            due = f"next {_utc(info.next_at)}" if info.state == "active" else info.state
            print(f"{info.name}  {info.topic}  {info.when}  {due}")

    _with(url, work)


@schedule.command(name="get")
def get_command(name: Name, *, output: Output = "text", url: Url = "") -> None:
    """One schedule, with its last jobs."""

    async def work(schedules: Schedules) -> None:
        info = await schedules.get(name)
        _report(info, output)
        if output == "text":
            for run in await schedules.jobs(name, limit=5):
                how = "triggered" if run.triggered else "made"
                print(f"  {how:<9} {run.job_id}  for {_utc(run.occurrence)}  {run.state}")

    _with(url, work)


@schedule.command(name="put")
def put_command(
    name: Name,
    topic: str,
    payload: str = "",
    *,
    raw: bool = False,
    cron: str = "",
    zone: str = "UTC",
    every: str = "",
    anchor: str = "",
    at: str = "",
    after: str = "",
    overlap: str = "allow",
    catch_up: str = "one",
    when_full: str = "wait",
    priority: str = "0",
    max_attempts: int | None = None,
    tags: str = "",
    ends_at: str | None = None,
    version: Version = -1,
    output: Output = "text",
    url: Url = "",
) -> None:
    """Create or replace a schedule. Say when by one of --cron, --every, --at, --after.

    Parameters
    ----------
    topic
        Where its jobs go.
    payload
        JSON, `@file`, or `-` for standard input.
    raw
        Send the payload's bytes as they are, JSON or not.
    cron
        minute hour day-of-month month day-of-week, or @hourly, @daily, @weekly, @monthly, @yearly.
    zone
        Whose clocks cron goes by: an IANA name such as Europe/Zurich.
    every
        An interval: 30s, 5m, 2h, 1d.
    anchor
        Where the grid of --every begins; 1970 when left out.
    at
        Once, at 2026-12-24T18:00:00Z.
    after
        Once, so long from now.
    overlap
        While an earlier job is not finished: allow, skip, replace.
    catch_up
        For what was missed: one, none, all, or how many at most.
    when_full
        When its topic takes no more jobs (max_backlog): wait until there is room, or skip the occurrence.
    priority
        A number, or a tier: bulk, normal, high, urgent.
    max_attempts
        How often a job may be tried; the topic's default when left out.
    tags
        Words to find its jobs by, separated by commas.
    ends_at
        No job for an occurrence after this.
    """
    options: ScheduleOptions = {
        "overlap": overlap,
        "catch_up": catch_up if (most := values.number(catch_up)) is None else most,
        "when_full": when_full,
        "priority": values.priority(priority),
    }
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    if tags:
        options["tags"] = [tag.strip() for tag in tags.split(",")]
    if ends_at is not None:
        options["ends_at"] = values.moment(ends_at, field="--ends-at")
    body = values.payload(payload, raw=raw)

    async def work(schedules: Schedules) -> None:
        info = await schedules.put(
            name,
            topic,
            body,
            cron=cron or None,
            zone=zone,
            every=values.span(every, field="--every") if every else None,
            anchor=values.moment(anchor, field="--anchor") if anchor else None,
            at=values.moment(at, field="--at") if at else None,
            after=values.span(after, field="--after") if after else None,
            version=None if version < 0 else version,
            **options,
        )
        _report(info, output)

    _with(url, work)


@schedule.command(name="pause")
def pause_command(name: Name, *, reason: Reason = "", output: Output = "text", url: Url = "") -> None:
    """Make no more jobs until it is resumed; those it made stay."""

    async def work(schedules: Schedules) -> None:
        _report(await schedules.pause(name, reason=reason), output)

    _with(url, work)


@schedule.command(name="resume")
def resume_command(name: Name, *, reason: Reason = "", output: Output = "text", url: Url = "") -> None:
    """Go on with the next occurrence from now."""

    async def work(schedules: Schedules) -> None:
        _report(await schedules.resume(name, reason=reason), output)

    _with(url, work)


@schedule.command(name="run")
def run_command(name: Name, *, request_id: str = "", reason: Reason = "", url: Url = "") -> None:
    """Make one job now, outside of its times, and print its id.

    Parameters
    ----------
    request_id
        A UUID of version 7; the same again makes no second job.
    """

    async def work(schedules: Schedules) -> None:
        print(await schedules.trigger(name, request_id=request_id or None, reason=reason))

    _with(url, work)


@schedule.command(name="next")
def next_command(
    name: str = "",
    *,
    count: int = 5,
    cron: str = "",
    zone: str = "UTC",
    every: str = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """The next times, in the schedule's zone and in UTC; also of a schedule that is not stored.

    Parameters
    ----------
    name
        A stored schedule; or else give --cron or --every.
    count
        How many.
    cron
        An expression to try.
    zone
        Whose clocks it goes by.
    every
        An interval to try.
    """
    if bool(name) == bool(cron or every):
        raise InvalidInput("name", "give either the name of a schedule, or --cron or --every")

    async def work(schedules: Schedules) -> None:
        if name:
            found = await schedules.next(name, count)
        else:
            span = values.span(every, field="--every") if every else None
            found = await schedules.preview(count, cron=cron or None, zone=zone, every=span)
        if output == "json":
            print(json.dumps([at.isoformat() for at in found]))
            return
        for at in found:
            print(f"{at:%a %Y-%m-%d %H:%M:%S %Z}   {_utc(at)}")

    _with(url, work)


@schedule.command(name="delete")
def delete_command(name: Name, *, version: Version = -1, reason: Reason = "", url: Url = "") -> None:
    """Remove a schedule; the jobs it made stay."""

    async def work(schedules: Schedules) -> None:
        await schedules.delete(name, version=None if version < 0 else version, reason=reason)
        print(f"{name} is deleted")

    _with(url, work)


@schedule.command(name="sync")
def sync_command(app: str, *, source: str = "code", prune: bool = False) -> None:
    """Store the schedules an application declares; the application's own address and token are used.

    Parameters
    ----------
    app
        Where the Headgate object is: `package.module:name`.
    source
        Under which name; give each application its own, if several declare schedules.
    prune
        Delete those of this source that are no longer declared.
    """
    from headgate.cli.worker import load

    async def work() -> None:
        async with load(app) as hg:
            report = await hg.sync_schedules(source=source, prune=prune)
        for word, names in (("stored", report.changed), ("unchanged", report.unchanged), ("deleted", report.deleted)):
            for name in names:
                print(f"{word}  {name}")
        if not prune:
            for name in report.removed:
                print(f"no longer declared  {name}  (--prune deletes it)")

    asyncio.run(work())


def _with(url: str, work: Callable[[Schedules], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with Headgate(url or None) as hg:
            await work(hg.admin.schedules)

    asyncio.run(connected())


def _report(info: ScheduleInfo, output: str) -> None:
    if output == "json":
        print(json.dumps(_plain_dict(info), ensure_ascii=False))
        return
    print(f"{info.name}  {info.state}   version {info.version}")
    print(f"  when      {info.when}")
    print(f"  topic     {info.topic}   priority {info.priority}   overlap {info.overlap}   catch-up {info.catch_up}")
    print(f"  when full {info.when_full}")
    if info.next_at is not None:
        print(f"  next      {_utc(info.next_at)}")
    if info.full_since is not None:
        print(f"  waits     since {_utc(info.full_since)} for room: the backlog of {info.topic} is full")
    if info.last_at is not None:
        print(f"  last      {_utc(info.last_at)}   {info.fired} made, {info.skipped} skipped")
    if info.last_skip:
        print(f"  skipped   {_utc(info.last_skip_at)}  ({info.last_skip})")
    if info.paused:
        print(f"  paused    {_utc(info.paused_at)} by {info.paused_by}" + (f": {info.reason}" if info.reason else ""))
    if info.last_error:
        print(f"  error     {info.last_error}")


def _plain_dict(info: ScheduleInfo) -> dict[str, object]:
    return {"state": info.state} | {name: _plain(value) for name, value in asdict(info).items()}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str | int | bool | list | tuple | dict) or value is None else str(value)


def _utc(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
