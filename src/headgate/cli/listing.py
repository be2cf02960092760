"""`headgate job list`: jobs that match a filter."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli.connection import redaction_of, with_client
from headgate.cli.lists import show_list
from headgate.cli.options import DEFAULT_SERVER, ONCE, Filter, Limit, Output, Server, Shown, Watch
from headgate.cli.output import Columns, count_text, print_one
from headgate.sdk import Headgate, JobInfo
from headgate.sdk.admin.listing import JobCount

COLUMNS: Final[Columns[JobInfo]] = {
    "ID": lambda job: job.id,
    "TOPIC": lambda job: job.topic,
    "STATE": lambda job: job.state,
    "PRIORITY": lambda job: job.priority,
    "ATTEMPT": lambda job: f"{job.attempt}/{job.max_attempts}",
    "CREATED": lambda job: job.created_at,
    "WORKER": lambda job: job.worker,
    # The errors of a job that has completed are history: `job get` shows them.
    "ERROR": lambda job: "" if job.state == "completed" else job.last_error,
}
# With -o wide.
MORE: Final[Columns[JobInfo]] = {
    "DUE": lambda job: job.run_at,
    "STARTED": lambda job: job.claimed_at,
    "FINISHED": lambda job: job.finished_at,
    "TAGS": lambda job: ", ".join(job.tags),
    "SCHEDULE": lambda job: job.schedule,
    "BATCH": lambda job: job.batch_id,
}


def list_command(
    *,
    filter: Filter = "",  # noqa: A002 - the option's name
    output: Output = "table",
    limit: Limit = 50,
    cursor: Annotated[str, Parameter(help="Continue after a previous list: the cursor on its last line.")] = "",
    oldest: Annotated[bool, Parameter(help="List the oldest jobs first.")] = False,
    count: Annotated[bool, Parameter(help="Print the number of matching jobs instead, up to 100,000.")] = False,
    watch: Watch = ONCE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List jobs that match a filter, newest first."""

    async def counted(hg: Headgate) -> JobCount:
        return await hg.admin.jobs_matching(filter).count(up_to=100_000)

    redaction = redaction_of(server)
    following = cursor

    async def listed(hg: Headgate) -> list[JobInfo]:
        nonlocal following
        matching = hg.admin.jobs_matching(filter, oldest_first=oldest)
        jobs: list[JobInfo] = []
        following = cursor
        while True:  # a page can be short although more pages follow
            page = await matching.page(limit=min(limit - len(jobs), 1_000), cursor=following)
            jobs += [replace(job, last_error=redaction.masked_text(job.last_error)) for job in page.jobs]
            following = page.cursor
            if not following or len(jobs) >= limit:
                return jobs

    if count:
        total = with_client(server, counted)
        print_one(total, output, lambda: [count_text(total.total, exact=total.exact)], name=total.total)
        return
    show_list(
        Shown(watch=watch, output=output, server=server),
        listed,
        COLUMNS,
        name=lambda job: job.id,
        empty="no jobs match",
        fields=_fields,
        more=MORE,
        notes=lambda _: [f"more: --cursor {following}"] if following else [],
    )


def _fields(job: JobInfo) -> dict[str, object]:
    """A job for programs; a list has no payloads and results."""
    return {name: value for name, value in asdict(job).items() if name not in ("payload", "raw_result")}
