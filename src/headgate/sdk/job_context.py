"""Which job this code runs for: the fields that its log lines carry, in `logging` and in structlog."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Final

from headgate.sdk.job import Job

current_job: Final[ContextVar[Job]] = ContextVar("headgate_job")
"""The job whose handler runs; also in tasks that the handler starts, and in `asyncio.to_thread`."""


class JobFields(logging.Filter):
    """Adds `job_id`, `topic` and `attempt` to every record that a handler logs, by whichever logger.

    `headgate worker` adds it to its own output. Add it to the handlers of your own logging configuration:

    >>> handler.addFilter(JobFields())

    Outside of a job the fields are "", "" and 0, so that a format such as `%(message)s job_id=%(job_id)s` works for all
    records. A field that the record has stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; drops no record."""
        job = current_job.get(None)
        fields = {"job_id": "", "topic": "", "attempt": 0} if job is None else fields_of(job)
        for name, value in fields.items():
            vars(record).setdefault(name, value)
        return True


def fields_of(job: Job) -> dict[str, Any]:
    """The fields by which a job is found in logs."""
    return {"job_id": str(job.id), "topic": job.topic, "attempt": job.attempt}


@contextmanager
def bound_to(job: Job) -> Iterator[None]:
    """Bind the fields of a job to the log lines of a block, in `logging` and in structlog."""
    token = current_job.set(job)
    around = contextmanager(structlog_fields)(job) if structlog_is_loaded() else nullcontext()
    try:
        with around:
            yield
    finally:
        current_job.reset(token)


def structlog_is_loaded() -> bool:
    """Whether the application uses structlog: it is never imported for this."""
    return "structlog" in sys.modules


def structlog_fields(job: Job) -> Iterator[None]:
    """A middleware: bind the fields for structlog, whose default processors include `merge_contextvars`."""
    contextvars: Any = sys.modules["structlog"].contextvars
    tokens = contextvars.bind_contextvars(**fields_of(job))
    try:
        yield
    finally:
        contextvars.reset_contextvars(**tokens)  # not unbound: that would leave a changed context
