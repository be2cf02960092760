"""Workers whose connection was lost: their jobs run again after the grace, and those of who comes back never do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.dispatch import lease_calls
from headgate.dispatch.lost_workers import FREE_SECONDS, reconnect_grace_of
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_ends import SessionSilent
from headgate.dispatch.session_rules import Hello, OutcomeFrame
from headgate.dispatch.watchdog import WatchdogGate
from headgate.dispatch.worker_calls import WorkerCalls
from headgate.domain.errors import InvalidSetting, StoreUnavailable
from headgate.domain.identity import Identity, Scope
from headgate.domain.states import EventKind, State
from headgate.store.connect import Connection
from tests.support.dispatch_waits import SOON, ManualClock
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.queue import Clock, stranger
from tests.support.watched_store import Hold

GRACE = 10.0
OURS = Identity(tenant="acme", subject="test", scopes=frozenset(Scope))
LEFT = "SELECT id, owner, lease_until > headgate.clock_v1() AS live FROM headgate.jobs WHERE state = 1 ORDER BY id"


@pytest.fixture
async def stepped(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """An instance that moves only when the test calls it; leases are of a minute, the grace of ten seconds."""
    async with Instance(database, running=False, now=seconds, reconnect_grace=GRACE) as instance:
        yield instance


@pytest.fixture
async def other(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """Another one, on the same database."""
    async with Instance(database, name="two", running=False, now=seconds, reconnect_grace=GRACE) as instance:
        yield instance


class Time:
    """Passes for servers and database alike, in steps in which every instance looks for lost workers."""

    def __init__(self, seconds: ManualClock, clock: Clock, *instances: Instance) -> None:
        self._seconds, self._clock, self._instances = seconds, clock, instances

    async def jump(self, span: float) -> None:
        """In one step, as for a process that stalled."""
        self._seconds.advance(span)
        await self._clock.advance(seconds=span)

    async def passes(self, span: float) -> int:
        """Returns how many leases were ended."""
        expired = 0
        for _ in range(round(span * 2)):
            await self.jump(0.5)
            for instance in self._instances:
                expired += await instance.lost_workers.run_once()
        return expired


async def holding(one: Instance, count: int = 1, *, lease: timedelta | None = None) -> tuple[Worker, list[UUID]]:
    """A worker that was sent new jobs."""
    await one.submit(count)
    worker = await one.worker("w", slots=count, incarnation=7, lease=lease)
    assert await one.claimer.run_once() == count
    return worker, list((await worker.take()).ids)


async def comes_back(one: Instance, ids: Sequence[UUID], *, incarnation: int = 7) -> WorkerSession:
    """The worker connects, and declares these."""
    epochs = await one.epochs(ids)
    session, lost = await one.rules.open(
        OURS,
        Hello(
            worker_id="w",
            incarnation=incarnation,
            resumed=True,
            declared=len(ids),
            ids=lambda: list(ids),
            epochs=epochs,
        ),
    )
    assert lost == []
    return session


async def still_leased(db: Connection) -> list[UUID]:
    return [row["id"] for row in await db.fetch(LEFT) if row["live"]]


# ---------------------------------------------------------------------- who does not come back


async def test_jobs_of_a_lost_worker_run_again_after_the_grace_at_the_cost_of_an_attempt(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 3)
    time = Time(seconds, clock, stepped)
    await time.jump(20)
    worker.disconnect()
    assert await time.passes(GRACE - 1) == 0
    assert await still_leased(db) == ids
    assert await time.passes(2) == 3
    await time.jump(0.001)
    assert (await stepped.ticker.run_once()).reaped == 3
    assert await stepped.states() == {State.RETRYING: 3}
    job = await stepped.job(ids[0])
    assert (job.attempt, job.events[-1].kind) == (1, EventKind.LEASE_EXPIRED)
    assert job.last_error == "WorkerLost: the worker lost its connection and did not reconnect in time"
    assert len(stepped.lost_workers) == 0


async def test_a_longer_lease_or_an_extension_is_no_longer_grace(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, _ = await holding(stepped, lease=timedelta(hours=1))
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    assert await time.passes(GRACE + 1) == 1
    assert await still_leased(db) == []


async def test_the_jobs_of_an_older_process_are_released_when_another_takes_its_name(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    """As when a container was restarted on another machine: the old connection is open, and no one is there."""
    worker, _ = await holding(stepped)
    await comes_back(stepped, (), incarnation=8)
    worker.disconnect()  # superseded by the other
    assert await Time(seconds, clock, stepped).passes(GRACE + 1) == 1
    assert await still_leased(db) == []


async def test_a_renewal_under_way_when_the_session_ends_is_no_return(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, _ = await holding(stepped)
    time = Time(seconds, clock, stepped)
    await time.jump(31)
    worker.session.mark_seen()
    renewal = Hold()
    stepped.store.before["renew"] = renewal
    renewing = asyncio.create_task(stepped.renewer.run_once())
    await renewal.reached()
    worker.disconnect()
    await time.jump(1)
    renewal.release()
    assert await renewing == 1
    assert await time.passes(GRACE + 2) == 1


async def test_many_jobs_are_released_in_bounded_statements_and_reaped_without_a_pause(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker = await stepped.worker("w", slots=2_500, incarnation=7)
    await stepped.submit(2_500)
    while await stepped.claimer.run_once():
        pass
    while len(worker.session.unwritten()):
        await worker.take()
    worker.disconnect()
    assert await Time(seconds, clock, stepped).passes(GRACE) == 2_500
    assert stepped.store.calls["expire_lost"] == 2
    await clock.advance(seconds=0.001)
    reaped = 0
    while stepped.times._next_full == 0.0:  # one after the other, not one a second
        stepped.times.begin()
        reaped += (await stepped.ticker.run_once()).reaped
    assert reaped == 2_500


async def test_a_locked_job_is_tried_again_and_keeps_no_other(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 3)
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    async with stepped.store.lane("upkeep").use() as locker, locker.transaction():
        await locker.execute("SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", ids[0])
        assert await time.passes(GRACE + 1) == 2
        assert len(stepped.lost_workers) == 1
    assert await time.passes(FREE_SECONDS) == 0  # a worker that is back takes it now
    assert await time.passes(2 * FREE_SECONDS) == 1
    assert len(stepped.lost_workers) == 0
    assert await still_leased(db) == []


# ---------------------------------------------------------------------- who comes back


async def test_a_worker_that_comes_back_within_the_grace_keeps_what_it_runs(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 2)
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    assert await time.passes(GRACE - 1) == 0
    await comes_back(stepped, ids)
    assert await time.passes(2 * GRACE) == 0
    assert await still_leased(db) == ids


@pytest.mark.parametrize("lease", [None, timedelta(hours=1)])
@pytest.mark.parametrize("noticed", ["before", "after"])
async def test_a_worker_that_went_to_another_instance_keeps_what_it_runs(
    stepped: Instance,
    other: Instance,
    db: Connection,
    seconds: ManualClock,
    clock: Clock,
    lease: timedelta | None,
    noticed: str,
) -> None:
    """Also when the instance that it left notices the loss long after the worker has connected to the other."""
    worker, ids = await holding(stepped, 2, lease=lease)
    time = Time(seconds, clock, stepped, other)
    if noticed == "before":
        worker.disconnect()
        await time.passes(3)
    await comes_back(other, ids)
    if noticed == "after":
        await time.passes(15)
        worker.disconnect()
    assert await time.passes(2 * GRACE - 5) == 0
    assert await still_leased(db) == ids
    assert {row["owner"] for row in await db.fetch(LEFT)} == {other.store.instance_no}


async def test_a_worker_that_is_connecting_at_the_end_of_the_grace_keeps_what_it_runs(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 2)
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    await time.passes(GRACE - 1)
    greeting = Hold()
    stepped.store.after["renew"] = greeting  # committed, and not yet known here
    connecting = asyncio.create_task(comes_back(stepped, ids))
    await greeting.reached()
    async with asyncio.timeout(SOON.total_seconds()):
        assert await time.passes(3) == 0
    greeting.release()
    await connecting
    assert await time.passes(GRACE + 1) == 0
    assert await still_leased(db) == ids


async def test_a_worker_that_connects_while_its_leases_are_being_ended_keeps_what_it_runs(
    stepped: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 2)
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    ending = Hold()
    stepped.store.before["expire_lost"] = ending
    passing = asyncio.create_task(time.passes(GRACE + 1))
    await ending.reached()
    connecting = asyncio.create_task(comes_back(stepped, ids))
    while stepped.sessions.find(worker.session.tenant_no, "w") is None:
        await asyncio.sleep(0.001)
    ending.release()
    await connecting  # its renewal comes after, and takes the leases back
    await passing
    assert await still_leased(db) == ids
    assert await time.passes(GRACE + 1) == 0


async def test_unary_heartbeats_after_the_loss_keep_what_is_held(
    stepped: Instance, other: Instance, db: Connection, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 2)
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    await time.passes(5)
    epochs = await stepped.epochs(ids)
    await WorkerCalls(other.rules).heartbeat(OURS, "w", ids[:1], epochs[:1], lease_seconds=0, progress=())
    assert await time.passes(GRACE) == 1
    assert await still_leased(db) == ids[:1]


async def test_a_job_whose_outcome_is_being_written_waits_for_it(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, ids = await holding(stepped, 2)
    time = Time(seconds, clock, stepped)
    writing = Hold()
    stepped.store.before["settle"] = writing
    frame = OutcomeFrame(
        seq=1, ids=ids[:1], epochs=await stepped.epochs(ids[:1]), results=(), others=(), indexes=[0], refused=(), size=1
    )
    stepped.rules.report(worker.session, frame)
    await writing.reached()
    worker.disconnect()
    assert await time.passes(GRACE + 1) == 1  # the other one
    await stepped.ticker.run_once()
    writing.release()
    await stepped.reach(1, State.COMPLETED)


# ---------------------------------------------------------------------- what is no lost worker


async def test_time_in_which_the_server_stalled_is_not_counted(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, _ = await holding(stepped)
    time = Time(seconds, clock, stepped)
    worker.disconnect()
    await time.jump(30)
    assert await time.passes(GRACE - 2) == 0
    assert await time.passes(2) == 1


async def test_time_in_which_the_database_was_away_is_not_counted(
    database: str, seconds: ManualClock, clock: Clock
) -> None:
    async with Instance(database, running=False, now=seconds, reconnect_grace=GRACE, gated=True) as stepped:
        worker, _ = await holding(stepped)
        time = Time(seconds, clock, stepped)
        worker.disconnect()
        await time.passes(GRACE - 1)
        stepped.store.before["tick"] = _away
        with pytest.raises(StoreUnavailable):
            await stepped.ticker.run_once()
        assert isinstance(stepped.watchdog, WatchdogGate)
        assert await time.passes(GRACE - 1) == 0
        assert await time.passes(2) == 1


async def _away() -> None:
    raise StoreUnavailable("the database is away")


async def test_silent_sessions_plain_streams_and_idle_workers_are_not_lost(stepped: Instance) -> None:
    worker, _ = await holding(stepped)
    worker.session.end(SessionSilent("it sent nothing"))
    worker.disconnect()
    await stepped.submit(1)
    calls = WorkerCalls(stepped.rules)
    stream = await calls.open_stream(OURS, "plain", ["mail"], lease_seconds=0, max_in_flight=1)
    assert await stepped.claimer.run_once() == 1
    await stream.next_part()
    stream.written()
    stepped.rules.close(stream, "gone")
    assert stream.held
    (await stepped.worker("idle", incarnation=9)).disconnect()
    assert len(stepped.lost_workers) == 0


def test_the_grace_is_shorter_than_the_lease_or_off() -> None:
    def grace(asked: float | None, lease: float) -> timedelta | None:
        wanted = None if asked is None else timedelta(seconds=asked)
        return reconnect_grace_of(wanted, lease=timedelta(seconds=lease))

    assert grace(None, 60) == timedelta(seconds=10)
    assert grace(None, 10) is None
    assert grace(59.9, 60) == timedelta(seconds=59.9)
    with pytest.raises(InvalidSetting, match=r"--reconnect-grace: 60 s is not shorter than the lease of 60 s"):
        grace(60, 60)


async def test_a_locked_job_of_another_attempt_is_neither_lost_nor_tried_again(
    stepped: Instance, database: str, db: Connection
) -> None:
    _, (job,) = await holding(stepped)
    tenant_no, epoch = await db.fetchrow("SELECT tenant_no, epoch FROM headgate.jobs WHERE id = $1", job)
    async with stranger(database, "SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", job):
        for given, locked in ((epoch, {job}), (epoch - 1, set())):
            found = await stepped.store.expire_lost(tenant_no, [job], [given], lost_ms=0, end=True)
            assert (found.lost, found.locked, found.moved) == (0, locked, set())


@pytest.mark.parametrize("back", ["nowhere", "here", "elsewhere"])
async def test_the_leases_of_a_worker_that_is_found_end_in_no_later_part(
    stepped: Instance, other: Instance, db: Connection, monkeypatch: pytest.MonkeyPatch, back: str
) -> None:
    """Of very many jobs, some at a time: as soon as the worker is here again, or one job is found elsewhere."""
    monkeypatch.setattr(lease_calls, "ROWS_AT_ONCE", 1)
    _, jobs = await holding(stepped, 3)
    rows = await db.fetch("SELECT id, epoch, tenant_no FROM headgate.jobs ORDER BY id")
    if back == "elsewhere":
        await db.execute("UPDATE headgate.jobs SET owner = $1 WHERE id = $2", other.store.instance_no, rows[0][0])
    found = await stepped.renewer.calls.expire_lost(
        rows[0]["tenant_no"],
        [(row["id"], row["epoch"]) for row in rows],
        lost_ms=lambda: 0,
        is_lost=iter([True, False, False] if back == "here" else [True] * 3).__next__,
        end=True,
    )
    assert found.lost == {"nowhere": 3, "here": 1, "elsewhere": 0}[back]
    assert sum(row["live"] for row in await db.fetch(LEFT)) == len(jobs) - found.lost
