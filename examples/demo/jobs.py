"""The handlers of the demo, as an application would write them.

Each run that gets to its end writes one row. The demo counts these rows afterwards, so what it says about lost jobs and
jobs that ran twice does not depend on what Headgate says about itself.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import asyncpg

from headgate import Fail, Headgate, Job, RetryPolicy, this_job

hg = Headgate()
SOON = RetryPolicy.fixed(timedelta(seconds=0.5))
_pool: asyncpg.Pool[asyncpg.Record] | None = None
_opening = asyncio.Lock()


@hg.job("order", retry=SOON)
async def order(number: int, *, job: Job = this_job) -> int:
    """Short: a few hundred a second."""
    await asyncio.sleep(0.03)
    await record(job)
    return number


@hg.job("account", retry=SOON)
async def account(number: int, *, job: Job = this_job) -> str:
    """Flaky: the other side hangs up on the first attempt of every fourth account."""
    if number % 4 == 0 and job.attempt == 1:
        raise ConnectionError(f"account {number}: connection closed by the other side")
    await asyncio.sleep(0.1)
    await record(job)
    return "synchronised"


@hg.job("report", retry=SOON)
async def report(month: str, pages: int, *, job: Job = this_job) -> int:
    """Long, with progress."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.4)
        await job.progress(page, pages, f"page {page}")
    await record(job)
    return pages


@hg.job("card", retry=SOON, max_attempts=3)
async def card(number: str) -> None:
    """Always declined: becomes a dead letter after three attempts."""
    raise Fail(f"card {number} was declined")


async def record(job: Job) -> None:
    """Write the row of this run. While PostgreSQL is down this fails, and so does the attempt: it is retried."""
    global _pool  # one pool for the process, as applications have it
    async with _opening:
        if _pool is None:
            _pool = await asyncpg.create_pool(os.environ["DEMO_DATABASE_URL"], min_size=1, max_size=4)
    await _pool.execute(
        "INSERT INTO demo.runs (job_id, attempt, pid) VALUES ($1, $2, $3)", job.id, job.attempt, os.getpid()
    )
