"""The question that destructive commands ask before they do something."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from headgate.cli.output import for_people, print_lines
from headgate.domain.errors import InvalidInput, Refused


def confirm_on_terminal(lines: Callable[[], Iterable[str]], output: str, *, yes: bool) -> None:
    """As `confirm`, for a command that names the one thing it ends: without a terminal it does not ask."""
    if not yes and for_people(output) and sys.stdin.isatty():
        confirm(lines, output)


def confirm(lines: Callable[[], Iterable[str]], output: str, *, hint: str = "") -> None:
    """Return if the user confirms what the lines say, else raise Refused. Without a terminal --yes is required.

    Blocking is fine: nothing else runs in this process.
    """
    if not for_people(output) or not sys.stdin.isatty():
        raise InvalidInput("--yes", "is required without a terminal, and with every --output but table", hint=hint)
    print_lines(lines())
    try:
        with _ending_at_ctrl_c():
            answer = input("Continue? [y/N] ")
    except EOFError:  # Ctrl-D
        print()
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise Refused("nothing was changed")


@contextmanager
def _ending_at_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end a question at once: the handler of asyncio only notes the first one, and `input` continues."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
