"""What may be seen of jobs, topics, schedules and the system: one record for each view, from store to adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from headgate.domain.dependencies import DependencyView
from headgate.domain.ids import JobId
from headgate.domain.jobs import TopicRules
from headgate.domain.retention import RetentionStatus
from headgate.domain.schedules import ScheduleSpec
from headgate.domain.states import EventKind, OutcomeKind, State
from headgate.domain.topic_limits import TopicLimits
from headgate.domain.topic_rules import Declaration, RuleSources

# ---------------------------------------------------------------------- jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One entry of a job's history."""

    at: datetime
    kind: EventKind
    epoch: int
    attempt: int
    state: State
    run_at: datetime | None
    claimed_at: datetime | None
    worker: str | None
    actor: str | None
    reason: str | None
    error_type: str | None
    error_message: str | None
    error_trace: str | None
    detail: Mapping[str, object]
    no: int = 0  # the cursor for older events


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as it is now. What does not apply to its state, or was not asked for, is None or empty."""

    id: JobId
    topic_no: int
    state: State
    priority: int
    attempt: int
    max_attempts: int
    epoch: int
    policy_no: int
    last_outcome: OutcomeKind | None
    cancel_requested: bool
    owner: int | None
    worker: str | None
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    lease_until: datetime | None
    finished_at: datetime | None
    last_error: str | None
    headers: Mapping[str, str]
    deadline: datetime | None
    rank_class: int | None
    rank_at: int | None
    flags: int = 0
    progress: Mapping[str, object] | None = None
    tenant: str = ""
    topic: str = ""
    read_at: datetime | None = field(default=None, compare=False)  # when this was read, by the clock of the database
    key: str = ""  # its idempotency key, until that expires
    tags: Sequence[str] = ()
    payload: bytes | None = None
    result: bytes | None = None
    events: Sequence[JobEvent] = ()  # oldest first
    older_events: bool = False  # there are events before the first of these
    dependencies: DependencyView = field(default_factory=DependencyView)
    lineage: tuple[str, datetime, bool] | None = None  # the schedule that made it, the occurrence, whether triggered


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a job stands."""

    state: State
    topic_no: int
    topic: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the store did to one job that exists."""

    changed: bool
    state: State
    topic_no: int | None = None
    keyed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """How jobs are put back: after a delay, at a maximum rate, one of them perhaps with another body."""

    delay: timedelta = timedelta(0)
    apart: timedelta = timedelta(0)
    payloads: Mapping[UUID, bytes] = field(default_factory=dict)


# ---------------------------------------------------------------------- topics and schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic. `running` and `tokens` are what its own limits count now; None: there is no such limit.

    `version` is that of its policy: 0 as long as nothing was ever declared or set. `consumers` and `standby` count the
    worker sessions that want its jobs; None: it has no maximum of consumers.
    """

    no: int
    name: str
    created_at: datetime
    rules: TopicRules
    limits: TopicLimits
    sources: RuleSources = field(default_factory=RuleSources)
    conflict: Declaration | None = None  # of a worker that is connected now
    changed_at: datetime | None = None
    running: int | None = None
    tokens: float | None = None
    counts: Mapping[State, int] = field(default_factory=dict, hash=False)
    version: int = 0
    consumers: int | None = None
    standby: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """An occurrence that made no job. `why`: overlap, late, refused."""

    at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule as it is now. `next_at` None: it has ended."""

    schedule_no: int
    name: str
    version: int
    spec: ScheduleSpec
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: JobId | None
    fired: int
    skipped: int
    full_since: datetime | None  # since when the next occurrence waits for capacity in its topic
    last_skip: str
    last_skip_at: datetime | None
    last_error: str
    paused: bool
    paused_by: str
    paused_at: datetime | None
    reason: str
    created_at: datetime
    changed_at: datetime
    changed_by: str
    skips: Sequence[Skip] = ()  # the newest 20, newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """One job a schedule made, and for which occurrences. `state` None: its record was dropped with its day."""

    job_id: JobId
    occurrence: datetime
    covers_from: datetime | None
    triggered: bool
    state: State | None


# ---------------------------------------------------------------------- the system


class TargetKind(StrEnum):
    """How far a pause reaches."""

    EVERYTHING = "everything"
    TENANT = "tenant"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a pause covers; the tenant is the caller's."""

    kind: TargetKind
    topic: str = ""

    def __str__(self) -> str:
        return f"topic {self.topic}" if self.kind is TargetKind.TOPIC else str(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A target's row. `since` is when it was last paused, and stays after a resume; a reason does not."""

    target: Target
    paused: bool
    reason: str = ""
    who: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowMinute:
    """Number of jobs of a topic that changed in a minute.

    `retried`: attempts that ended with a later retry. `failed`: those, and attempts that made their job dead; a job can
    also become dead without an attempt.
    """

    minute: datetime
    submitted: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """A topic at a glance. `waiting_since` is the due time of the oldest job that is next in its priority."""

    topic: str
    paused: bool
    counts: Mapping[State, int]
    waiting_since: datetime | None = None
    ageing_step: timedelta | None = None
    flows: Sequence[FlowMinute] = ()  # the current minute and the previous one
    unhandled: bool = False  # it has jobs that wait, and no connected worker asks for them
    declared: bool = False  # a handler has declared rules or limits for it
    max_running: int | None = None  # None: no limit
    max_backlog: int | None = None

    @property
    def has_queued(self) -> bool:
        """Whether jobs of it are to run, now or later."""
        return any(count and not state.is_final and state is not State.RUNNING for state, count in self.counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """A server process that was seen lately."""

    name: str
    version: str
    started_at: datetime
    seen_at: datetime
    workers: int
    stuck: int = 0  # jobs and pages that it cannot promote or reap


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is dispatched, what is not, and why."""

    now: datetime
    pauses: Sequence[Pause]
    topics: Sequence[TopicStatus]
    instances: Sequence[InstanceView]
    retention: RetentionStatus
    handled: frozenset[str] | None = frozenset()  # topics that connected workers ask for; None: too many to know
    tenant: str = ""  # of the caller; empty: all
    subject: str = ""  # who the caller is
    read_only: bool = False  # the database takes no writes

    @property
    def wide_pauses(self) -> list[Pause]:
        """The pauses in force that reach further than one topic, the furthest first."""
        wide = [one for one in self.pauses if one.paused and one.target.kind is not TargetKind.TOPIC]
        return sorted(wide, key=lambda one: one.target.kind is not TargetKind.EVERYTHING)

    def pauses_by_topic(self, topics: Iterable[str]) -> dict[str, Pause]:
        """What keeps the jobs of these topics from being started, for those where anything does.

        Its own pause first: that is the one to resume on its page. Then the one that reaches furthest.
        """
        own = {one.target.topic: one for one in self.pauses if one.paused and one.target.kind is TargetKind.TOPIC}
        wide = next(iter(self.wide_pauses), None)
        return {topic: pause for topic in topics if (pause := own.get(topic, wide)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """A worker that gets no more jobs until then, wherever it connects."""

    worker: str
    reason: str
    who: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """A worker was asked to stop: its processes that were connected then. `sessions`: how many are known of."""

    worker: str
    since: datetime
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """One change that was not about a single job."""

    no: int  # the cursor for the page after it
    at: datetime
    tenant_no: int  # 0: it concerns all
    actor: str
    verb: str
    target: str
    reason: str
    detail: Mapping[str, object]
    tenant: str = ""  # its name; empty: it concerns all

    @property
    def everything(self) -> bool:
        """Whether it concerns all tenants."""
        return self.tenant_no == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries to list. `target` is found anywhere in the target; what is empty does not filter."""

    actor: str = ""
    verb: str = ""
    target: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def __bool__(self) -> bool:
        return bool(self.actor or self.verb or self.target or self.since or self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Entries, newest first. `next_before` None: there are no older ones. A page can be short although some follow.

    `all_tenants`: of all of them, not of one.
    """

    entries: Sequence[AuditView]
    next_before: int | None = None
    all_tenants: bool = False
