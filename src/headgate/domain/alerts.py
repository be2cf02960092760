"""What needs attention, and what to do about it: the rules behind the top of the overview. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from headgate.domain.durability import Durability
from headgate.domain.topic_figures import longest_wait, wait_of, waits_long
from headgate.domain.views import Status, TargetKind

SCHEDULE_LATE: Final = timedelta(minutes=1)
NAMED: Final = 3
"""Topics that one alert names; more are counted."""


class Level(StrEnum):
    """How urgent it is."""

    ERROR = "error"
    WARNING = "warn"
    NOTICE = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing to look at. `subject` is the name of a topic, if it concerns one alone."""

    level: Level
    code: str
    title: str
    advice: str
    subject: str = ""


def alerts_of(
    status: Status,
    *,
    database: Durability | None,
    database_error: str = "",
    not_ready: str = "",
    schedule_lag: timedelta | None = None,
    workers: int | None = None,
) -> list[Alert]:
    """All alerts, the most urgent first. `workers` None: not known."""
    found = [
        *_of_database(database, database_error),
        *_of_instances(status, not_ready),
        *_of_schedules(schedule_lag),
        *_of_pauses(status),
        *_of_topics(status, workers),
    ]
    order = list(Level)
    return sorted(found, key=lambda alert: order.index(alert.level))


def _of_database(database: Durability | None, error: str) -> Iterator[Alert]:
    if database is None:
        yield Alert(
            level=Level.ERROR,
            code="database_away",
            title="The database cannot be read",
            advice=f"{error}. Jobs are kept; servers try again by themselves. Run headgate doctor on the server.",
        )
        return
    no_writes = database.read_only or database.in_recovery
    for problem in (*database.problems, *(() if no_writes else database.unfit)):
        yield Alert(
            level=Level.ERROR,
            code="not_durable",
            title="The database can lose acknowledged jobs",
            advice=f"{problem}. Change the setting of PostgreSQL and reload it.",
        )
    if no_writes:
        yield Alert(
            level=Level.ERROR,
            code="read_only",
            title="The database is read-only",
            advice="It is a standby, or was set so. Nothing can be changed until the server reaches the primary.",
        )


def _of_instances(status: Status, not_ready: str) -> Iterator[Alert]:
    if not_ready:
        yield Alert(level=Level.ERROR, code="not_ready", title="This server is not ready", advice=f"{not_ready}.")
    for one in status.instances:
        if one.stuck:
            yield Alert(
                level=Level.ERROR,
                code="stuck",
                title=f"Server {one.name} cannot process {one.stuck} rows",
                advice="They are damaged, or held by another session. The log of the server names them.",
            )
    versions = {one.version for one in status.instances}
    if len(versions) > 1:
        yield Alert(
            level=Level.NOTICE,
            code="mixed_versions",
            title=f"Servers run {len(versions)} versions: {', '.join(sorted(versions))}",
            advice="That is right during an upgrade. Finish it.",
        )


def _of_schedules(lag: timedelta | None) -> Iterator[Alert]:
    if lag is not None and schedules_late(lag):
        yield Alert(
            level=Level.WARNING,
            code="schedules_late",
            title=f"Schedules are {_span(lag)} late",
            advice="A topic may have reached its backlog limit, or servers are overloaded. See the schedules.",
        )


def schedules_late(lag: timedelta | None) -> bool:
    """Whether an occurrence is due for so long that people should look."""
    return lag is not None and lag > SCHEDULE_LATE


def _of_pauses(status: Status) -> Iterator[Alert]:
    for pause in status.wide_pauses:
        what = "Everything" if pause.target.kind is TargetKind.EVERYTHING else "The whole tenant"
        yield Alert(
            level=Level.WARNING,
            code="paused",
            title=f"{what} is paused by {pause.who or 'an operator'}",
            advice=f"{pause.reason + '. ' if pause.reason else ''}No job starts until it is resumed: headgate resume.",
        )
    paused = [one.topic for one in status.topics if one.paused]
    if paused:
        yield Alert(
            level=Level.NOTICE,
            code="topics_paused",
            title=f"Paused: {_names(paused)}",
            advice="Jobs wait there until an operator resumes the topic.",
            subject=paused[0] if len(paused) == 1 else "",
        )


def _of_topics(status: Status, workers: int | None) -> Iterator[Alert]:
    unhandled = [one.topic for one in status.topics if one.unhandled and not one.paused]
    if unhandled and workers == 0:
        yield Alert(
            level=Level.ERROR,
            code="no_workers",
            title="Jobs wait, and no worker is connected",
            advice="Start one: headgate worker app:hg.",
        )
    elif unhandled:
        yield Alert(
            level=Level.WARNING,
            code="unhandled",
            title=f"No worker takes jobs of {_names(unhandled)}",
            advice="Start a worker with a handler for it, or move the jobs to another topic.",
            subject=unhandled[0] if len(unhandled) == 1 else "",
        )
    slow = [
        one for one in status.topics if waits_long(wait_of(one, status.now)) and not one.paused and not one.unhandled
    ]
    if slow:
        worst = longest_wait(slow, status.now) or timedelta(0)
        yield Alert(
            level=Level.WARNING,
            code="waiting_long",
            title=f"Jobs of {_names([one.topic for one in slow])} wait for up to {_span(worst)}",
            advice="Add workers, raise their concurrency, or check the limits of the topic.",
            subject=slow[0].topic if len(slow) == 1 else "",
        )
    dead = [one for one in status.topics if sum(minute.dead for minute in one.flows)]
    if dead:
        yield Alert(
            level=Level.WARNING,
            code="dying",
            title=f"Jobs of {_names([one.topic for one in dead])} died in the last minutes",
            advice="The dead letters show why, by error. Redrive them when the cause is fixed.",
            subject=dead[0].topic if len(dead) == 1 else "",
        )


def _names(topics: Sequence[str]) -> str:
    shown = ", ".join(topics[:NAMED])
    return shown if len(topics) <= NAMED else f"{shown} and {len(topics) - NAMED} more"


def _span(value: timedelta) -> str:
    minutes = int(value.total_seconds()) // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
