"""`headgate job …`: look at jobs, and act on them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import datetime
from typing import Literal

from cyclopts import App

from headgate.cli import listing
from headgate.cli.job_verbs import add_verbs
from headgate.sdk import Headgate, JobInfo

job = App(name="job", help="Look at jobs, and act on them.")
job.command(listing.list_command, name="list")
add_verbs(job)


@job.command(name="get")
def get_command(job_id: str, *, watch: bool = False, output: Literal["text", "json"] = "text", url: str = "") -> None:
    """Show one job.

    Parameters
    ----------
    job_id
        Its id.
    watch
        Go on until it has ended, printing a line at every change.
    output
        text or json.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    asyncio.run(_get(url or None, job_id, watch=watch, output=output))


async def _get(url: str | None, job_id: str, *, watch: bool, output: str) -> None:
    async with Headgate(url) as hg:
        shown = ""
        while True:
            info = await hg.get(job_id, result=True)
            text = as_json(info) if output == "json" else "\n".join(lines(info))
            if text != shown:
                print(text, flush=True)
                shown = text
            if not watch or info.finished:
                return
            await asyncio.sleep(0.3)


def lines(info: JobInfo) -> list[str]:
    """What a person wants to know, most important first."""
    head = f"{info.topic}  {info.state}   priority {info.priority}   attempt {info.attempt}/{info.max_attempts}"
    found = [head, f"  id        {info.id}", f"  created   {_time(info.created_at)}"]
    if info.run_at is not None and info.state in ("scheduled", "retrying"):
        found.append(f"  due       {_time(info.run_at)}")
    if info.deadline is not None:
        found.append(f"  deadline  {_time(info.deadline)}")
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
        found.append(f"  schedule  {info.schedule or '(deleted)'}, for {_time(info.occurrence)}")
    if info.worker:
        found.append(f"  worker    {info.worker}  since {_time(info.claimed_at)}")
    if info.lease_until is not None:
        found.append(
            f"  lease     until {_time(info.lease_until)}" + ("  (cancel requested)" if info.cancel_requested else "")
        )
    if info.progress is not None and info.state == "running":
        done, total, message = info.progress
        found.append(f"  progress  {done}" + (f" of {total}" if total else "") + (f"  {message}" if message else ""))
    if info.finished_at is not None:
        found.append(f"  finished  {_time(info.finished_at)}")
    if info.last_error:
        found.append(f"  error     {info.last_error}")
    if info.state == "completed" and info.result:
        found.append(f"  result    {info.result.decode(errors='replace')[:2000]}")
    return found


def as_json(info: JobInfo) -> str:
    """Everything, for programs: times as ISO, bytes as text."""
    return json.dumps(asdict(info), default=_plain, ensure_ascii=False)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _time(at: datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
