"""What `headgate doctor` finds: one finding per check, with its level and the exact fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a check ended. `skip`: it could not look, and `found` says why."""

    OK = "ok"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check: what was found, and the command or statement that fixes it. Neither has secrets."""

    check: str
    level: Level
    found: str
    fix: str = ""


def ok(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check=check, level=Level.OK, found=found)


def skip(check: str, found: str) -> Finding:
    """It could not be checked."""
    return Finding(check=check, level=Level.SKIP, found=found)


def warn(check: str, found: str, *, fix: str) -> Finding:
    """It works, and can go wrong."""
    return Finding(check=check, level=Level.WARN, found=found, fix=fix)


def fail(check: str, found: str, *, fix: str) -> Finding:
    """A server would not start, would not work, or would lose acknowledged jobs."""
    return Finding(check=check, level=Level.FAIL, found=found, fix=fix)


def worst(findings: Iterable[Finding]) -> Level:
    """The highest level; what could not be checked counts as ok."""
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)
