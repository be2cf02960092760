"""Bulk operations: one verb for every job that matches a filter; the verbs, the states they apply to, the progress.

An operation is a row that any instance can continue, chunk by chunk. Its jobs are fixed at its start: jobs submitted or
ended later are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Final, TypeVar
from uuid import UUID

from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.filter_parser import parse, topic_term
from headgate.domain.filters import Field, JobFilter, Term
from headgate.domain.ids import JobId
from headgate.domain.redaction import Redaction
from headgate.domain.states import State
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import (
    check_delay,
    check_integer,
    check_priority,
    check_reason,
    check_topic,
    shown,
    to_ms,
)

CHUNK: Final = 500
"""Jobs per transaction: some tens of milliseconds, so that a cancel and other operations are not delayed."""
SAMPLE: Final = 10
ACTIVE_MAX: Final = 100
"""Maximum operations of one tenant that are not over."""
PER_SECOND_MAX: Final = 100_000


class Verb(IntEnum):
    """The verb applied to each job; the number is stored and sent."""

    CANCEL = 1
    REDRIVE = 2
    DISCARD = 3
    REPRIORITISE = 4
    MOVE = 5

    @property
    def label(self) -> str:
        """The name as displayed."""
        return self.name.lower()

    @property
    def reaches(self) -> frozenset[State]:
        """The states in which the verb changes a job; jobs in other states are skipped."""
        return _REACHES[self]

    @property
    def means(self) -> frozenset[State]:
        """The states selected if a filter names none: `redrive topic:mail` must not repeat completed jobs."""
        return frozenset({State.DEAD}) if self is Verb.REDRIVE else self.reaches


_FINAL: Final = frozenset(state for state in State if state.is_final)
_QUEUED: Final = frozenset(state for state in State if state.is_queued)
_REACHES: Final[Mapping[Verb, frozenset[State]]] = {
    Verb.CANCEL: _QUEUED | {State.RUNNING},
    Verb.REDRIVE: _FINAL,
    Verb.DISCARD: frozenset({State.DEAD, State.CANCELLED}),
    Verb.REPRIORITISE: _QUEUED,
    Verb.MOVE: _QUEUED - {State.BLOCKED},  # a blocked job stays with the jobs that it depends on
}


class Progress(IntEnum):
    """The state of an operation; the number is stored and sent."""

    PENDING = 0
    RUNNING = 1
    DONE = 2
    CANCELLED = 3
    FAILED = 4

    @property
    def label(self) -> str:
        """The name as displayed."""
        return self.name.lower()


class BulkConflict(HeadgateError):
    """The id was used before for another operation; nothing was started."""

    code = "bulk_conflict"

    def __init__(self, operation_id: UUID) -> None:
        super().__init__(f"bulk operation {operation_id} exists with another plan; use a new id")
        self.operation_id = operation_id


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A verb, its filter and its parameters; checked when constructed."""

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
        check_reason(self.reason)
        self._check_parameters()
        if self.per_second is not None:
            check_integer(self.per_second, field="per_second", low=1, high=PER_SECOND_MAX)
        if not self.matching.terms:
            raise InvalidInput("filter", "is empty", hint="an operation on every job must say so: topic:*")
        named = self.matching.states
        if not named & self.verb.reaches:
            raise InvalidInput(
                "filter",
                f"selects {_words(named) or 'no state at all'}, and {self.verb.label} changes none of them",
                hint=f"it applies to {_words(self.verb.reaches)}",
            )
        parse(str(self.effective))  # it is stored as text: one that could not be parsed again is refused now

    def _check_parameters(self) -> None:
        if (self.verb is Verb.REPRIORITISE) != (self.priority is not None):
            raise InvalidInput("priority", "is required by reprioritise, and only there")
        if self.priority is not None:
            check_priority(self.priority)
        if (self.verb is Verb.MOVE) != (self.topic is not None):
            raise InvalidInput("topic", "is required by move, and only there")
        if self.topic is not None:
            check_topic(self.topic)
        check_delay(self.delay)
        if self.delay and self.verb is not Verb.REDRIVE:
            raise InvalidInput("delay", "is for redrive only")

    @property
    def effective(self) -> JobFilter:
        """The filter, with the default states of the verb if it names none."""
        if self.matching.of(Field.STATE):
            return self.matching
        return self.matching.also(Term(field=Field.STATE, values=tuple(sorted(self.verb.means))))

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters of the verb, as stored."""
        given = {"priority": self.priority, "topic": self.topic, "delay_ms": to_ms(self.delay) or None}
        return {name: value for name, value in given.items() if value is not None}


def _words(states: frozenset[State]) -> str:
    return ", ".join(state.label for state in sorted(states))


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """An operation. `expected` was counted at its start; `expected_exactly`: all jobs were counted."""

    id: UUID
    verb: Verb
    state: Progress
    filter: str
    topics: TopicSet | None
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

    @property
    def priority(self) -> int | None:
        """Of `reprioritise`."""
        return self._parameter("priority", int)

    @property
    def topic(self) -> str | None:
        """Of `move`."""
        return self._parameter("topic", str)

    @property
    def delay_ms(self) -> int | None:
        """Of `redrive`."""
        return self._parameter("delay_ms", int)

    def _parameter(self, name: str, kind: type[_Value]) -> _Value | None:
        value = self.parameters.get(name)
        return value if isinstance(value, kind) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """One job of a list: never its payload or its result."""

    id: JobId
    topic_no: int
    state: State
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    last_error: str | None
    topic: str = ""  # looked up last, as are the tags
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A page of jobs. Only an empty cursor is the end: a page can be short although more pages follow.

    `read_at` is when it was read, by the clock of the database. `partial`: it is short, since a page looks at a bounded
    number of jobs (limits.LIST_LOOK_AT).
    """

    jobs: list[JobLine]
    cursor: str
    read_at: datetime
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The number of jobs that match, by state; `exact` False: there are at least this many."""

    by_state: Mapping[State, int]
    exact: bool

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_state.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """A page of jobs, and how many match without the states of the filter; None: only counting them would tell."""

    filter: JobFilter
    page: JobPage
    counted: Counted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What an operation would change."""

    filter: str
    counted: Counted
    eligible: int
    sample: list[JobLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead jobs, or failed attempts, of one topic with similar errors."""

    topic: str
    group: str
    title: str
    count: int
    first_at: datetime
    last_at: datetime
    sample_id: UUID
    sample_error: str


def masked_group(group: DeadGroup, redaction: Redaction) -> DeadGroup:
    """The group as it is shown to people: its title is made of an error, and has the secrets of that error."""
    masked = redaction.masked_text
    return replace(group, title=masked(group.title), sample_error=masked(group.sample_error))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroups:
    """Groups of the newest dead letters, largest first. `exact` False: older ones were not read."""

    groups: list[DeadGroup] = field(default_factory=list)
    looked_at: int = 0
    exact: bool = True


def dead_filter(topic: str = "", *, group: str = "", filter: str = "") -> str:  # noqa: A002 - the name in the API
    """The filter for dead jobs of a topic (with wildcards) and an error group."""
    terms = [Term(field=Field.STATE, values=(State.DEAD,))]
    if topic:
        terms.append(topic_term(topic))
    if group:
        terms.extend(parse(f"error_group:{group}").terms)
    return str(parse(filter).also(*terms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one chunk did; `requeued` are the topics that have new work, and the jobs whose place there is new."""

    tenant_no: int
    operation_id: UUID
    matched: int = 0
    changed: int = 0
    skipped: int = 0
    errors: int = 0
    over: bool = False
    error: str = ""  # of a chunk that failed: it will be tried again, smaller, or its one job passed over
    requeued: list[tuple[int, UUID]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedBulk:
    """A bulk operation that is not over, and what it was started with."""

    tenant_no: int
    tenant: str
    id: UUID
    credential: str
    topics: TopicSet | None
    who: str
