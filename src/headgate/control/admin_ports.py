"""What the operator's verbs ask of the store and of this instance's dispatch, and the values they answer with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from headgate.domain.errors import HeadgateError
from headgate.domain.retention import Removed, RetentionRules, RetentionStatus
from headgate.domain.states import State
from headgate.domain.wakes import Wake
from headgate.domain.workers import WorkerView


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
class TopicStatus:
    """A topic at a glance. `waiting_since` is the due time of the oldest job that is next in its priority."""

    topic: str
    paused: bool
    counts: Mapping[State, int]
    waiting_since: datetime | None = None
    ageing_step: timedelta | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """A worker that gets no more jobs until then, wherever it connects."""

    worker: str
    reason: str
    who: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """One change that was not about a single job."""

    no: int
    at: datetime
    everything: bool
    actor: str
    verb: str
    target: str
    reason: str
    detail: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """What a verb did to one job. `error` says why nothing was done."""

    id: UUID
    changed: bool = False
    state: State | None = None
    error: HeadgateError | None = None


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
    """How jobs are put back: after a delay, at most so many a second, one of them perhaps with another body."""

    delay: timedelta = timedelta(0)
    apart: timedelta = timedelta(0)
    payloads: Mapping[UUID, bytes] = field(default_factory=dict)


class AdminStore(Protocol):
    """The database's part. Every verb is committed, audit included, when it returns."""

    async def tenant_no(self, tenant: str) -> int: ...
    async def pause(
        self, tenant: str, target: Target, *, reason: str, who: str, until: datetime | None
    ) -> tuple[tuple[int, int], Pause]: ...
    async def resume(self, tenant: str, target: Target, *, reason: str, who: str) -> tuple[tuple[int, int], bool]: ...
    async def status(self, tenant: str) -> Status: ...
    async def standings(self, tenant_no: int, ids: Sequence[UUID]) -> Mapping[UUID, Standing]: ...
    async def cancel(self, tenant_no: int, ids: Sequence[UUID], *, who: str, reason: str) -> Mapping[UUID, Change]: ...
    async def redrive(
        self, tenant_no: int, ids: Sequence[UUID], how: Redrive, *, who: str, reason: str
    ) -> Mapping[UUID, int]: ...
    async def reprioritise(
        self, tenant_no: int, ids: Sequence[UUID], *, priority: int, who: str, reason: str
    ) -> Mapping[UUID, Change]: ...
    async def move(
        self, tenant: str, ids: Sequence[UUID], *, topic: str, who: str, reason: str
    ) -> Mapping[UUID, Change]: ...
    async def discard(self, tenant_no: int, ids: Sequence[UUID], *, who: str, reason: str) -> set[UUID]: ...
    async def quiet(self, tenant: str, worker: str, *, reason: str, who: str, span: timedelta) -> Quiet: ...
    async def resume_worker(self, tenant: str, worker: str, *, reason: str, who: str) -> bool: ...
    async def quiet_set(self) -> frozenset[tuple[int, str]]: ...
    async def workers_elsewhere(self, tenant: str) -> Sequence[WorkerView]: ...
    async def audit(self, tenant: str, *, before: int | None, limit: int) -> Sequence[AuditView]: ...


class GateHere(Protocol):
    """This instance's dispatch: it follows a verb at once, where the others follow within their tick."""

    def pause_changed(self, target: tuple[int, int], *, paused: bool) -> None: ...
    def cancel_requested(self, tenant_no: int, job_id: UUID, epoch: int) -> None: ...
    def set_quiet(self, quiet: Iterable[tuple[int, str]]) -> None: ...


Wakes = Callable[[int, UUID | None], None]
"""Wakes this instance for a topic; the job may be claimable at a new rank."""
Announces = Callable[[Iterable[Wake]], Awaitable[None]]
"""Tells the other instances, if there are any. Never fails: their tick finds what they were not told."""


class RetentionStore(Protocol):
    """Retention by hand: the same pass that every instance makes by itself."""

    async def run_pass(self) -> Removed: ...
    async def set_rules(self, changes: Mapping[str, timedelta], *, actor: str, reason: str) -> RetentionRules: ...


class Presence(Protocol):
    """Who is connected here."""

    def workers(self, tenant_no: int) -> Sequence[WorkerView]: ...


class Endings(Protocol):
    """Whoever waits for a job's end."""

    def ended(self, tenant_no: int, job_id: UUID) -> None: ...
