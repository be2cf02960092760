"""SDK code that must not type-check: every line marked with E has an error of that kind, and no other line has one."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from headgate import Headgate, Job, Nack, this_job

hg = Headgate()


@hg.job("send")
async def send(to: str, copies: int = 1, *, job: Job = this_job) -> int:
    return copies


@hg.job("first")
def first(job: Job, count: int) -> int:
    job.stage = 2  # E: attr-defined
    job.request_cancel()  # E: attr-defined
    return len(job.raw_id)  # E: attr-defined


async def producer() -> str:
    await send.submit(3)  # E: arg-type
    await send.submit()  # E: call-arg
    await send.submit("a", nobody=1)  # E: call-arg
    await send.submit("a", copies="2")  # E: arg-type
    await first.submit("x")  # E: arg-type
    hg.sync.submit(first)  # E: call-arg
    send.with_options(colour="red")  # E: call-arg
    send.with_options(max_attempts="3")  # E: arg-type
    send.with_options(priority="hihg")  # E: arg-type
    hg.job("x", priority="hihg")  # E: arg-type
    hg.cron("0 0 * * *", overlap="skp")  # E: arg-type
    await send(3)  # E: arg-type
    first(3)  # E: arg-type
    hg.job("x", run_in="moon")  # E: arg-type
    hg.job("x", time_limit="3s")  # E: arg-type
    hg.job("x", max_running="3")  # E: arg-type
    hg.job("x", bad_payload="ignore")  # E: arg-type
    hg.sync.wait(3)  # E: arg-type
    hg.cron("0 0 * * *", overlaps="skip")  # E: call-arg
    hg.every(minutes=1)(len)  # E: type-var
    await hg.admin.schedules.put("s", "t", every="1h")  # E: arg-type
    await hg.work(threads=3)  # E: call-arg
    raise_it: Nack = Nack(reason=3)  # E: arg-type
    raise raise_it
    return await (await send.submit("a")).result()  # E: unreachable


@hg.middleware  # E: type-var
def not_a_generator(job: Job) -> int:
    return 1


@hg.on_failure  # E: type-var
def takes_nothing() -> None: ...


async def transactions(session: Session, async_session: AsyncSession) -> None:
    first.submit_in(session, "x")  # E: call-overload
    await first.submit_in(async_session)  # E: call-overload
    first.submit_in(3, 3)  # E: call-overload
    await first.submit_in(session, 3)  # E: misc
    first.submit_in(async_session, 3).result()  # E: attr-defined


async def wrong_result() -> str:
    handle = await send.submit("a")
    return await handle.result()  # E: return-value
