"""Leases over an outage of the database, and over steps of its clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.errors import OutcomeUnknown, StoreBusy, StoreUnavailable
from headgate.domain.outcomes import Completed
from headgate.domain.states import Receipt
from headgate.store.connect import Connection
from tests.integration.leases.leasing import AWAY, holding, pass_time
from tests.support.dispatch_waits import ManualClock, soon
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Clock
from tests.support.watched_store import failing_with

# ---------------------------------------------------------------------- after an outage


@pytest.fixture
async def gated(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """As server/ builds it, with the watchdog's gate: leases of a minute, beats of 20 s. Awake for a beat."""
    async with Instance(database, name="gated", running=False, now=seconds, gated=True, tick_seconds=1.0) as one:
        await one.ticker.run_once()
        await one.renewer.run_once()
        for _ in range(20):
            await pass_time(seconds, clock, 1)
            await one.ticker.run_once()
        yield one


async def expiry_of_a_stranger(one: Instance, clock: Clock) -> UUID:
    """A job of a worker that is connected to no instance, or to another one; its lease has run out."""
    worker, (job,) = await holding(one, worker_id="stranger")
    one.sessions.close(worker.session)
    await clock.advance(seconds=61)
    return job


async def ticks(one: Instance, seconds: ManualClock, clock: Clock, count: int) -> int:
    reaped = 0
    for _ in range(count):
        await pass_time(seconds, clock, 1)
        await one.renewer.run_once()
        reaped += (await one.ticker.run_once()).reaped
    return reaped


async def test_in_quiet_times_an_expired_lease_is_reaped_by_the_next_tick(gated: Instance, clock: Clock) -> None:
    await expiry_of_a_stranger(gated, clock)
    assert (await gated.ticker.run_once()).reaped == 1


@pytest.mark.parametrize("error", [AWAY, OutcomeUnknown("lost"), StoreBusy("no connection left")])
async def test_after_an_outage_nothing_is_reaped_for_a_beat(
    gated: Instance, seconds: ManualClock, clock: Clock, error: StoreUnavailable
) -> None:
    await expiry_of_a_stranger(gated, clock)
    gated.store.before["tick"] = failing_with(error, error)
    for _ in range(2):
        with pytest.raises(type(error)):
            await gated.ticker.run_once()
    assert await ticks(gated, seconds, clock, 20) == 0
    assert await ticks(gated, seconds, clock, 2) == 1


async def test_a_worker_that_beats_again_in_time_keeps_its_job_over_an_outage(
    gated: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (job,) = await holding(gated)
    gated.store.before["tick"] = failing_with(AWAY)
    gated.store.before["renew"] = failing_with(AWAY)
    await pass_time(seconds, clock, 59)
    worker.session.mark_seen()
    with pytest.raises(StoreUnavailable):
        await gated.renewer.run_once()
    with pytest.raises(StoreUnavailable):
        await gated.ticker.run_once()
    await pass_time(seconds, clock, 30)  # the lease has run out meanwhile
    worker.session.mark_seen()
    assert (await gated.ticker.run_once()).reaped == 0  # the tick may come first
    assert await gated.renewer.run_once() == 1
    assert await ticks(gated, seconds, clock, 25) == 0
    assert (await worker.report(job, 1, Completed())).receipt is Receipt.APPLIED


async def test_renewals_that_fail_keep_the_watchdog_from_reaping(
    gated: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, _ = await holding(gated)
    gated.store.before["renew"] = failing_with(*[AWAY] * 100)
    await pass_time(seconds, clock, 15)
    await gated.ticker.run_once()
    for _ in range(16):  # from 30 s on, its lease is due for renewal
        await pass_time(seconds, clock, 1)
        worker.session.mark_seen()
        with suppress(StoreUnavailable):
            await gated.renewer.run_once()
        await gated.ticker.run_once()
    assert gated.watchdog is not None
    assert not gated.watchdog.is_open
    await expiry_of_a_stranger(gated, clock)
    assert (await gated.ticker.run_once()).reaped == 0
    gated.store.before.clear()
    worker.session.mark_seen()
    assert await ticks(gated, seconds, clock, 19) == 0
    assert await ticks(gated, seconds, clock, 3) == 1
    assert worker.session.held  # its own was renewed in time


def test_the_gate_opens_a_beat_after_the_first_answer_and_only_when_renewals_went_first(seconds: ManualClock) -> None:
    gate = WatchdogGate(beat=20, now=seconds, silence=20)
    assert not gate.is_open  # who has just started knows nothing of what was before
    gate.answered()
    seconds.advance(20)
    assert not gate.is_open
    gate.renewed()
    assert gate.is_open
    gate.lost()
    gate.renewed()  # nothing was due: that says nothing about the database
    gate.answered()
    seconds.advance(10)
    gate.answered()
    seconds.advance(10)
    assert not gate.is_open
    gate.renewed()
    assert gate.is_open


def test_a_process_that_was_stopped_for_long_does_not_reap_when_it_continues(seconds: ManualClock) -> None:
    gate = WatchdogGate(beat=20, now=seconds, silence=20)
    gate.answered()
    gate.renewed()
    for _ in range(20):
        seconds.advance(1)
        gate.answered()
    assert gate.is_open
    seconds.advance(300)
    assert not gate.is_open
    gate.answered()
    gate.renewed()
    assert not gate.is_open
    for _ in range(20):
        seconds.advance(1)
        gate.answered()
    assert gate.is_open


@pytest.mark.req("F32")
async def test_a_tick_that_waited_for_the_database_reaps_nothing(
    database: str, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    async with Instance(database, running=False, gated=True, now=seconds, tick_seconds=1.0) as one:
        _, (job,) = await holding(one)
        await one.ticker.run_once()
        await one.renewer.run_once()
        for _ in range(30):
            seconds.advance(1)
            await one.ticker.run_once()
        assert one.watchdog is not None
        assert one.watchdog.is_open

        async def frozen() -> None:
            seconds.advance(90)
            await clock.advance(seconds=90)

        one.store.before["tick"] = frozen
        assert (await one.ticker.run_once()).reaped == 0
        assert (await one.job(job)).attempt == 1
        assert await db.fetchval("SELECT lease_until < headgate.clock_v1() FROM headgate.jobs")


async def test_a_step_back_of_the_clock_delays_nothing_that_comes_after_it(
    stepped: Instance, seconds: ManualClock, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    holder, (held,) = await holding(stepped)
    (early,) = await stepped.submit(1, delay=timedelta(seconds=1))
    await stepped.ticker.run_once()
    await clock.advance(seconds=2)
    assert [job for _, _, job in (await stepped.ticker.run_once()).promoted] == [early]
    await clock.advance(minutes=-10)
    (later,) = await stepped.submit(1, delay=timedelta(seconds=1))
    with caplog.at_level("WARNING"):
        assert (await stepped.ticker.run_once()).stepped_back == timedelta(minutes=10)
    assert "clock_stepped_back seconds=600" in caplog.text
    await clock.advance(seconds=2)
    tick = await stepped.ticker.run_once()
    assert (tick.stepped_back, [job for _, _, job in tick.promoted]) == (None, [later])
    # What begins now is older than what ran before: its lease runs out anyway, and only that one.
    worker = await stepped.worker("another", slots=1)
    assert await stepped.claimer.run_once() == 1
    await worker.take()
    worker.lose()
    await pass_time(seconds, clock, 31)
    holder.session.mark_seen()
    assert await stepped.renewer.run_once() == 1
    await pass_time(seconds, clock, 30)
    assert (await stepped.ticker.run_once()).reaped == 1
    assert (await stepped.job(held)).attempt == 1


# Those that lived through the step have seen it; one that is started after it has not.
@pytest.mark.parametrize("lived_through", [True, False])
@pytest.mark.parametrize("lease", [60, 3600])
async def test_after_a_step_back_a_dead_workers_lease_lasts_no_longer_than_it_would_now(
    stepped: Instance, other: Instance, clock: Clock, db: Connection, lease: int, lived_through: bool
) -> None:
    worker, (dead,) = await holding(stepped)
    await stepped.ticker.run_once()
    await clock.advance(seconds=20)
    tenant = worker.session.tenant_no
    if lease != 60:  # its handler has asked for longer
        (epoch,) = worker.delivered[0].epochs
        assert await stepped.store.renew({(tenant, lease * 1000): ([dead], [epoch])}) == {}
    worker.lose()
    before = await db.fetchval("SELECT lease_until FROM headgate.jobs")
    watch = stepped if lived_through else other
    assert (await watch.ticker.run_once()).reaped == 0
    assert await db.fetchval("SELECT lease_until FROM headgate.jobs") == before, (
        "a lease that is as it should be is left"
    )
    await clock.advance(hours=-2)
    assert (await watch.ticker.run_once()).reaped == 0
    assert await db.fetchval("SELECT lease_until - headgate.clock_v1() FROM headgate.jobs") == timedelta(
        seconds=lease if lease != 60 else 60
    )
    await clock.advance(seconds=lease)
    assert (await watch.ticker.run_once()).reaped == 0, "a lease that ends now is not over"
    await clock.advance(microseconds=1)
    assert (await watch.ticker.run_once()).reaped == 1


async def test_a_shorter_renewal_leaves_a_longer_lease_and_its_length(
    stepped: Instance, clock: Clock, db: Connection
) -> None:
    worker, (job,) = await holding(stepped)
    (epoch,) = worker.delivered[0].epochs
    for lease_ms in (3_600_000, 60_000):
        assert await stepped.store.renew({(worker.session.tenant_no, lease_ms): ([job], [epoch])}) == {}
    await clock.advance(seconds=61)
    assert (await stepped.ticker.run_once()).reaped == 0
    row = await db.fetchrow("SELECT lease_ms, lease_until - headgate.clock_v1() AS left FROM headgate.jobs")
    assert (row["lease_ms"], row["left"]) == (3_600_000, timedelta(seconds=3539))
    await clock.advance(seconds=3480)  # 59 s are left of it: the short one takes over
    assert await stepped.store.renew({(worker.session.tenant_no, 60_000): ([job], [epoch])}) == {}
    assert await db.fetchval("SELECT lease_ms FROM headgate.jobs") == 60_000


async def test_an_extension_of_a_worker_that_stays_silent_is_not_renewed(
    database: str, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    async with Instance(database, running=False, now=seconds, lease=timedelta(seconds=3)) as one:
        worker, (job,) = await holding(one)
        (epoch,) = worker.delivered[0].epochs
        worker.session.hold(job, epoch, 9_000, seconds())  # as a beat with an extension does
        assert await one.renewer.run_once() == 1
        until = await db.fetchval("SELECT lease_until FROM headgate.jobs")
        for _ in range(18):  # it does not end its stream, and says nothing
            await pass_time(seconds, clock, 0.5)
            await one.renewer.run_once()
            assert (await one.ticker.run_once()).reaped == 0
        assert await db.fetchval("SELECT lease_until FROM headgate.jobs") == until
        await pass_time(seconds, clock, 0.5)
        assert (await one.ticker.run_once()).reaped == 1


async def test_a_worker_that_missed_a_beat_is_renewed_for_after_its_next_frame(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, _ = await holding(stepped)
    await pass_time(seconds, clock, 31)
    assert await stepped.renewer.run_once() == 0, "its beat at 20 s did not come"
    await pass_time(seconds, clock, 25)
    worker.session.mark_seen()
    assert await stepped.renewer.run_once() == 1
    await pass_time(seconds, clock, 30)
    assert (await stepped.ticker.run_once()).reaped == 0


async def test_a_running_instance_survives_an_outage_and_keeps_its_jobs(database: str) -> None:
    lease = timedelta(milliseconds=900)
    async with Instance(database, lease=lease, tick_seconds=0.02, gated=True) as one:
        one.renewer._every = 0.02
        worker, (job,) = await holding_running(one)
        worker.session.default_lease_ms = 60_000  # its silence is not what this is about
        beating = asyncio.create_task(beat(worker))
        await soon(lambda: one.store.calls["renew"] >= 1, "its lease was renewed")
        for verb in ("tick", "renew", "claim"):
            one.store.before[verb] = failing_with(*[AWAY] * 10_000)
        failures = one.renewer.errors
        began = time.monotonic()
        await soon(lambda: one.renewer.errors > failures and time.monotonic() - began > 1.2, "the lease has run out")
        one.store.before.clear()
        renewed = one.store.renewed_rows
        await soon(lambda: one.store.renewed_rows > renewed and one.watchdog and one.watchdog.is_open, "all is well")
        beating.cancel()
        assert (await worker.report(job, 1, Completed())).receipt is Receipt.APPLIED
        assert (await one.job(job)).attempt == 1


async def holding_running(one: Instance) -> tuple[Worker, list[UUID]]:
    await one.submit()
    worker = await one.worker("w", slots=1)
    return worker, list((await worker.take()).ids)


async def beat(worker: Worker) -> None:
    while True:
        worker.session.mark_seen()
        await asyncio.sleep(0.05)
