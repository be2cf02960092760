"""How a job depends on others: one live job per unique key, jobs that wait for jobs, batches.

The numbers are stored in rows (`unique_jobs`, `job_dependencies`, `batches`) and read by the SQL functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from uuid import UUID

from headgate.domain import limits
from headgate.domain import validation as check
from headgate.domain.errors import DependencyCycle, InvalidInput, TooLarge
from headgate.domain.flags import JobFlag
from headgate.domain.ids import JobId, parse_job_id
from headgate.domain.states import State, Word
from headgate.domain.topic_sets import TopicSet


class OnConflict(Word):
    """What a submit does when a job with its unique key is live already."""

    KEEP = 0  # nothing: the caller gets that job
    REPLACE = 1  # that job gets the new body, priority and due time
    RESCHEDULE = 2  # that job's due time is pushed (debounce)


class Needs(Word):
    """What a job asks of each job it waits for."""

    SUCCEEDED = 0
    ENDED = 1


class OnParentFailure(Word):
    """What becomes of a job that needs a success it can no longer get."""

    CANCEL = 0
    IGNORE = 1  # as if the parent had succeeded
    BLOCK = 2  # it waits on: the parent may be redriven


class Met(IntEnum):
    """How far a dependency is. Broken ones carry the number of the parent's last state, or GONE."""

    WAITING = 0
    FULFILLED = 1
    DEAD = int(State.DEAD)
    CANCELLED = int(State.CANCELLED)
    GONE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """At most one live job of the topic has this key.

    `on_conflict` says what happens to the live one; while it is running it is kept whatever this says. `debounce_max`
    is the longest that repeated submits may put it off, counted from its creation.

    >>> await sync_customer.with_options(unique="customer-7").submit(7)
    >>> await reindex.with_options(delay=5, unique=Unique(key="docs", on_conflict="reschedule")).submit()
    """

    key: str
    on_conflict: str = "keep"
    debounce_max: timedelta | None = None

    def __post_init__(self) -> None:
        check.check_text(self.key, field="unique", high=limits.KEY_MAX_CHARS)
        mode = OnConflict.parse(self.on_conflict, field="on_conflict")
        if self.debounce_max is not None:
            span = check.check_span(
                self.debounce_max,
                field="debounce_max",
                low=timedelta(milliseconds=1),
                high=limits.DELAY_MAX_MS * check.MILLISECOND,
            )
            object.__setattr__(self, "debounce_max", span)
            if mode is OnConflict.KEEP:
                raise InvalidInput(
                    "debounce_max", "has no meaning with keep", hint='use on_conflict="reschedule" or "replace"'
                )

    @property
    def mode(self) -> OnConflict:
        """`on_conflict` as a member."""
        return OnConflict.parse(self.on_conflict, field="on_conflict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a submission says about other jobs."""

    unique: Unique | None = None
    depends_on: tuple[JobId, ...] = ()
    needs: Needs = Needs.SUCCEEDED
    on_parent_failure: OnParentFailure = OnParentFailure.CANCEL
    batch: JobId | None = None
    sees: TopicSet | None = None  # the topics whose jobs and batches it may refer to; None: any of the tenant's

    @property
    def flags(self) -> int:
        """The bits that a job with these begins its life with."""
        return int(
            (JobFlag.UNIQUE if self.unique else 0)
            | (JobFlag.WAITS | JobFlag.HAS_PARENTS if self.depends_on else 0)
            | (JobFlag.HAS_DEPENDANTS | JobFlag.IN_BATCH if self.batch else 0)
        )


def checked_dependencies(
    job_id: JobId,
    *,
    unique: Unique | None,
    depends_on: Sequence[UUID],
    needs: object,
    on_parent_failure: object,
    batch: UUID | None,
    sees: TopicSet | None = None,
) -> Dependencies | None:
    """What one submission says about other jobs, checked; None if nothing."""
    if unique is None and not depends_on and batch is None:
        return None
    if unique is not None and not isinstance(unique, Unique):
        raise InvalidInput("unique", f"must be a Unique, got {check.shown(unique)}")
    parents = check_parents(depends_on)
    if job_id in parents:
        raise DependencyCycle(f"job {job_id} cannot wait for itself; leave its own id out of depends_on")
    return Dependencies(
        unique=unique,
        depends_on=parents,
        needs=Needs.parse(needs, field="needs"),
        on_parent_failure=OnParentFailure.parse(on_parent_failure, field="on_parent_failure"),
        batch=None if batch is None else parse_job_id(batch, field="batch"),
        sees=sees,
    )


def check_parents(value: object, *, field: str = "depends_on") -> tuple[JobId, ...]:
    """Accept up to 1,000 jobs to wait for; a repeated one counts once."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidInput(field, f"must be a list of at most {limits.PARENTS_MAX} job ids, got {check.shown(value)}")
    if len(value) > limits.PARENTS_MAX:
        raise TooLarge(
            field, size=len(value), limit=limits.PARENTS_MAX, unit="jobs", hint="submit them as a batch with on_done"
        )
    return tuple(dict.fromkeys(parse_job_id(one, field=f"{field}[{at}]") for at, one in enumerate(value)))


def waves(ids: Sequence[UUID], parents: Sequence[Sequence[UUID]]) -> tuple[list[list[int]], list[int]]:
    """Indexes in the order in which they can be submitted, parents first, and the indexes that wait for each other.

    Only parents among `ids` count. The indexes of one wave are ascending.
    """
    index_of = {job_id: index for index, job_id in reversed(list(enumerate(ids)))}
    waiting = {
        index: {index_of[one] for one in mine if one in index_of and index_of[one] != index}
        for index, mine in enumerate(parents)
    }
    found: list[list[int]] = []
    while ready := [index for index, blockers in waiting.items() if not blockers]:
        found.append(ready)
        done = set(ready)
        waiting = {index: blockers - done for index, blockers in waiting.items() if index not in done}
    return found, sorted(waiting)


# ---------------------------------------------------------------------- batches


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A batch as asked for. The same id opens it once.

    It belongs to the topic of its callback; without one, to `topics`. None: to the whole tenant.
    """

    id: JobId
    name: str = ""
    needs: Needs = Needs.ENDED
    on_failure: OnParentFailure = OnParentFailure.CANCEL
    expires_in: timedelta = limits.BATCH_EXPIRY_DEFAULT
    topics: TopicSet | None = None

    def __post_init__(self) -> None:
        parse_job_id(self.id, field="batch")
        check.check_text(self.name, field="name", low=0, high=limits.BATCH_NAME_MAX_CHARS)
        span = check.check_span(
            self.expires_in, field="expires_in", low=limits.BATCH_EXPIRY_MIN, high=limits.BATCH_EXPIRY_MAX
        )
        object.__setattr__(self, "expires_in", span)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """A batch as it is now. `counts` are of the first `counted` members; `sealed_at` None: more may be added.

    `more_members`: it has more than `total`, which a list has not counted.
    """

    id: UUID
    name: str
    needs: Needs
    created_at: datetime
    expires_at: datetime
    sealed_at: datetime | None
    expired: bool
    total: int
    counted: int
    counts: Mapping[State, int] = field(default_factory=dict, hash=False)
    callback_id: UUID | None = None
    callback_state: State | None = None
    more_members: bool = False
    topics: TopicSet | None = None  # those it belongs to; None: to the whole tenant

    def is_visible_to(self, topics: TopicSet | None) -> bool:
        """Whether a token for these topics (None: any) may read the batch, add to it and seal it."""
        return topics is None or topics.covers(self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One job another waits for, or is waited for by."""

    job_id: UUID
    needs: Needs
    met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyView:
    """What hangs on a job; the lists are cut at 100, the counts are not (up to 10,000)."""

    unique_key: str = ""
    parents: tuple[Relation, ...] = ()
    parent_count: int = 0
    children: tuple[Relation, ...] = ()
    child_count: int = 0
    batch_id: UUID | None = None
