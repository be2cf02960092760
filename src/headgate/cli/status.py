"""`headgate status`: what is paused, waiting and connected, and the throughput of each topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli import values
from headgate.cli.admin import pause_line
from headgate.cli.connection import with_client
from headgate.cli.options import DEFAULT_SERVER, Output, Server
from headgate.cli.output import Columns, duration, iso, print_one, table
from headgate.cli.retention import retention_line
from headgate.cli.unhandled import unhandled_lines
from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate
from headgate.sdk.admin import InstanceInfo, Status, TopicStatus

STATES: Final = ("pending", "running", "scheduled", "retrying", "blocked", "dead")
FLOWS: Final = ("submitted", "completed", "retried", "dead")
CLEAR: Final = "\x1b[H\x1b[2J"
SHORTEST: Final = timedelta(seconds=0.2)
Rates = Mapping[str, Mapping[str, float]]
"""Jobs per second, by topic and by name of the flow."""


def status_command(
    *,
    watch: Annotated[bool, Parameter(help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[str, Parameter(help="With --watch, the time between two screens: 500ms, 2s.")] = "2s",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show pauses, the jobs of each topic by state, how long they wait, the throughput, and the servers.

    Throughput is the average since the previous minute began; with --watch, since the previous screen.
    """
    pause = values.duration(interval, field="--interval")
    if pause < SHORTEST:
        raise InvalidInput("--interval", f"must be {SHORTEST.total_seconds():g}s or more")

    async def act(hg: Headgate) -> None:
        throughput = Throughput()
        while True:
            status = await hg.admin.status()
            rates = throughput.rates(status)
            if watch and output == "table":
                print(CLEAR if sys.stdout.isatty() else "", iso(status.now), sep="")
            format_ = "ndjson" if watch and output == "json" else output  # one document per screen
            names = "\n".join(one.topic for one in status.topics)
            print_one(status, format_, partial(lines, status, rates), name=names)
            if not watch:
                return
            await asyncio.sleep(pause.total_seconds())

    with_client(server, act)


class Throughput:
    """Turns the counts of two minutes into jobs per second: since the previous answer, if there is one."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, datetime, str], int] = {}
        self._at: datetime | None = None

    def rates(self, status: Status) -> Rates:
        """Return the rates of each topic."""
        counts = {
            (topic.topic, flow.minute, name): int(getattr(flow, name))
            for topic in status.topics
            for flow in topic.flows
            for name in FLOWS
        }
        # The first answer covers the current minute and the whole previous one.
        since = self._at or status.now.replace(second=0, microsecond=0) - timedelta(minutes=1)
        seconds = max((status.now - since).total_seconds(), 0.001)
        found: dict[str, dict[str, float]] = {one.topic: dict.fromkeys(FLOWS, 0.0) for one in status.topics}
        for key, count in counts.items():
            found[key[0]][key[2]] += max(0, count - self._before.get(key, 0)) / seconds
        self._before, self._at = counts, status.now
        return found


def lines(status: Status, rates: Rates) -> Iterator[str]:
    """Return the status as text: pauses, topics, throughput, instances, retention, stuck jobs."""
    for pause in status.paused:
        yield f"PAUSED {pause_line(pause)}"
    if not status.paused:
        yield "nothing is paused"
    yield ""
    yield from table(status.topics, _topics(status, rates)) if status.topics else ["no topics"]
    if status.topics:
        totals = {name: sum(one[name] for one in rates.values()) for name in FLOWS}
        yield "throughput: " + ", ".join(f"{name} {total:,.1f}/s" for name, total in totals.items())
    yield from (f"WARNING {line}" for line in unhandled_lines(status))
    yield ""
    yield from table(status.instances, _instances(status)) if status.instances else ["no servers"]
    yield retention_line(status.retention)
    if stuck := max((one.stuck for one in status.instances), default=0):
        yield f"STUCK {stuck} jobs or pages cannot be promoted or reaped; see job_stuck in the server log"


def _topics(status: Status, rates: Rates) -> Columns[TopicStatus]:
    return {
        "TOPIC": lambda one: one.topic,
        "DISPATCH": lambda one: "paused" if one.paused else "active",
        **{state.upper(): lambda one, state=state: one.counts.get(state, 0) for state in STATES},  # type: ignore[misc]
        "OLDEST WAIT": lambda one: "-" if one.waiting_since is None else duration(status.now - one.waiting_since),
        "IN/s": lambda one: rates[one.topic]["submitted"],
        "DONE/s": lambda one: rates[one.topic]["completed"],
        "RETRIED/s": lambda one: rates[one.topic]["retried"],
    }


def _instances(status: Status) -> Columns[InstanceInfo]:
    return {
        "INSTANCE": lambda one: one.name,
        "VERSION": lambda one: one.version,
        "WORKERS": lambda one: one.workers,
        "UPTIME": lambda one: "-" if one.started_at is None else duration(status.now - one.started_at),
    }
