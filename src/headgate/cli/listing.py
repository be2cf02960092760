"""`headgate job list`: jobs that match a filter."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headgate.cli.connection import with_client
from headgate.cli.options import Filter, Limit, TableOutput, Url
from headgate.cli.output import age, as_json, count_text, print_lines, short, table
from headgate.sdk import Headgate, JobInfo


def list_command(
    *,
    filter: Filter = "",  # noqa: A002 - the option's name
    output: TableOutput = "table",
    limit: Limit = 50,
    cursor: Annotated[str, Parameter(help="Continue after a previous list: the cursor on its last line.")] = "",
    oldest: Annotated[bool, Parameter(help="List the oldest jobs first.")] = False,
    count: Annotated[bool, Parameter(help="Print the number of matching jobs instead, up to 100,000.")] = False,
    url: Url = "",
) -> None:
    """List jobs that match a filter, newest first."""

    async def act(hg: Headgate) -> list[str]:
        matching = hg.admin.jobs_matching(filter, oldest_first=oldest)
        if count:
            found = await matching.count(up_to=100_000)
            return [as_json(found) if output == "json" else count_text(found.total, exact=found.exact)]
        jobs: list[JobInfo] = []
        following = cursor
        while True:  # a page can be short although more pages follow
            page = await matching.page(limit=min(limit - len(jobs), 1_000), cursor=following)
            jobs += page.jobs
            following = page.cursor
            if not following or len(jobs) >= limit:
                break
        more = [f"more: --cursor {following}"] if following and output == "table" else []
        return lines(jobs, output) + more

    print_lines(with_client(url, act))


def lines(jobs: list[JobInfo], output: str) -> list[str]:
    """Return the jobs in one of the three output formats."""
    if output == "json":
        return [as_json(job) for job in jobs]
    if output == "name":
        return [str(job.id) for job in jobs]
    if not jobs:
        return ["no jobs match"]
    head = ("ID", "TOPIC", "STATE", "PRIORITY", "ATTEMPT", "AGE", "WORKER", "ERROR")
    return table(
        head,
        [
            (
                job.id,
                job.topic,
                job.state,
                job.priority,
                f"{job.attempt}/{job.max_attempts}",
                age(job.created_at),
                short(job.worker, 20) or "-",
                short(job.last_error, 60),
            )
            for job in jobs
        ],
        right=(3, 4),
    )
