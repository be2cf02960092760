"""The handlers of a shop, for the worker in the pictures of the documentation."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate import Headgate, Job, this_job

hg = Headgate()
RUNS_S = 3_600


@hg.job("mail.welcome")
async def welcome(to: str, locale: str) -> dict[str, Any]:
    return {"message_id": f"<{to}>", "accepted": True, "locale": locale}


@hg.job("invoices.render")
async def render(order: int, total: str) -> dict[str, Any]:
    return {"file": f"invoices/{order}.pdf", "pages": 2, "total": total}


@hg.job("images.thumbnail")
async def thumbnail(image: str, width: int) -> dict[str, Any]:
    return {"file": f"thumbs/{width}/{image}"}


@hg.job("payments.capture")
async def capture(
    order: int, amount: str, currency: str = "EUR", customer: dict[str, str] | None = None
) -> dict[str, Any]:
    del currency, customer
    await asyncio.sleep(RUNS_S)
    return {"captured": amount, "order": order}


@hg.job("reports.daily")
async def report(day: str, orders: int, *, job: Job = this_job) -> None:
    await job.progress(int(orders * 0.64), orders, f"adding up the orders of {day}")
    await asyncio.sleep(RUNS_S)


@hg.job("search.reindex")
async def reindex(index: str, documents: int, *, job: Job = this_job) -> None:
    await job.progress(int(documents * 0.18), documents, f"writing {index}")
    await asyncio.sleep(RUNS_S)
