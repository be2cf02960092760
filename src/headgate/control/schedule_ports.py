"""What the verbs on schedules ask of the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from headgate.domain.ids import JobId
from headgate.domain.schedules import ScheduleSpec
from headgate.domain.views import ScheduledJob, ScheduleView


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
