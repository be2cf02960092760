"""`headgate job list`: jobs that match a filter."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli.connection import with_client
from headgate.cli.options import DEFAULT_SERVER, Filter, Limit, Output, Server
from headgate.cli.output import Columns, count_text, print_list, print_one
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


def list_command(
    *,
    filter: Filter = "",  # noqa: A002 - the option's name
    output: Output = "table",
    limit: Limit = 50,
    cursor: Annotated[str, Parameter(help="Continue after a previous list: the cursor on its last line.")] = "",
    oldest: Annotated[bool, Parameter(help="List the oldest jobs first.")] = False,
    count: Annotated[bool, Parameter(help="Print the number of matching jobs instead, up to 100,000.")] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List jobs that match a filter, newest first."""

    async def counted(hg: Headgate) -> JobCount:
        return await hg.admin.jobs_matching(filter).count(up_to=100_000)

    async def listed(hg: Headgate) -> tuple[list[JobInfo], str]:
        matching = hg.admin.jobs_matching(filter, oldest_first=oldest)
        jobs: list[JobInfo] = []
        following = cursor
        while True:  # a page can be short although more pages follow
            page = await matching.page(limit=min(limit - len(jobs), 1_000), cursor=following)
            jobs += page.jobs
            following = page.cursor
            if not following or len(jobs) >= limit:
                return jobs, following

    if count:
        total = with_client(server, counted)
        print_one(total, output, lambda: [count_text(total.total, exact=total.exact)], name=total.total)
        return
    jobs, following = with_client(server, listed)
    print_list(jobs, output, COLUMNS, name=lambda job: job.id, empty="no jobs match")
    if following and output == "table":
        print(f"more: --cursor {following}")
