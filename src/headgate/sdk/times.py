"""Times as the wire carries them: microseconds since 1970, 0 for none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(microseconds: int) -> datetime:
    """The time in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def time_or_none(microseconds: int) -> datetime | None:
    """The time in UTC; None for 0."""
    return time_of(microseconds) if microseconds else None
