"""Leases that end: silent workers, cancelled jobs, workers that return, and the fence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.dispatch.session_ends import SessionSilent, Superseded
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.states import EventKind, Receipt, State
from headgate.store import verbs
from headgate.store.connect import Connection
from tests.integration.leases.leasing import holding, pass_time
from tests.support.dispatch_waits import ManualClock, settle_down
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.epochs import claims, counted
from tests.support.queue import Clock

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom"))


# ---------------------------------------------------------------------- silent, cancelled, lost


@pytest.mark.req("D19", "T26")
async def test_a_silent_worker_is_ended_and_its_job_reaped_within_its_lease_and_a_sweep(
    stepped: Instance, seconds: ManualClock, clock: Clock
) -> None:
    silent, (job,) = await holding(stepped, worker_id="silent")
    good = await stepped.worker("good")
    for _ in range(2):
        await pass_time(seconds, clock, 29)
        good.session.mark_seen()
        await stepped.renewer.run_once()
        await stepped.ticker.run_once()
    assert silent.session.ended is None
    await pass_time(seconds, clock, 3)  # 61 s of silence
    good.session.mark_seen()
    await stepped.renewer.run_once()
    assert isinstance(silent.session.ended, SessionSilent)
    assert good.session.ended is None
    # It has sent nothing since 0 s, so nothing was renewed either, although it counted as alive.
    assert (await stepped.ticker.run_once()).reaped == 1
    view = await stepped.job(job)
    assert (view.state, view.attempt, view.last_error.split(":")[0]) == (State.RETRYING, 1, "LeaseExpired")
    assert [event.kind for event in view.events] == [EventKind.LEASE_EXPIRED]


@pytest.mark.req("O15")
async def test_a_session_that_has_ended_is_not_renewed(stepped: Instance, seconds: ManualClock, clock: Clock) -> None:
    worker, _ = await holding(stepped)
    worker.session.end(SessionSilent("not heard of"))  # its stream has not noticed yet
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    assert await stepped.renewer.run_once() == 0
    assert stepped.store.calls["renew"] == 0


async def test_a_plain_stream_without_jobs_need_not_say_anything(stepped: Instance, seconds: ManualClock) -> None:
    plain = await stepped.worker("plain")
    plain.session.return_credit = lambda _: None
    seconds.advance(3_600)
    await stepped.renewer.run_once()
    assert plain.session.ended is None


async def test_a_plain_stream_gets_its_credit_back_when_a_job_was_reported_elsewhere(
    stepped: Instance, other: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (job,) = await holding(stepped)
    worker.session.return_credit = worker.ready
    reporter = await other.worker("w")
    assert (await reporter.report(job, 1, Completed())).receipt is Receipt.APPLIED
    assert stepped.free() == 0
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    await stepped.renewer.run_once()
    assert stepped.free() == 1


async def test_a_cancel_request_reaches_the_worker_by_the_tick_and_by_the_renewal(
    stepped: Instance, seconds: ManualClock, clock: Clock, db: Connection
) -> None:
    worker, (job,) = await holding(stepped)
    for _ in range(3):
        await stepped.ticker.run_once()
    assert stepped.store.running_floor == clock.now, "ticks begin to look at this very attempt"
    await verbs.cancel(db, worker.session.tenant_no, [job], who="ana", reason="")
    await stepped.ticker.run_once()
    assert counted((await worker.hear()).cancel) == [(job, 1)]
    await pass_time(seconds, clock, 31)
    worker.session.mark_seen()
    await stepped.renewer.run_once()
    assert counted((await worker.hear()).cancel) == [(job, 1)]
    assert (await worker.report(job, 1, BOOM)).state is State.CANCELLED


async def test_a_lost_lease_is_reported_once(
    stepped: Instance, other: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (job, kept) = await holding(stepped, 2)
    await clock.advance(seconds=61)  # only the database's: the worker and its server were asleep
    await stepped.store.renew({(worker.session.tenant_no, 60_000): ([kept], [worker.session.held[kept][0]])})
    assert (await other.ticker.run_once()).reaped == 1
    seconds.advance(31)
    worker.session.mark_seen()
    assert await stepped.renewer.run_once() == 1
    assert counted((await worker.hear()).lost) == [(job, 1)]
    assert set(worker.session.held) == {kept}
    seconds.advance(31)
    worker.session.mark_seen()
    assert await stepped.renewer.run_once() == 1
    await settle_down()
    assert len(worker.told) == 1


# ---------------------------------------------------------------------- coming back


@pytest.mark.req("O15", "O19")
async def test_a_worker_comes_back_to_another_instance_with_what_it_runs(
    stepped: Instance, other: Instance, seconds: ManualClock, clock: Clock
) -> None:
    worker, (running, lost, never_received) = await holding(stepped, 3)
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
    stepped: Instance, other: Instance
) -> None:
    async def back_on(one: Instance, incarnation: int, held: Sequence[UUID] = ()) -> tuple[Worker, list[UUID]]:
        back = await one.worker("w", incarnation=incarnation)
        assert await one.renewer.declare(back.session, held, await one.epochs(held), 60_000) == []
        return back, await one.store.abandon_undeclared(back.session.tenant_no, back.session.claims_as, list(held))

    first, (mine,) = await holding(stepped, incarnation=1)
    twin, (theirs,) = await holding(other, incarnation=2)
    first.lose()
    first, abandoned = await back_on(stepped, 1)
    assert abandoned == [mine]
    twin.lose()
    twin, abandoned = await back_on(stepped, 2, [theirs])  # it takes the first one's place there
    assert (abandoned, type(first.session.ended)) == ([], Superseded)
    for where in (other, stepped):
        assert (await back_on(where, 1))[1] == []
    assert (await back_on(stepped, 0))[1] == []  # a client that sends no incarnation
    view = await stepped.job(theirs)
    assert (view.state, view.attempt, view.worker) == (State.RUNNING, 1, "w")
    assert (await twin.report(theirs, 1, Completed())).receipt is Receipt.APPLIED
    assert [(await stepped.job(job)).attempt for job in (mine, theirs)] == [0, 1]


async def test_a_worker_may_declare_more_than_fits_one_statement(
    stepped: Instance, other: Instance, db: Connection
) -> None:
    worker, jobs = await holding(stepped, 500)
    worker.lose()
    back = await other.worker("w")
    unknown = other.ids.make(6_000)
    ids = [*unknown[:3_000], *jobs, *unknown[3_000:]]
    lost = await other.renewer.declare(back.session, ids, await other.epochs(ids), 60_000)
    assert counted(lost) == [(one, 1) for one in unknown]
    assert set(back.session.held) == set(jobs)


@pytest.mark.req("D19")
async def test_the_newer_of_two_sessions_of_one_worker_wins_and_the_older_gets_the_reason(stepped: Instance) -> None:
    older, (job,) = await holding(stepped)
    older.ready(5)
    newer = await stepped.worker("w")
    assert isinstance(older.session.ended, Superseded)
    assert await older.session.next_part() is None
    epochs = await stepped.epochs([job])
    assert await stepped.renewer.declare(newer.session, [job], epochs, 60_000) == []
    assert stepped.sessions.holder(newer.session.tenant_no, job, *epochs) is newer.session
    await stepped.submit(3)
    newer.ready(2)
    assert await stepped.claimer.run_once() == 2
    assert len(newer.session.held) == 3
    older.lose()
    assert stepped.sessions.holder(newer.session.tenant_no, job, *epochs) is newer.session
    assert list(stepped.sessions) == [newer.session]


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
async def test_frames_of_a_worker_that_lost_its_lease_do_not_change_the_next_run(
    stepped: Instance, seconds: ManualClock, clock: Clock, db: Connection, outcome: Outcome
) -> None:
    zombie, (job,) = await holding(stepped, worker_id="zombie")
    await clock.advance(seconds=61)
    assert (await stepped.ticker.run_once()).reaped == 1
    await clock.advance(seconds=5)
    await stepped.ticker.run_once()
    successor = await stepped.worker("successor", slots=1)
    assert await stepped.claimer.run_once() == 1  # while the zombie still runs it: handlers must be idempotent
    before = await db.fetchrow("SELECT * FROM headgate.jobs")
    assert (await zombie.report(job, 1, outcome)).receipt is Receipt.STALE
    seconds.advance(31)
    epochs = await stepped.epochs([job])
    answers = await stepped.store.renew({(zombie.session.tenant_no, 60_000): ([job], epochs)})  # its beat
    assert answers[zombie.session.tenant_no, job, epochs[0]].lost
    assert await db.fetchrow("SELECT * FROM headgate.jobs") == before
    assert (await successor.report(job, 2, Completed(result=b"mine"))).receipt is Receipt.APPLIED
    assert await db.fetchval("SELECT result FROM headgate.archive") == b"mine"


@pytest.mark.req("T27")
async def test_what_a_zombie_does_not_declare_is_not_its_own_to_abandon(stepped: Instance, clock: Clock) -> None:
    _, (job,) = await holding(stepped, worker_id="zombie")
    await clock.advance(seconds=61)
    await stepped.ticker.run_once()
    await clock.advance(seconds=5)
    await stepped.ticker.run_once()
    successor = await stepped.worker("successor", slots=1)
    assert await stepped.claimer.run_once() == 1
    assert await stepped.store.abandon_undeclared(successor.session.tenant_no, "zombie", []) == []
    assert (await stepped.job(job)).state is State.RUNNING


async def test_an_outcome_after_the_lease_ran_out_counts_until_the_job_is_reaped(
    stepped: Instance, clock: Clock
) -> None:
    worker, (job,) = await holding(stepped)
    await clock.advance(seconds=600)
    assert (await worker.report(job, 1, Completed())).receipt is Receipt.APPLIED
    assert (await stepped.ticker.run_once()).reaped == 0
