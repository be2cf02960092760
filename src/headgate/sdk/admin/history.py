"""A job's history, as `hg.admin.jobs.events` gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headgate.sdk.encryption import Encryption
from headgate.sdk.records import record
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
    return record(JobEvent, event, error_message=message, error_trace=trace)
