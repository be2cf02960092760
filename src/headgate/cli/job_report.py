"""What `headgate job get` shows of a job: its fields, arguments, result, errors and attempts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from headgate.cli.output import Columns, details, duration, iso, painted, printable, table, when
from headgate.domain.redaction import Redaction
from headgate.sdk import JobInfo
from headgate.sdk.admin import JobEvent

BAR: Final = 20
SHOWN_ATTEMPTS: Final = 10
SHOWN_LINES: Final = 40
"""Lines of arguments and of a result on a terminal, without --full."""
_ENDS: Final = ("failed", "nacked", "lease_expired", "abandoned", "snoozed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a job; `ended_at` None: it runs."""

    number: int
    started_at: datetime | None
    ended_at: datetime | None
    worker: str
    outcome: str
    error: str = ""
    traceback: str = ""


ATTEMPTS: Final[Columns[Attempt]] = {
    "ATTEMPT": lambda one: one.number,
    "STARTED": lambda one: "-" if one.started_at is None else when(one.started_at, milliseconds=True),
    "DURATION": lambda one: duration(one.ended_at - one.started_at) if one.started_at and one.ended_at else "-",
    "WORKER": lambda one: one.worker,
    "OUTCOME": lambda one: one.outcome,
    "ERROR": lambda one: one.error,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job as read, and its history."""

    info: JobInfo
    events: list[JobEvent]
    redaction: Redaction

    def attempts(self) -> list[Attempt]:
        """The runs of the job, newest first."""
        info = self.info
        found = [
            Attempt(
                number=event.attempt,
                started_at=event.claimed_at,
                ended_at=event.at,
                worker=event.worker,
                outcome=event.kind,
                error=self.redaction.masked_text(_error_of(event)),
                traceback=self.redaction.masked_text(event.error_trace),
            )
            for event in self.events
            if event.kind in _ENDS or (event.kind == "cancelled" and event.claimed_at is not None)
        ]
        if info.state in ("running", "completed") and info.claimed_at is not None:
            found.append(
                Attempt(
                    number=info.attempt,
                    started_at=info.claimed_at,
                    ended_at=info.finished_at,
                    worker=info.worker,
                    outcome=info.state,
                )
            )
        return found[::-1]

    def fields(self) -> dict[str, object]:
        """The job for programs: payload and result as JSON values, masked, and the attempts."""
        found = asdict(self.info) | {
            "payload": self.redaction.shown(self.info.payload),
            "result": self.redaction.shown(self.info.raw_result),
            "last_error": self.redaction.masked_text(self.info.last_error),
            "headers": self.redaction.masked_headers(self.info.headers),
            "progress": self._progress(),
            "attempts": [asdict(one) for one in self.attempts()],
        }
        del found["raw_result"]
        return found

    def lines(self, *, full: bool) -> Iterator[str]:
        """The job for people, most important first."""
        info = self.info
        title = f"{info.topic}  {painted(info.state)}   attempt {info.attempt} of {info.max_attempts}"
        yield from details(f"{title}   priority {info.priority}", self._details(full=full))
        attempts = self.attempts()
        if attempts:
            shown = attempts if full else attempts[:SHOWN_ATTEMPTS]
            yield ""
            yield from table(shown, ATTEMPTS)
            if len(shown) < len(attempts):
                yield f"{len(attempts) - len(shown)} earlier attempts; --full shows them"
        if full:
            yield from _tracebacks(attempts)

    def _progress(self) -> tuple[int, int, str] | None:
        if self.info.progress is None:
            return None
        done, total, message = self.info.progress
        return done, total, self.redaction.masked_text(message)

    def _details(self, *, full: bool) -> Iterator[tuple[str, object]]:
        info = self.info
        yield "id", info.id
        yield "created", when(info.created_at, milliseconds=True)
        if info.state in ("scheduled", "retrying"):
            yield "due", when(info.run_at, milliseconds=True)
        yield "deadline", when(info.deadline, milliseconds=True)
        yield "tags", ", ".join(info.tags)
        yield "key", info.key
        yield "unique key", info.unique_key
        if info.parent_count:
            open_ = [str(one.id) for one in info.parents if one.met != "fulfilled"]
            waits = f"   waits for {', '.join(open_[:5])}" if open_ and info.state == "blocked" else ""
            yield "parents", f"{info.parent_count}{waits}"
        yield "children", info.child_count or ""
        yield "batch", info.batch_id or ""
        if info.schedule is not None:
            yield "schedule", f"{info.schedule or '(deleted)'}, for {when(info.occurrence)}"
        if info.state == "running":
            yield "worker", f"{info.worker}  since {when(info.claimed_at, milliseconds=True)}"
            cancel = "  (cancel requested)" if info.cancel_requested else ""
            yield "lease", f"until {when(info.lease_until, milliseconds=True)}{cancel}"
        yield "finished", when(info.finished_at, milliseconds=True)
        progress = self._progress()
        if progress is not None and info.state not in ("completed", "cancelled"):
            yield "progress", progress_text(progress)
        # A job that has completed has no error; its failed attempts are in the table below.
        if info.last_error and info.state != "completed":
            trace = any(one.traceback for one in self.attempts())
            hint = "" if full or not trace else "\n(--full shows the traceback)"
            yield "error", self.redaction.masked_text(info.last_error) + hint
        yield "arguments", self._text(info.payload, full=full)
        if info.state == "completed":
            yield "result", self._text(info.raw_result, full=full) or "none"

    def _text(self, body: bytes, *, full: bool) -> str:
        """A payload or a result as indented JSON."""
        value = self.redaction.shown(body)
        if value is None and body != b"null":
            return ""
        lines = (value if isinstance(value, str) and not _is_json(body) else _pretty(value)).splitlines()
        if full or not sys.stdout.isatty() or len(lines) <= SHOWN_LINES:
            return "\n".join(lines)
        return "\n".join([*lines[:SHOWN_LINES], f"… {len(lines) - SHOWN_LINES} more lines (--full shows them)"])


def _tracebacks(attempts: Iterable[Attempt]) -> Iterator[str]:
    """The traceback of each attempt; one that is the same as that of a newer attempt is named, not repeated."""
    shown: dict[str, int] = {}
    for one in attempts:
        if one.traceback:
            title = f"attempt {one.number}, {iso(one.ended_at) if one.ended_at else 'running'}:"
            first = shown.setdefault(one.traceback, one.number)
            yield ""
            if first != one.number:
                yield f"{title} the same traceback as attempt {first}"
            else:
                yield title
                yield from printable(one.traceback).splitlines()


def progress_text(progress: tuple[int, int, str]) -> str:
    """Return a bar with the counts; without a total, the count only."""
    done, total, message = progress
    said = f"  {message}" if message else ""
    if not total:
        return f"{done:,}{said}"
    part = min(1.0, done / total)
    return f"[{'#' * round(part * BAR):-<{BAR}}] {part:.0%}  {done:,} of {total:,}{said}"


def _error_of(event: JobEvent) -> str:
    error = f"{event.error_type}: {event.error_message}" if event.error_type else event.error_message
    return error or event.reason


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True
