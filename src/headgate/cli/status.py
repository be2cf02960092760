"""`headgate status`: what is paused, waiting and connected, and the throughput of each topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from functools import partial
from typing import Final

from headgate.cli.admin import pause_line
from headgate.cli.connection import with_client
from headgate.cli.lists import CLEAR
from headgate.cli.options import DEFAULT_SERVER, ONCE, Output, Server, Watch
from headgate.cli.output import Columns, duration, for_people, iso, print_one, table
from headgate.cli.retention import retention_line
from headgate.cli.unhandled import unhandled_lines
from headgate.domain.topic_figures import Rates
from headgate.sdk import Headgate
from headgate.sdk.admin import InstanceInfo, Status, TopicStatus

STATES: Final = ("pending", "running", "scheduled", "retrying", "blocked", "dead")


def status_command(
    *,
    watch: Watch = ONCE,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show pauses, the jobs of each topic by state, how long they wait, the throughput, and the servers.

    Throughput is the average since the previous minute began, as on the dashboard.
    """
    pause = watch.pause

    async def act(hg: Headgate) -> None:
        while True:
            status = await hg.admin.status()
            if watch.watch and for_people(output):
                print(CLEAR if sys.stdout.isatty() else "", iso(status.now), sep="")
            format_ = "ndjson" if watch.watch and output == "json" else output  # one document per screen
            names = "\n".join(one.topic for one in status.topics)
            print_one(status, format_, partial(lines, status), name=names)
            if not watch.watch:
                return
            await asyncio.sleep(pause.total_seconds())

    with_client(server, act)


def lines(status: Status) -> Iterator[str]:
    """Return the status as text: pauses, topics, throughput, instances, retention, stuck jobs."""
    if status.read_only:
        yield "READ-ONLY the database takes no writes: nothing can be changed, and no job starts"
    for pause in status.paused:
        yield f"PAUSED {pause_line(pause)}"
    if not status.paused:
        yield "nothing is paused"
    yield ""
    yield from table(status.topics, _topics(status)) if status.topics else ["no topics"]
    if status.topics:
        total = sum(status.rates.values(), Rates())
        rates = (("submitted", total.submitted), ("completed", total.completed), ("failed attempts", total.failed))
        yield "throughput: " + ", ".join(f"{name} {rate:,.1f}/s" for name, rate in rates)
    yield from (f"WARNING {line}" for line in unhandled_lines(status))
    yield ""
    yield from table(status.instances, _instances(status)) if status.instances else ["no servers"]
    yield retention_line(status.retention)
    if stuck := max((one.stuck for one in status.instances), default=0):
        yield f"STUCK {stuck} jobs or pages cannot be promoted or reaped; see job_stuck in the server log"


def _topics(status: Status) -> Columns[TopicStatus]:
    rates = status.rates
    return {
        "TOPIC": lambda one: one.topic,
        "DISPATCH": lambda one: "paused" if one.paused else "active",
        **{state.upper(): lambda one, state=state: one.counts.get(state, 0) for state in STATES},  # type: ignore[misc]
        "OLDEST WAIT": lambda one: "-" if one.waiting_since is None else duration(status.now - one.waiting_since),
        "IN/s": lambda one: rates[one.topic].submitted,
        "DONE/s": lambda one: rates[one.topic].completed,
        "FAILED/s": lambda one: rates[one.topic].failed,
    }


def _instances(status: Status) -> Columns[InstanceInfo]:
    return {
        "INSTANCE": lambda one: one.name,
        "VERSION": lambda one: one.version,
        "WORKERS": lambda one: one.workers,
        "UPTIME": lambda one: "-" if one.started_at is None else duration(status.now - one.started_at),
    }
