"""`headgate bulk …`: one verb on all jobs that match a filter: preview, confirm, watch, cancel."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.confirming import confirm
from headgate.cli.connection import redaction_of, with_client, with_id
from headgate.cli.listing import COLUMNS
from headgate.cli.lists import show_list
from headgate.cli.options import (
    DEFAULT_SERVER,
    SHOWN,
    STARTING,
    BulkReason,
    Delay,
    Filter,
    Limit,
    Output,
    Part,
    PerSecond,
    Priority,
    Reason,
    Server,
    Shown,
    Starting,
)
from headgate.cli.output import (
    Columns,
    count_text,
    details,
    duration,
    for_people,
    one_line,
    painted,
    print_one,
    table,
    when,
)
from headgate.domain.bulk import Verb
from headgate.domain.ids import JobId
from headgate.domain.limits import PAGE_MAX
from headgate.domain.validation import parse_priority
from headgate.sdk import Headgate
from headgate.sdk.admin.bulk import Bulk, BulkOperation, BulkPreview, PlanOptions

bulk = App(name="bulk", help="Run bulk operations on all jobs that match a filter.")
OperationId = Annotated[str, Parameter(help="Operation id, or its first digits.")]
BAR = 24
OPERATIONS: Final[Columns[BulkOperation]] = {
    "ID": lambda one: one.id,
    "VERB": lambda one: one.verb,
    "STATE": lambda one: one.state,
    "DONE": lambda one: one.changed,
    "SKIPPED": lambda one: one.skipped,
    "ERRORS": lambda one: one.errors,
    "OF": lambda one: one.expected if one.expected_exactly else count_text(one.expected, exact=False),
    "BY": lambda one: one.who,
    "CREATED": lambda one: one.created_at,
    "FILTER": lambda one: one.filter,
}


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
    how: Starting = STARTING,
) -> None:
    """Cancel, redrive, discard, reprioritise or move all jobs that match a filter now."""
    options = plan_options(reason, priority=priority, topic=topic, delay=delay, per_second=per_second)
    run(how, verb, filter, options)


def plan_options(
    reason: str, *, priority: str = "", topic: str = "", delay: str | None = None, per_second: int = 0
) -> PlanOptions:
    """What the options of a command say about an operation; what was not given is left out."""
    options: PlanOptions = {"reason": reason}
    if priority:
        options["priority"] = parse_priority(priority)
    if topic:
        options["topic"] = topic
    if delay is not None:
        options["delay"] = values.duration(delay, field="--delay")
    if per_second:
        options["per_second"] = per_second
    return options


@bulk.command(name="list")
def list_command(
    *,
    active: Annotated[bool, Parameter(help="Only operations that have not ended.")] = False,
    part: Part = "",
    limit: Limit = 20,
    shown: Shown = SHOWN,
) -> None:
    """List bulk operations, newest first."""
    show_list(
        shown,
        lambda hg: hg.admin.bulk.list(active=active, limit=PAGE_MAX if part else limit),
        OPERATIONS,
        name=lambda one: one.id,
        empty="no operations",
        part=part,
        limit=limit,
    )


@bulk.command(name="get")
def get_command(operation_id: OperationId, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Show one bulk operation."""
    _act(server, output, operation_id, lambda bulk, known: bulk.get(known))


@bulk.command(name="watch")
def watch_command(operation_id: OperationId, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Follow one bulk operation until it has ended. Ctrl-C does not stop the operation."""
    shown = progress() if for_people(output) else None
    _act(server, output, operation_id, lambda bulk, known: bulk.wait(known, progress=shown))


@bulk.command(name="cancel")
def cancel_command(
    operation_id: OperationId, *, reason: Reason = "", output: Output = "table", server: Server = DEFAULT_SERVER
) -> None:
    """Stop a bulk operation. Jobs that it has changed stay changed."""
    _act(server, output, operation_id, lambda bulk, known: bulk.cancel(known, reason=reason))


def run(how: Starting, verb: str, text: str, options: PlanOptions) -> None:
    """Preview a bulk operation, ask for confirmation, start it, and watch it."""
    mask, output = redaction_of(how.server).masked_text, how.output

    async def act(hg: Headgate) -> None:
        preview = await hg.admin.bulk.preview(verb, text, **options)
        preview = replace(preview, sample=[replace(job, last_error=mask(job.last_error)) for job in preview.sample])
        if how.dry_run:
            names = "\n".join(str(job.id) for job in preview.sample)
            print_one(preview, output, lambda: described(preview, verb, sample=True), name=names)
            return
        if not preview.total:
            print_one(preview, output, lambda: [f"no jobs match {preview.filter}"], name="")
            return
        if not how.yes:
            confirm(lambda: described(preview, verb, sample=False), output, hint="see --dry-run")
        started = await hg.admin.bulk.start(verb, text, **options)
        if how.detach:
            _show(started, output)
            return
        try:
            ended = await hg.admin.bulk.wait(started.id, progress=progress() if for_people(output) else None)
        except (KeyboardInterrupt, asyncio.CancelledError):
            print(f"\noperation {started.id} continues: headgate bulk watch {started.id}", file=sys.stderr)
            raise
        if not for_people(output):
            _show(ended, output)
        elif ended.error:
            print(f"last error: {one_line(ended.error)}")

    with_client(how.server, act)


def described(seen: BulkPreview, verb: str, *, sample: bool) -> list[str]:
    """Return the preview: `41,210 jobs match … (41,179 eligible for redrive, 31 running will be skipped).`"""
    reached = {state.label for state in Verb[verb.upper()].reaches}
    left = [f"{count:,} {state}" for state, count in seen.by_state.items() if count and state not in reached]
    text = f"{count_text(seen.total, exact=seen.exact)} jobs match {seen.filter}"
    if left:
        text += f" ({seen.eligible:,} eligible for {verb}, {' and '.join(left)} will be skipped)"
    return [text + ".", *(table(seen.sample, COLUMNS) if sample and seen.sample else ())]


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
        f"{one.errors:,} errors  {painted(one.state)}"
    )


def _remaining(one: BulkOperation) -> str:
    """Return the estimated remaining time, at the rate so far."""
    if one.started_at is None or not one.matched or one.expected <= one.matched:
        return ""
    so_far = datetime.now(UTC) - one.started_at
    return f"ETA {duration(so_far / one.matched * (one.expected - one.matched))}  "


def _act(server: Server, output: str, given: str, verb: Callable[[Bulk, JobId], Awaitable[BulkOperation]]) -> None:
    _show(with_id(server, "operation", given, lambda hg, known: verb(hg.admin.bulk, known)), output)


def operation_lines(one: BulkOperation) -> list[str]:
    """Return an operation as text: its progress, then what it is."""
    fields = (
        ("verb", one.verb),
        ("filter", one.filter),
        ("created", f"{when(one.created_at)} by {one.who}" + (f": {one.reason}" if one.reason else "")),
        ("finished", when(one.finished_at)),
        ("error", one.error),
    )
    return details(line(one), fields)


def _show(one: BulkOperation, output: str) -> None:
    print_one(one, output, lambda: operation_lines(one), name=one.id)
