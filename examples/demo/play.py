"""The demo's own part: submit jobs of every kind, watch them, sum up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from examples.demo import jobs
from headgate.domain.states import State
from headgate.store import reads
from headgate.store.connect import Connection, connect

DEADLINE_SECONDS = 50
THUMBNAILS, ACCOUNTS, BULK, REMINDERS = 3000, 120, 400, 20
KINDS = {
    "thumbnail": "fast, thousands of them",
    "report": "slow, with progress",
    "sync-account": "flaky, retried",
    "charge-card": "always fails",
    "reminder": "due in a few seconds",
    "mail": "bulk, then urgent",
}


@dataclass
class Tally:
    """What the demo has to tell at the end."""

    started: float = field(default_factory=time.monotonic)
    submitted: int = 0
    submit_seconds: float = 0.0
    urgent_waited: float = 0.0


async def play(dsn: str, console: Console) -> int:
    """Submit, watch, sum up."""
    tally = Tally()
    db = await connect(dsn, application_name="headgate demo")
    try:
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(submit_all(tally), name="submit")
            finished = await watch(db, console, sending.done)
        await summary(db, console, tally)
        return 0 if finished else 1
    finally:
        await jobs.hg.close()
        await db.close()


async def submit_all(tally: Tally) -> None:
    """A few thousand jobs of every kind."""
    began = time.monotonic()
    await jobs.charge_card.submit("4242")
    for name in ("January", "February", "March"):
        await jobs.report.submit(name, pages=15)
    delayed = jobs.reminder.with_options(delay=4)
    await asyncio.gather(*(delayed.submit(f"guest {n}") for n in range(REMINDERS)))
    await jobs.thumbnail.submit_many([{"picture": n} for n in range(THUMBNAILS)])
    await jobs.sync_account.submit_many([{"account": n} for n in range(ACCOUNTS)])
    await jobs.mail.with_options(priority="bulk").submit_many([{"to": f"reader-{n}@example.com"} for n in range(BULK)])
    tally.submit_seconds = time.monotonic() - began
    urgent = time.monotonic()
    handle = await jobs.mail.with_options(priority="urgent").submit("boss@example.com")
    await handle.result(30)
    tally.urgent_waited = time.monotonic() - urgent
    tally.submitted = 1 + 3 + REMINDERS + THUMBNAILS + ACCOUNTS + BULK + 1


async def watch(db: Connection, console: Console, all_sent: Callable[[], bool]) -> bool:
    """Show the counts until every job has ended; True if they did before the deadline."""
    tenant_no = await db.fetchval("SELECT headgate.intern_tenant_v1('default')")
    deadline = time.monotonic() + DEADLINE_SECONDS
    live = Live(console=console, refresh_per_second=8, transient=False) if console.is_terminal else None
    last = ""
    with live or ExitStack():
        while time.monotonic() < deadline:
            counts = await by_topic(db, tenant_no)
            view = picture(counts)
            if live is not None:
                live.update(view)
            elif (line := plain(counts)) != last:
                console.print(line, highlight=False)
                last = line
            if all_sent() and not any(
                state.name in ("PENDING", "RUNNING", "SCHEDULED", "RETRYING")
                for states in counts.values()
                for state in states
            ):
                return True
            await asyncio.sleep(0.15 if live is not None else 1.0)
    return False


async def by_topic(db: Connection, tenant_no: int) -> dict[str, dict[State, int]]:
    """Counts from the rollups, by topic name."""
    names = {row[0]: row[1] for row in await db.fetch("SELECT topic_no, name FROM headgate.topics")}
    return {names[no]: states for no, states in (await reads.counts(db, tenant_no)).items()}


def picture(counts: dict[str, dict[State, int]]) -> Group:
    """The live view: a line and a bar for each kind."""
    progress = Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(36),
        TextColumn("{task.completed:>5.0f}/{task.total:<5.0f}"),
        TextColumn("[dim]{task.fields[note]}[/]"),
    )
    for topic, title in KINDS.items():
        states = counts.get(topic, {})
        ended = sum(n for state, n in states.items() if state.is_final)
        task: TaskID = progress.add_task(topic, total=max(1, sum(states.values())), completed=ended, note="")
        notes = [f"{n} {state.label}" for state, n in sorted(states.items()) if state is not State.COMPLETED]
        progress.update(task, note=", ".join(notes) or title)
    return Group(progress, Text(""))


def plain(counts: dict[str, dict[State, int]]) -> str:
    """The same for a log: one line."""
    total: dict[State, int] = {}
    for states in counts.values():
        for state, n in states.items():
            total[state] = total.get(state, 0) + n
    return "  ".join(f"{state.label} {n}" for state, n in sorted(total.items())) or "waiting for the first job"


async def summary(db: Connection, console: Console, tally: Tally) -> None:
    """What happened, in words a newcomer understands."""
    tenant_no = await db.fetchval("SELECT headgate.intern_tenant_v1('default')")
    counts = await by_topic(db, tenant_no)
    ended = sum(n for states in counts.values() for state, n in states.items() if state.is_final)
    retries = await db.fetchval("SELECT count(*) FROM headgate.job_events WHERE kind = 1 AND state = 3")
    dead = await db.fetch(
        """SELECT t.name, a.attempt, a.last_error
             FROM headgate.archive a JOIN headgate.topics t USING (topic_no) WHERE a.state = 6"""
    )
    overtaken = await db.fetchval(
        """SELECT count(*) FROM headgate.archive b
            WHERE b.priority = -10
              AND b.claimed_at > (SELECT u.claimed_at FROM headgate.archive u WHERE u.priority = 20)"""
    )
    seconds = time.monotonic() - tally.started
    table = Table(title="What happened", show_header=False, title_justify="left", box=None, padding=(0, 2))
    table.add_row("jobs", f"{ended:,} of {tally.submitted:,} ended in {seconds:.1f} s")
    table.add_row("submitting", f"{tally.submitted:,} jobs were stored durably in {tally.submit_seconds:.2f} s")
    table.add_row("retries", f"{retries} attempts failed and were tried again")
    for name, attempts, error in dead:
        table.add_row("dead letter", f"{name} gave up after {attempts} attempts: {error}")
    table.add_row(
        "priority",
        f"the urgent mail was done after {tally.urgent_waited * 1000:.0f} ms; {overtaken} bulk mails came after it",
    )
    table.add_row("delayed", f"{REMINDERS} reminders ran when they were due, 4 s later")
    console.print()
    console.print(table)
    console.print("\nNext: read examples/demo/jobs.py (the handlers), then `make dev` for a server of your own.")
