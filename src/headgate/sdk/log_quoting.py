"""Quotes the values of the SDK's log lines, and masks secrets in them, before any handler sees them.

An application has its own formatter, and pytest its own, so the quoting of `headgate.ops.logs` does not reach them.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Final

from headgate.domain.log_fields import Quoted
from headgate.domain.log_redaction import mask_record
from headgate.domain.redaction import Redaction

LOGGERS: Final = ("headgate.client", "headgate.rules", "headgate.schedules", "headgate.worker")
"""Those of the SDK; `headgate.job.*` carry text of the application, which stays as it is."""


REDACT_VARIABLE: Final = "HEADGATE_REDACT"


class _QuoteValues(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        mask_record(record, redaction_named(os.environ.get(REDACT_VARIABLE, "")))
        if isinstance(record.args, tuple):
            record.args = tuple(map(_marked, record.args))
        return True


def _marked(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | Quoted):
        return value
    return Quoted(value)


@lru_cache(maxsize=1)
def redaction_named(names: str) -> Redaction:
    """The rules of masking with these names, separated by commas."""
    return Redaction.of([name for one in names.split(",") if (name := one.strip())])


_QUOTE_VALUES: Final = _QuoteValues()


def quote_log_values() -> None:
    """Have the lines of the SDK's loggers written with their values in quotes; harmless when repeated."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_QUOTE_VALUES)
