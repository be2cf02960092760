"""`headgate retention …`: how long finished jobs are kept, and their removal on demand."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.options import DEFAULT_SERVER, Output, Reason, Server
from headgate.cli.output import exact, print_one
from headgate.domain.retention import Removed, RetentionRules, RetentionStatus, check_keep
from headgate.sdk import Headgate

retention = App(name="retention", help="Show and change how long finished jobs are kept.")
Keep = Annotated[str, Parameter(help="Retention of jobs that ended in this state: 7d, 36h. Default: unchanged.")]


@retention.command(name="show")
def show_command(*, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Show how long finished jobs are kept, and which days are due for removal."""
    kept = with_client(server, lambda hg: hg.admin.status()).retention
    print_one(kept, output, lambda: [retention_line(kept)])


@retention.command(name="set")
def set_command(
    *,
    completed: Keep = "",
    dead: Keep = "",
    cancelled: Keep = "",
    audit: Annotated[str, Parameter(help="Retention of audit log entries. Default: unchanged.")] = "",
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Change how long finished jobs are kept, for topics without their own rule. Requires the scope system."""
    given = {"completed": completed, "dead": dead, "cancelled": cancelled, "audit": audit}
    spans = {
        name: check_keep(values.duration(text, field=f"--{name}"), field=f"--{name}")
        for name, text in given.items()
        if text
    }
    rules = with_client(server, lambda hg: hg.admin.retention.set(reason=reason, **spans))
    print_one(rules, output, lambda: [rules_line(rules)])


@retention.command(name="run")
def run_command(*, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Remove expired jobs now. Servers do this automatically. Requires the scope system.

    Ends when nothing is left to remove, or when other transactions lock everything that is left.
    """

    async def act(hg: Headgate) -> tuple[Removed, RetentionStatus | None]:
        total = Removed(more=True)
        while total.more and not total.blocked:
            done = await hg.admin.retention.run_pass()
            total = replace(
                done, jobs=total.jobs + done.jobs, days=total.days + done.days, other=total.other + done.other
            )
        return total, (await hg.admin.status()).retention if total.blocked else None

    done, left = with_client(server, act)
    text = [f"removed {done.jobs} jobs one by one, {done.days} day partitions, {done.other} other rows"]
    if left is not None:
        text.append(f"other transactions lock the rest; servers remove it later: {backlog_text(left)}")
    print_one(done, output, lambda: text)


def rules_line(rules: RetentionRules) -> str:
    """Return the rules as one line."""
    return (
        f"kept: completed {exact(rules.completed)}, dead {exact(rules.dead)}, cancelled {exact(rules.cancelled)}, "
        f"audit {exact(rules.audit)}"
    )


def retention_line(status: RetentionStatus) -> str:
    """Return the rules, the oldest finished jobs and the removal backlog as one line."""
    since = f"; finished jobs since {status.oldest_day}" if status.oldest_day else ""
    return f"{rules_line(status.rules)}{since}; {backlog_text(status)}"


def backlog_text(status: RetentionStatus) -> str:
    """Return how many days are due for removal."""
    if not status.days_waiting:
        return "nothing is due for removal"
    return f"{status.days_waiting} days are due for removal, the oldest is {status.oldest_waiting}"
