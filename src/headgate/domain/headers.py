"""What Headgate itself keeps among a job's headers, under names that no caller may use: they begin with a dot.

Most jobs have neither headers nor anything of this, and carry nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SCHEDULE: Final = ".schedule"
OCCURRENCE_US: Final = ".occurrence_us"


def of_caller(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that the caller gave."""
    return {name: value for name, value in headers.items() if not name.startswith(".")}


def made_by(headers: Mapping[str, str]) -> tuple[str, int]:
    """The name of the schedule that made the job (empty: none did), and its occurrence in µs since 1970."""
    return headers.get(SCHEDULE, ""), int(headers.get(OCCURRENCE_US, "0"))
