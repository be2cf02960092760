"""The log format: one record per line, `event key=value key="quoted value"`.

The message of a record is a literal: an event name and its keys, such as `session_opened worker=%s tenant=%s`. Values
are passed as arguments and quoted here, the one place that every record passes. So no caller can forget to quote, and
no value, such as a worker name, can forge a field or a line.
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
# Characters that JSON does not escape but that change a terminal or end a line: C1 controls, line and paragraph
# separators, bidirectional controls, lone surrogates.
_UNFIT: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_INDENT: Final = "\n  "


def configure(level: int | str, *, process: object = None) -> None:
    """Write log lines to standard error; `process` identifies one of several server processes."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        LineFormatter(FORMAT if process is None else FORMAT.replace("%(message)s", f"[{process}] %(message)s"))
    )
    logging.basicConfig(handlers=[handler], level=level)


class LineFormatter(logging.Formatter):
    """Quotes the arguments of Headgate records, and indents all but the first line of any record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text; only its first line starts in column 1."""
        if record.args and _is_ours(record.name):
            record = copy.copy(record)  # other handlers get it unchanged
            if isinstance(record.args, tuple):
                record.args = tuple(map(quoted, record.args))
            elif record.args is not None:
                record.args = {name: quoted(value) for name, value in record.args.items()}
        return _INDENT.join(super().format(record).splitlines())


def quoted(value: object) -> object:
    """Return a field value: numbers and plain words unchanged, other text quoted and limited in length."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    if len(text) > VALUE_MAX_CHARS:
        text = f"{text[:VALUE_MAX_CHARS]}… [{len(text) - VALUE_MAX_CHARS} more characters]"
    if _PLAIN.fullmatch(text):
        return text
    return _UNFIT.sub(lambda one: f"\\u{ord(one[0]):04x}", json.dumps(text, ensure_ascii=False))


def _is_ours(name: str) -> bool:
    # The loggers of job handlers carry text of the application.
    return name.startswith("headgate.") and not name.startswith("headgate.job.")
