"""Times as whole microseconds since 1970: on the wire, in headers, cursors and ranks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
MAX_US: Final = 253_402_300_799_000_000
"""9999-12-31T23:59:59Z, the last second of the calendar."""


def unix_us(moment: datetime) -> int:
    """Whole microseconds since 1970; exact, where a float would lose digits."""
    return (moment - EPOCH) // MICROSECOND


def from_unix_us(microseconds: int) -> datetime:
    """The time in UTC. Raises OverflowError beyond the calendar."""
    return EPOCH + microseconds * MICROSECOND
