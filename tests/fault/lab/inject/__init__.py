"""Faults that a machine can do to a process, its disk, its network and its database. Each has `heal`.

What this machine cannot do raises `CannotInject` with the reason, before anything was changed: a scenario that needs it
is then reported as not run, never as passed.

    processes   SIGSTOP of a whole tree, freezer and memory limit by cgroup, few file descriptors, a false clock,
                a log pipe that no one reads
    disks       a small disk, full or not
    networks    a network namespace whose way out drops, loses or throttles
    databases   connections leaked, locks held, xmin pinned, read-only
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.fault.lab.world import NotRunHere


class CannotInject(NotRunHere):
    """This machine cannot do it; the text says what is missing."""


class InjectionFailed(Exception):
    """It was possible before and did not work now: an error, and no reason to skip anything."""


class Injection:
    """Something that was done, until `heal`; also as a context. Healing twice is harmless."""

    def heal(self) -> None:
        """Undo it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()


def need(*programs: str) -> None:
    """Raise CannotInject unless these can be run."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise CannotInject(f"not installed: {', '.join(missing)}")


def run(command: Sequence[str], *, given: str = "") -> str:
    """Run a tool as the administrator; CannotInject with its own words when it fails."""
    done = subprocess.run(
        list(command), input=given, capture_output=True, text=True, timeout=20, check=False, start_new_session=True
    )
    if done.returncode:
        raise CannotInject(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout
