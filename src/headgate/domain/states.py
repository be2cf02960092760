"""The words of a job's life. The numbers are stored in rows and sent on wires: they are added to, never reused.

`IntEnum` rather than the usual `StrEnum`: a row holds a smallint (two bytes in the hot table and its indexes, not a
word), and the arrays of a flush carry the numbers as they are.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown


class Word(IntEnum):
    @property
    def label(self) -> str:
        """The word people see, in lower case: `State.PENDING.label == "pending"`."""
        return self.name.lower()

    @classmethod
    def parse(cls, label: object, *, field: str | None = None) -> Self:
        """Find the member with this label; refuse everything else and list what there is."""
        for member in cls:
            if label == member.label:
                return member
        known = ", ".join(member.label for member in cls)
        name, got = field or cls.__name__.lower(), shown(label)
        if len(known) > 100:  # a hint is never cut
            raise InvalidInput(name, f"is not known, got {got}", hint=f"must be one of {known}")
        raise InvalidInput(name, f"must be one of {known}, got {got}")


class State(Word):
    """Where a job stands."""

    PENDING = 0  # due and claimable
    RUNNING = 1  # leased
    SCHEDULED = 2  # not due yet
    RETRYING = 3  # failed or refused by its worker, waits for its next attempt
    BLOCKED = 4  # waits for other jobs, its order key, or a full limit
    COMPLETED = 5
    DEAD = 6
    CANCELLED = 7

    @property
    def is_final(self) -> bool:
        """True where a job stays unless it is redriven."""
        return self >= State.COMPLETED

    @property
    def is_queued(self) -> bool:
        """True while a job waits, for whatever reason: neither running nor final."""
        return self is not State.RUNNING and not self.is_final


class OutcomeKind(Word):
    """What ended an attempt; the settled row remembers it to know a repeated outcome from a contradicting one."""

    COMPLETED = 0
    FAILED = 1
    NACK = 2
    ABANDON = 3
    SNOOZE = 4
    LEASE_EXPIRED = 5  # the watchdog's; never sent by a worker


class Receipt(Word):
    """What the store did with an outcome or a renewal."""

    APPLIED = 0
    DUPLICATE = 1  # this very outcome was applied before: the sender may forget it
    STALE = 2  # the lease was lost, or another outcome came first: nothing was changed
    UNKNOWN = 3  # no such job, or it is another tenant's
    LOCKED = 5  # another transaction has its row: nothing was decided, and it is tried again (4 is taken on the wire)


class SubmitReceipt(Word):
    """What the store did with a submission."""

    CREATED = 0
    DUPLICATE = 1  # the same id, or the same key with the same body, is there already
    CONFLICT = 2  # the same id or key is there with another body
    REFUSED = 3  # a limit or a rule of the topic does not let it in


class EventKind(Word):
    """A fact in a job's timeline. Created, claimed and completed are columns of the row, not events."""

    FAILED = 1
    NACKED = 2
    LEASE_EXPIRED = 3
    ABANDONED = 4
    SNOOZED = 5
    CANCEL_REQUESTED = 6
    CANCELLED = 7
    REDRIVEN = 8
    REPRIORITISED = 9
    COMPLETED_AFTER_CANCEL = 10
    DISCARDED = 11
    UNBLOCKED = 12
    MOVED = 13
    BLOCKED = 20
    REPLACED = 21
    RESCHEDULED = 22
