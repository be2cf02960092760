"""The log formats, `text` and `json`: one record per line, an event name with fields.

    text   2026-11-16 12:00:00,123 WARNING headgate.worker job_failed topic=mail job_id=01a2… attempt=1/20
    json   {"time":"2026-11-16T12:00:00.123Z","level":"WARNING","logger":"headgate.worker","event":"job_failed",…}

The message of a record of ours is a literal: an event name and its keys, such as `session_opened worker=%s tenant=%s`.
Values are passed as arguments and quoted here, the one place that every record of a server passes, and by a filter of
the SDK's loggers for formatters of applications. So no caller can forget to quote, and no value, such as a worker
name, can forge a field or a line. Records of other loggers have a message of
free text; fields of the job that logged them (`headgate.sdk.job_context`) follow it.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

from headgate.domain.log_fields import REQUEST_ID, Quoted, escaped, limited, quoted
from headgate.domain.log_redaction import MaskSecrets, is_ours
from headgate.domain.redaction import Redaction

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
LogFormat: TypeAlias = Literal["text", "json"]
_INDENT: Final = "\n  "
_EVENT: Final = re.compile(r"[a-z][a-z_]*(?= |$)")
_FIELD: Final = re.compile(
    r'([a-z][a-z_]*)=(?:"(?P<quoted>[^"]*)"|(?P<given>%[-+ #0]*\d*(?:\.\d+)?[sdfg])|(?P<plain>\S+))'
)
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_JOB_FIELDS: Final = ("job_id", "topic", "attempt")
_COLOURS: Final = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}


def configure(
    level: int | str,
    *,
    format: LogFormat = "text",  # noqa: A002 -- as the option that sets it
    process: object = None,
    filters: Sequence[logging.Filter] = (),
    redaction: Redaction | None = None,
) -> None:
    """Write log lines to standard error; `process` identifies one of several server processes."""
    handler = logging.StreamHandler(sys.stderr)
    if format == "json":
        handler.setFormatter(JsonFormatter(process=process))
    else:
        text = FORMAT if process is None else FORMAT.replace("%(message)s", f"[{process}] %(message)s")
        handler.setFormatter(LineFormatter(text, colour=sys.stderr.isatty() and not os.environ.get("NO_COLOR")))
    for one in (*filters, MaskSecrets(redaction or Redaction())):
        handler.addFilter(one)
    logging.basicConfig(handlers=[handler], level=level)
    # At DEBUG people look for their jobs, not for the event loops of gRPC.
    logging.getLogger("grpc").setLevel(max(logging.INFO, logging.getLogger().level))


class LineFormatter(logging.Formatter):
    """Quotes the arguments of Headgate records, and indents all but the first line of any record."""

    def __init__(self, text: str, *, colour: bool = False) -> None:
        super().__init__(text)
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text; only its first line starts in column 1."""
        record = copy.copy(record)  # other handlers get it unchanged
        if record.args and is_ours(record.name):
            if isinstance(record.args, tuple):
                record.args = tuple(map(quoted, record.args))
            elif record.args is not None:
                record.args = {name: quoted(value) for name, value in record.args.items()}
        first, newline, rest = record.getMessage().partition("\n")
        record.msg, record.args = f"{first}{_job_fields(record)}{_request_field()}{newline}{rest}", None
        if self._colour and (code := _COLOURS.get(record.levelno)):
            record.levelname = f"\x1b[{code}m{record.levelname}\x1b[0m"
        return _INDENT.join(super().format(record).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level and logger, then `event` and its fields, or `message`."""

    def __init__(self, *, process: object = None) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        known: dict[str, object] = {"time": at, "level": record.levelname, "logger": record.name}
        if self._process is not None:
            known["process"] = self._process
        fields = dict(event_fields(record)) or {"message": record.getMessage()}
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields |= {name: value for name, value in extra.items() if value or name not in _JOB_FIELDS}
        if request := REQUEST_ID.get():
            fields["request_id"] = request
        if record.exc_info or record.exc_text:
            fields["traceback"] = record.exc_text or self.formatException(record.exc_info or (None, None, None))
        if record.stack_info:
            fields["stack"] = record.stack_info
        # A field of the application cannot replace one that every line has.
        line = known | {f"{name}_" if name in known else name: _plain(value) for name, value in fields.items()}
        return escaped(json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str))


def _plain(value: object) -> object:
    """Return what JSON can express: it has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _job_fields(record: logging.LogRecord) -> str:
    """Return the fields of the job that logged the record, unless its message has them."""
    if not getattr(record, "job_id", "") or (is_ours(record.name) and "job_id=" in str(record.msg)):
        return ""
    found = ((name, getattr(record, name, "")) for name in _JOB_FIELDS)
    return "".join(f" {name}={quoted(value)}" for name, value in found if value)


def _request_field() -> str:
    request = REQUEST_ID.get()
    return f" request_id={quoted(request)}" if request else ""


def event_fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """The event and the fields of a record of ours; nothing for another one."""
    if not is_ours(record.name) or not isinstance(record.msg, str) or (event := _EVENT.match(record.msg)) is None:
        return
    given = iter(record.args if isinstance(record.args, tuple) else ())
    yield "event", event[0]
    for field in _FIELD.finditer(record.msg):
        if field["given"]:
            value = next(given, None)
            value = value.value if isinstance(value, Quoted) else value
            yield field[1], value if value is None or isinstance(value, bool | int | float) else limited(str(value))
        else:
            plain = field["plain"]
            yield field[1], field["quoted"] if plain is None else int(plain) if plain.isdecimal() else plain
