"""Schedules fire each occurrence once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import HeadgateError, NotFound
from headgate.domain.outcomes import Completed
from headgate.domain.schedules import After, At, Cron, Every, occurrence_job_id, plan
from headgate.domain.states import State
from headgate.store import control, listing, reads, schedule_firing, schedules
from headgate.store.connect import connect
from tests.integration.schedules.bench import MINUTE, NOON, Bench
from tests.integration.test_priority import set_ageing
from tests.support import store_calls
from tests.support.queue import new_id
from tests.support.waiting import until_async

# ---------------------------------------------------------------------- firing


@pytest.mark.req("H3", "O26")
async def test_a_grid_fires_each_occurrence_once_and_never_drifts(bench: Bench) -> None:
    await bench.put(timing=Every(interval=MINUTE))
    assert (await bench.scheduler.run_once()).made == 0
    for late in (0.0, 0.7, 12.3, 59.9, 3.0):
        await bench.clock.advance(minutes=1)
        await bench.clock.advance(seconds=late)
        assert (await bench.scheduler.run_once()).made == 1
        assert (await bench.scheduler.run_once()).made == 0
        await bench.clock.advance(seconds=-late)
    assert await bench.occurrences() == [NOON + n * MINUTE for n in range(1, 6)]
    tenant = await bench.queue.tenant_no()
    view = await bench.get()
    seed = await bench.db.fetchval("SELECT seed FROM headgate.schedules")
    for job in await bench.jobs():
        assert job.job_id == occurrence_job_id(seed, job.occurrence)
        assert (await reads.get(bench.db, tenant, job.job_id)).run_at == job.occurrence
    assert view.next_at == NOON + 6 * MINUTE
    assert bench.fed == [(await bench.queue.topic()).no] * 5


@pytest.mark.req("H1", "H4")
@pytest.mark.parametrize("timing", [At(at=NOON + MINUTE), After(delay=MINUTE)], ids=["at", "after"])
async def test_a_single_moment_fires_once_and_has_then_ended(bench: Bench, timing: At | After) -> None:
    await bench.put(timing=timing)
    await bench.put("declared", timing=timing, source="shop")
    await bench.clock.advance(seconds=59)
    assert (await bench.scheduler.run_once()).made == 0
    await bench.clock.advance(seconds=1)
    assert (await bench.scheduler.run_once()).made == 2
    assert (await bench.get()).next_at is None
    await bench.clock.advance(days=1)
    assert (await bench.scheduler.run_once()).made == 0
    assert await bench.occurrences() == [NOON + MINUTE]
    # Kept for a week for who wants to know what became of it, then deleted.
    assert await bench.forget_ended() == 0
    await bench.clock.advance(days=7)
    assert await bench.forget_ended() == 1
    with pytest.raises(NotFound):
        await bench.get()
    # Without it, the next start of the program that declares it would make another job.
    assert (await bench.get("declared")).next_at is None


async def test_a_grid_that_has_ended_is_kept(bench: Bench) -> None:
    """Its end can be moved, and its history is that of many jobs."""
    await bench.put(ends_at=NOON + MINUTE)
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 1
    assert (await bench.get()).next_at is None
    await bench.clock.advance(days=60)
    assert await bench.forget_ended() == 0


async def test_the_same_delay_put_again_keeps_its_moment(bench: Bench) -> None:
    first, _ = await bench.put(timing=After(delay=MINUTE))
    await bench.clock.advance(seconds=30)
    again, changed = await bench.put(timing=After(delay=MINUTE))
    assert (again, changed) == (first, False)
    moved, changed = await bench.put(timing=After(delay=2 * MINUTE))
    assert (moved.next_at, changed) == (NOON + timedelta(seconds=150), True)


@pytest.mark.req("H10", "P14", "O26")
async def test_its_jobs_are_ordinary_ones_with_the_schedules_body_priority_and_policy(bench: Bench) -> None:
    policy = RetryPolicy.fixed(timedelta(seconds=7))
    await bench.put(
        payload=b"x" * 2000,
        priority=7,
        max_attempts=3,
        policy=policy,
        headers={"trace": "1"},
        tags=("night", "report"),
    )
    low, high = await bench.queue.add(priority=6), await bench.queue.add(priority=8)
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    (made,) = await bench.jobs()
    tenant = await bench.queue.tenant_no()
    claimed = await bench.queue.claim(3)
    assert list(claimed.ids) == [*high, made.job_id, *low]
    assert claimed.payloads[1] == b"x" * 2000
    job = await reads.get(bench.db, tenant, made.job_id)
    assert (job.priority, job.max_attempts, dict(job.headers)) == (7, 3, {"trace": "1"})
    assert await bench.queue.names.policy_by_no(bench.db, job.policy_no) == policy
    tagged = await store_calls.list_jobs(bench.db, tenant, matching=listing.Filter(tags=("night", "report")))
    assert [row.id for row in tagged.rows] == [made.job_id]
    await bench.queue.settle((made.job_id, 1, Completed(result=b"1")))
    assert (await reads.get(bench.db, tenant, made.job_id)).state is State.COMPLETED


@pytest.mark.req("H8")
async def test_in_an_ageing_topic_its_jobs_rank_as_submitted_ones_do(bench: Bench) -> None:
    await bench.put(priority=7)
    await bench.put("b", priority=-3)
    await set_ageing(bench.queue, "mail", timedelta(seconds=10))
    await bench.clock.advance(minutes=1)
    await bench.queue.add(priority=7)
    assert (await bench.scheduler.run_once()).made == 2
    await bench.verb(schedules.trigger, request=new_id())
    ranks = "SELECT rank_class, rank_at / 1000 FROM headgate.jobs WHERE priority = $1"  # within the call by the µs
    urgent = await bench.db.fetch(ranks, 7)
    assert [tuple(row) for row in urgent] == [(-1, urgent[0][1])] * 3
    assert tuple((await bench.db.fetch(ranks, -3))[0]) == (-1, urgent[0][1] + 10 * 10_000)


async def test_lineage_is_kept_both_ways_newest_first(bench: Bench) -> None:
    await bench.put()
    await bench.put("other")
    for _ in range(3):
        await bench.clock.advance(minutes=1)
        await bench.scheduler.run_once()
    tenant = await bench.queue.tenant_no()
    view = await bench.get()
    made = await bench.jobs()
    assert [job.occurrence for job in made] == [NOON + n * MINUTE for n in (3, 2, 1)]
    assert [job.state for job in made] == [State.PENDING] * 3
    for job in made:
        assert await schedules.lineage(bench.db, tenant, job.job_id) == ("nightly", job.occurrence, False)
    page = await store_calls.list_jobs(bench.db, tenant, matching=listing.Filter(schedule_no=view.schedule_no))
    assert [row.id for row in page.rows] == [job.job_id for job in made]
    assert view.last_job_id == made[0].job_id
    flagged = await bench.db.fetchval("SELECT count(*) FROM headgate.jobs WHERE flags & 64 <> 0")
    assert flagged == 6
    (loose,) = await bench.queue.add()
    assert await schedules.lineage(bench.db, tenant, loose) is None


@pytest.mark.req("Z7")
async def test_a_paused_topic_tenant_or_everything_does_not_stop_the_scheduler(bench: Bench) -> None:
    await bench.put()
    topic = await bench.queue.topic()
    for target in ((0, 0), (topic.tenant_no, 0), (topic.tenant_no, topic.no)):
        await control.pause(bench.db, target, reason="test", who="ana")
        await bench.clock.advance(minutes=1)
        assert (await bench.scheduler.run_once()).made == 1
        assert len(await bench.queue.claim()) == 0
        await control.resume(bench.db, target)
    assert len(await bench.queue.claim()) == 3


# ---------------------------------------------------------------------- one job per occurrence


@pytest.mark.req("H3", "H4", "K16")
async def test_of_several_instances_with_the_same_plan_one_fires(bench: Bench, database: str) -> None:
    for n in range(50):
        await bench.put(f"s{n:02}")
    await bench.clock.advance(minutes=1)
    others = [await connect(database, application_name="headgate test") for _ in range(3)]
    try:
        dues = [await schedule_firing.due(db, limit=1000) for db in others]
        plans = [[plan(one, now=due.now) for one in due.schedules] for due in dues]
        done = await asyncio.gather(
            *(schedule_firing.fire(db, firings) for db, firings in zip(others, plans, strict=True))
        )
    finally:
        for db in others:
            await db.close()
    # What one of them holds the others leave out; nothing is fired twice, and a second look finds what is left.
    more = await bench.scheduler.run_once()
    assert sum(one.made for one in done) + more.made == 50
    assert await bench.db.fetchval("SELECT count(*) FROM headgate.jobs") == 50
    assert await bench.db.fetchval("SELECT count(DISTINCT schedule_no) FROM headgate.schedule_jobs") == 50


@pytest.mark.req("H4", "K16")
async def test_a_stale_plan_moves_nothing_back(bench: Bench) -> None:
    await bench.put()
    await bench.clock.advance(minutes=1)
    old = await bench.due(limit=10)
    stale = [plan(one, now=old.now) for one in old.schedules]
    await bench.scheduler.run_once()
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    assert (await bench.fire(stale)).schedules == 0
    assert (await bench.get()).next_at == NOON + 3 * MINUTE
    assert len(await bench.jobs()) == 2


@pytest.mark.req("H5")
async def test_an_occurrence_that_has_its_job_counts_as_fired_even_when_that_has_finished(bench: Bench) -> None:
    view, _ = await bench.put()
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    claimed = await bench.queue.claim()
    await bench.queue.settle((claimed.ids[0], 1, Completed()))
    # The cursor as an older backup would have it.
    await bench.db.execute(
        "UPDATE headgate.schedules SET next_at = $1, look_at = $1, last_at = NULL WHERE schedule_no = $2",
        NOON + MINUTE,
        view.schedule_no,
    )
    done = await bench.scheduler.run_once()
    assert (done.schedules, done.made) == (1, 0)
    assert (await bench.get()).next_at == NOON + 2 * MINUTE
    assert await bench.db.fetchval("SELECT count(*) FROM headgate.jobs") == 0


@pytest.mark.req("H3")
async def test_mark_and_job_are_one_a_backend_killed_in_between_leaves_neither(bench: Bench, database: str) -> None:
    await bench.put()
    await bench.clock.advance(minutes=1)
    await bench.db.execute(
        """CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN PERFORM pg_advisory_xact_lock(7, 7); RETURN NULL; END $$;
           -- After the jobs, before the cursor moves.
           CREATE TRIGGER hold AFTER INSERT ON headgate.jobs FOR EACH STATEMENT EXECUTE FUNCTION public.hold()"""
    )
    await bench.db.execute("SELECT pg_advisory_lock(7, 7)")
    victim = await connect(database, application_name="headgate test")
    due = await schedule_firing.due(victim, limit=10)
    firing = asyncio.create_task(schedule_firing.fire(victim, [plan(one, now=due.now) for one in due.schedules]))
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
    pid = await until_async(lambda: bench.db.fetchval(waiting), "the firing waits between job and cursor")
    await bench.db.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(HeadgateError):
        await firing
    victim.terminate()
    await bench.db.execute("SELECT pg_advisory_unlock(7, 7)")
    assert await bench.db.fetchval("SELECT count(*) FROM headgate.jobs") == 0
    assert await bench.db.fetchval("SELECT count(*) FROM headgate.schedule_jobs") == 0
    assert (await bench.get()).next_at == NOON + MINUTE
    assert (await bench.scheduler.run_once()).made == 1
    assert await bench.occurrences() == [NOON + MINUTE]


async def test_a_clock_set_back_fires_nothing_twice_also_after_an_edit(bench: Bench) -> None:
    await bench.put()
    for _ in range(3):
        await bench.clock.advance(minutes=1)
        await bench.scheduler.run_once()
    await bench.clock.set(NOON - 10 * MINUTE)
    assert (await bench.scheduler.run_once()).made == 0
    await bench.put(priority=3)
    await bench.put(timing=Every(interval=2 * MINUTE))
    assert (await bench.get()).next_at == NOON + 4 * MINUTE
    await bench.clock.set(NOON + 4 * MINUTE)
    assert (await bench.scheduler.run_once()).made == 1
    assert await bench.occurrences() == [NOON + n * MINUTE for n in (1, 2, 3, 4)]


# ---------------------------------------------------------------------- errors of one


@pytest.mark.req("H9", "H5")
async def test_one_schedule_that_cannot_be_fired_stalls_no_other_and_keeps_its_cursor(bench: Bench) -> None:
    await bench.db.execute(
        """CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN
               IF NEW.payload = 'bad' THEN RAISE EXCEPTION 'not today' USING ERRCODE = 'HG001'; END IF;
               RETURN NEW;
           END $$;
           CREATE TRIGGER refuse BEFORE INSERT ON headgate.jobs FOR EACH ROW EXECUTE FUNCTION public.refuse()"""
    )
    for n in range(9):
        await bench.put(f"s{n}", payload=b"bad" if n == 4 else b"good")
    await bench.put("lost-zone", timing=Cron(expression="* * * * *", zone="Europe/Zurich"))
    await bench.db.execute("UPDATE headgate.schedules SET zone = 'Europe/Atlantis' WHERE name = 'lost-zone'")
    await bench.clock.advance(minutes=1)
    done = await bench.scheduler.run_once()
    assert (done.made, done.postponed) == (8, 2)
    bad = await bench.get("s4")
    assert bad.next_at == NOON + MINUTE
    assert "not today" in bad.last_error
    assert "Europe/Atlantis" in (await bench.get("lost-zone")).last_error
    assert (await bench.scheduler.run_once()).seen == 0  # they do not stand at the head of the line
    await bench.db.execute("DROP TRIGGER refuse ON headgate.jobs")
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 9
    healed = await bench.get("s4")
    assert (healed.last_error, healed.next_at) == ("", NOON + 3 * MINUTE)
    listed = await schedules.listed(
        bench.db, bench.queue.names, await bench.queue.tenant_no(), after="", limit=50, topics=None, source=None
    )
    assert len(listed) == 10  # also the one whose zone no one knows
