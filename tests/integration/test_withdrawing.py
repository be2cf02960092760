"""Who may be dealt what: credit that is withdrawn or kept aside, jobs too heavy for one claim, epochs that meet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.dispatch.delivery import Delivery
from headgate.dispatch.demand import CLAIM_BYTES
from headgate.dispatch.outcome_writes import OutcomeWrite
from headgate.dispatch.outcomes import MOST_REFUSALS
from headgate.dispatch.session import FRAME_BYTES, SESSION_BYTES
from headgate.domain.dispatching import Renewal
from headgate.domain.errors import HeadgateError, StoreError
from headgate.domain.outcomes import Abandon, Completed, Nack, Outcome
from headgate.domain.states import State
from headgate.store import leases
from headgate.store.connect import Connection, connect
from tests.support.dispatch_waits import settle_down, soon
from tests.support.dispatch_workers import Worker
from tests.support.dispatching import Instance
from tests.support.epochs import claims, counted, epochs_of
from tests.support.queue import Queue
from tests.support.watched_store import Hold, failing_with

MEBIBYTE = 1 << 20
# A result that a column could hold and the table will not: what no check of ours can foresee.
POISON = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE check_violation; END $$;
CREATE TRIGGER poison BEFORE INSERT ON headgate.archive FOR EACH ROW WHEN (NEW.result = 'poison')
    EXECUTE FUNCTION public.refuse();
CREATE TRIGGER poison BEFORE INSERT ON headgate.job_events FOR EACH ROW WHEN (NEW.reason = 'poison')
    EXECUTE FUNCTION public.refuse();"""


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def _states(one: Instance, jobs: Sequence[UUID]) -> list[tuple[State, int, int]]:
    views = [await one.job(job) for job in jobs]
    return [(view.state, view.attempt, claims(view.epoch)) for view in views]


# ---------------------------------------------------------------------- withdrawn credit


async def test_who_withdraws_is_given_nothing_more_and_what_was_not_written_goes_back(stepped: Instance) -> None:
    jobs = await stepped.submit(6)
    leaving = await stepped.worker("leaving", slots=3)
    assert await stepped.claimer.run_once() == 3
    await leaving.take()  # on the wire
    leaving.ready(2)
    assert await stepped.claimer.run_once() == 2  # queued
    leaving.ready(7)
    stepped.demands.withdraw(leaving.session)
    assert (stepped.free(), set(leaving.session.held)) == (0, set(jobs[:3]))
    await stepped.flushed()
    states = await _states(stepped, jobs)
    assert states == [(State.RUNNING, 1, 1)] * 3 + [(State.PENDING, 0, 1)] * 2 + [(State.PENDING, 0, 0)]
    assert await stepped.claimer.run_once() == 0
    leaving.ready(1)  # it has thought better of it
    assert await stepped.claimer.run_once() == 1


async def test_a_claim_in_flight_gives_nothing_to_a_session_that_withdrew_meanwhile(
    one: Instance,
) -> None:
    hold = one.store.after["claim"] = Hold()
    leaving = await one.worker("leaving", slots=5)
    jobs = await one.submit(3)
    await hold.reached()
    one.demands.withdraw(leaving.session)
    leaving.ready(1)
    del one.store.after["claim"]
    hold.release()
    (only,) = (await leaving.take()).ids
    assert only in jobs
    await one.flushed()
    await settle_down()
    assert one.free() == 0  # neither the five it withdrew nor more than the one it asked for
    assert sorted(state for state, _, _ in await _states(one, jobs)) == [State.PENDING, State.PENDING, State.RUNNING]
    assert {attempt for state, attempt, _ in await _states(one, jobs) if state is State.PENDING} == {0}


async def test_a_quiet_worker_keeps_its_credit_for_the_day_it_is_wanted_again(one: Instance) -> None:
    hold = one.store.after["claim"] = Hold()
    worker = await one.worker("quiet", slots=5)
    await one.submit(3)
    await hold.reached()
    one.demands.quiet(worker.session)
    worker.ready(2)  # as its handlers end
    one.demands.quiet(worker.session)  # twice is once
    del one.store.after["claim"]
    hold.release()
    await one.flushed()
    await settle_down()
    assert (one.free(), sum(worker.session.kept.values()), worker.session.held) == (0, 7, {})
    other = await one.worker("other", slots=3)
    assert len(await _all(other, 3)) == 3
    one.demands.resume_worker(worker.session)
    await one.submit(9)
    assert len(await _all(worker, 7)) == 7
    await settle_down()
    assert (one.free(), worker.session.kept) == (0, {})


async def test_a_worker_made_quiet_and_wanted_again_during_one_claim_loses_no_credit(one: Instance) -> None:
    hold = one.store.after["claim"] = Hold()
    worker = await one.worker("flickers", slots=5)
    await one.submit(5)
    await hold.reached()
    one.demands.quiet(worker.session)
    one.demands.resume_worker(worker.session)
    del one.store.after["claim"]
    hold.release()
    assert len(await _all(worker, 5)) == 5
    assert one.free() == 0


async def _all(worker: Worker, count: int) -> list[UUID]:
    got: list[UUID] = []
    while len(got) < count:
        got += (await worker.take()).ids
    return got


# ---------------------------------------------------------------------- what was written


async def test_a_frame_whose_write_was_cut_short_goes_back_at_no_cost(stepped: Instance) -> None:
    jobs = await stepped.submit(2)
    worker = await stepped.worker("cut", slots=1)
    await stepped.claimer.run_once()
    first = await worker.session.next_part()
    assert isinstance(first, Delivery)
    worker.session.written()
    worker.ready(1)
    await stepped.claimer.run_once()
    assert isinstance(await worker.session.next_part(), Delivery)  # and its write never returns
    assert worker.session.take_unsent() == []  # as long as the session lives, it may
    worker.lose()
    await stepped.flushed()
    assert await _states(stepped, jobs) == [(State.RUNNING, 1, 1), (State.PENDING, 0, 1)]


# ---------------------------------------------------------------------- what a beat says


async def test_a_beat_ends_the_renewal_of_what_the_worker_had_and_holds_no_more(stepped: Instance) -> None:
    dropped, kept, reported, later = await stepped.submit(4)
    worker = await stepped.worker("w", slots=3)
    await stepped.claimer.run_once()
    seen = (await worker.take()).seq
    assert seen == 1
    number = worker.session.reporting([reported])
    worker.ready(1)
    await stepped.claimer.run_once()  # on its way while the worker beats
    epoch = worker.session.held[kept][0]
    worker.session.keep_only({(kept, epoch)}, seen=seen)
    assert set(worker.session.held) == {kept, reported, later}
    worker.session.reported(number)
    worker.session.keep_only({(kept, epoch + 1)}, seen=seen)  # another epoch is another attempt
    assert set(worker.session.held) == {later}
    assert dropped not in worker.session.held


async def test_of_a_delivery_in_several_frames_only_the_last_has_its_number(stepped: Instance) -> None:
    await stepped.submit(5, payload=bytes(FRAME_BYTES // 2))
    worker = await stepped.worker("w", slots=5)
    assert await stepped.claimer.run_once() == 5
    numbers = [(await worker.take()).seq for _ in range(3)]
    assert numbers == [0, 0, 1]


@pytest.mark.req("D21")
async def test_two_epochs_of_one_job_in_one_renewal_are_answered_apart(queue: Queue) -> None:
    (job,) = await queue.add()
    await queue.claim()
    await queue.settle((job, 1, Abandon()))
    await queue.claim()
    tenant = await queue.tenant_no()
    (old,) = await epochs_of(queue.db, [job])
    for epochs in ([old, old + 1], [old + 1, old]):
        held = leases.Held(tenant_no=tenant, ids=[job, job], epochs=epochs, lease_ms=60_000)
        assert await leases.renew(queue.db, [held]) == {(tenant, job, old): Renewal(lost=True, cancel=False)}


async def test_of_two_sessions_renewed_at_once_the_old_holder_loses_the_job_and_the_new_one_keeps_it(
    stepped: Instance,
) -> None:
    (job,) = await stepped.submit()
    older = await stepped.worker("older", slots=1, lease=timedelta(seconds=1))
    await stepped.claimer.run_once()
    await older.take()
    await stepped.outcomes._store.settle(_abandoned(stepped, older.session.tenant_no, job, older.session.held[job][0]))
    newer = await stepped.worker("newer", slots=1, lease=timedelta(seconds=1))
    stepped.demands.wake_all()
    await stepped.claimer.run_once()
    await newer.take()
    assert await stepped.renewer.run_once() == 1
    assert (older.session.held, set(newer.session.held)) == ({}, {job})
    assert counted((await older.hear()).lost) == [(job, 1)]


def _abandoned(one: Instance, tenant_no: int, job: UUID, epoch: int):  # type: ignore[no-untyped-def]
    rows = one.store.new_outcomes()
    rows.add(tenant_no, job, epoch, Abandon())
    return rows


# ---------------------------------------------------------------------- heavy jobs


async def test_a_claim_asks_for_no_more_heavy_jobs_than_make_a_few_mebibytes(stepped: Instance) -> None:
    unseen = await stepped.worker("unseen", "unseen", slots=500)
    await stepped.claimer.run_once()
    assert stepped.store.asked[-1].limit == 32  # nothing is known of them: a mebibyte each, for all we know
    await stepped.submit(6, "unseen", payload=bytes(MEBIBYTE))
    demand = next(iter(unseen.session.credit))
    demand.job_bytes = 1.0  # nothing but small ones so far, and these came by another instance
    await stepped.submit(1, "unseen", payload=bytes(MEBIBYTE))
    await stepped.claimer.run_once()
    assert stepped.store.asked[-1].limit == CLAIM_BYTES // MEBIBYTE  # a submit here says how heavy they are
    await stepped.submit(20, "light")
    light = await stepped.worker("light", "light", slots=500)
    await stepped.claimer.run_once()
    assert {asked.workers[0]: asked.limit for asked in stepped.store.asked}["light"] == 500
    assert len(light.session.held) == 20


async def test_a_full_session_is_claimed_for_again_when_its_peer_has_read(one: Instance) -> None:
    await one.submit(20, payload=bytes(MEBIBYTE // 2))
    worker = await one.worker("slow", slots=20)
    await soon(lambda: worker.session.is_full, "as much waits for it as may")
    await settle_down()
    most = worker.session.queued_bytes
    assert SESSION_BYTES <= most <= 2 * SESSION_BYTES
    quick = await one.worker("quick", slots=2)
    assert len(await _all(quick, 2)) == 2  # others go on
    assert len(await _all(worker, 18)) == 18
    assert (worker.session.queued_bytes, one.free()) == (0, 2)


# ---------------------------------------------------------------------- one bad row


@pytest.mark.req("D2")
async def test_an_outcome_that_the_database_refuses_fails_no_other(database: str, one: Instance) -> None:
    db = await connect(database, application_name="poison")
    await db.execute(POISON)
    await db.close()
    await one.submit(40)
    all_workers = [await one.worker(f"w{number}", slots=8) for number in range(5)]
    hold = one.store.before["settle"] = Hold()
    first = all_workers[0].settle((one.ids.make(1)[0], 1, Abandon()))  # keeps the writer busy: the rest is one flush
    await hold.reached()
    answers = []
    for number, worker in enumerate(all_workers):
        ids, epochs = [], []
        while len(ids) < 8:
            part = await worker.take()
            ids += part.ids
            epochs += part.epochs
        bad: Outcome = Nack(delay=timedelta(seconds=9), reason="poison") if number == 3 else Completed(result=b"poison")
        rows: list[tuple[UUID, int, Outcome]] = [
            (job, epoch, bad if place == 5 and number in (1, 3) else Completed(result=b"fine"))
            for place, (job, epoch) in enumerate(zip(ids, epochs, strict=True))
        ]
        answers.append((worker, ids[5], worker.settle(*rows)))
    before = one.store.calls["settle"]
    del one.store.before["settle"]
    hold.release()
    await first
    for number, (worker, job, answer) in enumerate(answers):
        found: Mapping[int, object] = await answer
        refused = {index: error for index, error in found.items() if isinstance(error, HeadgateError)}
        assert set(refused) == ({5} if number in (1, 3) else set())
        assert all(isinstance(error, StoreError) for error in refused.values())
        assert set(worker.session.held) == ({job} if refused else set())  # still leased, and still kept
    assert one.store.calls["settle"] - before < 30
    assert (await one.states())[State.COMPLETED] == 38


async def test_who_sends_nothing_but_bad_rows_fails_alone(database: str, one: Instance) -> None:
    db = await connect(database, application_name="poison")
    await db.execute(POISON)
    await db.close()
    await one.submit(120)
    bad, good = [await one.worker(name, slots=60) for name in ("bad", "good")]
    theirs = {worker: await _all(worker, 60) for worker in (bad, good)}
    hold = one.store.before["settle"] = Hold()
    first = bad.settle((one.ids.make(1)[0], 1, Abandon()))
    await hold.reached()
    refused = bad.settle(*((job, bad.session.held[job][0], Completed(result=b"poison")) for job in theirs[bad]))
    taken = good.settle(*((job, good.session.held[job][0], Completed(result=b"fine")) for job in theirs[good]))
    del one.store.before["settle"]
    hold.release()
    await first
    written: Mapping[int, object] = await taken
    assert not [answer for answer in written.values() if isinstance(answer, HeadgateError)]
    with pytest.raises(StoreError):
        await refused
    assert (good.session.held, set(bad.session.held)) == ({}, set(theirs[bad]))


async def test_a_database_that_refuses_everything_is_not_asked_row_by_row(stepped: Instance) -> None:
    await stepped.submit(200)
    worker = await stepped.worker("w", slots=200)
    while await stepped.claimer.run_once():
        pass
    jobs = list(worker.session.held)
    away = StoreError("the database refuses whatever it is told")
    stepped.store.before["settle"] = failing_with(*[away] * 10_000)
    failed: asyncio.Future[HeadgateError] = asyncio.get_running_loop().create_future()

    def done(answer: object) -> None:
        failed.set_exception(AssertionError(f"was not refused: {answer}"))

    stepped.outcomes.put(
        OutcomeWrite(
            worker.session.tenant_no,
            jobs,
            [1] * 200,
            [b""] * 200,
            (),
            done=done,
            failed=failed.set_result,
            session=worker.session,
        )
    )
    assert isinstance(await asyncio.wait_for(failed, 60), StoreError)
    assert stepped.store.calls["settle"] <= MOST_REFUSALS + 1
    assert set(worker.session.held) == set(jobs)


# ---------------------------------------------------------------------- more sessions


async def test_more_sessions_never_cost_more_statements_a_job(database: str) -> None:
    """Counted, not timed: as long as a job costs no more statements, more workers cannot slow each other down."""
    costs: dict[tuple[int, int], float] = {}
    for sessions, slots in ((1, 16), (8, 2), (8, 16)):
        async with Instance(database, name=f"{sessions}x{slots}", running=False) as one:
            await one.submit(600)
            await one.store.count_statements()
            all_workers = [await one.worker(slots=slots) for _ in range(sessions)]
            done = 0
            while done < 600:
                done += await one.claimer.run_once()
                served = [worker for worker in all_workers if worker.session.held]
                parts = [await worker.take() for worker in served]
                reports = [
                    worker.report(job_id, epoch, Completed())
                    for worker, part in zip(served, parts, strict=True)
                    for job_id, epoch in zip(part.ids, part.epochs, strict=True)
                ]
                await asyncio.gather(*reports)
                for worker, part in zip(served, parts, strict=True):
                    worker.ready(len(part))
            costs[sessions, slots] = await one.store.sent() / 600
    print(f"statements a job: {costs}")  # noqa: T201
    assert costs[8, 2] <= costs[1, 16]
    assert costs[8, 16] < costs[1, 16]
    assert max(costs.values()) <= 1.6
