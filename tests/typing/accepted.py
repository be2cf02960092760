"""SDK code that must type-check in strict mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_type

import asyncpg
import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session

from headgate import (
    Bound,
    Fail,
    Failure,
    Headgate,
    Job,
    JobHandle,
    JobInfo,
    JobOptions,
    Nack,
    Priority,
    PriorityTier,
    Rate,
    RetryPolicy,
    ScheduleInfo,
    ScheduleOptions,
    Snooze,
    SyncHandle,
    Task,
    TopicSettings,
    Unique,
    Worker,
    WorkerOptions,
    __version__,
    this_job,
)
from headgate.sdk.admin import AuditEntry, JobChange, PauseInfo, WorkerInfo, WorkerList
from headgate.testing import fake_job, run_inline

hg = Headgate()


@dataclass
class Receipt:
    number: int


@hg.job("keyword", max_attempts=5, retry=RetryPolicy.fixed(timedelta(seconds=3)))
async def keyword(to: str, subject: str = "", *, job: Job = this_job) -> Receipt:
    await job.progress(1, 3, "rendering")
    if job.attempt > 3:
        raise Nack(delay=30, reason="limited")
    return Receipt(1)


@hg.job("first")
def first(job: Job, count: int) -> list[int]:
    job.progress(1)
    job.extend(timedelta(minutes=1))
    if count < 0:
        raise Fail("negative", permanent=True)
    return [count]


@hg.job("plain", run_in="thread", time_limit=timedelta(seconds=3))
def plain(count: int) -> int:
    if count > 3:
        raise Snooze(3)
    return count


@hg.job("ruled", max_attempts=5, max_running=3, ageing_step=timedelta(seconds=5), bad_payload="retry", tags=["a"])
def ruled() -> bytes:
    return b""


@hg.job("raw")
async def raw(job: Job) -> None:
    job.logger.info("%d bytes", len(job.payload))


@hg.cron("0 7 * * 1-5", zone="Europe/Zurich", overlap="skip", catch_up=3)
@hg.every(minutes=5, name="often", arguments={"count": 1})
@hg.job("scheduled")
def scheduled(count: int = 1) -> int:
    return count


tier: PriorityTier = "urgent"
job_options: JobOptions = {"priority": tier, "delay": 3}
schedule_options: ScheduleOptions = {"overlap": "skip", "catch_up": "none", "when_full": "skip", "priority": "bulk"}
topic_settings: TopicSettings = {"rate": Rate(count=10, period=timedelta(seconds=1)), "max_running": 3}
worker_options: WorkerOptions = {"concurrency": 4}
assert_type(__version__, str)


async def plain_calls() -> None:
    """A task called directly is the function as it was written."""
    assert_type(await keyword("a@b.example", subject="Hi"), Receipt)
    assert_type(await keyword.with_options(priority="high")("a@b.example", job=fake_job()), Receipt)
    assert_type(first(fake_job(), 3), list[int])
    assert_type(plain(3), int)
    assert_type(scheduled(count=2), int)
    await raw(fake_job(b"x"))


async def schedules() -> None:
    assert_type(await scheduled.submit(3), JobHandle[int])  # as it was without them
    assert_type(await scheduled.schedule("late", cron="0 22 * * *", options={"overlap": "replace"}), ScheduleInfo)
    assert_type(await hg.admin.schedules.put("s", "topic", every=timedelta(minutes=1), priority="high"), ScheduleInfo)
    assert_type(await hg.admin.schedules.next("s"), list[datetime])
    assert_type(await hg.admin.schedules.list(), list[ScheduleInfo])


async def producer() -> None:
    handle = await keyword.submit("a@b.example", subject="Hi")
    assert_type(handle, JobHandle[Receipt])
    assert_type(await handle.result(timeout=3), Receipt)
    assert_type(await handle.result(type=int), int)
    assert_type(await first.submit(3), JobHandle[list[int]])
    assert_type(await first.with_options(priority="high", delay=3).submit(count=3), JobHandle[list[int]])
    assert_type(await plain.submit_many([{"count": 1}, (2,)]), list[JobHandle[int]])
    assert_type(hg.sync.submit(plain, 3), SyncHandle[int])
    assert_type(hg.sync.submit(plain, 3).result(), int)
    assert_type(hg.sync.wait(hg.get("0198c0de-0000-7000-8000-000000000000")), JobInfo)
    assert_type(await run_inline(first, 3), list[int])
    await raw.submit_raw(b"bytes")
    assert_type(first.bind(3), Bound)
    await plain.with_options(unique="k", depends_on=[handle, handle.id], needs="ended").submit(3)
    await plain.with_options(unique=Unique(key="k", on_conflict="replace"), on_parent_failure="block").submit(3)
    async with hg.batch("import", on_done=plain.bind(1)) as batch:
        assert_type(await batch.submit(first, 3), JobHandle[list[int]])
        assert_type(await batch.submit_many(plain, [(1,)]), list[JobHandle[int]])
    assert_type((await hg.batch_status(batch.id)).counts, dict[str, int])
    await raw.submit()
    await hg.submit("elsewhere", {"a": 1}, priority=3, tags=["x"])


def takes_task(task: Task[[int], int]) -> None: ...


takes_task(plain)


@hg.middleware
def around(job: Job) -> Iterator[None]:
    yield


@hg.middleware
async def around_async(job: Job) -> AsyncIterator[None]:
    yield


@hg.on_failure
@hg.on_dead
def failed(failure: Failure) -> None:
    assert_type(failure.job, Job)
    assert_type(failure.exception, BaseException | None)
    assert_type(failure.retry_at, datetime | None)


@hg.on_start
async def started(worker: Worker) -> None:
    assert_type(worker.worker_id, str)


hg.on_stop(lambda worker: None)


async def worker() -> None:
    await hg.work(concurrency=10, prefetch=5, topics=["plain"], grace=timedelta(seconds=30))
    hg.worker(lease=60).stop()


def main() -> None:
    hg.run_worker(concurrency=4)


async def operate() -> None:
    await hg.submit("plain", b"x", priority="high")
    await hg.submit("plain", b"x", priority=Priority.URGENT)
    handle = await plain.with_options(priority=Priority.BULK).submit(3)
    assert_type(await handle.cancel(reason="typo"), bool)
    assert_type(await hg.admin.pause(topic="plain", reason="full", until=datetime.now(UTC)), PauseInfo)
    assert_type(await hg.admin.resume(tenant=True), bool)
    assert_type((await hg.admin.status()).topics[0].counts, dict[str, int])
    assert_type(await hg.admin.jobs.redrive([handle.id], payload={"n": 1}, per_second=5), list[JobChange])
    assert_type(await hg.admin.jobs.reprioritise(handle.id, "urgent"), list[JobChange])
    assert_type(await hg.admin.workers.list(), WorkerList)
    assert_type((await hg.admin.workers.list())[0], WorkerInfo)
    assert_type((await hg.admin.audit(limit=5))[0], AuditEntry)


async def transactions(
    plain_connection: asyncpg.Connection[asyncpg.Record],
    pooled: asyncpg.pool.PoolConnectionProxy[asyncpg.Record],
    psycopg_sync: psycopg.Connection,
    psycopg_async: psycopg.AsyncConnection,
    session: Session,
    connection: Connection,
    scoped: scoped_session[Session],
    async_session: AsyncSession,
    async_connection: AsyncConnection,
) -> None:
    assert_type(await plain.submit_in(plain_connection, 3), JobHandle[int])
    assert_type(await plain.submit_in(pooled, count=3), JobHandle[int])
    assert_type(await first.submit_in(psycopg_async, 3), JobHandle[list[int]])
    assert_type(await keyword.submit_in(async_session, "a@b.example", subject="Hi"), JobHandle[Receipt])
    assert_type(await plain.with_options(priority="high").submit_in(async_connection, 3), JobHandle[int])
    assert_type(first.submit_in(psycopg_sync, 3), SyncHandle[list[int]])
    assert_type(plain.submit_in(session, 3), SyncHandle[int])
    assert_type(plain.submit_in(connection, 3).result(), int)
    assert_type(plain.submit_in(scoped, 3), SyncHandle[int])
    assert_type(plain.submit_in("default", 3), SyncHandle[int])
    assert_type(await plain.submit_many_in(async_session, [(3,)]), list[JobHandle[int]])
    assert_type(plain.submit_many_in(psycopg_sync, [{"count": 3}]), list[SyncHandle[int]])
    await hg.submit_in(async_session, "elsewhere", {"a": 1}, priority=3)
    hg.submit_in(session, "elsewhere", b"x", delay=3).result()
    task = asyncio.create_task(plain.submit_in(async_session, 3))
    assert_type(await task, JobHandle[int])
