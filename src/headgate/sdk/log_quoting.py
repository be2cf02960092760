"""Quotes the values of the SDK's log lines before any handler sees them.

An application has its own formatter, and pytest its own, so the quoting of `headgate.ops.logs` does not reach them.
"""

from __future__ import annotations

import logging
from typing import Final

from headgate.domain.log_fields import Quoted

LOGGERS: Final = ("headgate.client", "headgate.rules", "headgate.schedules", "headgate.worker")
"""Those of the SDK; `headgate.job.*` carry text of the application, which stays as it is."""


class _QuoteValues(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_marked, record.args))
        return True


def _marked(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | Quoted):
        return value
    return Quoted(value)


_QUOTE_VALUES: Final = _QuoteValues()


def quote_log_values() -> None:
    """Have the lines of the SDK's loggers written with their values in quotes; harmless when repeated."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_QUOTE_VALUES)
