"""When the watchdog may reap: not right after an outage.

While the database (or this process) was away, no lease was renewed. Leases that ran out then mostly belong to workers
that are alive, so for one beat's time after the last failure nothing is reaped, and renewals must have gone first. A
process that has just started knows nothing of what was before, and waits as well.
"""

from __future__ import annotations

from collections.abc import Callable


class WatchdogGate:
    """Closed at first, after every failure, and after a silence; open again one beat later."""

    def __init__(self, *, beat: float, now: Callable[[], float], silence: float | None = None) -> None:
        self._beat, self._now = beat, now
        # Longer than the ticks are apart, or each tick would seem to follow an outage.
        self._silence = beat if silence is None else silence
        self._last: float | None = None  # when the database last answered
        self._since: float | None = None  # since when it has answered without a break
        self._renewed = False  # whether renewals went through since then
        self.closed_at = now()  # when it was last closed

    @property
    def is_open(self) -> bool:
        """Whether expired leases may be reaped now."""
        if self._last is not None and self._now() - self._last > self._silence:
            self.lost()
        return self._renewed and self._since is not None and self._now() - self._since >= self._beat

    def answered(self) -> None:
        """The database has answered a tick."""
        now = self._now()
        if self._last is not None and now - self._last > self._silence:
            self.lost()
        if self._since is None:
            self._since = now
        self._last = now

    def renewed(self) -> None:
        """Everything that was due for renewal when the gate closed has been tried."""
        if self._since is not None:
            self._renewed = True

    def lost(self) -> None:
        """The database did not answer."""
        self._since = self._last = None
        self._renewed = False
        self.closed_at = self._now()
