"""Operations over everything a filter matches: their verbs, what those reach, and how an operation stands.

An operation is a row that any instance may carry on with, chunk by chunk, until the list it walks has ended. What it
walks is fixed at its start: jobs submitted later, or ended later, are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Final
from uuid import UUID

from headgate.domain import limits
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.filters import Field, JobFilter, Term, parse
from headgate.domain.states import State
from headgate.domain.validation import check_delay, check_integer, check_priority, check_text, check_topic, shown, to_ms

CHUNK: Final = 500
"""Jobs per transaction: some tens of milliseconds, so that a cancel and other operations get their turn."""
COUNT_UP_TO: Final = 100_000
"""A preview counts this far and no further; past it the answer is "more than"."""
SAMPLE: Final = 10
ACTIVE_MAX: Final = 100
"""Operations of one tenant that are not over yet."""
PER_SECOND_MAX: Final = 100_000


class Verb(IntEnum):
    """What is done to each job; the number is stored and sent."""

    CANCEL = 1
    REDRIVE = 2
    DISCARD = 3
    REPRIORITISE = 4
    MOVE = 5

    @property
    def label(self) -> str:
        """The word people use."""
        return self.name.lower()

    @property
    def reaches(self) -> frozenset[State]:
        """The states in which a job can be changed by it; in all others it is skipped."""
        return _REACHES[self]

    @property
    def means(self) -> frozenset[State]:
        """The states that are meant when a filter names none: `redrive topic:mail` must not repeat what succeeded."""
        return frozenset({State.DEAD}) if self is Verb.REDRIVE else self.reaches


_FINAL: Final = frozenset(state for state in State if state.is_final)
_QUEUED: Final = frozenset(state for state in State if state.is_queued)
_REACHES: Final[Mapping[Verb, frozenset[State]]] = {
    Verb.CANCEL: _QUEUED | {State.RUNNING},
    Verb.REDRIVE: _FINAL,
    Verb.DISCARD: frozenset({State.DEAD, State.CANCELLED}),
    Verb.REPRIORITISE: _QUEUED,
    Verb.MOVE: _QUEUED - {State.BLOCKED},  # what waits belongs to what it waits for
}


class Progress(IntEnum):
    """How an operation stands; the number is stored and sent."""

    PENDING = 0
    RUNNING = 1
    DONE = 2
    CANCELLED = 3
    FAILED = 4

    @property
    def label(self) -> str:
        """The word people see."""
        return self.name.lower()

    @property
    def is_over(self) -> bool:
        """True once nothing more will be changed."""
        return self >= Progress.DONE


class BulkConflict(HeadgateError):
    """The id of an operation was used before, for another one; nothing was started."""

    code = "bulk_conflict"

    def __init__(self, operation_id: UUID) -> None:
        super().__init__(f"operation {operation_id} exists and is another one; use a new id")
        self.operation_id = operation_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done: a verb, its filter and what the verb needs to know. Checked when it is made."""

    verb: Verb
    matching: JobFilter
    reason: str = ""
    priority: int | None = None  # reprioritise
    topic: str | None = None  # move
    delay: timedelta = timedelta(0)  # redrive
    per_second: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.verb, Verb):
            raise InvalidInput(
                "verb", f"must be one of {', '.join(verb.label for verb in Verb)}, got {shown(self.verb)}"
            )
        check_text(self.reason, field="reason", low=0, high=limits.REASON_MAX_CHARS)
        self._check_parameters()
        if self.per_second is not None:
            check_integer(self.per_second, field="per_second", low=1, high=PER_SECOND_MAX)
        if not self.matching.terms:
            raise InvalidInput("filter", "is empty", hint="an operation on every job must say so: topic:*")
        named = self.matching.states
        if not named & self.verb.reaches:
            raise InvalidInput(
                "filter",
                f"asks for {_words(named) or 'no state at all'} jobs, and {self.verb.label} changes none of them",
                hint=f"it applies to {_words(self.verb.reaches)}",
            )
        parse(str(self.effective))  # it is stored as text: what could not be read again is refused now

    def _check_parameters(self) -> None:
        if (self.verb is Verb.REPRIORITISE) != (self.priority is not None):
            raise InvalidInput("priority", "is needed by reprioritise, and by nothing else")
        if self.priority is not None:
            check_priority(self.priority)
        if (self.verb is Verb.MOVE) != (self.topic is not None):
            raise InvalidInput("topic", "is needed by move, and by nothing else")
        if self.topic is not None:
            check_topic(self.topic)
        check_delay(self.delay)
        if self.delay and self.verb is not Verb.REDRIVE:
            raise InvalidInput("delay", "is for redrive only")

    @property
    def effective(self) -> JobFilter:
        """The filter with the states that are meant, when it names none."""
        if self.matching.of(Field.STATE):
            return self.matching
        return self.matching.also(Term(field=Field.STATE, values=tuple(sorted(self.verb.means))))

    @property
    def parameters(self) -> dict[str, object]:
        """What the verb needs, as it is stored."""
        given = {"priority": self.priority, "topic": self.topic, "delay_ms": to_ms(self.delay) or None}
        return {name: value for name, value in given.items() if value is not None}


def _words(states: frozenset[State]) -> str:
    return ", ".join(state.label for state in sorted(states))


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """An operation as it stands. `expected` is what the start counted, `expected_exactly` whether it counted all."""

    id: UUID
    verb: Verb
    state: Progress
    filter: str
    topics: frozenset[str] | None
    parameters: Mapping[str, object]
    per_second: int | None
    as_of: datetime
    expected: int
    expected_exactly: bool
    looked: int
    matched: int
    changed: int
    skipped: int
    errors: int
    error: str
    who: str
    reason: str
    created_at: datetime
    started_at: datetime | None
    touched_at: datetime
    finished_at: datetime | None
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """One line of a list."""

    id: UUID
    topic: str
    state: State
    priority: int
    attempt: int
    max_attempts: int
    worker: str
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A page of jobs, newest first. Only an empty cursor is the end: a page may be short although more follows."""

    jobs: list[JobLine]
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many jobs match, by state; `exact` False means that there are at least so many."""

    by_state: Mapping[State, int]
    exact: bool

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_state.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What an operation would meet."""

    filter: str
    counted: Counted
    eligible: int
    sample: list[JobLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead jobs of one topic whose errors are alike."""

    topic: str
    group: str
    title: str
    count: int
    first_at: datetime
    last_at: datetime
    sample_id: UUID
    sample_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroups:
    """Groups of the newest dead letters, largest first. `exact` False: there are older ones that were not looked at."""

    groups: list[DeadGroup] = field(default_factory=list)
    looked_at: int = 0
    exact: bool = True
