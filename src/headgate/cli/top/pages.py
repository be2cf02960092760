"""The rows of each place: what the server has answered, as cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from rich.text import Text

from headgate.cli.job_logs import EMPTY, with_gap_rows
from headgate.cli.output import count_text, duration, iso, one_line, short
from headgate.cli.top.texts import GREY, STYLES, bar
from headgate.domain.bulk import DeadGroup
from headgate.sdk import JobInfo
from headgate.sdk.admin import JobEvent, LogLine, ScheduleInfo, Status, TopicStatus, WorkerInfo
from headgate.sdk.admin.bulk import BulkOperation

BAR: Final = 8
CELL_CHARS: Final = 60
"""Of an error in a list with columns behind it; of another one:"""
ERROR_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: its key stays the same from one read to the next; `item` is what it shows."""

    key: str
    cells: tuple[Text, ...]
    item: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a place shows: rows under their headings, or lines of text. `note` says what is left out, or why."""

    headings: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    lines: tuple[str, ...] = field(default=())
    note: str = ""
    item: Any = None  # of a place with one thing: what it is


def page_of(
    items: Sequence[Any], columns: dict[str, Callable[[Any], Text]], *, key: Callable[[Any], object], note: str
) -> Page:
    """Rows for items; `note` is shown if there are none."""
    rows = tuple(Row(key=f"{key(one)}", cells=tuple(cell(one) for cell in columns.values()), item=one) for one in items)
    return Page(headings=tuple(columns), rows=rows, note="" if rows else note)


def text(value: object, *, style: str = "") -> Text:
    """A cell; text of users can change neither the terminal nor the markup."""
    return Text(one_line("" if value is None else str(value)) or "-", style=style, no_wrap=True)


def number(value: float, *, style: str = "") -> Text:
    """A count, or a rate with one decimal; zero is grey."""
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return Text(shown, style=style if shown.strip("0.") else GREY, justify="right", no_wrap=True)


def state(word: str) -> Text:
    """A state in its colour."""
    return text(word, style=STYLES.get(word, ""))


def ago(at: datetime | None, now: datetime) -> Text:
    """A time by its distance from the clock of the database."""
    if at is None:
        return text("")
    seconds = round((now - at).total_seconds())
    span = duration(timedelta(seconds=abs(seconds))) if abs(seconds) >= 60 else f"{abs(seconds)}s"
    return text("now" if not seconds else f"{span} ago" if seconds > 0 else f"in {span}")


def topics(found: Sequence[TopicStatus], status: Status, *, plain: bool) -> Page:
    """Topics with their jobs by state, waiting time and rates."""
    rates = status.rates
    most = max((one.counts.get("pending", 0) for one in found), default=0) or 1

    def waiting(pending: int) -> str:
        return bar(pending / most, width=BAR, plain=plain) if pending else " " * BAR

    def dispatch(one: TopicStatus) -> Text:
        if one.paused:
            return state("paused")
        return text("no worker", style="bold yellow") if one.unhandled else state("active")

    def counted(name: str) -> Callable[[TopicStatus], Text]:
        return lambda one: number(one.counts.get(name, 0), style=STYLES.get(name, ""))

    columns: dict[str, Callable[[Any], Text]] = {
        "TOPIC": lambda one: text(one.topic, style="bold"),
        "DISPATCH": dispatch,
        **{name.upper(): counted(name) for name in ("pending", "running", "retrying", "scheduled", "blocked", "dead")},
        "OLDEST": lambda one: text("" if one.waiting_since is None else duration(status.now - one.waiting_since)),
        "": lambda one: Text(waiting(one.counts.get("pending", 0)), style="green", no_wrap=True),
        "IN/s": lambda one: number(rates[one.topic].submitted),
        "DONE/s": lambda one: number(rates[one.topic].completed),
        "FAILED/s": lambda one: number(rates[one.topic].failed, style="yellow"),
    }
    return page_of(found, columns, key=lambda one: one.topic, note="no topics: submit a job, or start a worker")


def jobs(found: Sequence[JobInfo], *, now: datetime, mask: Callable[[str], str]) -> Page:
    """Jobs, newest first."""
    columns: dict[str, Callable[[Any], Text]] = {
        "STATE": lambda one: state(one.state),
        "TOPIC": lambda one: text(one.topic, style="bold"),
        "ATTEMPT": lambda one: text(f"{one.attempt}/{one.max_attempts}"),
        "CREATED": lambda one: ago(one.created_at, now),
        "NEXT": lambda one: ago(one.run_at if one.state in ("scheduled", "retrying") else None, now),
        "TOOK": lambda one: text(_took(one, now)),
        "PROGRESS": lambda one: text(_progress(one)),
        "ERROR": lambda one: text(short(_error(one, mask), CELL_CHARS)),
        "WORKER": lambda one: text(one.worker),
        "ID": lambda one: text(one.id),
    }
    return page_of(found, columns, key=lambda one: one.id, note="no jobs match")


def _error(one: JobInfo, mask: Callable[[str], str]) -> str:
    """The errors of a job that has completed are history."""
    return "" if one.state == "completed" else one_line(mask(one.last_error))


def _took(one: JobInfo, now: datetime) -> str:
    """How long the last attempt ran; of one that runs, so far."""
    if one.claimed_at is None or one.state not in ("running", "completed", "dead", "cancelled"):
        return ""
    return duration((one.finished_at or now) - one.claimed_at)


def _progress(one: JobInfo) -> str:
    if one.progress is None or one.state == "completed":
        return ""
    done, total, _ = one.progress
    return f"{min(1.0, done / total):.0%}" if total else f"{done:,}"


def workers(found: Sequence[WorkerInfo], *, now: datetime) -> Page:
    """Connected workers, and since when the longest running job of each runs."""
    columns: dict[str, Callable[[Any], Text]] = {
        "WORKER": lambda one: text(one.worker, style="bold"),
        "STATE": lambda one: state(one.state),
        "HOLDS": lambda one: number(one.holding, style="dodger_blue1"),
        "CREDIT": lambda one: number(one.credit),
        "LAST JOB": lambda one: ago(one.assigned_at, now),
        "LONGEST JOB": lambda one: text(
            duration(now - min(job.since for job in one.running)) if one.running else "",
        ),
        "INSTANCE": lambda one: text(one.instance),
        "TOPICS": lambda one: text(", ".join(one.topics)),
    }
    return page_of(
        found, columns, key=lambda one: f"{one.instance} {one.worker}", note="no workers are connected: headgate worker"
    )


def schedules(found: Sequence[ScheduleInfo], *, now: datetime) -> Page:
    """Schedules with their next and last occurrences."""
    columns: dict[str, Callable[[Any], Text]] = {
        "SCHEDULE": lambda one: text(one.name, style="bold"),
        "STATE": lambda one: state(one.state),
        "TOPIC": lambda one: text(one.topic),
        "WHEN": lambda one: text(one.when),
        "NEXT": lambda one: ago(one.next_at if one.state == "active" else None, now),
        "LAST": lambda one: ago(one.last_at, now),
        "MADE": lambda one: number(one.fired),
        "SKIPPED": lambda one: number(one.skipped, style="yellow"),
        "ERROR": lambda one: text(one.last_error),
    }
    return page_of(found, columns, key=lambda one: one.name, note="no schedules")


def dead_groups(found: Sequence[DeadGroup], *, now: datetime) -> Page:
    """Dead letters by topic and kind of error, largest group first; they are masked already."""
    columns: dict[str, Callable[[Any], Text]] = {
        "TOPIC": lambda one: text(one.topic, style="bold"),
        "COUNT": lambda one: number(one.count, style="red"),
        "LAST": lambda one: ago(one.last_at, now),
        "FIRST": lambda one: ago(one.first_at, now),
        "GROUP": lambda one: text(one.group),
        "ERROR": lambda one: text(one.title[:ERROR_CHARS]),
    }
    return page_of(found, columns, key=lambda one: f"{one.topic} {one.group}", note="no dead letters")


def operations(found: Sequence[BulkOperation], *, now: datetime, plain: bool) -> Page:
    """Bulk operations, newest first."""
    columns: dict[str, Callable[[Any], Text]] = {
        "VERB": lambda one: text(one.verb, style="bold"),
        "STATE": lambda one: state(one.state),
        "PROGRESS": lambda one: text(
            f"{bar(1.0 if one.state == 'done' else _part(one), width=BAR, plain=plain)} "
            f"{one.changed:,} of {count_text(one.expected, exact=one.expected_exactly)}"
        ),
        "SKIPPED": lambda one: number(one.skipped, style="yellow"),
        "ERRORS": lambda one: number(one.errors, style="red"),
        "BY": lambda one: text(one.who),
        "CREATED": lambda one: ago(one.created_at, now),
        "FILTER": lambda one: text(one.filter),
        "ID": lambda one: text(one.id),
    }
    return page_of(found, columns, key=lambda one: one.id, note="no bulk operations")


def _part(one: BulkOperation) -> float:
    return one.matched / one.expected if one.expected else 0.0


def events(found: Sequence[JobEvent], *, now: datetime, mask: Callable[[str], str]) -> Page:
    """The history of a job, newest event first."""
    columns: dict[str, Callable[[Any], Text]] = {
        "WHEN": lambda one: ago(one[1].at, now),
        "EVENT": lambda one: state(one[1].kind),
        "STATE": lambda one: state(one[1].state),
        "ATTEMPT": lambda one: number(one[1].attempt),
        "WORKER": lambda one: text(one[1].worker),
        "BY": lambda one: text(one[1].actor),
        "DETAIL": lambda one: text(mask(_detail(one[1]))[:ERROR_CHARS]),
    }
    numbered = list(enumerate(found))[::-1]
    return page_of(numbered, columns, key=lambda one: one[0], note="no events")


LOG_LEVELS: Final = {"warning": "yellow", "error": "red", "critical": "bold red"}


def log_lines(found: Sequence[LogLine], *, mask: Callable[[str], str]) -> Page:
    """What handlers logged, oldest line first."""
    columns: dict[str, Callable[[Any], Text]] = {
        "TIME": lambda one: text(iso(one.at, milliseconds=True) if one.level else ""),
        "ATTEMPT": lambda one: number(one.attempt),
        "LEVEL": lambda one: text(one.level.upper(), style=LOG_LEVELS.get(one.level, "")),
        "LOGGER": lambda one: text(mask(one.logger)),
        "LINE": lambda one: text(one_line(mask(one.text))),
    }
    return page_of([*with_gap_rows(found)], columns, key=lambda one: f"{one.epoch}.{one.seq}.{one.level}", note=EMPTY)


def _detail(one: JobEvent) -> str:
    error = f"{one.error_type}: {one.error_message}" if one.error_type else one.error_message
    return one.reason or error
