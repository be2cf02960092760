"""Catching up after an outage, and jobs that overlap."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headgate.domain.errors import InvalidInput
from headgate.domain.outcomes import Completed
from headgate.domain.schedules import At, CatchUp, Cron, Every, Overlap
from headgate.domain.states import State
from headgate.store import reads
from tests.integration.schedules.bench import MINUTE, NOON, Bench

# ---------------------------------------------------------------------- catching up


@pytest.mark.req("H6", "T34", "O26")
@pytest.mark.parametrize("timing", [Every(interval=MINUTE), Cron(expression="* * * * *")], ids=["every", "cron"])
async def test_after_an_outage_one_catches_up_by_one_job_that_names_what_it_covers(
    bench: Bench, timing: Every | Cron
) -> None:
    await bench.put(timing=timing, catch_up=CatchUp.ONE)
    await bench.clock.advance(days=3, seconds=30)
    assert (await bench.scheduler.run_once()).made == 1
    (job,) = await bench.jobs()
    newest = NOON + timedelta(days=3)
    assert (job.occurrence, job.covers_from) == (newest, NOON + MINUTE)
    assert (await bench.get()).next_at == newest + MINUTE


@pytest.mark.req("T34", "O26")
@pytest.mark.parametrize("timing", [Every(interval=MINUTE), Cron(expression="* * * * *")], ids=["every", "cron"])
async def test_after_an_outage_all_catches_up_with_the_newest_up_to_its_limit(
    bench: Bench, timing: Every | Cron
) -> None:
    await bench.put(timing=timing, catch_up=CatchUp.ALL, catch_up_most=5)
    await bench.clock.advance(minutes=3)
    assert (await bench.scheduler.run_once()).made == 3
    await bench.clock.advance(days=3)
    assert (await bench.scheduler.run_once()).made == 5
    end = NOON + timedelta(days=3, minutes=3)
    expected = [NOON + n * MINUTE for n in (1, 2, 3)] + [end - n * MINUTE for n in (4, 3, 2, 1, 0)]
    assert await bench.occurrences() == expected
    covers = [job.covers_from for job in reversed(await bench.jobs())]
    assert covers == [*expected[:3], NOON + 4 * MINUTE, *expected[4:]]
    claimed = await bench.queue.claim(20)
    assert [job.job_id for job in reversed(await bench.jobs())] == list(claimed.ids)  # the oldest first


async def test_of_the_occurrences_that_were_skipped_the_newest_twenty_are_kept(bench: Bench) -> None:
    await bench.put(timing=Every(interval=timedelta(hours=1)), catch_up=CatchUp.NONE)
    await bench.clock.advance(minutes=10)
    for _ in range(22):
        await bench.clock.advance(hours=1)
        await bench.scheduler.run_once()
    view = await bench.get()
    assert (view.skipped, len(view.skips), view.skips[0].at) == (22, 20, NOON + timedelta(hours=22))
    assert [one.at for one in view.skips] == sorted((one.at for one in view.skips), reverse=True)


@pytest.mark.req("T34", "O26")
async def test_after_an_outage_none_leaves_out_what_was_missed(bench: Bench) -> None:
    await bench.put(timing=Every(interval=timedelta(hours=1)), catch_up=CatchUp.NONE)
    await bench.put("once", timing=At(at=NOON + MINUTE), catch_up=CatchUp.NONE)
    await bench.clock.advance(hours=5, minutes=10)
    done = await bench.scheduler.run_once()
    assert (done.made, done.skipped) == (0, 2)
    view = await bench.get()
    assert (view.next_at, view.skipped, view.last_skip) == (NOON + timedelta(hours=6), 1, "late")
    assert view.last_skip_at == NOON + timedelta(hours=5)
    assert [(one.at, one.why) for one in view.skips] == [(view.last_skip_at, "late")]
    assert (await bench.get("once")).next_at is None
    await bench.clock.set(NOON + timedelta(hours=6, seconds=20))  # late, but not missed
    assert (await bench.scheduler.run_once()).made == 1


async def test_much_to_catch_up_is_spread_over_several_transactions(bench: Bench) -> None:
    for n in range(60):
        await bench.put(f"s{n}", catch_up=CatchUp.ALL)
    await bench.clock.advance(days=30)
    assert (await bench.scheduler.run_once()).made == 6_000
    sizes = await bench.db.fetch("SELECT count(*) FROM headgate.jobs GROUP BY created_at, xmin::text")
    assert len(sizes) == 3


# ---------------------------------------------------------------------- overlap


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.REPLACE])
async def test_runs_that_have_finished_are_not_looked_at_again(bench: Bench, overlap: Overlap) -> None:
    await bench.put(overlap=overlap)
    for _ in range(3):
        await bench.clock.advance(minutes=1)
        assert (await bench.scheduler.run_once()).made == 1
        claimed = await bench.queue.claim(1)
        await bench.queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
    assert await bench.db.fetchval("SELECT count(*) FROM headgate.schedule_jobs WHERE open_at IS NOT NULL") == 1


@pytest.mark.req("T34", "O26")
async def test_skip_makes_no_job_while_an_earlier_one_lives(bench: Bench) -> None:
    await bench.put(overlap=Overlap.SKIP, catch_up=CatchUp.ALL)
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 1
    await bench.clock.advance(minutes=1)
    done = await bench.scheduler.run_once()
    assert (done.made, done.skipped) == (0, 1)  # still pending
    claimed = await bench.queue.claim()
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 0  # running
    await bench.queue.settle((claimed.ids[0], 1, Completed()))
    await bench.clock.advance(minutes=3)
    assert (await bench.scheduler.run_once()).made == 1  # and one only: a second would overlap with it
    view = await bench.get()
    assert (view.fired, view.skipped, view.last_skip) == (2, 2, "overlap")
    assert await bench.occurrences() == [NOON + MINUTE, NOON + 6 * MINUTE]


@pytest.mark.req("T34", "O26")
async def test_replace_cancels_the_queued_one_and_asks_the_running_one_to_stop(bench: Bench) -> None:
    await bench.put(overlap=Overlap.REPLACE)
    tenant = await bench.queue.tenant_no()
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 1
    second, first = await bench.jobs()
    assert (first.state, second.state) == (State.CANCELLED, State.PENDING)
    (event,) = await reads.events(bench.db, tenant, first.job_id)
    assert (event.actor, event.reason) == ("scheduler", "replaced by the next run of its schedule")
    await bench.queue.claim()
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 1
    assert (await reads.get(bench.db, tenant, second.job_id)).cancel_requested
    assert (await bench.jobs())[0].state is State.PENDING


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
async def test_an_occurrence_without_a_job_replaces_none(bench: Bench, state: State) -> None:
    """Missed and not caught up: there is nothing to take the place of the earlier job."""
    await bench.put(overlap=Overlap.REPLACE, catch_up=CatchUp.NONE)
    await bench.put("other", topic="other", overlap=Overlap.REPLACE)  # fires in the same call, and replaces its own
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 2
    if state is State.RUNNING:
        await bench.queue.claim()
    await bench.clock.advance(seconds=91)
    done = await bench.scheduler.run_once()
    assert (done.made, done.skipped) == (1, 1)
    tenant = await bench.queue.tenant_no()
    (kept,) = await bench.jobs()
    found = await reads.get(bench.db, tenant, kept.job_id)
    assert (found.state, found.cancel_requested) == (state, False)
    assert [job.state for job in await bench.jobs("other")] == [State.PENDING, State.CANCELLED]


async def test_an_occurrence_that_has_its_job_does_not_replace_it_by_nothing(bench: Bench) -> None:
    """A restored backup, or a clock that was set back: the cursor stands at an occurrence whose job lives."""
    await bench.put(overlap=Overlap.REPLACE)
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    await bench.db.execute("UPDATE headgate.schedules SET next_at = $1, look_at = $1", NOON + MINUTE)
    assert (await bench.scheduler.run_once()).made == 0
    assert [job.state for job in await bench.jobs()] == [State.PENDING]
    assert (await bench.get()).next_at == NOON + 2 * MINUTE


async def test_an_edit_keeps_an_occurrence_that_is_exactly_at_the_new_end(bench: Bench) -> None:
    await bench.put()
    kept, _ = await bench.put(ends_at=NOON + MINUTE)
    assert kept.next_at == NOON + MINUTE
    gone, _ = await bench.put(ends_at=NOON + MINUTE - timedelta(microseconds=1))
    assert gone.next_at is None
    with pytest.raises(InvalidInput, match="never fires"):
        await bench.put("none", ends_at=NOON + MINUTE - timedelta(microseconds=1))
    last, _ = await bench.put("last", ends_at=NOON + MINUTE)
    assert last.next_at == NOON + MINUTE
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 1
    assert ((await bench.get("last")).next_at, await bench.occurrences("last")) == (None, [NOON + MINUTE])


@pytest.mark.req("T34")
async def test_allow_lets_them_pile_up(bench: Bench) -> None:
    await bench.put(overlap=Overlap.ALLOW)
    for _ in range(3):
        await bench.clock.advance(minutes=1)
        await bench.scheduler.run_once()
    assert [job.state for job in await bench.jobs()] == [State.PENDING] * 3
