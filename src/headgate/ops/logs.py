"""How log lines are written: one record, one line; what comes from outside stands in quotes.

A record of ours is an event name with fields, `session_opened worker=w-1 tenant=acme`. The text is a literal of the
program; all else is given as arguments, and is quoted here, in the one place that every record passes: no caller can
forget it, and no name of a worker can end its field and begin another, or another line.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
from typing import Final

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
VALUE_MAX_CHARS: Final = 2_000
_PLAIN: Final = re.compile(r"[\w.:/@+#-]+")
# What JSON leaves as it is, but a terminal or a reader of lines does not: C1 controls, line and paragraph separators,
# bidirectional controls, lone surrogates.
_UNFIT: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_INDENT: Final = "\n  "


def configure(level: int | str, *, process: object = None) -> None:
    """Write log lines to standard error; `process` tells the processes of one server apart."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        LineFormatter(FORMAT if process is None else FORMAT.replace("%(message)s", f"[{process}] %(message)s"))
    )
    logging.basicConfig(handlers=[handler], level=level)


class LineFormatter(logging.Formatter):
    """Quotes the arguments of our own records, and indents what follows the first line of any record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text: only its first line begins at the margin."""
        if record.args and _is_ours(record.name):
            record = copy.copy(record)  # other handlers see it as it was
            if isinstance(record.args, tuple):
                record.args = tuple(map(quoted, record.args))
            elif record.args is not None:
                record.args = {name: quoted(value) for name, value in record.args.items()}
        return _INDENT.join(super().format(record).splitlines())


def quoted(value: object) -> object:
    """A value of a field: numbers and plain words as they are, all other texts in quotes and cut to a length."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    if len(text) > VALUE_MAX_CHARS:
        text = f"{text[:VALUE_MAX_CHARS]}… [{len(text) - VALUE_MAX_CHARS} more characters]"
    if _PLAIN.fullmatch(text):
        return text
    return _UNFIT.sub(lambda one: f"\\u{ord(one[0]):04x}", json.dumps(text, ensure_ascii=False))


def _is_ours(name: str) -> bool:
    # What handlers of jobs say by their own logger is a text of the application's.
    return name.startswith("headgate.") and not name.startswith("headgate.job.")
