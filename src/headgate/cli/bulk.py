"""`headgate bulk …`: one verb on all jobs that match a filter: preview, confirm, watch, cancel."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Literal

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.listing import lines
from headgate.cli.options import (
    BulkReason,
    Delay,
    Detach,
    DryRun,
    Filter,
    Limit,
    PerSecond,
    Priority,
    Reason,
    TableOutput,
    Url,
    Yes,
)
from headgate.cli.output import age, as_json, count_text, print_lines, short, table
from headgate.domain.errors import InvalidInput, Refused
from headgate.sdk import Headgate
from headgate.sdk.admin.bulk import BulkOperation, BulkPreview, PlanOptions

bulk = App(name="bulk", help="Run bulk operations on all jobs that match a filter.")
OperationId = Annotated[str, Parameter(help="Operation id.")]
BAR = 24


@bulk.command(name="start")
def start_command(
    verb: Annotated[
        Literal["cancel", "redrive", "discard", "reprioritise", "move"],
        Parameter(
            help="What to do. Without a state in the filter, only jobs in a state this verb applies to are affected; "
            "for redrive, dead jobs."
        ),
    ],
    *,
    filter: Filter,  # noqa: A002 - the option's name
    reason: BulkReason = "",
    priority: Priority = "",
    topic: Annotated[str, Parameter(help="Target topic of move.")] = "",
    delay: Delay = None,
    per_second: PerSecond = 0,
    yes: Yes = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    output: TableOutput = "table",
    url: Url = "",
) -> None:
    """Cancel, redrive, discard, reprioritise or move all jobs that match a filter now."""
    options: PlanOptions = {"reason": reason}
    if priority:
        options["priority"] = values.priority(priority)
    if topic:
        options["topic"] = topic
    if delay is not None:
        options["delay"] = values.duration(delay, field="--delay")
    if per_second:
        options["per_second"] = per_second
    run(url, verb, filter, options, yes=yes, dry_run=dry_run, detach=detach, output=output)


@bulk.command(name="list")
def list_command(
    *,
    active: Annotated[bool, Parameter(help="Only operations that have not ended.")] = False,
    limit: Limit = 20,
    output: TableOutput = "table",
    url: Url = "",
) -> None:
    """List bulk operations, newest first."""
    found = with_client(url, lambda hg: hg.admin.bulk.list(active=active, limit=limit))
    if output == "json":
        print_lines(map(as_json, found))
    elif output == "name":
        print_lines(str(one.id) for one in found)
    elif not found:
        print("no operations")
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
                count_text(one.expected, exact=one.expected_exactly),
                short(one.who, 20),
                age(one.created_at),
                short(one.filter, 60),
            )
            for one in found
        ]
        print_lines(table(head, rows, right=(3, 4, 5, 6)))


@bulk.command(name="get")
def get_command(operation_id: OperationId, *, output: TableOutput = "table", url: Url = "") -> None:
    """Show one bulk operation."""
    _show(with_client(url, lambda hg: hg.admin.bulk.get(operation_id)), output)


@bulk.command(name="watch")
def watch_command(operation_id: OperationId, *, output: TableOutput = "table", url: Url = "") -> None:
    """Follow one bulk operation until it has ended. Ctrl-C does not stop the operation."""
    _show(with_client(url, lambda hg: hg.admin.bulk.wait(operation_id, progress=progress())), output)


@bulk.command(name="cancel")
def cancel_command(
    operation_id: OperationId, *, reason: Reason = "", output: TableOutput = "table", url: Url = ""
) -> None:
    """Stop a bulk operation. Jobs that it has changed stay changed."""
    _show(with_client(url, lambda hg: hg.admin.bulk.cancel(operation_id, reason=reason)), output)


def run(
    url: str,
    verb: str,
    text: str,
    options: PlanOptions,
    *,
    yes: bool,
    dry_run: bool,
    detach: bool,
    output: str,
) -> None:
    """Preview a bulk operation, ask for confirmation, start it, and watch it."""

    async def act(hg: Headgate) -> None:
        preview = await hg.admin.bulk.preview(verb, text, **options)
        if dry_run:
            print(as_json(preview) if output == "json" else "\n".join(described(preview, verb, sample=True)))
            return
        if not preview.total:
            print(as_json(preview) if output == "json" else f"no jobs match {preview.filter}")
            return
        if not yes:
            _confirm(preview, verb, output)
        started = await hg.admin.bulk.start(verb, text, **options)
        if detach:
            _show(started, output)
            return
        try:
            ended = await hg.admin.bulk.wait(started.id, progress=progress() if output == "table" else None)
        except (KeyboardInterrupt, asyncio.CancelledError):
            print(f"\noperation {started.id} continues: headgate bulk watch {started.id}", file=sys.stderr)
            raise
        if output != "table":
            _show(ended, output)
        elif ended.error:
            print(f"last error: {short(ended.error, 200)}")

    with_client(url, act)


def _confirm(preview: BulkPreview, verb: str, output: str) -> None:
    """Return if the user confirms, else raise Refused. Blocking is fine: nothing else runs in this process."""
    if output != "table" or not sys.stdin.isatty():
        raise InvalidInput(
            "--yes", "is required without a terminal or with --output json or name", hint="see --dry-run"
        )
    print_lines(described(preview, verb, sample=False))
    if input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Refused("nothing was changed")


def described(seen: BulkPreview, verb: str, *, sample: bool) -> list[str]:
    """Return the preview: `41,210 jobs match … (41,179 eligible for cancel, 31 will be skipped).`"""
    left = seen.total - seen.eligible
    text = f"{count_text(seen.total, exact=seen.exact)} jobs match {seen.filter}"
    if left:
        text += f" ({seen.eligible:,} eligible for {verb}, {left:,} will be skipped)"
    return [text + ".", *(lines(seen.sample, "table") if sample and seen.sample else ())]


def progress() -> Callable[[BulkOperation], None]:
    """Return a callback that prints progress: one updated line on a terminal, else a line per change."""
    moving = sys.stdout.isatty()
    shown = ""

    def show(one: BulkOperation) -> None:
        nonlocal shown
        text = line(one)
        if moving:
            text += "" if one.over else f"  {_remaining(one)}(Ctrl-C does not stop it)"
            print("\r" + text.ljust(len(shown)), end="\n" if one.over else "", flush=True)
        elif text != shown:
            print(text, flush=True)
        shown = text

    return show


def line(one: BulkOperation) -> str:
    """Return an operation as one line: its progress bar, then its counts."""
    part = 1.0 if one.state == "done" else min(1.0, one.matched / one.expected) if one.expected else 0.0
    bar = "#" * round(part * BAR)
    return (
        f"operation {one.id}  [{bar:-<{BAR}}]  {part:4.0%}  {one.changed:,} done  {one.skipped:,} skipped  "
        f"{one.errors:,} errors  {one.state}"
    )


def _remaining(one: BulkOperation) -> str:
    """Return the estimated remaining time, at the rate so far."""
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
