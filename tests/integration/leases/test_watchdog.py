"""The watchdog: expired leases are reaped, by the clock of the database."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from pkgutil import iter_modules

import pytest

from headgate import dispatch
from headgate.dispatch import ticker
from headgate.domain.backoff import RetryPolicy
from headgate.domain.limits import REAP_AT_ONCE
from headgate.domain.states import EventKind, State
from headgate.store import leases, tick
from headgate.store.connect import Connection
from tests.integration.leases.leasing import MINUTE, holding
from tests.support.dispatch_workers import completing
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue

# ---------------------------------------------------------------------- the watchdog


@pytest.mark.req("T30")
async def test_ten_thousand_expired_jobs_are_reaped_in_bounded_batches(
    database: str, clock: Clock, db: Connection
) -> None:
    async with Instance(database, running=False, claim_limit=5_000) as one:
        await one.submit(10_000)
        worker = await one.worker(slots=10_000)
        assert await one.claimer.run_once() + await one.claimer.run_once() == 10_000
        one.claimer._abandon_unsent = one.demands.abandon_unsent = lambda _: None
        worker.lose()
        await clock.advance(seconds=61)
        reaped = []
        while (count := (await one.ticker.run_once()).reaped) > 0:
            reaped.append(count)
        assert reaped == [REAP_AT_ONCE] * 10
        assert await db.fetchval("SELECT count(*) FROM headgate.jobs WHERE state = 1") == 0


async def test_of_more_expired_jobs_than_one_tick_reaps_none_waits_for_the_next_second(
    stepped: Instance, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ticker, tick):
        monkeypatch.setattr(module, "REAP_AT_ONCE", 2)
    await holding(stepped, 6)
    await clock.advance(seconds=61)
    stepped.start("ticks", stepped.ticker.run())  # by the second they would be an hour apart
    await stepped.reach(6, State.RETRYING)


async def test_the_retry_of_a_job_that_was_reaped_does_not_wait_for_the_next_second(
    stepped: Instance, clock: Clock
) -> None:
    await holding(stepped, policy=RetryPolicy.fixed(timedelta(milliseconds=50)))
    await clock.advance(seconds=61)
    stepped.start("ticks", stepped.ticker.run())  # by the second they would be an hour apart
    await stepped.reach(1, State.RETRYING)
    await clock.advance(seconds=1)
    await stepped.reach(1, State.PENDING)


async def test_the_attempt_that_began_first_is_reaped_first(clock: Clock, db: Connection) -> None:
    queue = Queue(db)
    jobs = await queue.add(2)
    for _ in jobs:
        await queue.claim(1)
        await clock.advance(seconds=1)
    await clock.advance(seconds=61)
    reaped = [*await leases.reap(db, limit=1), *await leases.reap(db, limit=1)]
    assert [one.id for one in reaped] == jobs


@pytest.mark.req("T31", "R1", "R4", "R6")
async def test_a_job_that_kills_its_worker_each_time_is_dead_after_its_attempts(
    stepped: Instance, clock: Clock, db: Connection
) -> None:
    (job,) = await stepped.submit(max_attempts=3)
    for attempt in (1, 2, 3):
        worker = await stepped.worker(f"w{attempt}", slots=1)
        await stepped.ticker.run_once()
        assert await stepped.claimer.run_once() == 1
        assert (await worker.take()).attempts == (attempt,)
        worker.lose("killed")
        await clock.advance(seconds=61)
        await stepped.ticker.run_once()
        await clock.advance(seconds=100)
    view = await stepped.job(job)
    assert (view.state, view.attempt, view.last_error.split(":")[0]) == (State.DEAD, 3, "LeaseExpired")
    assert view.finished_at is not None
    assert [event.kind for event in view.events] == [EventKind.LEASE_EXPIRED] * 3
    await stepped.worker("next", slots=1)
    await stepped.ticker.run_once()
    assert await stepped.claimer.run_once() == 0


@pytest.mark.req("T29")
@pytest.mark.parametrize("hours", [-1, 1])
async def test_the_servers_own_clock_does_not_matter(database: str, db: Connection, hours: int) -> None:
    skew = hours * 3_600
    async with Instance(
        database,
        tick_seconds=0.05,
        now=lambda: time.monotonic() + skew,
        clock_ms=lambda: time.time_ns() // 1_000_000 + skew * 1_000,
    ) as one:
        await one.worker("busy", "busy", slots=1)
        (held,) = await one.submit(1, "busy")
        (later,) = await one.submit(1, delay=timedelta(milliseconds=200))
        await one.submit(5)
        await one.worker(slots=2, handler=completing())
        await one.reach(6, State.COMPLETED)
        row = await db.fetchrow(
            "SELECT a.claimed_at >= a.run_at AND a.claimed_at < a.run_at + interval '60 s' AS in_time,"
            " abs(extract(epoch FROM a.finished_at - clock_timestamp())) < 60 AS stamped"
            " FROM headgate.archive a WHERE id = $1",
            later,
        )
        assert (row["in_time"], row["stamped"]) == (True, True)
        left = await db.fetchval("SELECT lease_until - clock_timestamp() FROM headgate.jobs WHERE id = $1", held)
        assert timedelta(seconds=45) < left <= MINUTE
        assert one.sessions.holder(await one.store.tenant_no("acme"), held, *await one.epochs([held])) is not None


@pytest.mark.req("T29")
@pytest.mark.parametrize("module", [one.name for one in iter_modules(dispatch.__path__)])
def test_dispatch_never_asks_for_the_time_of_day(module: str) -> None:
    text = (Path(dispatch.__path__[0]) / f"{module}.py").read_text()
    assert "time.time" not in text
    assert "datetime.now" not in text
