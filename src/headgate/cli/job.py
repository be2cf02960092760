"""`headgate job …`: show jobs and act on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli import listing
from headgate.cli.connection import redaction_of, with_id
from headgate.cli.errors import print_warning
from headgate.cli.job_logs import logs_command
from headgate.cli.job_report import JobReport
from headgate.cli.job_verbs import add_verbs
from headgate.cli.options import DEFAULT_SERVER, JobId, Output, Server
from headgate.cli.output import for_people, print_one
from headgate.cli.unhandled import unhandled_line
from headgate.domain.ids import JobId as KnownId
from headgate.sdk import Headgate

job = App(name="job", help="Show jobs and act on them.")
job.command(listing.list_command, name="list")
add_verbs(job)
job.command(logs_command, name="logs")
POLL_SECONDS = 0.3


@job.command(name="get")
def get_command(
    job_id: JobId,
    *,
    full: Annotated[
        bool, Parameter(help="Also show the tracebacks of failed attempts, all attempts, and long values to their end.")
    ] = False,
    watch: Annotated[bool, Parameter(help="Print the job again at every change, until it has ended.")] = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show one job: its arguments, result, error, progress and attempts. Values of secret keys are masked.

    HEADGATE_REDACT has the names of further secret keys, separated by commas; `none` masks nothing.
    """
    redaction = redaction_of(server)
    format_ = "ndjson" if watch and output == "json" else output  # one document per change

    async def act(hg: Headgate, known: KnownId) -> None:
        printed: JobReport | None = None
        while True:
            info = await hg.get(known, payload=True, result=True)
            report = JobReport(info=info, events=await hg.admin.jobs.events(known), redaction=redaction)
            if report != printed:
                print_one(report.fields(), format_, partial(_lines, report, full=full), name=known)
                printed = report
                if info.state == "pending" and for_people(output) and (line := await unhandled_line(hg, info.topic)):
                    print_warning(line)
            if not watch or info.finished:
                return
            await asyncio.sleep(POLL_SECONDS)

    with_id(server, "job", job_id, act)


@job.command(name="watch")
def watch_command(job_id: JobId, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Print one job at every change, until it has ended: the same as `headgate job get --watch`."""
    get_command(job_id, watch=True, output=output, server=server)


def _lines(report: JobReport, *, full: bool) -> Iterator[str]:
    """The job for people, and what to look at next."""
    yield from report.lines(full=full)
    if report.attempts():
        redrive = f" | headgate job redrive {report.info.id}" if report.info.state in ("dead", "cancelled") else ""
        yield ""
        yield f"next: headgate job logs {report.info.id}{redrive}"
