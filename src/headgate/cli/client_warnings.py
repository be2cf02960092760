"""Warnings of the client as sentences, for commands that print no log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.cli.errors import print_warning
from headgate.ops.logs import event_fields


class _PrintedWarnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_warning(sentence(record))


def sentence(record: logging.LogRecord) -> str:
    """Return `no answer from 127.0.0.1:7070 (connection refused); trying again` for an event and its fields."""
    fields = dict(event_fields(record))
    if not fields:
        return record.getMessage()
    where = f" from {fields['server']}" if "server" in fields else ""
    why = f" ({fields['error']})" if "error" in fields else ""
    effect = f"; {fields['effect']}" if "effect" in fields else ""
    return f"{str(fields['event']).replace('_', ' ')}{where}{why}{effect}"


@contextmanager
def printed_warnings(*, shown: bool = True) -> Iterator[None]:
    """Print what the client warns of in this block; or print nothing, for a command that owns the screen."""
    client = logging.getLogger("headgate.client")
    handler = _PrintedWarnings(logging.WARNING) if shown else logging.NullHandler()
    client.addHandler(handler)
    try:
        yield
    finally:
        client.removeHandler(handler)
