"""Until when a submit whose id was made for the call may count as never sent before (see submit_v1, new_id_until_)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

BEGINNING: Final = datetime(1, 1, 1, tzinfo=UTC)
NEW_SPAN: Final = timedelta(minutes=15)
"""Long enough for any queue, far below the hour for which submits that were sent again are remembered."""
DOUBT_SPAN: Final = timedelta(minutes=1)
ASK_AFTER_SECONDS: Final = 60.0
"""Without a tick for so long, a submit asks for the database's clock itself."""


class NewIdWindow:
    """Moved on by each reading of the database's clock."""

    def __init__(self) -> None:
        self.until: datetime | None = None  # None: the clock was never read, and all new ids count
        self._doubt_until: datetime | None = None
        self._read = BEGINNING  # the database's clock when `until` was set
        self._read_at = 0.0  # the same by the monotonic clock, or when it was last asked for

    def clock_read(self, now: datetime) -> None:
        """The database's clock shows `now`. After a reading that came so late that the window was over, frames from
        before may still be read, so for a while nothing counts as new."""
        # After a step back of the clock the end of the doubt may lie hours ahead: it begins again.
        stepped_back = self._doubt_until is not None and now < self._read
        if stepped_back or (self.until is not None and now - self._read > NEW_SPAN):
            self._doubt_until = now + DOUBT_SPAN
        doubted = self._doubt_until is not None and now < self._doubt_until
        self.until = now if doubted else now + NEW_SPAN
        self._read, self._read_at = now, time.monotonic()

    def must_ask(self) -> bool:
        """Whether no tick has read the clock lately, and this caller is to do so. Else submits would be refused as too
        late after an hour and a quarter of failed ticks, although they could be written."""
        if self.until is None or time.monotonic() - self._read_at < ASK_AFTER_SECONDS:
            return False
        self._read_at = time.monotonic()  # one caller asks, the others go on
        return True
