"""What the verbs ask of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from headgate.domain.dependencies import DependencyView
from headgate.domain.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEventView:
    """One entry of a job's history."""

    at: datetime
    kind: str
    epoch: int
    attempt: int
    state: State
    run_at: datetime | None
    claimed_at: datetime | None
    worker: str
    actor: str
    reason: str
    error_type: str
    error_message: str
    error_trace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    """A job as anyone allowed may read it."""

    id: UUID
    tenant: str
    topic: str
    state: State
    priority: int
    attempt: int
    max_attempts: int
    epoch: int
    cancel_requested: bool
    worker: str
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    lease_until: datetime | None
    finished_at: datetime | None
    last_error: str
    headers: Mapping[str, str]
    deadline: datetime | None = None
    payload: bytes | None = None
    result: bytes | None = None
    progress: Mapping[str, object] | None = None
    events: Sequence[JobEventView] = field(default_factory=tuple)
    dependencies: DependencyView = field(default_factory=DependencyView)
    lineage: tuple[str, datetime, bool] | None = None  # the schedule that made it, the occurrence, whether triggered


class JobStore(Protocol):
    """Reading."""

    async def job(self, tenant: str, job_id: UUID, *, payload: bool, result: bool, events: bool) -> JobDetails: ...
    async def finished(self, tenant_no: int, ids: Sequence[UUID]) -> list[UUID]: ...
