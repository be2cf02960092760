"""`headgate job …`: show jobs and act on them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli import listing
from headgate.cli.connection import with_client
from headgate.cli.job_verbs import add_verbs
from headgate.cli.options import JobId, Output, Url
from headgate.cli.output import as_json, utc_milliseconds
from headgate.sdk import Headgate, JobInfo

job = App(name="job", help="Show jobs and act on them.")
job.command(listing.list_command, name="list")
add_verbs(job)
POLL_SECONDS = 0.3


@job.command(name="get")
def get_command(
    job_id: JobId,
    *,
    watch: Annotated[bool, Parameter(help="Print the job again at every change, until it has ended.")] = False,
    output: Output = "text",
    url: Url = "",
) -> None:
    """Show one job."""

    async def act(hg: Headgate) -> None:
        printed = ""
        while True:
            info = await hg.get(job_id, result=True)
            text = as_json(info) if output == "json" else "\n".join(lines(info))
            if text != printed:
                print(text, flush=True)
                printed = text
            if not watch or info.finished:
                return
            await asyncio.sleep(POLL_SECONDS)

    with_client(url, act)


def lines(info: JobInfo) -> list[str]:
    """Return a job as text, most important first."""
    head = f"{info.topic}  {info.state}   priority {info.priority}   attempt {info.attempt}/{info.max_attempts}"
    found = [head, f"  id        {info.id}", f"  created   {utc_milliseconds(info.created_at)}"]
    if info.run_at is not None and info.state in ("scheduled", "retrying"):
        found.append(f"  due       {utc_milliseconds(info.run_at)}")
    if info.deadline is not None:
        found.append(f"  deadline  {utc_milliseconds(info.deadline)}")
    if info.unique_key:
        found.append(f"  unique    {info.unique_key}")
    if info.parent_count:
        open_ = [str(one.id) for one in info.parents if one.met != "fulfilled"]
        waits = f"   waits for {', '.join(open_[:5])}" if open_ and info.state == "blocked" else ""
        found.append(f"  parents   {info.parent_count}{waits}")
    if info.child_count:
        found.append(f"  children  {info.child_count}")
    if info.batch_id is not None:
        found.append(f"  batch     {info.batch_id}")
    if info.schedule is not None:
        found.append(f"  schedule  {info.schedule or '(deleted)'}, for {utc_milliseconds(info.occurrence)}")
    if info.worker:
        found.append(f"  worker    {info.worker}  since {utc_milliseconds(info.claimed_at)}")
    if info.lease_until is not None:
        found.append(
            f"  lease     until {utc_milliseconds(info.lease_until)}"
            + ("  (cancel requested)" if info.cancel_requested else "")
        )
    if info.progress is not None and info.state == "running":
        done, total, message = info.progress
        found.append(f"  progress  {done}" + (f" of {total}" if total else "") + (f"  {message}" if message else ""))
    if info.finished_at is not None:
        found.append(f"  finished  {utc_milliseconds(info.finished_at)}")
    if info.last_error:
        found.append(f"  error     {info.last_error}")
    if info.state == "completed" and info.result:
        found.append(f"  result    {info.result.decode(errors='replace')[:2000]}")
    return found
