"""`headgate bulk …`: one verb over everything a filter matches; preview, confirm, watch, cancel."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from cyclopts import App

from headgate.cli import values
from headgate.cli.listing import lines
from headgate.cli.options import TableOutput as Output
from headgate.cli.output import age, as_json, count_text, short, table
from headgate.domain.errors import InvalidInput, Refused
from headgate.sdk import Headgate
from headgate.sdk.admin.bulk import BulkOperation, BulkPreview, PlanOptions

bulk = App(name="bulk", help="Run bulk operations on all jobs that match a filter.")
BAR = 24


@bulk.command(name="start")
def start_command(
    verb: Literal["cancel", "redrive", "discard", "reprioritise", "move"],
    *,
    filter: str,  # noqa: A002 - the option's name
    reason: str = "",
    priority: str = "",
    topic: str = "",
    delay: str = "",
    per_second: int = 0,
    yes: bool = False,
    dry_run: bool = False,
    detach: bool = False,
    output: Output = "table",
    url: str = "",
) -> None:
    """Cancel, redrive, discard, reprioritise or move all jobs that match.

    Parameters
    ----------
    verb
        What to do to each. Without a state in the filter, those are meant that the verb is for; redrive: dead ones.
    filter
        Which jobs: `topic:mail created:>1d error:"timed out"`. What matches later is not part of it.
    reason
        Why; it stands in the audit and in each job's history.
    priority
        The new priority, a number or a tier: bulk, normal, high, urgent.
    topic
        Where to move them.
    delay
        How long redriven jobs wait before they are due: 30s, 5m.
    per_second
        No more than so many a second.
    yes
        Do not ask.
    dry_run
        Show what would be met, and change nothing.
    detach
        Do not wait for the end.
    output
        table, json or name; json and name do not ask, so they need --yes.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    options: PlanOptions = {"reason": reason}
    if priority:
        options["priority"] = values.priority(priority)
    if topic:
        options["topic"] = topic
    if delay:
        options["delay"] = values.duration(delay, field="--delay")
    if per_second:
        options["per_second"] = per_second
    asyncio.run(run(url or None, verb, filter, options, yes=yes, dry_run=dry_run, detach=detach, output=output))


@bulk.command(name="list")
def list_command(*, active: bool = False, limit: int = 20, output: Output = "table", url: str = "") -> None:
    """List operations, newest first.

    Parameters
    ----------
    active
        Only those that are not over.
    limit
        How many at most.
    output
        table, json (an object per line) or name (ids only).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    found = asyncio.run(_list(url or None, active=active, limit=limit))
    if output == "json":
        for one in found:
            print(as_json(one))
    elif output == "name":
        for one in found:
            print(one.id)
    elif not found:
        print("no bulk operations")
    else:
        head = ("ID", "VERB", "STATE", "DONE", "SKIPPED", "ERRORS", "OF", "BY", "AGE", "FILTER")
        rows = [
            (
                one.id,
                one.verb,
                one.state,
                one.changed,
                one.skipped,
                one.errors,
                _expected(one),
                short(one.who, 20),
                age(one.created_at),
                short(one.filter, 60),
            )
            for one in found
        ]
        print("\n".join(table(head, rows, right=(3, 4, 5, 6))))


@bulk.command(name="get")
def get_command(operation_id: str, *, output: Output = "table", url: str = "") -> None:
    """Show one operation.

    Parameters
    ----------
    operation_id
        Its id.
    output
        table or json.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    _show(asyncio.run(_get(url or None, operation_id)), output)


@bulk.command(name="watch")
def watch_command(operation_id: str, *, output: Output = "table", url: str = "") -> None:
    """Follow one operation to its end. Ctrl-C leaves it running.

    Parameters
    ----------
    operation_id
        Its id.
    output
        table or json.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    _show(asyncio.run(_watch(url or None, operation_id)), output)


@bulk.command(name="cancel")
def cancel_command(operation_id: str, *, reason: str = "", output: Output = "table", url: str = "") -> None:
    """End an operation where it stands; what it has done stays done.

    Parameters
    ----------
    operation_id
        Its id.
    reason
        Why; it stands in the audit.
    output
        table or json.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    _show(asyncio.run(_cancel(url or None, operation_id, reason)), output)


# --- the work ---------------------------------------------------------------------------------------------------------


async def run(
    url: str | None,
    verb: str,
    text: str,
    options: PlanOptions,
    *,
    yes: bool,
    dry_run: bool,
    detach: bool,
    output: str,
) -> None:
    """Preview, ask, start, watch."""
    async with Headgate(url) as hg:
        bulk_admin = hg.admin.bulk
        seen = await bulk_admin.preview(verb, text, **options)
        if dry_run:
            print(as_json(seen) if output == "json" else "\n".join(described(seen, verb, sample=True)))
            return
        if not seen.total:
            print(as_json(seen) if output == "json" else f"no jobs match {seen.filter}")
            return
        if not yes:
            _ask(seen, verb, output)
        started = await bulk_admin.start(verb, text, **options)
        if detach:
            _show(started, output)
            return
        try:
            ended = await bulk_admin.wait(started.id, progress=progress() if output == "table" else None)
        except (KeyboardInterrupt, asyncio.CancelledError):
            print(f"\noperation {started.id} goes on: headgate bulk watch {started.id}", file=sys.stderr)
            raise
        if output != "table":
            _show(ended, output)
        elif ended.error:
            print(f"last error: {short(ended.error, 200)}")


def _ask(seen: BulkPreview, verb: str, output: str) -> None:
    """Return if a person agrees. It may block: nothing else runs in this process."""
    if output != "table" or not sys.stdin.isatty():
        raise InvalidInput("--yes", "is needed where nobody can be asked", hint="or look first, by --dry-run")
    print("\n".join(described(seen, verb, sample=False)))
    if input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Refused("nothing was changed")


async def _list(url: str | None, *, active: bool, limit: int) -> list[BulkOperation]:
    async with Headgate(url) as hg:
        return await hg.admin.bulk.list(active=active, limit=limit)


async def _get(url: str | None, operation_id: str) -> BulkOperation:
    async with Headgate(url) as hg:
        return await hg.admin.bulk.get(operation_id)


async def _watch(url: str | None, operation_id: str) -> BulkOperation:
    async with Headgate(url) as hg:
        return await hg.admin.bulk.wait(operation_id, progress=progress())


async def _cancel(url: str | None, operation_id: str, reason: str) -> BulkOperation:
    async with Headgate(url) as hg:
        return await hg.admin.bulk.cancel(operation_id, reason=reason)


def described(seen: BulkPreview, verb: str, *, sample: bool) -> list[str]:
    """What would be met, in a sentence: `41,210 jobs match (41,179 eligible, 31 running will be skipped)`."""
    left = seen.total - seen.eligible
    words = f"{count_text(seen.total, exact=seen.exact)} jobs match {seen.filter}"
    if left:
        words += f" ({seen.eligible:,} eligible for {verb}, {left:,} will be skipped)"
    return [words + ".", *(lines(seen.sample, "table") if sample and seen.sample else ())]


def progress() -> Callable[[BulkOperation], None]:
    """Shows how far it is: one line that moves on a terminal, else a line for each change."""
    moving = sys.stdout.isatty()
    shown = ""

    def show(one: BulkOperation) -> None:
        nonlocal shown
        text = line(one)
        if moving:
            text += "" if one.over else f"  {_left(one)}(Ctrl-C leaves it running)"
            print("\r" + text.ljust(len(shown)), end="\n" if one.over else "", flush=True)
        elif text != shown:
            print(text, flush=True)
        shown = text

    return show


def line(one: BulkOperation) -> str:
    """One line about an operation: its bar, then what it has done."""
    part = 1.0 if one.state == "done" else min(1.0, one.matched / one.expected) if one.expected else 0.0
    bar = "#" * round(part * BAR)
    return (
        f"operation {one.id}  [{bar:-<{BAR}}]  {part:4.0%}  {one.changed:,} done  {one.skipped:,} skipped  "
        f"{one.errors:,} errors  {one.state}"
    )


def _left(one: BulkOperation) -> str:
    """How long it will take, at its pace so far."""
    if one.started_at is None or not one.matched or one.expected <= one.matched:
        return ""
    so_far = (datetime.now(UTC) - one.started_at).total_seconds()
    return f"ETA {max(0.0, so_far / one.matched * (one.expected - one.matched)):.0f} s  "


def _show(one: BulkOperation, output: str) -> None:
    if output == "json":
        print(as_json(one))
    elif output == "name":
        print(one.id)
    else:
        print(line(one))
        print(f"  {one.verb}  {one.filter}")
        print(f"  by {one.who}, {age(one.created_at)} ago" + (f": {one.reason}" if one.reason else ""))
        if one.error:
            print(f"  last error: {short(one.error, 200)}")


def _expected(one: BulkOperation) -> str:
    return count_text(one.expected, exact=one.expected_exactly)
