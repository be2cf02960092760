"""What the operator's verbs ask of the store and of this instance's dispatch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from headgate.domain.errors import HeadgateError
from headgate.domain.retention import Removed, RetentionRules
from headgate.domain.states import State
from headgate.domain.views import AuditView, Change, Pause, Quiet, Redrive, Standing, Status, Target
from headgate.domain.wakes import Wake
from headgate.domain.workers import WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """What a verb did to one job. `error` says why nothing was done."""

    id: UUID
    changed: bool = False
    state: State | None = None
    error: HeadgateError | None = None


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
