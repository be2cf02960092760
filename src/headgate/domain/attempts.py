"""The attempts of a job, and its time line: what each stretch of its life was, from times of the database alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from headgate.domain.states import EventKind, State
from headgate.domain.views import JobEvent, JobView

_ENDS: Final = frozenset(
    {EventKind.FAILED, EventKind.NACKED, EventKind.LEASE_EXPIRED, EventKind.ABANDONED, EventKind.SNOOZED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a job. `ended_at` None: it runs now. `outcome` is the kind of its event, or the state of the job."""

    number: int
    epoch: int
    started_at: datetime | None
    ended_at: datetime | None
    worker: str
    outcome: str
    error_type: str = ""
    error_message: str = ""
    traceback: str = ""
    reason: str = ""
    next_at: datetime | None = None

    @property
    def duration(self) -> timedelta | None:
        """How long it took; None while it runs, or if it was never started."""
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at


def attempts_of(job: JobView) -> list[Attempt]:
    """The attempts of a job that was read with its events, newest first."""
    found = [_ended(event) for event in job.events if _ends_attempt(event)]
    if job.state in (State.RUNNING, State.COMPLETED) and job.claimed_at is not None:
        found.append(
            Attempt(
                number=job.attempt,
                epoch=job.epoch,
                started_at=job.claimed_at,
                ended_at=job.finished_at,
                worker=job.worker or "",
                outcome=job.state.label,
            )
        )
    return found[::-1]


def _ends_attempt(event: JobEvent) -> bool:
    return event.kind in _ENDS or (event.kind is EventKind.CANCELLED and event.claimed_at is not None)


def _ended(event: JobEvent) -> Attempt:
    return Attempt(
        number=event.attempt,
        epoch=event.epoch,
        started_at=event.claimed_at,
        ended_at=event.at,
        worker=event.worker or "",
        outcome=event.kind.label,
        error_type=event.error_type or "",
        error_message=event.error_message or "",
        traceback=event.error_trace or "",
        reason=event.reason or "",
        next_at=None if event.state.is_final else event.run_at,
    )


class Stretch(StrEnum):
    """What a job did between two moments."""

    DELAYED = "delayed"
    """Not due yet, or blocked."""
    QUEUED = "queued"
    """Due, and no worker had it."""
    RAN = "ran"
    FAILED = "failed"
    """Ran, and the attempt failed."""
    RESTED = "rested"
    """Ended until it was redriven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a time line. `open`: it has not ended yet, and ends now."""

    kind: Stretch
    begins: datetime
    ends: datetime
    open: bool = False

    @property
    def duration(self) -> timedelta:
        """How long it is, never less than nothing."""
        return max(self.ends - self.begins, timedelta(0))


def timeline_of(job: JobView, *, now: datetime) -> list[Span]:
    """What the job did since its submit, or since the oldest event that was read, in order and without gaps.

    `now` is the time of the database. Of a job with many attempts, the waits before a retry are as long as they were in
    fact.
    """
    spans = list(_spans(job, now))
    return [span for span in spans if span.open or span.duration > timedelta(0)]


def _spans(job: JobView, now: datetime) -> Iterator[Span]:
    at, due = job.created_at, _first_due(job)
    if job.older_events:  # nothing is known of the time before
        at = job.events[0].claimed_at or job.events[0].at
    redrives = sorted(event.at for event in job.events if event.kind is EventKind.REDRIVEN)
    for attempt in attempts_of(job)[::-1]:
        started = attempt.started_at
        if started is None:
            continue
        while redrives and redrives[0] <= started:
            redriven = redrives.pop(0)
            yield Span(kind=Stretch.RESTED, begins=at, ends=redriven)
            at, due = redriven, None
        yield from _waited(at, started, due)
        ends = attempt.ended_at or now
        failed = attempt.outcome in (EventKind.FAILED.label, EventKind.LEASE_EXPIRED.label)
        yield Span(
            kind=Stretch.FAILED if failed else Stretch.RAN, begins=started, ends=ends, open=attempt.ended_at is None
        )
        at, due = ends, attempt.next_at
    for redriven in redrives:
        yield Span(kind=Stretch.RESTED, begins=at, ends=redriven)
        at, due = redriven, None
    if job.state.is_queued:
        due = job.run_at if job.state in (State.SCHEDULED, State.RETRYING) else due
        if job.state is State.BLOCKED:
            due = now
        *closed, last = [*_waited(at, now, due)] or [Span(kind=Stretch.QUEUED, begins=at, ends=now)]
        yield from closed
        yield Span(kind=last.kind, begins=last.begins, ends=last.ends, open=True)
    elif job.finished_at is not None and job.finished_at > at:
        yield from _waited(at, job.finished_at, due)


def _first_due(job: JobView) -> datetime | None:
    """When the job was due at first: later attempts have changed its due time."""
    return None if job.events else job.run_at


def _waited(begins: datetime, ends: datetime, due: datetime | None) -> Iterator[Span]:
    """A wait: until it is due, then for a worker."""
    turn = begins if due is None else min(max(due, begins), ends)
    if turn > begins:
        yield Span(kind=Stretch.DELAYED, begins=begins, ends=turn)
    if ends > turn:
        yield Span(kind=Stretch.QUEUED, begins=turn, ends=ends)
