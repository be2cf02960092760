"""The question that destructive commands ask before they do something."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

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
    if input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Refused("nothing was changed")
