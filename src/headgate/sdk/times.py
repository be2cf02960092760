"""Times as the wire carries them: microseconds since 1970, 0 for none."""

from __future__ import annotations

from datetime import datetime

from headgate.domain.timestamps import from_unix_us


def time_of(microseconds: int) -> datetime:
    """The time in UTC."""
    return from_unix_us(microseconds)


def time_or_none(microseconds: int) -> datetime | None:
    """The time in UTC; None for 0."""
    return time_of(microseconds) if microseconds else None
