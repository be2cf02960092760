"""A job's history, as `hg.admin.jobs.events` gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headgate.sdk.encryption import Encryption
from headgate.sdk.handles import state_word
from headgate.sdk.times import time_of, time_or_none
from headgate.wire import jobs_pb2


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
    no: int = 0
    """Its number: `before` of an older part of the history."""


def job_event(event: jobs_pb2.Event, encryption: Encryption | None = None, job_id: bytes = b"") -> JobEvent:
    """Read an event off the wire, and decrypt its error."""
    message, trace = event.error_message, event.error_trace
    if encryption is not None:
        message, trace = encryption.open_text(message, job_id), encryption.open_text(trace, job_id)
    return JobEvent(
        at=time_of(event.at_us),
        kind=event.kind,
        epoch=event.epoch,
        attempt=event.attempt,
        state=state_word(event.state),
        run_at=time_or_none(event.run_at_us),
        claimed_at=time_or_none(event.claimed_us),
        worker=event.worker,
        actor=event.actor,
        reason=event.reason,
        error_type=event.error_type,
        error_message=message,
        error_trace=trace,
        no=event.no,
    )
