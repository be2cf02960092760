"""Workers that hold jobs, and time that passes for the server and the database alike."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from headgate.domain.errors import StoreUnavailable
from tests.support.dispatch_waits import ManualClock
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Clock

AWAY = StoreUnavailable("the database is away")
MINUTE = timedelta(minutes=1)


async def pass_time(seconds: ManualClock, clock: Clock, span: float) -> None:
    """For the server and the database alike."""
    seconds.advance(span)
    await clock.advance(seconds=span)


async def holding(
    one: Instance, count: int = 1, worker_id: str = "w", *, incarnation: int = 0, **options: object
) -> tuple[Worker, list[UUID]]:
    """A worker that was sent new jobs."""
    await one.submit(count, **options)
    worker = await one.worker(worker_id, slots=count, incarnation=incarnation)
    assert await one.claimer.run_once() == count
    return worker, list((await worker.take()).ids)
