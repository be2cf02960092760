"""Schedules as an instance uses them: each call on the lane it belongs to, tenants by name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headgate.control.schedule_ports import ScheduledJob, ScheduleView
from headgate.dispatch.scheduler import Due, Fired
from headgate.domain import failpoints
from headgate.domain.errors import HeadgateError
from headgate.domain.ids import JobId, TenantNo
from headgate.domain.schedules import DueSchedule, Firing, ScheduleSpec
from headgate.store import schedules
from headgate.store.errors import translating
from headgate.store.service import Store


class ScheduleLanes:
    """Fits the ports of the scheduler and of the verbs. Firing has a lane of its own: it waits for nobody."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fire, self._operate, self._read = store.lane("schedule"), store.lane("operate"), store.lane("read")

    # --- firing ----------------------------------------------------------------------------------------------------

    async def due(self, *, limit: int) -> Due:
        async with self._fire.use() as db:
            return await schedules.due(db, limit=limit)

    async def fire(self, firings: Sequence[Firing]) -> Fired:
        async with self._fire.use() as db:
            if failpoints.armed:
                await failpoints.armed.reach("schedule.before_commit")
            fired = await schedules.fire(db, firings)
            if failpoints.armed:
                await failpoints.armed.reach("schedule.after_mark")
        if failpoints.armed:
            await failpoints.armed.reach("schedule.after_commit")
        return fired

    async def postpone(self, schedule: DueSchedule, error: HeadgateError) -> None:
        async with self._fire.use() as db:
            await schedules.postpone(db, schedule, error)

    async def forget_ended(self) -> int:
        async with self._fire.use() as db:
            return await schedules.forget_ended(db)

    # --- the verbs -------------------------------------------------------------------------------------------------

    async def now(self) -> datetime:
        async with self._read.use() as db:
            with translating(writing=False):
                at: datetime = await db.fetchval("SELECT headgate.clock_v1()")
        return at

    async def put(
        self,
        tenant: str,
        name: str,
        spec: ScheduleSpec,
        *,
        expected: int | None,
        who: str,
        topics: frozenset[str] | None,
    ) -> tuple[ScheduleView, bool]:
        tenant_no = TenantNo(await self._store.tenant_no(tenant))
        async with self._operate.use() as db:
            return await schedules.put(
                db, self._store.names, tenant_no, name, spec, expected=expected, who=who, topics=topics
            )

    async def get(self, tenant: str, name: str) -> ScheduleView:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._read.use() as db:
            return await schedules.get(db, self._store.names, tenant_no, name)

    async def listed(
        self, tenant: str, *, after: str, limit: int, topics: Sequence[str] | None, source: str | None
    ) -> list[ScheduleView]:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._read.use() as db:
            return await schedules.listed(
                db, self._store.names, tenant_no, after=after, limit=limit, topics=topics, source=source
            )

    async def delete(self, tenant: str, name: str, *, expected: int | None, who: str, reason: str) -> None:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._operate.use() as db:
            await schedules.delete(db, self._store.names, tenant_no, name, expected=expected, who=who, reason=reason)

    async def pause(self, tenant: str, name: str, *, who: str, reason: str) -> ScheduleView:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._operate.use() as db:
            return await schedules.pause(db, self._store.names, tenant_no, name, who=who, reason=reason)

    async def resume(self, tenant: str, name: str, *, who: str, reason: str) -> ScheduleView:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._operate.use() as db:
            return await schedules.resume(db, self._store.names, tenant_no, name, who=who, reason=reason)

    async def trigger(
        self, tenant: str, name: str, *, request: JobId, who: str, reason: str
    ) -> tuple[JobId, bool, int]:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._operate.use() as db:
            return await schedules.trigger(
                db, self._store.names, tenant_no, name, request=request, who=who, reason=reason
            )

    async def jobs(self, tenant: str, name: str, *, before: datetime | None, limit: int) -> list[ScheduledJob]:
        tenant_no = await self._store.tenant_no(tenant)
        async with self._read.use() as db:
            return await schedules.jobs(db, self._store.names, tenant_no, name, before=before, limit=limit)
