"""Leases against a real PostgreSQL: kept, lost, declared again, reaped. The database's clock is in the test's hands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from pkgutil import iter_modules
from uuid import UUID

import asyncpg
import pytest

from headgate import dispatch
from headgate.dispatch.session import SessionSilent, Superseded
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.errors import OutcomeUnknown, StoreBusy, StoreUnavailable
from headgate.domain.limits import REAP_AT_ONCE
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.states import EventKind, Receipt, State
from headgate.store import verbs
from headgate.store.connect import Connection
from tests.support.dispatching import Hold, Instance, ManualClock, Worker, completing, failing_with, settle_down, soon
from tests.support.epochs import claims, counted
from tests.support.queue import Clock

AWAY = StoreUnavailable("the database is away")
MINUTE = timedelta(minutes=1)
BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom"))


@pytest.fixture
async def still(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """An instance that moves only when the test says so; leases are of a minute."""
    async with Instance(database, running=False, now=seconds) as instance:
        yield instance


@pytest.fixture
async def other(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """Another one, on the same database."""
    async with Instance(database, name="two", running=False, now=seconds) as instance:
        yield instance


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


# ---------------------------------------------------------------------- set by the claim


@pytest.mark.req("L1", "L3", "D13")
async def test_the_claim_sets_owner_worker_lease_epoch_and_attempt_together(still: Instance, db: Connection) -> None:
    worker, (job,) = await holding(still)
    row = await db.fetchrow(
        "SELECT state, owner, worker, epoch % 1024 AS claims, attempt, lease_until - claimed_at AS lease"
        " FROM headgate.jobs"
    )
    assert dict(row) == {
        "state": 1,
        "owner": still.store.instance_no,
        "worker": worker.session.worker_id,
        "claims": 1,
        "attempt": 1,
        "lease": MINUTE,
    }
    for column in ("owner", "lease_until"):
        with pytest.raises(asyncpg.CheckViolationError):
            await db.execute(f"UPDATE headgate.jobs SET {column} = NULL WHERE id = $1", job)


async def test_each_ready_may_ask_for_a_lease_of_its_own(still: Instance, db: Connection) -> None:
    await still.submit(2)
    await still.worker("short", slots=1, lease=timedelta(seconds=5))
    await still.worker("long", slots=1, lease=timedelta(hours=1))
    assert await still.claimer.run_once() == 2
    leases = await db.fetch("SELECT lease_until - claimed_at FROM headgate.jobs ORDER BY 1")
    assert [row[0] for row in leases] == [timedelta(seconds=5), timedelta(hours=1)]


# ---------------------------------------------------------------------- kept


@pytest.mark.req("O15")
async def test_a_job_shorter_than_half_its_lease_costs_no_renewal(
    still: Instance, seconds: ManualClock, clock: Clock
) -> None:
    await still.store.count_statements()
    worker, _ = await holding(still, 5)
    before = await still.store.sent()
    for _ in range(9):
        await pass_time(seconds, clock, 3)
        worker.session.mark_seen()
        assert await still.renewer.run_once() == 0
    worker.complete(worker.delivered[0])
    await still.flushed()
    await pass_time(seconds, clock, 300)
    worker.session.mark_seen()
    assert await still.renewer.run_once() == 0
    assert still.store.calls["renew"] == 0
    assert await still.store.sent() - before == still.store.calls["settle"]


@pytest.mark.req("T28", "O15")
async def test_what_a_worker_was_sent_and_has_not_started_stays_leased(
    still: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    """Nothing is known here of what runs: everything delivered is kept, for as long as the worker beats."""
    worker, jobs = await holding(still, 50)
    for _ in range(20):  # ten minutes, ten leases
        await pass_time(seconds, clock, 31)
        worker.session.mark_seen()  # a beat
        assert await still.renewer.run_once() == 50
        assert (await still.ticker.run_once()).reaped == 0
    assert still.store.calls["renew"] == 20  # one statement each time, however many jobs
    rows = await db.fetch("SELECT attempt, epoch % 1024, lease_until - headgate.clock_v1() FROM headgate.jobs")
    assert {tuple(row) for row in rows} == {(1, 1, MINUTE)}
    assert set(jobs) == set(worker.session.held)


async def test_an_extension_requested_during_a_renewal_is_not_lost(
    still: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    worker, (job,) = await holding(still)
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    hold = still.store.after["renew"] = Hold()
    renewing = asyncio.create_task(still.renewer.run_once())
    await hold.reached()
    worker.session.held[job] = (
        worker.session.held[job][0],
        3_600_000,
        seconds(),
        0,
    )  # as a beat with an extension does
    hold.release()
    assert await renewing == 1
    assert await still.renewer.run_once() == 1
    assert await db.fetchval("SELECT lease_until - headgate.clock_v1() FROM headgate.jobs") == timedelta(hours=1)


async def test_a_job_delivered_again_during_a_renewal_keeps_its_new_epoch(
    still: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (job,) = await holding(still)
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    hold = still.store.after["renew"] = Hold()
    renewing = asyncio.create_task(still.renewer.run_once())
    await hold.reached()
    await worker.report(job, 1, Abandon())
    worker.ready(1)
    assert await still.claimer.run_once() == 1
    hold.release()
    await renewing
    assert claims(worker.session.held[job][0]) == 2


async def test_a_late_outcome_of_an_old_attempt_does_not_end_the_renewals_of_the_new_one(still: Instance) -> None:
    worker, (job,) = await holding(still)
    await worker.report(job, 1, Abandon())
    worker.ready(1)
    assert await still.claimer.run_once() == 1
    assert (await worker.report(job, 1, Completed())).receipt is Receipt.STALE
    assert claims(worker.session.held[job][0]) == 2
    assert (await worker.report(job, 2, Completed())).receipt is Receipt.APPLIED
    assert not worker.session.held


async def test_renewals_that_fail_are_tried_again_and_end_no_session(
    still: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, _ = await holding(still)
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    still.store.before["renew"] = failing_with(AWAY, OutcomeUnknown("lost"))
    for _ in range(2):
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            await still.renewer.run_once()
    assert await still.renewer.run_once() == 1
    assert worker.session.ended is None


# ---------------------------------------------------------------------- silent, cancelled, lost


@pytest.mark.req("D19", "T26")
async def test_a_silent_worker_is_ended_and_its_job_reaped_within_its_lease_and_a_sweep(
    still: Instance, seconds: ManualClock, clock: Clock
) -> None:
    silent, (job,) = await holding(still, worker_id="silent")
    good = await still.worker("good")
    for _ in range(2):
        await pass_time(seconds, clock, 29)
        good.session.mark_seen()
        await still.renewer.run_once()
        await still.ticker.run_once()
    assert silent.session.ended is None
    await pass_time(seconds, clock, 3)  # 61 s of silence
    good.session.mark_seen()
    await still.renewer.run_once()
    assert isinstance(silent.session.ended, SessionSilent)
    assert good.session.ended is None
    # It has sent nothing since 0 s, so nothing was renewed either, although it counted as alive.
    assert (await still.ticker.run_once()).reaped == 1
    view = await still.job(job)
    assert (view.state, view.attempt, view.last_error.split(":")[0]) == (State.RETRYING, 1, "LeaseExpired")
    assert [event.kind for event in view.events] == [EventKind.LAPSED]


@pytest.mark.req("O15")
async def test_a_session_that_has_ended_is_not_renewed(still: Instance, seconds: ManualClock, clock: Clock) -> None:
    worker, _ = await holding(still)
    worker.session.end(SessionSilent("not heard of"))  # its stream has not noticed yet
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    assert await still.renewer.run_once() == 0
    assert still.store.calls["renew"] == 0


async def test_a_plain_stream_without_jobs_need_not_say_anything(still: Instance, seconds: ManualClock) -> None:
    plain = await still.worker("plain")
    plain.session.return_credit = lambda _: None
    seconds.advance(3_600)
    await still.renewer.run_once()
    assert plain.session.ended is None


async def test_a_plain_stream_gets_its_credit_back_when_a_job_was_reported_elsewhere(
    still: Instance, other: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (job,) = await holding(still)
    worker.session.return_credit = worker.ready
    reporter = await other.worker("w")
    assert (await reporter.report(job, 1, Completed())).receipt is Receipt.APPLIED
    assert still.free() == 0
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    await still.renewer.run_once()
    assert still.free() == 1


async def test_a_cancel_request_reaches_the_worker_by_the_tick_and_by_the_renewal(
    still: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    worker, (job,) = await holding(still)
    await verbs.cancel(db, worker.session.tenant_no, [job], who="ana", reason="")
    await still.ticker.run_once()
    assert counted((await worker.hear()).cancel) == [(job, 1)]
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    await still.renewer.run_once()
    assert counted((await worker.hear()).cancel) == [(job, 1)]
    assert (await worker.report(job, 1, BOOM)).state is State.CANCELLED


async def test_a_lost_lease_is_reported_once(
    still: Instance, other: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (job, kept) = await holding(still, 2)
    await clock.advance(seconds=61)  # only the database's: the worker and its server were asleep
    await still.store.renew({(worker.session.tenant_no, 60_000): ([kept], [worker.session.held[kept][0]])})
    assert (await other.ticker.run_once()).reaped == 1
    seconds.advance(31)
    worker.session.mark_seen()
    assert await still.renewer.run_once() == 1
    assert counted((await worker.hear()).lost) == [(job, 1)]
    assert set(worker.session.held) == {kept}
    seconds.advance(31)
    worker.session.mark_seen()
    assert await still.renewer.run_once() == 1
    await settle_down()
    assert len(worker.told) == 1


# ---------------------------------------------------------------------- coming back


@pytest.mark.req("O15", "O19")
async def test_a_worker_comes_back_to_another_instance_with_what_it_runs(
    still: Instance, other: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (running, lost, never_received) = await holding(still, 3)
    await worker.report(lost, 1, Abandon())
    worker.lose("the server died")
    back = await other.worker("w")
    epochs = await other.epochs([running, lost])
    assert await other.renewer.declare(back.session, [running, lost], epochs, 60_000) == [(lost, epochs[1])]
    abandoned = await other.store.abandon_undeclared(back.session.tenant_no, "w", [running, lost])
    assert abandoned == [never_received]
    view = await other.job(never_received)
    assert (view.state, view.attempt, claims(view.epoch)) == (State.PENDING, 0, 1)  # at no cost
    for _ in range(4):
        await pass_time(seconds, clock, 31)
        back.session.mark_seen()
        assert await other.renewer.run_once() == 1
        await other.ticker.run_once()
    assert (await back.report(running, 1, Completed(result=b"r"))).receipt is Receipt.APPLIED
    assert (await other.job(running)).attempt == 1  # nothing that ran was run again


@pytest.mark.req("O15")
async def test_what_a_twin_of_the_same_name_runs_is_not_the_returning_workers_to_abandon(
    still: Instance, other: Instance
) -> None:
    async def back_on(one: Instance, incarnation: int, held: Sequence[UUID] = ()) -> tuple[Worker, list[UUID]]:
        back = await one.worker("w", incarnation=incarnation)
        assert await one.renewer.declare(back.session, held, await one.epochs(held), 60_000) == []
        return back, await one.store.abandon_undeclared(back.session.tenant_no, back.session.claims_as, list(held))

    first, (mine,) = await holding(still, incarnation=1)
    twin, (theirs,) = await holding(other, incarnation=2)
    first.lose()
    first, abandoned = await back_on(still, 1)
    assert abandoned == [mine]
    twin.lose()
    twin, abandoned = await back_on(still, 2, [theirs])  # it takes the first one's place there
    assert (abandoned, type(first.session.ended)) == ([], Superseded)
    for where in (other, still):
        assert (await back_on(where, 1))[1] == []
    assert (await back_on(still, 0))[1] == []  # a client that sends no incarnation
    view = await still.job(theirs)
    assert (view.state, view.attempt, view.worker) == (State.RUNNING, 1, "w")
    assert (await twin.report(theirs, 1, Completed())).receipt is Receipt.APPLIED
    assert [(await still.job(job)).attempt for job in (mine, theirs)] == [0, 1]


async def test_a_worker_may_declare_more_than_fits_one_statement(
    still: Instance, other: Instance, db: Connection
) -> None:
    worker, jobs = await holding(still, 500)
    worker.lose()
    back = await other.worker("w")
    unknown = other.ids.make(6_000)
    ids = [*unknown[:3_000], *jobs, *unknown[3_000:]]
    lost = await other.renewer.declare(back.session, ids, await other.epochs(ids), 60_000)
    assert counted(lost) == [(one, 1) for one in unknown]
    assert set(back.session.held) == set(jobs)


@pytest.mark.req("D19")
async def test_the_newer_of_two_sessions_of_one_worker_wins_and_the_older_gets_the_reason(still: Instance) -> None:
    older, (job,) = await holding(still)
    older.ready(5)
    newer = await still.worker("w")
    assert isinstance(older.session.ended, Superseded)
    assert await older.session.next_part() is None
    epochs = await still.epochs([job])
    assert await still.renewer.declare(newer.session, [job], epochs, 60_000) == []
    assert still.sessions.holder(newer.session.tenant_no, job, *epochs) is newer.session
    await still.submit(3)
    newer.ready(2)
    assert await still.claimer.run_once() == 2
    assert len(newer.session.held) == 3
    older.lose()
    assert still.sessions.holder(newer.session.tenant_no, job, *epochs) is newer.session
    assert list(still.sessions) == [newer.session]


# ---------------------------------------------------------------------- the fence


@pytest.mark.req("T27", "L3", "L4", "R2", "R6", "O14")
@pytest.mark.parametrize(
    "outcome",
    [
        Completed(result=b"zombie"),
        BOOM,
        Failed(error=ErrorInfo(type="Fatal"), permanent=True),
        Nack(delay=timedelta(0), reason="no"),
        Abandon(),
        Snooze(delay=timedelta(hours=1)),
    ],
)
async def test_nothing_a_zombie_says_changes_its_successors_run(
    still: Instance, seconds: ManualClock, clock: Clock, db: Connection, outcome: Outcome
) -> None:
    zombie, (job,) = await holding(still, worker_id="zombie")
    await clock.advance(seconds=61)
    assert (await still.ticker.run_once()).reaped == 1
    await clock.advance(seconds=5)
    await still.ticker.run_once()
    successor = await still.worker("successor", slots=1)
    assert await still.claimer.run_once() == 1  # while the zombie still runs it: handlers must be idempotent
    before = await db.fetchrow("SELECT * FROM headgate.jobs")
    assert (await zombie.report(job, 1, outcome)).receipt is Receipt.STALE
    seconds.advance(31)
    epochs = await still.epochs([job])
    answers = await still.store.renew({(zombie.session.tenant_no, 60_000): ([job], epochs)})  # its beat
    assert answers[zombie.session.tenant_no, job, epochs[0]].lost
    assert await db.fetchrow("SELECT * FROM headgate.jobs") == before
    assert (await successor.report(job, 2, Completed(result=b"mine"))).receipt is Receipt.APPLIED
    assert await db.fetchval("SELECT result FROM headgate.archive") == b"mine"


@pytest.mark.req("T27")
async def test_what_a_zombie_does_not_declare_is_not_its_own_to_abandon(still: Instance, clock: Clock) -> None:
    _, (job,) = await holding(still, worker_id="zombie")
    await clock.advance(seconds=61)
    await still.ticker.run_once()
    await clock.advance(seconds=5)
    await still.ticker.run_once()
    successor = await still.worker("successor", slots=1)
    assert await still.claimer.run_once() == 1
    assert await still.store.abandon_undeclared(successor.session.tenant_no, "zombie", []) == []
    assert (await still.job(job)).state is State.RUNNING


async def test_an_outcome_after_the_lease_ran_out_counts_until_the_job_is_reaped(still: Instance, clock: Clock) -> None:
    worker, (job,) = await holding(still)
    await clock.advance(seconds=600)
    assert (await worker.report(job, 1, Completed())).receipt is Receipt.APPLIED
    assert (await still.ticker.run_once()).reaped == 0


# ---------------------------------------------------------------------- the watchdog


@pytest.mark.req("T30")
async def test_ten_thousand_lapsed_jobs_are_reaped_in_bounded_batches(
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


@pytest.mark.req("T31", "R1", "R4", "R6")
async def test_a_job_that_kills_its_worker_each_time_is_dead_after_its_attempts(
    still: Instance, clock: Clock, db: Connection
) -> None:
    (job,) = await still.submit(max_attempts=3)
    for attempt in (1, 2, 3):
        worker = await still.worker(f"w{attempt}", slots=1)
        await still.ticker.run_once()
        assert await still.claimer.run_once() == 1
        assert (await worker.take()).attempts == (attempt,)
        worker.lose("killed")
        await clock.advance(seconds=61)
        await still.ticker.run_once()
        await clock.advance(seconds=100)
    view = await still.job(job)
    assert (view.state, view.attempt, view.last_error.split(":")[0]) == (State.DEAD, 3, "LeaseExpired")
    assert view.finished_at is not None
    assert [event.kind for event in view.events] == [EventKind.LAPSED] * 3
    await still.worker("next", slots=1)
    await still.ticker.run_once()
    assert await still.claimer.run_once() == 0


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


# ---------------------------------------------------------------------- after an outage


@pytest.fixture
async def gated(database: str, seconds: ManualClock, clock: Clock) -> AsyncIterator[Instance]:
    """As server.py builds it, with the watchdog's gate: leases of a minute, beats of 20 s. Awake for a beat."""
    async with Instance(database, name="gated", running=False, now=seconds, gated=True, tick_seconds=1.0) as one:
        await one.ticker.run_once()
        await one.renewer.run_once()
        for _ in range(20):
            await pass_time(seconds, clock, 1)
            await one.ticker.run_once()
        yield one


async def lapse_of_a_stranger(one: Instance, clock: Clock) -> UUID:
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


async def test_in_quiet_times_a_lapsed_lease_is_reaped_by_the_next_tick(gated: Instance, clock: Clock) -> None:
    await lapse_of_a_stranger(gated, clock)
    assert (await gated.ticker.run_once()).reaped == 1


@pytest.mark.parametrize("error", [AWAY, OutcomeUnknown("lost"), StoreBusy("no connection left")])
async def test_after_an_outage_nothing_is_reaped_for_a_beat(
    gated: Instance, seconds: ManualClock, clock: Clock, error: StoreUnavailable
) -> None:
    await lapse_of_a_stranger(gated, clock)
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
    await lapse_of_a_stranger(gated, clock)
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


def test_a_process_that_was_stopped_for_long_does_not_reap_when_it_goes_on(seconds: ManualClock) -> None:
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


@pytest.mark.req("F32", "F53")
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


@pytest.mark.req("F50")
async def test_a_step_back_of_the_clock_delays_nothing_that_comes_after_it(
    still: Instance, seconds: ManualClock, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    holder, (held,) = await holding(still)
    (early,) = await still.submit(1, delay=timedelta(seconds=1))
    await still.ticker.run_once()
    await clock.advance(seconds=2)
    assert [job for _, _, job in (await still.ticker.run_once()).promoted] == [early]
    await clock.advance(minutes=-10)
    (later,) = await still.submit(1, delay=timedelta(seconds=1))
    with caplog.at_level("WARNING"):
        assert (await still.ticker.run_once()).stepped_back == timedelta(minutes=10)
    assert "clock_stepped_back seconds=600" in caplog.text
    await clock.advance(seconds=2)
    tick = await still.ticker.run_once()
    assert (tick.stepped_back, [job for _, _, job in tick.promoted]) == (None, [later])
    # What begins now is older than what ran before: its lease runs out all the same, and only that one.
    worker = await still.worker("another", slots=1)
    assert await still.claimer.run_once() == 1
    await worker.take()
    worker.lose()
    await pass_time(seconds, clock, 31)
    holder.session.mark_seen()
    assert await still.renewer.run_once() == 1
    await pass_time(seconds, clock, 30)
    assert (await still.ticker.run_once()).reaped == 1
    assert (await still.job(held)).attempt == 1


# Those that lived through the step have seen it; one that is started after it has not.
@pytest.mark.parametrize("lived_through", [True, False])
@pytest.mark.parametrize("lease", [60, 3600])
async def test_after_a_step_back_a_dead_workers_lease_lasts_no_longer_than_it_would_now(
    still: Instance, other: Instance, clock: Clock, db: Connection, lease: int, lived_through: bool
) -> None:
    worker, (dead,) = await holding(still)
    await still.ticker.run_once()
    await clock.advance(seconds=20)
    tenant = worker.session.tenant_no
    if lease != 60:  # its handler has asked for longer
        (epoch,) = worker.delivered[0].epochs
        assert await still.store.renew({(tenant, lease * 1000): ([dead], [epoch])}) == {}
    worker.lose()
    before = await db.fetchval("SELECT lease_until FROM headgate.jobs")
    watch = still if lived_through else other
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
    still: Instance, clock: Clock, db: Connection
) -> None:
    worker, (job,) = await holding(still)
    (epoch,) = worker.delivered[0].epochs
    for lease_ms in (3_600_000, 60_000):
        assert await still.store.renew({(worker.session.tenant_no, lease_ms): ([job], [epoch])}) == {}
    await clock.advance(seconds=61)
    assert (await still.ticker.run_once()).reaped == 0
    row = await db.fetchrow("SELECT lease_ms, lease_until - headgate.clock_v1() AS left FROM headgate.jobs")
    assert (row["lease_ms"], row["left"]) == (3_600_000, timedelta(seconds=3539))
    await clock.advance(seconds=3480)  # 59 s are left of it: the short one takes over
    assert await still.store.renew({(worker.session.tenant_no, 60_000): ([job], [epoch])}) == {}
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
    still: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, _ = await holding(still)
    await pass_time(seconds, clock, 31)
    assert await still.renewer.run_once() == 0, "its beat at 20 s did not come"
    await pass_time(seconds, clock, 25)
    worker.session.mark_seen()
    assert await still.renewer.run_once() == 1
    await pass_time(seconds, clock, 30)
    assert (await still.ticker.run_once()).reaped == 0


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
