"""What is not expected in the logs of servers and workers: a traceback, or an error that is not on the list below.

Whatever a fault does, a program of ours answers it with a message. A traceback is a case that was not thought of, so it
fails the run in which it is printed. `Scenario.logs` adds to the list what a scenario brings about on purpose.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

TRACEBACK: Final = "Traceback (most recent call last)"
ALLOWED: Final = (
    # Handlers of the laboratory that sleep in a thread or block the loop do not notice a cancel or a lost lease.
    r"did_not_stop ",
    # A worker asked to end while every server is away.
    r"outcomes_not_reported ",
    # Handlers of the laboratory that fail on purpose.
    r"job_dead ",
)
"""Errors that are what they should be."""
_ERROR: Final = re.compile(
    r"^\S+ \S+ (ERROR|CRITICAL) (?P<what>.*)$|^(?P<odd>Fatal Python error.*|Exception ignored .*)$"
)
_RECORD: Final = re.compile(r"^\d{4}-\d\d-\d\d \S+ [A-Z]+ ")
_OF_A_HANDLER: Final = re.compile(r"^\S+ \S+ [A-Z]+ headgate\.worker job_(failed|dead|cancelled) ")
"""A record with the traceback of a handler, which is the laboratory's own."""
_LENGTH: Final = 200


def troubles(folder: Path, *, allowed: Iterable[str] = ()) -> Iterator[str]:
    """One line for each kind of thing in each log that is not expected."""
    known = re.compile("|".join((*ALLOWED, *allowed)))
    for log in sorted((*folder.glob("s[0-9]*.log"), *folder.glob("w[0-9]*.log"))):
        found: Counter[str] = Counter()
        lines = log.read_text(errors="replace").splitlines()
        of_a_handler = False
        for number, line in enumerate(lines):
            if _RECORD.match(line):
                of_a_handler = _OF_A_HANDLER.match(line) is not None
            if line.lstrip().startswith(TRACEBACK):
                if of_a_handler:
                    continue
                found[f"traceback, {_last_of(lines, number)}"] += 1
            elif (error := _ERROR.match(line)) and not known.search(line):
                found[_without_numbers(error["what"] or error["odd"])] += 1
        for what, count in found.items():
            yield f"{log.name}: {count} × {what}"


def _last_of(lines: list[str], start: int) -> str:
    """The line that names the exception: the first one after the traceback's start that is indented no more than it."""
    for line in lines[start + 1 :]:
        if line.strip() and _margin(line) <= _margin(lines[start]):
            return line.strip()[:_LENGTH]
    return "cut off"


def _margin(line: str) -> int:
    """How far a line is indented: by two spaces where our own log formatter wrote it (headgate/ops/logs.py)."""
    return len(line) - len(line.lstrip())


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "N", text[:_LENGTH])
