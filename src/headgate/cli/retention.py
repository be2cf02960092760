"""`headgate retention …`: how long finished jobs are kept, and their removal by hand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from datetime import date, timedelta

from cyclopts import App

from headgate.cli import values
from headgate.cli.options import Output, Url
from headgate.domain.retention import Removed, RetentionRules, RetentionStatus, check_keep
from headgate.sdk import Headgate

retention = App(name="retention", help="How long finished jobs are kept.")


@retention.command(name="show")
def show_command(*, output: Output = "text", url: Url = "") -> None:
    """Show how long finished jobs are kept, and how far behind their removal is."""

    async def run() -> RetentionStatus:
        async with Headgate(url or None) as hg:
            return (await hg.admin.status()).retention

    found = asyncio.run(run())
    print(_json(found) if output == "json" else sentence(found))


@retention.command(name="set")
def set_command(
    *,
    completed: str = "",
    dead: str = "",
    cancelled: str = "",
    audit: str = "",
    reason: str = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """Change how long finished jobs are kept, for topics without a rule of their own. Needs the scope system.

    Parameters
    ----------
    completed, dead, cancelled
        How long, by how a job ended: 7d, or 36h. What is left out stays.
    audit
        How long entries of the audit are kept.
    reason
        Why, for the audit.
    """
    given = {"completed": completed, "dead": dead, "cancelled": cancelled, "audit": audit}
    spans = {
        name: check_keep(values.span(text, field=f"--{name}"), field=f"--{name}")
        for name, text in given.items()
        if text
    }

    async def run() -> RetentionRules:
        async with Headgate(url or None) as hg:
            return await hg.admin.retention.set(reason=reason, **spans)

    rules = asyncio.run(run())
    print(_json(rules) if output == "json" else kept(rules))


@retention.command(name="run")
def run_command(*, output: Output = "text", url: Url = "") -> None:
    """Remove what is old now. Servers do this by themselves. Needs the scope system.

    It ends when nothing is left, or when other transactions hold all that is left; it says so then.
    """

    async def run() -> tuple[Removed, RetentionStatus | None]:
        total = Removed(more=True)
        async with Headgate(url or None) as hg:
            while total.more and not total.blocked:
                done = await hg.admin.retention.run_pass()
                total = replace(
                    done, jobs=total.jobs + done.jobs, days=total.days + done.days, other=total.other + done.other
                )
            return total, (await hg.admin.status()).retention if total.blocked else None

    done, left = asyncio.run(run())
    if output == "json":
        print(_json(done))
    else:
        print(f"removed {done.jobs} jobs one by one, {done.days} day partitions, {done.other} other rows")
        if left is not None:
            print(f"other transactions hold what is left, and servers will remove it later: {behind(left)}")


def kept(rules: RetentionRules) -> str:
    """The rules in a line."""
    return (
        f"kept: completed {days(rules.completed)}, dead {days(rules.dead)}, cancelled {days(rules.cancelled)}, "
        f"audit {days(rules.audit)}"
    )


def sentence(status: RetentionStatus) -> str:
    """What is kept, and how far behind, in a line."""
    since = f"; finished jobs since {status.oldest_day}" if status.oldest_day else ""
    return f"{kept(status.rules)}{since}; {behind(status)}"


def behind(status: RetentionStatus) -> str:
    """How far behind the removal is, in words."""
    if not status.days_waiting:
        return "nothing waits to be removed"
    return f"{status.days_waiting} days wait to be cleared, the oldest is {status.oldest_waiting}"


def days(span: timedelta) -> str:
    """A span in days: 1 day, 1.5 days."""
    count = span / timedelta(days=1)
    return f"{count:g} day{'' if count == 1 else 's'}"


def _json(value: RetentionStatus | RetentionRules | Removed) -> str:
    return json.dumps(asdict(value), default=_plain)


def _plain(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else str(value) if isinstance(value, date) else value
