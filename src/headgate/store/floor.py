"""Where a scan of an index may begin: past entries that are known to be dead.

A floor must not be raised past a row that is not visible yet: one that a transaction wrote before, and commits later.
It carries the time at which it was written, which may lie far below by then. So a new floor only counts once every
transaction that was in flight when it was found has ended, and one more look has been taken at what those left behind.
"""

from __future__ import annotations

from datetime import datetime

from headgate.store.new_ids import BEGINNING


class Floor:
    """One floor. Transactions are given by their numbers, which grow."""

    def __init__(self) -> None:
        self.at = BEGINNING
        self._next: tuple[datetime, int] | None = None  # and the first transaction it need not wait for

    def offer(self, at: datetime, newest: int) -> None:
        """A look from the present floor has found that nothing lies below `at`; `newest` is the next transaction."""
        if self._next is None:
            self._next = (at, newest)

    def passed(self, oldest: int, lowest: datetime | None) -> None:
        """A look was taken after every transaction before `oldest` had ended; `lowest` is what it saw first."""
        if self._next is not None and oldest >= self._next[1]:
            self.at = self._next[0] if lowest is None else min(self._next[0], lowest)
            self._next = None

    def looked_below(self, lowest: datetime | None) -> None:
        """A look was taken at everything, also below; `lowest` is what it saw first. A floor that is right stays."""
        if lowest is not None and lowest < self.at:
            self.at, self._next = lowest, None

    def reset(self) -> None:
        """Begin again: what is known no longer holds."""
        self.at, self._next = BEGINNING, None
