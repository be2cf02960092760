"""The `headgate` command: one module per noun, shared options (options.py), one table of exit codes (errors.py).

The tree of commands is loaded at its first use: the processes of `headgate serve --processes` are in this package too,
and parse no command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.cli.command import REFUSING, app

__all__ = ["REFUSING", "app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code of the process."""
    try:
        from headgate.cli.command import run

        return run(arguments)
    except (
        KeyboardInterrupt
    ):  # also during the imports: they take a third of a second, and have tracebacks of their own
        return 130


def __getattr__(name: str) -> object:
    if name in __all__:
        from headgate.cli import command

        value: object = getattr(command, name)
        globals()[name] = value  # found without this function from now on
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
