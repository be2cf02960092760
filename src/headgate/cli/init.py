"""`headgate init [DIR]`: write a small app with a job, a schedule and a test."""

from __future__ import annotations

import os
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.domain.errors import AlreadyExists, InvalidInput

FILES: Final = ("app.py", "test_app.py")


def init_command(
    folder: Annotated[
        Path, Parameter(name="DIR", help="Folder to write to. It is created if it does not exist.")
    ] = Path(),
    /,
) -> None:
    """Write a small app with a job, a schedule and a test. Existing files are never overwritten."""
    if present := [name for name in FILES if os.path.lexists(folder / name)]:
        raise AlreadyExists(
            f"{folder / present[0]} exists, and nothing was written; choose another folder: headgate init DIR"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with (folder / name).open("x", encoding="utf-8") as file:  # x: also if it has appeared meanwhile
                file.write(starter(name))
    except OSError as error:
        raise InvalidInput("DIR", f"cannot write to {folder}: {error.strerror}") from error
    for line in next_steps(folder):
        print(line)


def starter(name: str) -> str:
    """Return the text of a file of the app."""
    return (files("headgate.cli") / "starter" / f"{name}.txt").read_text(encoding="utf-8")


def next_steps(folder: Path) -> list[str]:
    """Return what to run next, each in its own terminal."""
    enter = "" if folder.resolve() == Path.cwd().resolve() else f"cd {shlex.quote(str(folder))} && "
    return [
        f"wrote {' and '.join(str(folder / name) for name in FILES)}",
        "next, each in its own terminal:",
        f"  {enter}headgate dev                       # PostgreSQL and a server; needs headgate[embedded]",
        f"  {enter}headgate worker app:hg --reload    # runs the handlers",
        f"  {enter}python app.py                      # submits two jobs",
        f"  {enter}pytest                             # tests the app, without a server",
    ]
