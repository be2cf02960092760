"""Log lines of jobs: what a handler logged while it ran, bounded by line and by attempt (ADR 51).

Workers count the lines of an attempt from 1. That number orders them, whatever clocks say, and a gap in it shows how
many lines were left out: by the worker, by a server that was busy, or because the attempt has more than is kept.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_integer, clean_text

LINE_MAX_BYTES: Final = 4_096
"""Of one line in UTF-8; what is cut off is counted."""
_MARK_BYTES: Final = 44
"""Bytes for the count of what is missing."""
FIRST_LINES, FIRST_BYTES = 50, 16_384
NEWEST_LINES, NEWEST_BYTES = 150, 49_152
"""Of an attempt its first lines are kept, and its newest ones: 200 lines and 64 KiB together. add_log_lines_v1.sql has
the same numbers."""
LINES_MAX: Final = FIRST_LINES + NEWEST_LINES
LOGGER_MAX_CHARS: Final = 200
SEQ_MAX: Final = 2**31 - 1
PAGE_MAX: Final = 1_000
"""Lines in one answer."""
_LATEST_US: Final = 253_402_300_799_000_000  # 9999-12-31
# Colours and cursor movements (CSI), titles and links (OSC): for a terminal, and not part of the text.
_TERMINAL_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|\x1b[@-Z\\^_]"
)


class LogLevel(IntEnum):
    """How serious a line is."""

    DEBUG = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    CRITICAL = 5

    @property
    def label(self) -> str:
        """Its name in lower case."""
        return self.name.lower()

    @classmethod
    def of_logging(cls, number: int) -> LogLevel:
        """The level of a record of `logging`; one between two levels counts as the lower one."""
        return cls(min(5, max(1, number // 10)))


class LogLine(NamedTuple):
    """One line as a worker sends it; `at_us` is by the clock of the worker."""

    seq: int
    at_us: int
    level: int
    logger: str
    text: str

    @property
    def size(self) -> int:
        """What counts against the bounds in bytes. Never less than a character each."""
        return len(self.text) if self.text.isascii() else len(self.text.encode(errors="replace"))


class AttemptLines(NamedTuple):
    """Lines of one attempt. `attempt` 0: not given; the row of the job has it."""

    job_id: UUID
    epoch: int
    attempt: int
    lines: Sequence[LogLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """One line as it is read. `left_out`: lines of the attempt before this one that are not kept."""

    attempt: int
    epoch: int
    seq: int
    at: datetime
    level: LogLevel
    logger: str
    text: str
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Lines of a job, oldest first. `cursor` names the last one; `more`: there are others beyond it."""

    lines: Sequence[StoredLine]
    cursor: str = ""
    more: bool = False


class LineBuffer:
    """Lines of one attempt that wait: the first ones of the attempt, and the newest ones of what does not fit."""

    __slots__ = ("_first", "_first_bytes", "_newest", "_newest_bytes")

    def __init__(self) -> None:
        self._first: list[LogLine] = []
        self._newest: deque[LogLine] = deque()
        self._first_bytes = self._newest_bytes = 0

    def __len__(self) -> int:
        return len(self._first) + len(self._newest)

    @property
    def size(self) -> int:
        """Bytes of the lines that wait."""
        return self._first_bytes + self._newest_bytes

    def add(self, line: LogLine) -> None:
        """Keep a line; older ones that have no room any more are dropped."""
        size = line.size
        if line.seq <= FIRST_LINES and not self._newest and self._first_bytes + size <= FIRST_BYTES:
            self._first.append(line)
            self._first_bytes += size
            return
        self._newest.append(line)
        self._newest_bytes += size
        while len(self._newest) > NEWEST_LINES or self._newest_bytes > NEWEST_BYTES:
            self._newest_bytes -= self._newest.popleft().size

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Keep lines, in their order."""
        for line in lines:
            self.add(line)

    def lines(self) -> list[LogLine]:
        """What waits, oldest first."""
        return [*self._first, *self._newest]


def cut_line(text: str, *, most: int = LINE_MAX_BYTES, left_out: int = 0) -> str:
    """A line of at most so many bytes, with how many characters of it are missing. Storable in any case.

    Of a text with line breaks the end is kept as well: that of a traceback names the error. `left_out`: characters that
    `shortened` has left out before.
    """
    has_end = "\n" in text
    text, more = shortened(text, 2 * most)  # a character has a byte at least: the rest is not kept anyway
    left_out += more
    text = clean_text(text, len(text))
    encoded = text.encode()
    if not left_out and len(encoded) <= most:
        return text
    end = most * 3 // 4 if has_end else 0
    first = encoded[: most - end - _MARK_BYTES].decode(errors="ignore")
    if not has_end:
        return f"{first}… [{len(text) - len(first) + left_out} more characters]"
    last = encoded[len(first.encode()) :][-end:].decode(errors="ignore")
    return f"{first}\n… [{len(text) - len(first) - len(last) + left_out} characters left out]\n{last}"


def shortened(text: str, most: int) -> tuple[str, int]:
    """The beginning and the end of a text, `most` characters together, and how many are left out between them."""
    left_out = max(0, len(text) - most)
    return (text[: most // 2] + text[-(most // 2) :], left_out) if left_out else (text, 0)


def log_line(seq: int, at_us: int, level: int, logger: str, text: str, *, now_us: int) -> LogLine:
    """A line as it can be stored: cut, without colours of terminals. Raises InvalidInput.

    A time that is none is replaced by `now_us`: it is shown to people, and orders nothing.
    """
    check_integer(seq, field="logs.seq", low=1, high=SEQ_MAX)
    if not 1 <= level <= len(LogLevel):
        raise InvalidInput("logs.level", f"must be from 1 (debug) to {len(LogLevel)} (critical), got {level}")
    if "\x1b" in text:
        text = _TERMINAL_SEQUENCES.sub("", text)
    shown_at = at_us if 0 < at_us <= _LATEST_US else now_us
    return LogLine(seq, shown_at, level, clean_text(logger, LOGGER_MAX_CHARS), cut_line(text))


def with_gaps(lines: Iterable[StoredLine], *, after: tuple[int, int] = (0, 0)) -> Iterator[StoredLine]:
    """Lines in order, each with how many were left out before it; `after`: epoch and number of the line before."""
    epoch, seq = after
    for line in lines:
        if line.epoch != epoch:
            epoch, seq = line.epoch, 0
        yield line if line.seq == seq + 1 else replace(line, left_out=max(0, line.seq - seq - 1))
        seq = line.seq


def cursor_of(line: StoredLine) -> str:
    """The cursor that names a line."""
    return f"{line.epoch}.{line.seq}"


def parse_cursor(text: str) -> tuple[int, int]:
    """Epoch and number of the line that a cursor names; empty: before all. Raises InvalidInput."""
    if not text:
        return 0, 0
    epoch, _, seq = text.partition(".")
    if not (epoch.isascii() and epoch.isdigit() and seq.isascii() and seq.isdigit()) or len(text) > 40:
        raise InvalidInput("after", f"{clean_text(text, 40)!r} is not a cursor of log lines")
    return (
        check_integer(int(epoch), field="after", low=0, high=2**53 - 1),
        check_integer(int(seq), field="after", low=0, high=SEQ_MAX),
    )
