"""The limits of the shop, for all workers together: what the mail provider allows."""

from __future__ import annotations

from datetime import timedelta

from examples.shop.jobs import hg, send_email
from headgate import Rate

MAIL_RATE = Rate(count=50, period=timedelta(seconds=1))


async def set_limits() -> None:
    """At most 50 mails a second in the whole fleet, and one at a time to each customer."""
    await hg.admin.topics.set(send_email.topic, rate=MAIL_RATE, max_running_per_key=1)
