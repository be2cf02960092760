"""The list of jobs: tabs by state with counts, columns that a browser has chosen, one row for each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from headgate.domain.bulk import Counted, JobLine
from headgate.domain.filters import Field, Glob, JobFilter, Op, Term
from headgate.domain.redaction import Redaction
from headgate.domain.states import State
from headgate.web.routing import PREFIX

COLUMNS: Final[Mapping[str, str]] = {
    "topic": "Topic",
    "attempts": "Attempts",
    "when": "When",
    "duration": "Duration",
    "worker": "Worker",
    "tags": "Tags",
    "priority": "Priority",
    "created": "Created",
    "error": "Error",
}
"""Besides the state and the id, which are always there."""
DEFAULT_COLUMNS: Final = ("topic", "attempts", "when", "duration", "worker", "tags", "error")
COLUMNS_COOKIE: Final = "headgate_job_columns"
SIZES: Final = (25, 50, 100, 200)
COUNT_UP_TO: Final = 10_000
_WHEN_WORDS: Final = {
    State.PENDING: "due",
    State.RUNNING: "started",
    State.SCHEDULED: "runs",
    State.RETRYING: "retries",
    State.BLOCKED: "due",
    State.COMPLETED: "completed",
    State.DEAD: "died",
    State.CANCELLED: "cancelled",
}


def columns_of(cookie: str) -> tuple[str, ...]:
    """The columns in a cookie, in their order; those of a new browser if it names none."""
    named = set(cookie[:500].split("."))
    found = tuple(name for name in COLUMNS if name in named)
    return found or DEFAULT_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A state, and the filter that selects it. `count` None: not known without counting."""

    name: str
    filter: str
    current: bool
    count: int | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job of the list."""

    job: JobLine
    when: datetime
    when_word: str
    took: timedelta | None
    running: bool

    @property
    def error(self) -> str:
        """Its last error; that of a job that has completed is history."""
        return "" if self.job.state is State.COMPLETED else self.job.last_error or ""


def rows_of(jobs: Sequence[JobLine], redaction: Redaction, *, now: datetime) -> list[Row]:
    """The rows of a page; `now` is the time of the database."""
    return [_row(replace(job, last_error=redaction.masked_text(job.last_error or "")), now) for job in jobs]


def _row(job: JobLine, now: datetime) -> Row:
    match job.state:
        case State.RUNNING:
            when = job.claimed_at
        case State.COMPLETED | State.DEAD | State.CANCELLED:
            when = job.finished_at
        case _:
            when = job.run_at
    running = job.state is State.RUNNING
    ended = now if running else job.finished_at
    took = None if job.claimed_at is None or ended is None else max(ended - job.claimed_at, timedelta(0))
    return Row(job=job, when=when or job.created_at, when_word=_WHEN_WORDS[job.state], took=took, running=running)


def tabs_of(matching: JobFilter, counted: Counted | None) -> list[Tab]:
    """All jobs, and one tab for each state; the other terms of the filter stay."""
    rest = matching.without(Field.STATE)
    named = bool(matching.of(Field.STATE))
    exact = counted is None or counted.exact
    counts = {} if counted is None else counted.by_state
    tabs = [
        Tab(
            name="all",
            filter=str(rest),
            current=not named,
            count=None if counted is None else counted.total,
            exact=exact,
        ),
    ]
    for state in State:
        term = Term(field=Field.STATE, values=(state,), op=Op.IS)
        tabs.append(
            Tab(
                name=state.label,
                filter=str(rest.also(term)),
                current=named and matching.states == frozenset({state}),
                count=None if counted is None else counts.get(state, 0),
                exact=exact,
            )
        )
    return tabs


def only_topic(matching: JobFilter) -> str:
    """The topic that a filter names, if it names exactly one; else empty."""
    terms = matching.of(Field.TOPIC)
    if len(terms) != 1 or terms[0].negated or len(terms[0].values) != 1:
        return ""
    (value,) = terms[0].values
    return value.parts[0] if isinstance(value, Glob) and value.is_plain else ""


def matching_count(matching: JobFilter, counted: Counted | None) -> tuple[int | None, bool]:
    """How many jobs match with the states of the filter, and whether that is exact."""
    if counted is None:
        return None, False
    states = matching.states
    return sum(number for state, number in counted.by_state.items() if state in states), counted.exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What the address of the list says."""

    filter: str = ""
    oldest: bool = False
    cursor: str = ""
    limit: int = 50

    def href(self, **changes: object) -> str:
        """The address with some of it changed; a change starts at the first page."""
        changed = replace(self, **({"cursor": ""} | changes))  # type: ignore[arg-type]  # fields by name
        given: dict[str, object] = {}
        if changed.filter:
            given["filter"] = changed.filter
        if changed.oldest:
            given["order"] = "oldest"
        if changed.limit != 50:
            given["limit"] = changed.limit
        if changed.cursor:
            given["cursor"] = changed.cursor
        return f"{PREFIX}/jobs" + (f"?{urlencode(given)}" if given else "")
