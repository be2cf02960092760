"""When the next tick is due, and what it looks at."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from headgate.dispatch import tick_times
from headgate.dispatch.tick_times import HINTS_APART, TICKS_APART, TickTimes
from tests.support.dispatch_waits import ManualClock, settle_down

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MOMENT = 0.001


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the event loop, as these times see it."""
    clock = ManualClock()
    loop = SimpleNamespace(time=clock)
    monkeypatch.setattr(tick_times, "asyncio", SimpleNamespace(get_running_loop=lambda: loop, Event=asyncio.Event))
    return clock


@pytest.fixture
def times(clock: ManualClock) -> TickTimes:
    """A tick that took no time is just over; the next one is due in a second."""
    times = TickTimes()
    ticked(times, clock)
    return times


def ticked(times: TickTimes, clock: ManualClock, *, seconds: float = 0.0) -> tuple[bool, bool]:
    """A tick that takes so long; says whether it came by the second, and whether it looked at running jobs."""
    looks = times.begin()
    began = times.asked()
    clock.advance(seconds)
    times.ended(began)
    return looks


async def is_due(times: TickTimes) -> bool:
    waiting = asyncio.create_task(times.wait())
    await settle_down()
    if not waiting.done():
        times.wake()
    return await waiting


async def test_a_tick_comes_by_the_second_and_looks_at_running_jobs(times: TickTimes, clock: ManualClock) -> None:
    clock.advance(1.0 - MOMENT)
    assert not await is_due(times)
    clock.advance(2 * MOMENT)
    assert await is_due(times)
    assert ticked(times, clock) == (True, True)


async def test_a_job_that_falls_due_sooner_brings_a_tick_about_nothing_else(
    times: TickTimes, clock: ManualClock
) -> None:
    times.due_in(0.3)
    times.due_in(0.4)
    clock.advance(0.3 - MOMENT)
    assert not await is_due(times)
    clock.advance(2 * MOMENT)
    assert await is_due(times)
    assert ticked(times, clock) == (False, False)
    clock.advance(0.7 - 2 * MOMENT)
    assert not await is_due(times), "the one by the second is where it was"
    clock.advance(2 * MOMENT)
    assert await is_due(times)


async def test_who_waits_for_the_next_tick_notices_that_a_job_falls_due_sooner(
    times: TickTimes, clock: ManualClock
) -> None:
    waiting = asyncio.create_task(times.wait())
    await settle_down()
    clock.advance(0.1)
    times.due_in(0.0)
    await settle_down()
    assert waiting.done()
    assert await is_due(times)


async def test_a_job_that_becomes_known_while_a_tick_is_under_way_brings_another(
    times: TickTimes, clock: ManualClock
) -> None:
    clock.advance(1.0)
    times.begin()
    times.due_in(0.1)
    times.ended(times.asked())
    clock.advance(0.1)
    assert await is_due(times)


async def test_a_change_of_what_may_run_brings_a_tick_that_looks_at_running_jobs_once(
    times: TickTimes, clock: ManualClock
) -> None:
    clock.advance(0.1)
    times.soon()
    assert await is_due(times)
    assert ticked(times, clock) == (False, True)
    times.due_in(0.0)
    clock.advance(TICKS_APART)
    assert ticked(times, clock) == (False, False)


async def test_a_full_tick_may_be_asked_for_before_its_second(times: TickTimes, clock: ManualClock) -> None:
    clock.advance(0.1)
    times.full_soon()
    assert await is_due(times)
    assert ticked(times, clock) == (True, True)


async def test_after_a_stall_there_is_one_full_tick_and_not_one_for_each_second(
    times: TickTimes, clock: ManualClock
) -> None:
    clock.advance(60.0)
    assert ticked(times, clock) == (True, True)
    clock.advance(0.5)
    assert not await is_due(times)
    times.due_in(0.0)
    assert ticked(times, clock) == (False, False)


@pytest.mark.parametrize("seconds", [0.0, 0.25])
async def test_however_many_jobs_fall_due_ticks_take_half_of_the_time_at_most(
    times: TickTimes, clock: ManualClock, seconds: float
) -> None:
    times.due_in(0.0)
    clock.advance(TICKS_APART)
    ticked(times, clock, seconds=seconds)
    times.due_in(0.0)
    clock.advance(max(TICKS_APART, seconds) - MOMENT)
    assert not await is_due(times)
    clock.advance(2 * MOMENT)
    assert await is_due(times)


async def test_hints_bring_a_tick_soon_but_not_one_after_the_other(times: TickTimes, clock: ManualClock) -> None:
    times.on_hint()
    clock.advance(HINTS_APART - MOMENT)
    assert not await is_due(times)
    clock.advance(2 * MOMENT)
    assert await is_due(times)
    ticked(times, clock)
    clock.advance(2 * HINTS_APART)
    times.on_hint()
    assert await is_due(times), "the last tick was long ago"


async def test_a_time_of_the_databases_clock_is_found_by_what_the_last_tick_has_learnt(
    times: TickTimes, clock: ManualClock
) -> None:
    times.due_at(NOON)
    clock.advance(0.1)
    assert not await is_due(times), "nothing is known of that clock"
    times.learn(NOON)
    times.due_at(NOON + timedelta(seconds=0.2))
    clock.advance(0.2 - MOMENT)
    assert not await is_due(times)
    clock.advance(2 * MOMENT)
    assert await is_due(times)


async def test_the_latest_that_a_time_can_have_been_counts_from_when_the_database_was_asked(
    times: TickTimes, clock: ManualClock
) -> None:
    assert times.latest(clock()) is None
    asked = times.asked()
    clock.advance(5.0)  # its answer was on the way for that long, or was not read
    times.learn(NOON)
    assert times.latest(asked) == NOON
