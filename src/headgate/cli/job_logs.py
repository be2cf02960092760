"""`headgate job logs`: what handlers logged while they ran a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli.connection import redaction_of, with_id
from headgate.cli.options import DEFAULT_SERVER, JobId, Output, Server
from headgate.cli.output import Columns, for_people, iso, print_lines, print_list, table
from headgate.domain.ids import JobId as KnownId
from headgate.domain.job_logs import PAGE_MAX
from headgate.sdk import Headgate
from headgate.sdk.admin.job_logs import LogLine

POLL_SECONDS: Final = 1.0
LATE_SECONDS: Final = 2.5
"""The last lines of a job are stored a little after its end."""
EMPTY: Final = (
    "no log lines. Workers store records of level WARNING and above. "
    "To store more, start them with headgate worker --job-logs INFO"
)
LINES: Final[Columns[LogLine]] = {
    "TIME": lambda one: iso(one.at, milliseconds=True) if one.level else "",
    "ATTEMPT": lambda one: one.attempt or "",
    "LEVEL": lambda one: one.level.upper(),
    "LOGGER": lambda one: one.logger,
    "LINE": lambda one: one.text,
}


def logs_command(
    job_id: JobId,
    *,
    attempt: Annotated[int, Parameter(help="Only this attempt. Default: 0, all attempts.")] = 0,
    follow: Annotated[bool, Parameter(help="Continue with new lines as they come, until the job has ended.")] = False,
    limit: Annotated[int, Parameter(help="Show the newest lines only, up to this many.")] = PAGE_MAX,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show what handlers logged while they ran a job, oldest line first. Values of secret names are masked.

    Of an attempt the first 50 lines and the newest 150 are kept. On a terminal long lines are cut; -o wide shows them
    whole.
    """
    mask = redaction_of(server).masked_text
    format_ = "ndjson" if follow and output == "json" else output  # a document has an end

    async def act(hg: Headgate, known: KnownId) -> None:
        page = await hg.admin.jobs.logs(known, attempt=attempt, limit=limit, newest=True)
        begun = bool(page.lines)
        if begun or not follow:
            _show(page.lines, format_, mask)
        if page.more and for_people(output):
            print_lines([f"the newest {len(page.lines):,} lines are shown; --attempt N shows those of one attempt"])
        cursor, ends = page.cursor, 0.0
        while follow and (not ends or asyncio.get_running_loop().time() < ends):
            if not ends and (await hg.get(known)).finished:
                ends = asyncio.get_running_loop().time() + LATE_SECONDS
            await asyncio.sleep(POLL_SECONDS)
            more = True
            while more:
                page = await hg.admin.jobs.logs(known, attempt=attempt, after=cursor)
                cursor, more = page.cursor or cursor, page.more
                if page.lines:
                    _show(page.lines, format_, mask, heading=not begun)
                    begun = True
        if follow and not begun and for_people(output):
            print_lines([EMPTY])

    with_id(server, "job", job_id, act)


def _show(lines: Iterable[LogLine], output: str, mask: Callable[[str], str], *, heading: bool = True) -> None:
    shown = [replace(one, text=mask(one.text), logger=mask(one.logger)) for one in lines]
    if for_people(output) and not heading:
        print_lines(table([*with_gap_rows(shown)], LINES, wide=output == "wide")[1:])
        return
    print_list(
        [*with_gap_rows(shown)] if for_people(output) else shown,
        output,
        LINES,
        name=lambda one: f"{one.epoch}.{one.seq}",
        empty=EMPTY,
    )


def with_gap_rows(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Lines for people: with a notice where some were left out."""
    for one in lines:
        if one.left_out:
            said = f"… {one.left_out:,} {'line was' if one.left_out == 1 else 'lines were'} left out"
            yield replace(one, level="", logger="", text=said, left_out=0)
        yield one
