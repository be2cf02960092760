"""`headgate job list`: jobs by a filter."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from cyclopts import Parameter

from headgate.cli.tables import age, as_json, short, table
from headgate.sdk import Headgate, JobInfo

Output = Annotated[Literal["table", "json", "name"], Parameter(name=("--output", "-o"))]


def list_command(
    *,
    filter: str = "",  # noqa: A002 - the option's name
    output: Output = "table",
    limit: int = 50,
    cursor: str = "",
    oldest: bool = False,
    count: bool = False,
    url: str = "",
) -> None:
    """List jobs, newest first.

    Parameters
    ----------
    filter
        What they must match: `state:dead topic:mail* created:>2h error:"timed out"`.
    output
        table, json (an object per line) or name (ids only).
    limit
        How many at most.
    cursor
        Where to go on: the last line of the list before.
    oldest
        Oldest first.
    count
        Print how many match instead, counted up to 100,000.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    asyncio.run(_list(url or None, filter, output=output, limit=limit, cursor=cursor, oldest=oldest, count=count))


async def _list(url: str | None, text: str, *, output: str, limit: int, cursor: str, oldest: bool, count: bool) -> None:
    async with Headgate(url) as hg:
        matching = hg.admin.jobs_matching(text, oldest_first=oldest)
        if count:
            found = await matching.count(up_to=100_000)
            print(as_json(found) if output == "json" else many(found.total, exact=found.exact))
            return
        jobs: list[JobInfo] = []
        while True:  # a page may be short although more follows
            page = await matching.page(limit=min(limit - len(jobs), 1_000), cursor=cursor)
            jobs += page.jobs
            cursor = page.cursor
            if not cursor or len(jobs) >= limit:
                break
    for line in lines(jobs, output):
        print(line)
    if cursor and output == "table":
        print(f"more: --cursor {cursor}")


def lines(jobs: list[JobInfo], output: str) -> list[str]:
    """The jobs in one of the three forms."""
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


def many(total: int, *, exact: bool) -> str:
    """A count as people say it."""
    return f"{total:,}" if exact else f"more than {total - 1:,}"
