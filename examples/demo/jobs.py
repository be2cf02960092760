"""The demo's jobs, as an application would write them."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from headgate import Fail, Headgate, Job, RetryPolicy, this_job

hg = Headgate()


@hg.job("thumbnail")
async def thumbnail(picture: int) -> str:
    """Fast: thousands of these."""
    return f"picture-{picture}.png"


@hg.job("report")
async def report(name: str, pages: int, *, job: Job = this_job) -> dict[str, int]:
    """Slow, and tells how far it is."""
    for page in range(pages):
        await asyncio.sleep(0.2)
        await job.progress(page + 1, pages, f"page {page + 1} of {name}")
    return {"pages": pages}


@hg.job("sync-account", retry=RetryPolicy.fixed(timedelta(seconds=0.5)))
def sync_account(account: int, *, job: Job = this_job) -> str:
    """Flaky: the remote side fails on the first try of every third account. A plain function runs in a thread."""
    if account % 3 == 0 and job.attempt == 1:
        raise ConnectionError(f"account {account}: the remote side hung up")
    time.sleep(0.005)
    return "synced"


@hg.job("charge-card", max_attempts=3, retry=RetryPolicy.fixed(timedelta(seconds=0.3)))
async def charge_card(card: str) -> None:
    """Never works: it ends among the dead letters."""
    raise Fail(f"card {card} was declined")


@hg.job("reminder")
async def reminder(who: str) -> str:
    """Submitted with a delay."""
    return f"hello, {who}"


@hg.job("mail")
async def mail(to: str) -> None:
    """Bulk mail and urgent mail share a topic; priority decides."""
    await asyncio.sleep(0.002)
