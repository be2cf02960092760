"""What the verbs on schedules ask of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from headgate.domain.ids import JobId
from headgate.domain.schedules import ScheduleSpec
from headgate.domain.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A schedule as it stands. `next_at` None: it has ended."""

    schedule_no: int
    name: str
    version: int
    spec: ScheduleSpec
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: JobId | None
    fired: int
    skipped: int
    full_since: datetime | None  # since when the next occurrence waits for room in its topic
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """One job a schedule made, and for which occurrences. `state` None: its record was dropped with its day."""

    job_id: JobId
    occurrence: datetime
    covers_from: datetime | None
    triggered: bool
    state: State | None


class ScheduleStore(Protocol):
    """The database's side. Every verb that changes something writes its audit in the same transaction."""

    async def now(self) -> datetime: ...
    async def put(
        self,
        tenant: str,
        name: str,
        spec: ScheduleSpec,
        *,
        expected: int | None,
        who: str,
        topics: frozenset[str] | None,
    ) -> tuple[ScheduleView, bool]: ...
    async def get(self, tenant: str, name: str) -> ScheduleView: ...
    async def listed(
        self, tenant: str, *, after: str, limit: int, topics: Sequence[str] | None, source: str | None
    ) -> list[ScheduleView]: ...
    async def delete(self, tenant: str, name: str, *, expected: int | None, who: str, reason: str) -> None: ...
    async def pause(self, tenant: str, name: str, *, who: str, reason: str) -> ScheduleView: ...
    async def resume(self, tenant: str, name: str, *, who: str, reason: str) -> ScheduleView: ...
    async def trigger(
        self, tenant: str, name: str, *, request: JobId, who: str, reason: str
    ) -> tuple[JobId, bool, int]: ...
    async def jobs(self, tenant: str, name: str, *, before: datetime | None, limit: int) -> list[ScheduledJob]: ...
