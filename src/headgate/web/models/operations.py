"""Bulk operations as people see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from headgate.domain.bulk import BulkOperation, Preview, Progress, Verb

TYPE_ABOVE: Final = 100
"""More jobs than this are confirmed by typing their number."""
VERB_WORDS: Final = {
    Verb.REDRIVE: ("Redrive", "returned to their topics, with the attempts counted from 0"),
    Verb.CANCEL: ("Cancel", "cancelled: queued ones at once, running ones when their worker stops"),
    Verb.DISCARD: ("Discard", "deleted. Their history stays, their payloads and results do not"),
    Verb.REPRIORITISE: ("Reprioritise", "given another priority"),
    Verb.MOVE: ("Move", "moved to another topic"),
}
DESTRUCTIVE: Final = frozenset({Verb.CANCEL, Verb.DISCARD})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationView:
    """An operation, how far it is, and how long it will take."""

    operation: BulkOperation
    now: datetime

    @property
    def active(self) -> bool:
        """Whether it is not over."""
        return self.operation.state in (Progress.PENDING, Progress.RUNNING)

    @property
    def handled(self) -> int:
        """Jobs that it is done with, whatever became of them."""
        return self.operation.changed + self.operation.skipped + self.operation.errors

    @property
    def share(self) -> float | None:
        """How much is done, from 0 to 1; None: the number of jobs was not known at the start."""
        one = self.operation
        if one.state is Progress.DONE:
            return 1.0
        if not one.expected or not one.expected_exactly:
            return None
        return min(1.0, self.handled / one.expected)

    @property
    def per_second(self) -> float | None:
        """Jobs per second since the start."""
        one = self.operation
        if one.started_at is None:
            return None
        seconds = ((one.finished_at or self.now) - one.started_at).total_seconds()
        return self.handled / seconds if seconds >= 0.1 and self.handled else None

    @property
    def left(self) -> timedelta | None:
        """How long it will take at this speed; None: not known."""
        speed, share = self.per_second, self.share
        if not self.active or not speed or share is None:
            return None
        return timedelta(seconds=max(0.0, (self.operation.expected - self.handled) / speed))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewView:
    """What an operation would change: jobs by state, those that would be skipped, and what has to be typed."""

    verb: Verb
    preview: Preview

    @property
    def eligible(self) -> int:
        """Jobs in a state that the verb applies to."""
        return self.preview.eligible

    @property
    def skipped(self) -> int:
        """Jobs that match, in other states."""
        return self.preview.counted.total - self.preview.eligible

    @property
    def typed(self) -> str:
        """What has to be typed to confirm; empty: nothing."""
        return str(self.preview.counted.total) if self.preview.counted.total > TYPE_ABOVE else ""

    @property
    def by_state(self) -> list[tuple[str, int, bool]]:
        """Each state with its number of jobs, and whether the verb applies to it."""
        counts = self.preview.counted.by_state
        return [(state.label, counts[state], state in self.verb.reaches) for state in sorted(counts) if counts[state]]
