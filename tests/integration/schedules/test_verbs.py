"""Pause, edit, trigger and delete schedules."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from headgate.domain.errors import AlreadyExists, InvalidInput, NotFound, Refused, VersionConflict
from headgate.domain.outcomes import Completed
from headgate.domain.schedules import LOOK_SECONDS, After, At, CatchUp, Every, Fired, Firing, Overlap, WhenFull, plan
from headgate.domain.states import State
from headgate.domain.topic_sets import TopicSet
from headgate.store import audit, reads, schedule_firing, schedules, topics, verbs
from headgate.store.connect import Connection, connect
from tests.integration.schedules.bench import MINUTE, NOON, Bench
from tests.support.queue import new_id

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


async def test_the_audit_has_timings_as_people_write_them(bench: Bench) -> None:
    for timing in (
        Every(interval=timedelta(seconds=20)),
        Every(interval=timedelta(minutes=5), anchor=NOON),
        After(delay=timedelta(hours=36)),
    ):
        await bench.put(timing=timing)
    trail = await audit.entries(bench.db, await bench.queue.tenant_no())
    assert [cast("dict[str, object]", entry.detail["now"])["when"] for entry in reversed(trail)] == [
        "every 20s",
        "every 5m from 2026-03-10T12:00:00+00:00",
        "after 36h",
    ]


async def test_the_last_runs_of_several_schedules_are_read_together(bench: Bench) -> None:
    await bench.put("often")
    await bench.put("other", topic="other")
    await bench.put("never", timing=At(at=NOON + timedelta(days=1)))
    for _ in range(3):
        await bench.clock.advance(minutes=1)
        await bench.scheduler.run_once()
    claimed = await bench.queue.claim(1)
    await bench.queue.settle((claimed.ids[0], claimed.epochs[0], Completed()))
    numbers = {name: (await bench.get(name)).schedule_no for name in ("often", "other", "never")}
    found = await schedules.recent_jobs(bench.db, await bench.queue.tenant_no(), [*numbers.values(), 10_000], limit=2)
    assert set(found) == {numbers["often"], numbers["other"]}
    for name in ("often", "other"):
        assert found[numbers[name]] == (await bench.jobs(name))[:2]
    every = await schedules.recent_jobs(bench.db, await bench.queue.tenant_no(), [numbers["often"]], limit=9)
    assert [job.state for job in every[numbers["often"]]] == [State.PENDING, State.PENDING, State.COMPLETED]
    assert await schedules.recent_jobs(bench.db, 10_000, [numbers["often"]], limit=9) == {}, "another tenant"


async def test_a_resume_that_names_a_pause_ends_no_later_one(bench: Bench) -> None:
    await bench.put()
    first = (await bench.verb(schedules.pause)).paused_at
    await bench.clock.advance(minutes=1)
    again = await bench.verb(schedules.pause)
    with pytest.raises(VersionConflict, match=r'was paused again at .* by ana with the reason "because"'):
        await bench.verb(schedules.resume, since=first)
    await bench.put(timing=Every(interval=timedelta(hours=1)))  # an edit leaves the pause as it is
    assert not (await bench.verb(schedules.resume, since=again.paused_at)).paused
    assert not (await bench.verb(schedules.resume, since=first)).paused, "harmless when it runs"


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
    assert [entry.detail["now"]["priority"] for entry in trail] == [1, None]  # type: ignore[index,call-overload]


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


async def test_what_was_fired_meanwhile_is_not_put_off(bench: Bench) -> None:
    """One instance could not fire it; before it says so, another one has."""
    await bench.put()
    await bench.clock.advance(minutes=1)
    (read,) = (await bench.due(limit=1)).schedules
    assert (await bench.scheduler.run_once()).made == 1
    await bench.clock.advance(seconds=10)
    await bench.postpone(read, Refused("no"))
    assert await bench.db.fetchval("SELECT look_at FROM headgate.schedules") == NOON + 2 * MINUTE
    assert (await bench.get()).last_error == ""


async def test_a_schedule_that_was_edited_meanwhile_skips_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topic is full. Before that is noted, the schedule is changed: the new one has not been tried yet."""
    await bench.put(overlap=Overlap.REPLACE, when_full=WhenFull.SKIP)
    await bench.clock.advance(minutes=1)
    await bench.scheduler.run_once()
    await bench.queue.claim(1)
    changes = {"max_backlog": 0}
    await topics.set_topic(bench.db, bench.queue.names, await bench.queue.tenant_no(), "mail", changes=changes)
    noting = schedule_firing._no_capacity

    async def edited_before(db: Connection, firing: Firing) -> Fired:
        await bench.put(overlap=Overlap.REPLACE, when_full=WhenFull.SKIP, payload=b"new")
        return await noting(db, firing)

    monkeypatch.setattr(schedule_firing, "_no_capacity", edited_before)
    await bench.clock.advance(minutes=1)
    assert (await bench.scheduler.run_once()).skipped == 0
    view = await bench.get()
    assert (view.skipped, view.next_at) == (0, NOON + 2 * MINUTE)


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
    assert (await bench.get()).fired == 2


async def test_a_triggered_job_has_the_values_of_its_schedule_before_those_of_its_topic(bench: Bench) -> None:
    tenant, rules = await bench.queue.tenant_no(), {"priority": 2, "max_attempts": 4}
    await bench.queue.topic()
    await topics.set_topic(bench.db, bench.queue.names, tenant, "mail", rules=rules)
    await bench.put("own", priority=7, max_attempts=9)
    await bench.put("none")
    found = {}
    for name in ("none", "own"):
        job_id, _, _ = await bench.verb(schedules.trigger, name, request=new_id())
        found[name] = await reads.get(bench.db, tenant, job_id)
    assert {name: (one.priority, one.max_attempts) for name, one in found.items()} == {"own": (7, 9), "none": (2, 4)}
    assert list((await bench.queue.claim(2)).ids) == [found["own"].id, found["none"].id]


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


async def test_the_next_look_is_aimed_at_the_next_moment_and_rare_when_there_is_none(bench: Bench) -> None:
    assert (await bench.scheduler.run_once()).wait == 5.0
    await bench.put()
    assert (await bench.scheduler.run_once()).wait == 1.0
    await bench.clock.advance(seconds=59.7)
    assert (await bench.scheduler.run_once()).wait == pytest.approx(0.3)


async def test_the_lag_is_that_of_all_schedules_that_are_to_fire(bench: Bench) -> None:
    tenant = await bench.queue.tenant_no()
    assert await schedules.lag(bench.db, tenant) is None
    for number in range(3):
        await bench.put(f"early-{number}", timing=Every(interval=60 * MINUTE))
    await bench.put("zz-late", topic="report", timing=Every(interval=MINUTE))
    assert await schedules.lag(bench.db, tenant) == timedelta(0), "the next occurrence is to come"
    await bench.clock.advance(minutes=5)
    assert await schedules.lag(bench.db, tenant) == 4 * MINUTE
    assert await schedules.lag(bench.db, tenant, topics=TopicSet(frozenset({"mail"}))) == timedelta(0)
    await bench.verb(schedules.pause, "zz-late")
    assert await schedules.lag(bench.db, tenant) == timedelta(0), "a pause is no delay"
