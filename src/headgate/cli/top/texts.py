"""The lines around the table: header, counts with a sparkline, what fails now."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rich.text import Text

from headgate.cli.output import duration, exact, one_line
from headgate.cli.top.places import LISTS, Place, View
from headgate.domain.bulk import DeadGroup
from headgate.domain.topic_figures import Rates, longest_wait
from headgate.sdk.admin import Status

GREY: Final = "grey62"
BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS: Final = "_.:-=+*#"
POINTS: Final = 24
"""Values of the sparkline."""
STATES: Final = ("pending", "running", "retrying", "scheduled", "blocked", "dead")
STYLES: Final = {
    **dict.fromkeys(("completed", "done", "active", "idle"), "green"),
    **dict.fromkeys(("dead", "failed", "lease_expired", "expired", "silent"), "red"),
    **dict.fromkeys(("retrying", "paused", "quiet", "stopping", "nacked"), "yellow"),
    **dict.fromkeys(("running", "open", "busy"), "dodger_blue1"),
    **dict.fromkeys(("scheduled", "snoozed", "stand-by"), "cyan"),
    "blocked": "magenta",
    **dict.fromkeys(("cancelled", "abandoned", "ended"), GREY),
}
"""Colours of states; a state is always written as well."""


def has_blocks() -> bool:
    """Whether the terminal can show characters that are not ASCII."""
    encoding = getattr(sys.__stdout__, "encoding", None) or ""
    return encoding.lower().replace("-", "").startswith("utf")


def sparkline(values: Sequence[float], *, blocks: str = BLOCKS) -> str:
    """Return a bar for each value, the highest as a full one; an empty text for no values."""
    top = max(values, default=0.0)
    if top <= 0:
        return blocks[0] * len(values)
    return "".join(blocks[min(len(blocks) - 1, int(value / top * (len(blocks) - 1) + 0.5))] for value in values)


def bar(part: float, *, width: int, plain: bool = False) -> str:
    """Return a horizontal bar that is filled to this part."""
    full = round(max(0.0, min(1.0, part)) * width)
    return "#" * full + "-" * (width - full) if plain else "█" * full + "░" * (width - full)


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """The server or its database does not answer."""

    since: float  # of the monotonic clock
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What the first line says."""

    server: str
    interval: timedelta
    read_only: bool
    status: Status | None = None
    away: Away | None = None


def header(one: Heading, *, now: float) -> Text:
    """Return the first line: tenant, server, database, instances, lag, interval."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(" headgate top ", style="bold")
    tenant = f"{one.status.tenant or 'all tenants'} @ " if one.status is not None else ""
    line.append(f"· {tenant}{one.server} ")
    if one.away is not None:
        for_ = duration(timedelta(seconds=now - one.away.since))
        line.append(f"· {one.away.reason}, for {for_}; trying again ", style="bold reverse red")
    elif one.status is None:
        line.append("· connecting ")
    else:
        count = len(one.status.instances)
        read_only = one.status.read_only
        line.append("· db read-only " if read_only else "· db ok ", style="bold reverse red" if read_only else "green")
        line.append(f"· {count} instance{'' if count == 1 else 's'} · lag {duration(lag(one.status))} ")
    if one.read_only:
        line.append("· read-only ", style="yellow")
    line.append(f"· every {exact(one.interval)} · ? help ")
    return line


def lag(status: Status) -> timedelta:
    """How long the oldest due job waits that may be dispatched."""
    return longest_wait(status.topics, status.now) or timedelta(0)


def counts(status: Status, done: Sequence[float], *, blocks: str = BLOCKS) -> Text:
    """Return the jobs by state, and completed jobs per second, with a bar for each of the last reads."""
    line = Text(" ", no_wrap=True, overflow="ellipsis")
    for state in STATES:
        count = sum(one.counts.get(state, 0) for one in status.topics)
        line.append(f"{state.upper()} ", style=GREY)
        line.append(f"{count:,}   ", style=f"bold {STYLES.get(state, '')}".strip() if count else GREY)
    line.append("DONE/s ", style=GREY)
    line.append(f"{sum(status.rates.values(), Rates()).completed:,.1f} ", style="bold")
    line.append(sparkline(list(done)[-POINTS:], blocks=blocks), style="green")
    return line


def tabs(place: Place) -> Text:
    """Return the six lists with their keys; the current one is marked. Then the filter, or what is shown of one."""
    line = Text(" ", no_wrap=True, overflow="ellipsis")
    for number, view in enumerate(LISTS, 1):
        current = place.view is view
        line.append(f"[{number}]{view}" if current else f" {number} {view}", style="bold reverse" if current else "")
        line.append(" ")
    if not place.is_list:
        line.append(f" > {one_line(place.title)}", style="bold")
    elif place.filter:
        line.append(f" / {one_line(place.filter)}", style="yellow")
    return line


def failing_now(groups: Sequence[DeadGroup], *, now: datetime) -> Text:
    """Return the most recent group of errors, and how many others there are."""
    line = Text(" ", no_wrap=True, overflow="ellipsis")
    if not groups:
        return line.append("nothing fails", style=GREY)
    recent = max(groups, key=lambda one: (one.last_at, one.count))
    line.append("FAILING NOW ", style="bold red")
    line.append(f"{recent.topic}  ", style="bold")
    line.append(f"{one_line(recent.title)}  ")
    line.append(f"{recent.count:,}×  last {duration(now - recent.last_at)} ago", style="red")
    if len(groups) > 1:
        line.append(f"   and {len(groups) - 1} more", style=GREY)
    return line


KEYS: Final = {
    View.TOPICS: "Enter jobs   p pause/resume",
    View.JOBS: "Enter open   l log   e events   r redrive   c cancel   p pause/resume topic",
    View.WORKERS: "Enter its jobs   p quiet/resume   s stop",
    View.SCHEDULES: "Enter open   p pause/resume   r run now",
    View.DEAD: "Enter its jobs   r redrive group",
    View.OPERATIONS: "Enter open   c cancel",
    View.JOB: "l log   e events   r redrive   c cancel   p pause/resume topic   Esc back",
    View.LOG: "e events   Esc back",
    View.EVENTS: "l log   Esc back",
    View.SCHEDULE: "p pause/resume   r run now   Esc back",
    View.OPERATION: "c cancel   Esc back",
}
"""The keys of each place; `/ : ? q` are the same everywhere."""


def keys(place: Place, *, read_only: bool) -> Text:
    """Return the keys that do something here."""
    parts = KEYS[place.view].split("   ")
    if read_only:
        parts = [one for one in parts if one[:2] not in ("r ", "c ", "p ", "s ")]
    return Text("   ".join((*parts, "/ filter", ": command", "? help", "q quit")), no_wrap=True, style=GREY)


HELP: Final = """\
1 … 6     Topics, Jobs, Workers, Schedules, Dead letters, Operations
Enter     go in: the jobs of a topic, one job, the jobs of a worker
Esc       back
/         filter: state:dead topic:mail* error:"timed out"; a word alone is a part of the name
:         command: jobs state:dead, topics, workers, schedules, dead, operations, interval 5s, quit
l         what the handlers of a job logged
e         events of a job
r         redrive a job or a group of dead letters; run a schedule now
c         cancel a job or an operation
p         pause or resume a topic or a schedule; quiet or resume a worker
s         stop a worker: it finishes the jobs it runs, and its process ends
up, down  also j and k; PageUp, PageDown, Home, End
q         quit

r, c, p and s ask for confirmation, and take a reason for the audit log."""
