"""Masking in log lines: what follows secret names in errors, reasons, messages and tracebacks of Headgate's records.

Records of applications, and of the handlers of jobs (`headgate.job.*`), stay as they are: that text is theirs.
"""

from __future__ import annotations

import logging
import re
import traceback
from functools import lru_cache
from typing import Final

from headgate.domain.log_fields import Quoted
from headgate.domain.redaction import Redaction

FREE_TEXT: Final = frozenset({"error", "reason", "message", "response"})
"""Fields that can have text of a job, of its handler or of another server."""
_ARGUMENT: Final = re.compile(r"(?:([a-z][a-z_]*)=)?%(?:%|[-+ #0]*\d*(?:\.\d+)?[a-z])")


def is_ours(name: str) -> bool:
    """Whether a logger is one of Headgate, and not one of a handler."""
    return name.startswith("headgate.") and not name.startswith("headgate.job.")


def mask_record(record: logging.LogRecord, redaction: Redaction) -> None:
    """Mask the free text of a record of ours, in place; another one stays as it is."""
    if not redaction.names or not is_ours(record.name):
        return
    if isinstance(record.args, tuple) and (places := _places(str(record.msg))):
        record.args = tuple(
            _masked(value, redaction) if place in places else value for place, value in enumerate(record.args)
        )
    if record.exc_info and not record.exc_text and isinstance(record.exc_info, tuple):
        record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
    if record.exc_text:
        record.exc_text = redaction.masked_text(record.exc_text)


class MaskSecrets(logging.Filter):
    """Masks the records that pass it."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every record."""
        mask_record(record, self._redaction)
        return True


@lru_cache(maxsize=512)
def _places(message: str) -> frozenset[int]:
    """Which arguments of a message are free text; messages are literals, so there are few."""
    fields = [one[1] for one in _ARGUMENT.finditer(message) if not one[0].endswith("%")]
    return frozenset(place for place, name in enumerate(fields) if name in FREE_TEXT)


def _masked(value: object, redaction: Redaction) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Quoted):
        return Quoted(_masked(value.value, redaction))
    return redaction.masked_text(str(value))
