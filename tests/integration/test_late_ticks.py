"""What could make due jobs or expired leases late: late commits, locks beside the jobs, rows that cannot be written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from headgate.dispatch.scans import ScanPace
from headgate.domain.dependencies import Unique
from headgate.domain.errors import StoreUnavailable
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.domain.states import State
from headgate.store.connect import Connection
from headgate.store.new_ids import BEGINNING
from headgate.store.tick import TickCalls, TickRow
from headgate.store.topics import TopicStore
from tests.support.dispatch_waits import ManualClock, soon
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue, stranger
from tests.support.watched_store import Hold, failing_with

SECOND = timedelta(seconds=1)
ANSWERED = 10.0
DELAYED = "SELECT headgate.submit('mail', 'x'::bytea, tenant => 'acme', delay => interval '1 second')"
# A second passes with every look at the clock.
CLOCK_OF_READS = """
CREATE SEQUENCE public.reads MINVALUE 0;
GRANT USAGE ON SEQUENCE public.reads TO PUBLIC;
CREATE OR REPLACE FUNCTION headgate.clock_v1() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT at + nextval(''public.reads'') * interval ''1 second'' FROM public.test_clock'"""
# A row that cannot be written.
POISON = """
CREATE FUNCTION public.poison() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE 'invalid page in block 7' USING ERRCODE = 'XX001'; END $$;
CREATE TRIGGER poison BEFORE UPDATE ON headgate.jobs
    FOR EACH ROW WHEN (old.id = '%s') EXECUTE FUNCTION public.poison()"""


@pytest.fixture
async def stepped(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    async with Instance(database, running=False, now=seconds) as instance:
        yield instance


async def promoted(one: Instance) -> set[UUID]:
    tick = await asyncio.wait_for(one.ticker.run_once(), ANSWERED)
    return {job for _, _, job in tick.promoted}


async def one_more(one: Instance, clock: Clock) -> None:
    """A job falls due and is promoted: the floor may rise to it."""
    (job,) = await one.submit(1, delay=SECOND)
    await clock.advance(seconds=10)
    assert await promoted(one) == {job}


async def test_a_delayed_job_that_is_committed_long_after_it_was_due_is_promoted_by_the_next_tick(
    database: str, stepped: Instance, clock: Clock
) -> None:
    await one_more(stepped, clock)
    async with stranger(database) as session:
        late = await session.fetchval(DELAYED)
        for _ in range(4):
            await one_more(stepped, clock)
    assert await promoted(stepped) == {late}


async def test_a_job_that_falls_due_after_a_step_back_of_the_clock_is_promoted(stepped: Instance, clock: Clock) -> None:
    for _ in range(4):  # the floor rises behind what was in flight
        await one_more(stepped, clock)
    await clock.advance(hours=-2)
    assert await promoted(stepped) == set()
    await one_more(stepped, clock)


async def test_a_due_job_that_was_locked_for_long_is_promoted_by_the_tick_after(
    database: str, stepped: Instance, clock: Clock
) -> None:
    (locked,) = await stepped.submit(1, delay=SECOND)
    async with stranger(database) as session:
        assert await session.fetch("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", locked)
        for _ in range(4):
            await one_more(stepped, clock)
    assert await promoted(stepped) == {locked}


async def test_a_job_that_falls_due_while_a_tick_runs_is_not_taken_for_locked(
    stepped: Instance, clock: Clock, db: Connection
) -> None:
    """For a locked job the next tick waits a while; this one would be late by that."""
    await db.execute(CLOCK_OF_READS)
    meanwhile = 0
    for reads in range(12):  # one of them lies between the promotion and the end of the tick
        (job,) = await stepped.submit(1, delay=SECOND)
        await db.execute("ALTER SEQUENCE public.reads RESTART")
        await db.execute("UPDATE headgate.jobs SET run_at = $1 WHERE id = $2", clock.now + (reads + 0.5) * SECOND, job)
        tick = await stepped.ticker.run_once()
        assert not tick.due_is_locked
        assert tick.now is not None
        meanwhile += tick.next_due is not None and tick.next_due <= tick.now and not tick.promoted
        await clock.advance(hours=1)
        await promoted(stepped)
    assert meanwhile


async def test_a_due_job_that_others_have_locked_is_told_from_one_that_falls_due(
    database: str, stepped: Instance, clock: Clock
) -> None:
    (job,) = await stepped.submit(1, delay=SECOND)
    assert not (await stepped.ticker.run_once()).due_is_locked
    await clock.advance(seconds=2)
    async with stranger(database) as session:
        assert await session.fetch("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", job)
        assert (await stepped.ticker.run_once()).due_is_locked
    assert await promoted(stepped) == {job}


async def test_floors_do_rise_when_nothing_is_in_flight(stepped: Instance, clock: Clock) -> None:
    for _ in range(3):
        await one_more(stepped, clock)
    assert stepped.store._promoted.at == clock.now - timedelta(seconds=24), (
        "nine seconds late, a slack of five, a tick behind"
    )


async def test_an_attempt_whose_claim_is_committed_late_is_reaped_by_the_next_tick(
    database: str, stepped: Instance, clock: Clock
) -> None:
    await stepped.submit(1, "other")
    async with stranger(database) as session:
        late = Queue(session)
        (job,) = (await late.claim(1, "other")).ids
        for _ in range(4):
            await clock.advance(seconds=10)
            await stepped.submit(1)
            await stepped.worker(slots=1)
            assert await stepped.claimer.run_once() == 1
            await stepped.ticker.run_once()
    await clock.advance(seconds=21)
    assert (await stepped.ticker.run_once()).reaped == 1
    assert (await stepped.job(job)).state is State.RETRYING


async def test_a_lock_on_a_keys_usage_delays_only_the_promotion_of_its_jobs(
    database: str, stepped: Instance, clock: Clock
) -> None:
    limits = {"max_running_per_key": 1}
    await TopicStore(stepped.store).set_topic(stepped.tenant, "keyed", rules={}, limits=limits, actor="test", reason="")
    (keyed,) = await stepped.submit(1, "keyed", limit_key="k", delay=SECOND)
    (plain,) = await stepped.submit(1, delay=SECOND)
    await stepped.submit(1, "keyed", limit_key="k")  # the key has its row
    await clock.advance(seconds=2)
    async with stranger(database) as session:
        assert await session.fetch("SELECT FROM headgate.limit_usage WHERE limit_key = 'k' FOR UPDATE")
        assert await promoted(stepped) == {plain}
        assert await promoted(stepped) == set()
    assert await promoted(stepped) == {keyed}


async def test_a_lock_on_the_usage_of_a_limit_delays_only_the_reaping_of_its_jobs(
    database: str, stepped: Instance, clock: Clock
) -> None:
    await TopicStore(stepped.store).set_topic(
        stepped.tenant, "limited", rules={}, limits={"max_running": 5}, actor="test", reason=""
    )
    for topic in ("limited", "mail"):
        await stepped.submit(2, topic)
        await stepped.worker("", topic, slots=2)
        assert await stepped.claimer.run_once() == 2
    await clock.advance(seconds=61)
    async with stranger(database) as session:
        assert await session.fetch("SELECT FROM headgate.limit_usage FOR UPDATE")
        assert (await asyncio.wait_for(stepped.ticker.run_once(), ANSWERED)).reaped == 2
        assert (await asyncio.wait_for(stepped.ticker.run_once(), ANSWERED)).reaped == 0
    assert (await stepped.ticker.run_once()).reaped == 2


async def test_due_jobs_do_not_wait_for_the_watchdog(stepped: Instance, clock: Clock) -> None:
    await stepped.submit(1)
    await stepped.worker("dead", slots=1)
    assert await stepped.claimer.run_once() == 1
    await stepped.submit(1, delay=SECOND)
    await stepped.worker("waiting", slots=1)
    assert await stepped.claimer.run_once() == 0
    await clock.advance(seconds=61)
    hold = stepped.store.before["reap"] = Hold()
    tick = asyncio.create_task(stepped.ticker.run_once())
    await hold.reached()
    assert await stepped.claimer.run_once() == 1, "the job that fell due"
    hold.release()
    assert (await tick).reaped == 1


async def test_a_job_that_cannot_be_promoted_or_reaped_keeps_no_other_and_is_named_once(
    stepped: Instance, clock: Clock, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await stepped.submit(5)
    await stepped.worker(slots=5)
    assert await stepped.claimer.run_once() == 5
    await clock.advance(seconds=61)
    await db.execute(POISON % ids[2])
    for reaped in (4, 0, 0):
        assert (await stepped.ticker.run_once()).reaped == reaped
    await db.execute("DROP FUNCTION public.poison CASCADE")
    assert (await stepped.ticker.run_once()).reaped == 1
    assert caplog.text.count("job_stuck") == 1
    waiting = {job for job in ids if (await stepped.job(job)).state is State.RETRYING}
    assert waiting == set(ids)
    await clock.advance(hours=1)
    caplog.clear()
    await db.execute(POISON % ids[1])
    assert await promoted(stepped) == set(ids) - {ids[1]}
    assert await promoted(stepped) == await promoted(stepped) == set()
    assert caplog.text.count("job_stuck") == 1
    assert f"job_id={ids[1]} error=XX001 invalid page in block 7" in caplog.text
    await db.execute("DROP FUNCTION public.poison CASCADE")
    assert await promoted(stepped) == {ids[1]}


async def test_an_attempt_that_began_before_one_of_the_time_ahead_is_reaped(
    stepped: Instance, clock: Clock, db: Connection
) -> None:
    """The clock is set back by two hours while a job runs: what is claimed from now on began before that job."""
    queue = Queue(db)
    await queue.add(2)
    await queue.claim(1, lease=timedelta(hours=9))
    await clock.advance(hours=-2)
    for _ in range(4):  # the floor rises behind what was in flight
        await stepped.store.tick([])
    (job,) = (await queue.claim(1, lease=10 * SECOND)).ids
    await clock.advance(seconds=11)
    await stepped.store.tick([])
    assert len(await stepped.store.reap()) == 1
    assert (await stepped.job(job)).state is State.RETRYING


async def test_a_look_below_the_floors_is_one_tick_although_a_transaction_stays_open(
    database: str, stepped: Instance, clock: Clock, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an old snapshot is held, each tick that begins at the beginning walks over all that has ended since."""
    queue = Queue(db)
    await queue.add(1)
    await queue.claim(1, lease=timedelta(hours=9))
    for _ in range(4):
        await one_more(stepped, clock)
    floor = stepped.store.running_floor
    assert floor > BEGINNING
    asked: list[tuple[datetime, datetime]] = []
    ask = TickCalls._tick_rows

    async def asking(self: TickCalls, where: KeyRanges, due: datetime, running: datetime, **how: bool) -> list[TickRow]:
        asked.append((due, running))
        return await ask(self, where, due, running, **how)

    monkeypatch.setattr(TickCalls, "_tick_rows", asking)
    async with stranger(database) as session:
        await session.fetchval("SELECT pg_current_xact_id()::text")  # from now on no floor can rise
        for below in (True, False, False):
            await stepped.store.tick([], below=below)
    first, *later = asked
    assert first == (BEGINNING, BEGINNING)
    assert all(due > BEGINNING and running == floor for due, running in later), later


async def below_the_floor(stepped: Instance, clock: Clock, db: Connection, *, retried: bool = False) -> UUID:
    """A job that is due, and that ticks do not find from their floor on."""
    for _ in range(4):
        await one_more(stepped, clock)
    if retried:
        queue = Queue(db)
        (job,) = await queue.add(1, "other")
        await queue.claim(1, "other")
        await queue.settle((job, 1, Failed(error=ErrorInfo(type="ValueError"))))
    else:
        (job,) = await stepped.submit(1, delay=timedelta(hours=1))
    await db.execute("UPDATE headgate.jobs SET run_at = run_at - interval '1 day' WHERE id = $1", job)
    assert await promoted(stepped) == set(), "the floor is above it"
    return job


async def test_a_job_that_lies_below_the_floor_is_promoted_by_the_next_tick_that_looks_below(
    stepped: Instance, clock: Clock, db: Connection
) -> None:
    job = await below_the_floor(stepped, clock, db)
    stepped.scanner.floors = new_pace()
    assert await promoted(stepped) == {job}


async def test_a_job_below_the_floor_that_is_locked_when_a_tick_looks_there_is_promoted_by_the_tick_after(
    database: str, stepped: Instance, clock: Clock, db: Connection
) -> None:
    job = await below_the_floor(stepped, clock, db)
    stepped.scanner.floors = new_pace()
    async with stranger(database, "SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", job):
        assert await promoted(stepped) == set()
    assert await promoted(stepped) == {job}


async def test_a_tick_that_looks_at_no_running_jobs_does_not_count_as_one_that_looks_below(
    stepped: Instance, clock: Clock, db: Connection
) -> None:
    job = await below_the_floor(stepped, clock, db)
    stepped.scanner.floors = new_pace()
    await stepped.ticker.run_once(sweep=False, running=False)
    assert await promoted(stepped) == {job}


@pytest.mark.parametrize("retried", [False, True])
async def test_a_job_below_the_floor_is_promoted_by_the_tick_after_a_scan_of_its_own(
    stepped: Instance, clock: Clock, db: Connection, retried: bool
) -> None:
    job = await below_the_floor(stepped, clock, db, retried=retried)
    stepped.scanner.floors = new_pace(apart=True)
    assert await promoted(stepped) == set(), "ticks would have to wait for the scan"
    assert stepped.store.calls["scan_below_floors"] == 0
    await stepped.scanner.run_once()
    assert await promoted(stepped) == {job}


async def test_a_scan_that_finds_a_job_below_the_floor_brings_a_tick(
    stepped: Instance, clock: Clock, db: Connection
) -> None:
    job = await below_the_floor(stepped, clock, db)
    stepped.scanner.floors = new_pace(apart=True)
    ticks = stepped.ticker.ticks
    stepped.start("ticks", stepped.ticker.run())
    await soon(lambda: stepped.ticker.ticks > ticks, "a tick; the next one by the second is an hour away")
    assert (await stepped.job(job)).state is State.SCHEDULED
    await stepped.scanner.run_once()
    await soon(lambda: stepped.ticker.ticks > ticks + 1, "another tick")
    assert (await stepped.job(job)).state is State.PENDING


async def test_after_a_scan_that_failed_others_are_made(
    stepped: Instance, clock: Clock, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    job = await below_the_floor(stepped, clock, db)
    stepped.store.before["scan_below_floors"] = failing_with(StoreUnavailable("the database is away"))
    stepped.start("scans", stepped.scanner.run())
    now = asyncio.get_running_loop().time
    for _ in range(2):
        pace = stepped.scanner.floors = new_pace(apart=True)
        assert await promoted(stepped) == set()
        await soon(lambda pace=pace: not pace.is_due(now(), apart=True), "a scan")
    assert caplog.text.count("scan_failed error=the database is away") == 1
    assert await promoted(stepped) == {job}


@pytest.mark.parametrize("apart", [False, True])
async def test_a_running_job_below_the_floor_is_reaped_after_a_look_below(
    stepped: Instance, clock: Clock, db: Connection, apart: bool
) -> None:
    (job,) = await stepped.submit(1)
    await stepped.worker("dead", slots=1)
    assert await stepped.claimer.run_once() == 1
    for _ in range(4):
        await one_more(stepped, clock)
    await db.execute(
        """UPDATE headgate.jobs
              SET claimed_at = claimed_at - interval '1 day', lease_until = lease_until - interval '1 day'"""
    )
    assert (await stepped.ticker.run_once()).reaped == 0, "the floor is above it"
    stepped.scanner.floors = new_pace(apart=apart)
    await stepped.scanner.run_once()
    assert (await stepped.ticker.run_once()).reaped == 1
    assert (await stepped.job(job)).state is State.RETRYING


@pytest.mark.parametrize("choice", ["replace", "reschedule"])
async def test_a_job_with_a_limit_key_that_is_put_to_a_time_long_past_is_promoted_by_the_next_tick(
    stepped: Instance, clock: Clock, db: Connection, choice: str
) -> None:
    limits = {"max_running_per_key": 1}
    await TopicStore(stepped.store).set_topic(stepped.tenant, "keyed", rules={}, limits=limits, actor="test", reason="")
    for _ in range(4):
        await one_more(stepped, clock)
    queue = Queue(db)
    words = {"limit_key": "k", "unique": Unique(key="u", on_conflict=choice)}
    (job,) = await queue.add(1, "keyed", delay=timedelta(hours=1), **words)
    await queue.submit(queue.job("keyed", run_at=clock.now - timedelta(days=1), **words))
    assert await promoted(stepped) == {job}


async def test_due_jobs_do_not_wait_for_a_scan(stepped: Instance, clock: Clock) -> None:
    stepped.scanner.topics, stepped.scanner.floors = new_pace(apart=True), new_pace(apart=True)
    await stepped.worker(slots=1)
    hold = stepped.store.before["scan_topics"] = Hold()
    stepped.start("scans", stepped.scanner.run())
    await stepped.ticker.run_once()
    await hold.reached()
    await one_more(stepped, clock)
    hold.release()


def new_pace(*, apart: bool = False) -> ScanPace:
    pace = ScanPace(every=30.0, share=0.01)
    pace.apart = apart
    return pace
