"""A job's history, as `hg.admin.jobs.events` gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from headgate.sdk.handles import state_word
from headgate.wire import jobs_pb2

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One thing that happened to a job, and the state it went to. `actor` is who asked, for an operator's verb."""

    at: datetime
    kind: str
    epoch: int
    attempt: int
    state: str
    run_at: datetime | None
    claimed_at: datetime | None
    worker: str
    actor: str
    reason: str
    error_type: str
    error_message: str
    error_trace: str


def job_event(event: jobs_pb2.Event) -> JobEvent:
    """Read an event off the wire."""
    return JobEvent(
        at=_EPOCH + timedelta(microseconds=event.at_us),
        kind=event.kind,
        epoch=event.epoch,
        attempt=event.attempt,
        state=state_word(event.state),
        run_at=_time(event.run_at_us),
        claimed_at=_time(event.claimed_us),
        worker=event.worker,
        actor=event.actor,
        reason=event.reason,
        error_type=event.error_type,
        error_message=event.error_message,
        error_trace=event.error_trace,
    )


def _time(microseconds: int) -> datetime | None:
    return _EPOCH + timedelta(microseconds=microseconds) if microseconds else None
