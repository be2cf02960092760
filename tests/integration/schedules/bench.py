"""Schedules on a clock that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from headgate.dispatch.scheduler import Scheduler
from headgate.domain.errors import HeadgateError
from headgate.domain.schedules import DueSchedule, Every, Fired, ScheduleSpec
from headgate.store import schedule_firing, schedules
from headgate.store.connect import Connection
from tests.support.queue import Clock, Queue

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Bench:
    """A queue, a clock and the scheduler's store on one connection."""

    def __init__(self, db: Connection, clock: Clock) -> None:
        self.db, self.clock, self.queue = db, clock, Queue(db)
        self.fed: list[int] = []
        self.scheduler = Scheduler(self, topics_ready=self.fed.extend)

    async def due(self, *, limit: int) -> Any:
        return await schedule_firing.due(self.db, limit=limit)

    async def fire(self, firings: Any) -> Fired:
        return await schedule_firing.fire(self.db, firings)

    async def postpone(self, schedule: DueSchedule, error: HeadgateError) -> None:
        await schedule_firing.postpone(self.db, schedule, error)

    async def forget_ended(self) -> int:
        return await schedule_firing.forget_ended(self.db)

    async def put(self, name: str = "nightly", *, expected: int | None = None, who: str = "ana", **spec: Any) -> Any:
        values: dict[str, Any] = {"topic": "mail", "timing": Every(interval=MINUTE)} | spec
        made = ScheduleSpec(**values).checked(now=self.clock.now)
        tenant = await self.queue.tenant_no()
        return await schedules.put(self.db, self.queue.names, tenant, name, made, expected=expected, who=who)

    async def get(self, name: str = "nightly") -> Any:
        return await schedules.get(self.db, self.queue.names, await self.queue.tenant_no(), name)

    async def jobs(self, name: str = "nightly") -> list[Any]:
        tenant = await self.queue.tenant_no()
        return await schedules.jobs(self.db, self.queue.names, tenant, name, before=None, limit=1000)

    async def occurrences(self, name: str = "nightly") -> list[datetime]:
        return [job.occurrence for job in reversed(await self.jobs(name))]

    async def verb(self, verb: Any, name: str = "nightly", **options: Any) -> Any:
        options = {"who": "ana", "reason": "because"} | options
        return await verb(self.db, self.queue.names, await self.queue.tenant_no(), name, **options)
