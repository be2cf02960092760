"""Schedules in the store: one job per occurrence, policies, edits, lineage; on a clock that the test moves."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from headgate.dispatch.scheduler import Scheduler
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import AlreadyExists, HeadgateError, InvalidInput, NotFound, VersionConflict
from headgate.domain.ids import JobId, derived_job_id
from headgate.domain.outcomes import Completed
from headgate.domain.schedules import (
    LOOK_SECONDS,
    After,
    At,
    CatchUp,
    Cron,
    DueSchedule,
    Every,
    Fired,
    Firing,
    Overlap,
    ScheduleSpec,
    occurrence_job_id,
    occurrences,
    plan,
)
from headgate.domain.states import State
from headgate.domain.timestamps import unix_us
from headgate.store import audit, control, listing, reads, schedule_firing, schedules, verbs
from headgate.store.connect import Connection, connect
from tests.support import store_calls
from tests.support.explain import cost
from tests.support.queue import Clock, Queue, new_id
from tests.support.waiting import until_async

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Bench:
    """A queue, a clock and the scheduler's store on one connection."""

    def __init__(self, db: Connection, clock: Clock) -> None:
        self.db, self.clock, self.queue = db, clock, Queue(db)
        self.fed: list[int] = []
        self.scheduler = Scheduler(self, topics_ready=self.fed.extend)

    async def due(self, *, limit: int) -> Any:
        return await schedule_firing.due(self.db, limit=limit)

    async def fire(self, firings: Any) -> Fired:
        return await schedule_firing.fire(self.db, firings)

    async def postpone(self, schedule: DueSchedule, error: HeadgateError) -> None:
        await schedule_firing.postpone(self.db, schedule, error)

    async def forget_ended(self) -> int:
        return await schedule_firing.forget_ended(self.db)

    async def put(self, name: str = "nightly", *, expected: int | None = None, who: str = "ana", **spec: Any) -> Any:
        values: dict[str, Any] = {"topic": "mail", "timing": Every(interval=MINUTE)} | spec
        made = ScheduleSpec(**values).checked(now=self.clock.now)
        tenant = await self.queue.tenant_no()
        return await schedules.put(self.db, self.queue.names, tenant, name, made, expected=expected, who=who)

    async def get(self, name: str = "nightly") -> Any:
        return await schedules.get(self.db, self.queue.names, await self.queue.tenant_no(), name)

    async def jobs(self, name: str = "nightly") -> list[Any]:
        tenant = await self.queue.tenant_no()
        return await schedules.jobs(self.db, self.queue.names, tenant, name, before=None, limit=1000)

    async def occurrences(self, name: str = "nightly") -> list[datetime]:
        return [job.occurrence for job in reversed(await self.jobs(name))]

    async def verb(self, verb: Any, name: str = "nightly", **options: Any) -> Any:
        options = {"who": "ana", "reason": "because"} | options
        return await verb(self.db, self.queue.names, await self.queue.tenant_no(), name, **options)


@pytest.fixture
async def bench(db: Connection) -> Bench:
    return Bench(db, await Clock.install(db, NOON))


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
    await bench.clock.advance(seconds=59)
    assert (await bench.scheduler.run_once()).made == 0
    await bench.clock.advance(seconds=1)
    assert (await bench.scheduler.run_once()).made == 1
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
    assert len(listed) == 10  # also the one whose zone nobody knows


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


# ---------------------------------------------------------------------- verbs


@pytest.mark.req("H7")
async def test_pause_and_delete_touch_only_what_is_to_come(bench: Bench) -> None:
    await bench.put()
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    paused = await bench.verb(schedules.pause)
    assert (paused.paused, paused.paused_by, paused.reason, paused.paused_at) == (True, "ana", "because", NOON + MINUTE)
    await bench.clock.advance(minutes=10)
    assert (await bench.scheduler.run_once()).seen == 0
    resumed = await bench.verb(schedules.resume)
    assert (resumed.paused, resumed.next_at) == (False, NOON + 12 * MINUTE)  # what passed is not made up for
    assert (await bench.verb(schedules.resume)).version == resumed.version
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    made = await bench.jobs()
    assert [job.state for job in made] == [State.PENDING] * 2
    await bench.verb(schedules.delete, expected=None)
    await bench.clock.advance(minutes=5)
    assert (await bench.scheduler.run_once()).seen == 0
    assert len(await bench.queue.claim()) == 2
    tenant = await bench.queue.tenant_no()
    assert await schedules.lineage(bench.db, tenant, made[0].job_id) == ("", made[0].occurrence, False)
    trail = [(entry.verb, entry.actor) for entry in await audit.entries(bench.db, tenant)]
    assert trail == [(f"{verb}_schedule", "ana") for verb in ("delete", "resume", "pause", "put")]


async def test_a_single_moment_that_passed_during_a_pause_runs_at_the_resume(bench: Bench) -> None:
    await bench.put(timing=At(at=NOON + MINUTE))
    await bench.verb(schedules.pause)
    await bench.clock.advance(minutes=10)
    await bench.verb(schedules.resume)
    assert (await bench.scheduler.run_once()).made == 1


async def test_editing_a_paused_schedule_does_not_wake_it(bench: Bench) -> None:
    await bench.put()
    await bench.verb(schedules.pause)
    await bench.put(timing=Every(interval=timedelta(seconds=1)))
    await bench.clock.advance(minutes=5)
    assert (await bench.scheduler.run_once()).seen == 0


async def test_an_edit_needs_the_version_it_was_based_on_and_the_same_again_writes_nothing(bench: Bench) -> None:
    first, changed = await bench.put(expected=0)
    assert (first.version, changed) == (1, True)
    with pytest.raises(AlreadyExists):
        await bench.put(expected=0, priority=1)
    same, changed = await bench.put()
    assert (same, changed) == (first, False)
    second, _ = await bench.put(expected=1, priority=1)
    assert second.version == 2
    with pytest.raises(VersionConflict, match="has version 2, not 1"):
        await bench.put(expected=1, priority=2)
    with pytest.raises(VersionConflict):
        await bench.verb(schedules.delete, expected=1)
    with pytest.raises(NotFound):
        await bench.put("nobody", expected=3)
    assert (await bench.get()).spec.priority == 1
    trail = await audit.entries(bench.db, await bench.queue.tenant_no())
    assert [entry.detail["now"]["priority"] for entry in trail] == [1, 0]  # type: ignore[index,call-overload]


async def test_workers_that_start_together_put_the_same_schedule_once(bench: Bench, database: str) -> None:
    await bench.queue.topic()
    others = [await connect(database, application_name="headgate test") for _ in range(4)]
    try:
        answers = await asyncio.gather(*(Bench(db, bench.clock).put() for db in others))
    finally:
        for db in others:
            await db.close()
    assert [changed for _, changed in answers].count(True) == 1
    assert {view.version for view, _ in answers} == {1}
    assert len(await audit.entries(bench.db, await bench.queue.tenant_no())) == 1


async def test_an_edit_between_reading_and_firing_wins(bench: Bench) -> None:
    await bench.put()
    await bench.clock.advance(minutes=1)
    due = await bench.due(limit=10)
    await bench.put(payload=b"new")
    assert (await bench.fire([plan(one, now=due.now) for one in due.schedules])).schedules == 0
    assert (await bench.scheduler.run_once()).made == 1  # the same times, another body: nothing due was lost
    claimed = await bench.queue.claim()
    assert list(claimed.payloads) == [b"new"]


async def test_a_trigger_makes_one_job_per_request_outside_of_the_grid(bench: Bench) -> None:
    await bench.put(overlap=Overlap.SKIP, payload=b"p", tags=("t",))
    await bench.verb(schedules.pause)
    tenant = await bench.queue.tenant_no()
    request = new_id()
    job_id, created, topic_no = await bench.verb(schedules.trigger, request=request)
    assert (created, topic_no) == (True, (await bench.queue.topic()).no)
    assert (await bench.verb(schedules.trigger, request=request))[:2] == (job_id, False)
    claimed = await bench.queue.claim()
    assert (list(claimed.ids), list(claimed.payloads)) == ([job_id], [b"p"])
    await bench.queue.settle((job_id, 1, Completed()))
    assert (await bench.verb(schedules.trigger, request=request))[:2] == (job_id, False)  # also after it finished
    other, created, _ = await bench.verb(schedules.trigger, request=new_id())
    assert created
    assert other != job_id
    made = await bench.jobs()
    assert [job.triggered for job in made] == [True, True]
    assert await schedules.lineage(bench.db, tenant, job_id) == ("nightly", NOON, True)
    assert (await bench.get()).next_at == NOON + MINUTE  # the grid is untouched
    verbs_seen = [entry.verb for entry in await audit.entries(bench.db, tenant)]
    assert verbs_seen.count("trigger_schedule") == 2


async def test_an_end_is_kept_and_one_that_leaves_nothing_is_refused(bench: Bench) -> None:
    await bench.put(ends_at=NOON + 2 * MINUTE, catch_up=CatchUp.ALL)
    await bench.clock.advance(minutes=10)
    assert (await bench.scheduler.run_once()).made == 2
    assert (await bench.get()).next_at is None
    with pytest.raises(InvalidInput, match="never fires"):
        await bench.put("late", ends_at=NOON)
    more, _ = await bench.put(ends_at=NOON + 20 * MINUTE, catch_up=CatchUp.ALL)
    assert more.next_at == NOON + 11 * MINUTE


async def test_tenants_do_not_see_each_others_schedules(bench: Bench) -> None:
    await bench.put()
    other = await bench.queue.names.tenant(bench.db, "other")
    with pytest.raises(NotFound):
        await schedules.get(bench.db, bench.queue.names, other, "nightly")
    for verb in (schedules.pause, schedules.resume):
        with pytest.raises(NotFound):
            await verb(bench.db, bench.queue.names, other, "nightly", who="eve", reason="")
    with pytest.raises(NotFound):
        await schedules.delete(bench.db, bench.queue.names, other, "nightly", expected=None, who="eve", reason="")
    with pytest.raises(NotFound):
        await schedules.trigger(bench.db, bench.queue.names, other, "nightly", request=new_id(), who="e", reason="")


async def test_discarding_and_redriving_a_scheduled_job_works_as_with_any(bench: Bench) -> None:
    await bench.put()
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    (job,) = await bench.jobs()
    tenant = await bench.queue.tenant_no()
    await verbs.cancel(bench.db, tenant, [job.job_id])
    await verbs.redrive(bench.db, tenant, [job.job_id])
    assert (await bench.jobs())[0].state is State.PENDING
    await verbs.cancel(bench.db, tenant, [job.job_id])
    await verbs.discard(bench.db, tenant, [job.job_id])
    assert await bench.jobs() == []


@pytest.mark.req("H2")
async def test_a_look_takes_what_is_due_and_not_paused_by_its_index_and_no_more_than_its_bound(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.dispatch.scheduler.AT_ONCE", 5)
    for n in range(12):
        await bench.put(f"s{n}")
    await bench.put("paused")
    await bench.verb(schedules.pause, "paused")
    await bench.put("later", timing=Every(interval=2 * MINUTE))
    await bench.clock.advance(seconds=59.999)
    assert (await bench.scheduler.run_once()).seen == 0
    await bench.clock.advance(seconds=0.001)  # exactly due
    looks = [await bench.scheduler.run_once() for _ in range(4)]
    assert [(look.seen, look.made) for look in looks] == [(5, 5), (5, 5), (2, 2), (0, 0)]
    assert looks[-1].wait == LOOK_SECONDS == 1.0
    assert await bench.jobs("paused") == []
    assert await bench.jobs("later") == []
    plan = await bench.db.fetch("EXPLAIN " + schedule_firing.DUE.replace("$1", "'2030-01-01'").replace("$2", "5"))
    assert any("schedules_due" in row[0] for row in plan), plan


@pytest.mark.req("H2")
async def test_the_next_look_is_aimed_at_the_next_moment_and_rare_when_there_is_none(bench: Bench) -> None:
    assert (await bench.scheduler.run_once()).wait == 5.0
    await bench.put()
    assert (await bench.scheduler.run_once()).wait == 1.0
    await bench.clock.advance(seconds=59.7)
    assert (await bench.scheduler.run_once()).wait == pytest.approx(0.3)


# ---------------------------------------------------------------------- numbers


@pytest.mark.req("O26")
async def test_ten_thousand_schedules_due_in_one_minute_fire_in_a_few_calls(bench: Bench) -> None:
    """How long that takes is measured by `make bench` (10,000 schedules due at once): less than five seconds."""
    view, _ = await bench.put("s0", timing=Cron(expression="* * * * *", zone="Europe/Zurich"), payload=b"x" * 100)
    await bench.db.execute(
        """INSERT INTO headgate.schedules (tenant_no, name, topic_no, priority, payload, kind, at, span_ms, expression,
                  zone, overlap, catch_up, catch_up_most, next_at, look_at, created_at, changed_at)
           SELECT s.tenant_no, 's' || n, s.topic_no, n % 3, s.payload, 2 + n % 2, '1970-01-01 00:00+00', 60000,
                  CASE WHEN n % 2 = 1 THEN s.expression END, CASE WHEN n % 2 = 1 THEN s.zone END, n % 5 / 4, 0, 100,
                  s.next_at, s.look_at, s.created_at, s.changed_at
             FROM headgate.schedules s, generate_series(1, 9999) AS n WHERE s.schedule_no = $1""",
        view.schedule_no,
    )
    made = 0
    sent: list[str] = []
    bench.db.add_query_logger(lambda record: sent.append(record.query))
    for _ in range(2):
        await bench.clock.advance(minutes=1)
        sent.clear()
        total = 0
        while (done := await bench.scheduler.run_once()).seen:
            total += done.made + done.skipped
        assert total == 10_000
        await asyncio.sleep(0)  # the driver reports a statement a little later
        # Ten pages of a thousand and an empty one: each is read, and fired in one call.
        assert len([query for query in sent if "headgate." in query]) <= 3 * 11, sent
        made = await bench.db.fetchval("SELECT count(*) FROM headgate.jobs")
    skipping = await bench.db.fetchval("SELECT count(*) FROM headgate.schedules WHERE overlap = 1")
    assert made == 20_000 - skipping


async def test_a_job_submitted_under_what_used_to_be_the_id_of_an_occurrence_does_not_take_its_place(
    bench: Bench,
) -> None:
    """Everything but the seed can be guessed: the numbers are small, and the times are known."""
    await bench.put(timing=Every(interval=MINUTE))
    tenant, view, occurrence = await bench.queue.tenant_no(), await bench.get(), NOON + MINUTE
    known = f"schedule {tenant} {view.schedule_no}"
    guessed = derived_job_id(known, str(unix_us(occurrence)), at_ms=unix_us(occurrence) // 1000)
    await bench.queue.add(1, "other", id=guessed)
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).made == 1
    (job,) = await bench.jobs()
    assert job.job_id != guessed
    assert (await reads.get(bench.db, tenant, job.job_id)).topic_no == (await bench.queue.topic()).no


def test_ids_of_occurrences_are_such_as_the_store_takes() -> None:
    first = next(occurrences(Every(interval=MINUTE), NOON))
    seed = uuid4()
    job_id: JobId = occurrence_job_id(seed, first)
    assert job_id.version == 8
    assert job_id.int >> 80 == int(first.timestamp() * 1000)
    assert job_id == occurrence_job_id(seed, first) != occurrence_job_id(uuid4(), first)


def test_a_firing_without_runs_still_moves_on() -> None:
    schedule = DueSchedule(
        schedule_no=1,
        tenant_no=1,
        seed=uuid4(),
        version=1,
        timing=Every(interval=MINUTE),
        overlap=Overlap.ALLOW,
        catch_up=CatchUp.NONE,
        catch_up_most=100,
        due=NOON,
        ends_at=NOON,
    )
    firing = plan(schedule, now=NOON + timedelta(hours=1))
    assert firing == Firing(schedule=schedule, runs=(), next_at=None, missed=NOON)


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
async def test_firing_reads_no_more_for_a_long_history_a_deep_backlog_and_no_statistics(
    bench: Bench, plans: str
) -> None:
    for n in range(20):
        await bench.put(f"s{n:02}", overlap=Overlap.SKIP if n % 2 else Overlap.REPLACE)
    await bench.put("chatty", overlap=Overlap.ALLOW)
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    claimed = await bench.queue.claim(50)
    await bench.queue.settle(*((job_id, 1, Completed()) for job_id in claimed.ids))

    async def pages() -> int:
        await bench.clock.advance(minutes=1)
        due = await bench.due(limit=1000)
        firings = [plan(one, now=due.now) for one in due.schedules]
        assert len(firings) == 21
        await bench.db.execute("SELECT set_config('plan_cache_mode', $1, false)", plans)
        return (await cost(bench.db, schedule_firing.FIRE, *schedule_firing._arguments(firings))).pages

    await pages()
    before = await pages()  # from here on each has a live job: ten are skipped, ten replaced
    await bench.queue.add(5_000)
    await bench.db.execute(
        """INSERT INTO headgate.schedule_jobs (tenant_no, schedule_no, occurrence, job_id, open_at)
           SELECT s.tenant_no, s.schedule_no, o.at, gen_random_uuid(), CASE WHEN s.overlap = 0 THEN o.at END
             FROM headgate.schedules s, generate_series(100, 3000) AS n
            CROSS JOIN LATERAL (SELECT timestamptz '2026-01-01 00:00+00' + n * interval '1 second' AS at) AS o"""
    )
    after = await pages()
    print(f"{plans}: 21 schedules fired: {before} pages, with 5,000 jobs and 60,000 old runs {after}")  # noqa: T201
    assert after < 2 * before + 500
