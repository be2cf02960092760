"""What handlers log while they run a job, taken from `logging` and from structlog for the log of the job (ADR 51).

A record factory passes the records on. A handler at the root logger would not do: `basicConfig` does nothing
once there is one, warnings would no longer reach stderr in an application that configures no logging, and loggers that
do not propagate would be missed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from headgate.domain.errors import InvalidInput
from headgate.domain.job_logs import LOGGER_MAX_CHARS, cut_line, shortened
from headgate.domain.log_fields import quoted
from headgate.domain.redaction import Redaction
from headgate.domain.validation import clean_text, shown
from headgate.sdk.job import Job, add_log_line, takes_log
from headgate.sdk.job_context import current_job
from headgate.sdk.log_quoting import REDACT_VARIABLE, redaction_named

LEVELS: Final = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50, "OFF": 1_000_000}
DEFAULT_LEVEL: Final = "WARNING"
MASKED_CHARS: Final = 65_536
"""Of a longer text its beginning and its end are masked, so that no line takes long; 4 KiB at most are kept."""


def level_number(name: object) -> int:
    """The number of a level by its name; `OFF` is above all. Raises InvalidInput."""
    found = LEVELS.get(name.upper()) if isinstance(name, str) else None
    if found is None:
        raise InvalidInput("job_logs", f"must be one of {', '.join(LEVELS)}, got {shown(name)}")
    return found


def capture_job_logs() -> None:
    """Have what handlers log passed on to their jobs from now on; harmless when repeated."""
    before = logging.getLogRecordFactory()
    if not isinstance(before, _Factory):
        logging.setLogRecordFactory(_Factory(before))


class _Factory:
    """Makes records as the factory before it did, and passes those of handlers on."""

    def __init__(self, before: Callable[..., logging.LogRecord]) -> None:
        self._before = before

    def __call__(self, *args: Any, **more: Any) -> logging.LogRecord:
        record = self._before(*args, **more)
        job = current_job.get(None)
        if job is not None:
            try:
                if takes_log(job, record.levelno) and not self._is_taken(record):
                    add_line(job, record.levelno, record.name, record.created, _text_of(record))
            except Exception:  # noqa: BLE001 -- nothing of ours raises into the code that logs
                # Arguments that do not fit their text: the handlers of logging report that. Or a record that
                # `makeLogRecord` begins: its level is None.
                return record
        return record

    def _is_taken(self, record: logging.LogRecord) -> bool:
        """Whether another one has taken it: a library may have put its own factory between two of ours."""
        known = getattr(_taken, "record", None)
        _taken.record = weakref.ref(record)
        return known is not None and known() is record


_taken: Final = threading.local()
"""The record that this thread has passed on last."""


def structlog_lines(_logger: object, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """A processor for structlog that writes without `logging`: passes events of handlers on to their jobs.

    Add it before the renderer:

    >>> structlog.configure(processors=[merge_contextvars, add_log_level, structlog_lines, JSONRenderer()])
    """
    job = current_job.get(None)
    if job is not None:
        with suppress(Exception):  # as above: a value may refuse to be written as text
            level = LEVELS.get(method.upper(), 40 if method == "exception" else 30 if method == "warn" else 20)
            if takes_log(job, level):
                add_line(job, level, str(event.get("logger", "structlog")), time.time(), _text_of_event(event))
    return event


_OWN_FIELDS: Final = frozenset({"event", "level", "timestamp", "logger", "job_id", "topic", "attempt", "exc_info"})


def _text_of_event(event: Mapping[str, Any]) -> str:
    """An event with its fields in quotes where they need them, and the traceback of `format_exc_info`."""
    redaction = _redaction()
    # By their names, and before they are in quotes: in a text, a value ends with the first blank.
    fields = cast("dict[str, object]", redaction.masked({k: v for k, v in event.items() if k not in _OWN_FIELDS}))
    trace = fields.pop("exception", None)
    text = str(event.get("event", ""))
    for name, value in fields.items():
        text += f" {name}={quoted(redaction.masked_text(shortened(str(value), MASKED_CHARS)[0]))}"
    return text if trace is None else f"{text}\n{trace}"


def add_line(job: Job, level: int, logger: str, created: float, text: str) -> None:
    """Add a line to the log of a job: masked, and then cut, or a value could lose the name that says it is a secret.

    Never raises.
    """
    with suppress(Exception):
        text, left_out = shortened(text, MASKED_CHARS)
        text = cut_line(_redaction().masked_text(text), left_out=left_out)
        add_log_line(job, level, clean_text(logger, LOGGER_MAX_CHARS), round(created * 1_000_000), text)


def _redaction() -> Redaction:
    return redaction_named(os.environ.get(REDACT_VARIABLE, ""))


def _text_of(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if not record.exc_info:
        return text
    return f"{text}\n{''.join(traceback.format_exception(*record.exc_info)).rstrip()}"
