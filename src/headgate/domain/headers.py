"""What Headgate itself keeps among a job's headers, under names that no caller may use: they begin with a dot.

Most jobs have neither headers nor anything of this, and carry nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from headgate.domain.timestamps import unix_us
from headgate.domain.validation import to_ms

SCHEDULE: Final = ".schedule"
OCCURRENCE_US: Final = ".occurrence_us"
DEADLINE_US: Final = ".deadline_us"
DEADLINE_MS: Final = ".deadline_ms"
"""From the submit on: only on the way to the database, whose clock makes DEADLINE_US of it (submit_v1.sql)."""
UNCHECKED: Final = ".unchecked"
"""Submitted by SQL to a topic with a JSON Schema, which PostgreSQL cannot check: the server that claims it does."""

TRACE_RELATION: Final = "headgate-trace"
"""A header of callers that says what the trace context of a job is to its spans; without it: their parent."""
TRACE_LINK: Final = "link"
"""A span to link to: the jobs of one submit have a trace each."""
TRACE_DISPATCHED: Final = "dispatched"
"""The span of the server that has dispatched the job: the one of the handler is its child."""


def of_caller(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that the caller gave."""
    return {name: value for name, value in headers.items() if not name.startswith(".")}


def made_by(headers: Mapping[str, str]) -> tuple[str, int]:
    """The name of the schedule that made the job (empty: none did), and its occurrence in µs since 1970."""
    return headers.get(SCHEDULE, ""), int(headers.get(OCCURRENCE_US, "0"))


def with_deadline(headers: Mapping[str, str], deadline: datetime | timedelta | None) -> dict[str, str]:
    """The headers as they are stored."""
    if deadline is None:
        return dict(headers)
    if isinstance(deadline, timedelta):
        return {**headers, DEADLINE_MS: str(to_ms(deadline))}
    return {**headers, DEADLINE_US: str(unix_us(deadline))}


def deadline_us_of(headers: Mapping[str, str]) -> int:
    """The job's deadline in µs since 1970; 0: it has none."""
    return int(headers.get(DEADLINE_US, "0"))
