"""Clocks that are wrong: a server's, a worker's, the database's; calendars that jump; a machine that sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from tests.fault.lab.inject import CannotInject
from tests.fault.lab.inject.processes import FalseClock, Freezer, state_of
from tests.fault.lab.postgres import with_false_clock
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.scenarios.database import work_flows
from tests.fault.lab.steps import OTHERS_LOAD, RED, add_worker, completed, eventually, hold, printed, seen, submit
from tests.property import test_schedules as calendars
from tests.support.epochs import claims

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
CALENDARS: Final[tuple[Callable[[], None], ...]] = (
    calendars.test_debians_cron_agrees_in_twenty_zones_over_ten_years,
    calendars.test_croniter_agrees_wherever_no_clock_changes,
    calendars.test_every_named_time_runs_exactly_once_a_day_whatever_the_clocks_do,
)


ONE_LEASE_EACH: Final = dict.fromkeys(
    (
        "redrive", "flaky", "failing", "nacky", "snoozy", "handback", "pause", "cancellable", "cancel", "discard",
        "bulk", "ranked",
    ),
    0,
)  # fmt: skip


async def _delayed_is_on_time(world: World, *, seconds: float = 1.0) -> None:
    """A delay is neither cut short (the checker's I9) nor stretched by anybody's clock."""
    began = time.monotonic()
    await completed(world, await submit(world, "fast", 2, delay=seconds), within=seconds + 10)
    assert time.monotonic() - began >= seconds


@scenario("F49", "server clock jumps by an hour", checks=("I2", "I8", "I9"), world=OTHERS_LOAD)
async def a_server_has_a_false_clock(world: World) -> None:
    """Either way, while it runs: times in its log are wrong, and nothing else."""
    clock = FalseClock(world.folder)
    world.server_specs["s1"].variables = clock.environ
    await world.restart("s1")
    await add_worker(world, "w8", servers=["s1"])
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    for offset in (HOUR, -HOUR, 0.0):
        async with world.faulty(f"clock of s1 {offset:+.0f} s"):
            clock.set(offset)
            await asyncio.sleep(world.lease + 1)
            await _delayed_is_on_time(world)
    ended = await jobs.end()
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended
    assert not seen(world, "s1", "session_ended .*worker=w8")


@scenario(
    "F50",
    "database clock steps back",
    checks=("I2", "I8"),
    world={**OTHERS_LOAD, "weights": ONE_LEASE_EACH},
    leave_out=("I9", "I11", "I17", "I18", "I19", "I22"),
)
async def the_database_clock_steps_back(world: World) -> None:
    """By ten minutes: nothing fires twice, no lease is cut short, new jobs run at once, and someone is notified.

    No job of this load is claimed twice unless something is wrong: which lease came first could not be determined.
    Due times and limits are left out: those are of the database's clock, and delays are measured here instead. So is
    who of parent and child, or of two with one unique key, came first.
    """
    clock = await with_false_clock(world)
    await work_flows(world, within=20)
    await add_worker(world, "w8")
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    async with world.faulty("clock of postgres -600 s"):
        clock.set(-600.0)
        for name in ("s1", "s2"):
            await printed(world, name, "clock_stepped_back seconds=(59|60)")
        await _delayed_is_on_time(world)
        await completed(world, await submit(world, "rated", 3), within=20)
        await asyncio.sleep(world.lease + 1)
        ended = await jobs.end()
        assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended
        # Set forward again, it ends all leases that were given before: the clock of the database is the clock.
        await world.load.stop()

        async def nothing_runs() -> bool:
            async with world.database() as db:
                return not await db.fetchval("SELECT EXISTS (SELECT FROM headgate.jobs WHERE state = 1)")

        await eventually(nothing_runs, "nothing runs")
        clock.heal()
    await work_flows(world)


@scenario("F51", "worker clock a day off", checks=("I2",), world=OTHERS_LOAD)
async def workers_have_false_clocks(world: World) -> None:
    """One is a day ahead, one a day behind: of no effect."""
    for name, offset in (("w8", DAY), ("w9", -DAY)):
        clock = FalseClock(world.folder, offset=offset)
        await add_worker(world, name, concurrency=2, variables=clock.environ)
    async with world.faulty("clocks of w8 and w9"):
        jobs = await hold(world, 4)
        await jobs.run_at()
        await asyncio.sleep(2 * world.lease)
        ended = await jobs.end()
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended


@scenario("F52", "gaps, overlaps and leap days", checks=("I8",), world={"servers": 1, "workers": 2, "rate": 10.0})
async def calendars_jump(world: World) -> None:
    """Twenty zones over ten years, against two other implementations; meanwhile schedules fire as ever."""
    for proof in CALENDARS:
        await asyncio.to_thread(proof)


@scenario(
    "F53",
    "the whole machine sleeps",
    checks=("I8", "I13"),
    world=OTHERS_LOAD,
    within=timedelta(minutes=5),
    longer=timedelta(minutes=4),
)
async def the_machine_sleeps(world: World) -> None:
    """For three leases, or two minutes. What came due meanwhile is fired as each schedule says; what ran continues."""
    asleep = world.lasting(3 * world.lease, 120.0)
    await add_worker(world, "w8")
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    pids = [world.process(name).pid for name in (*world.servers, *world.workers)]
    sleep = await asyncio.to_thread(Freezer, pids)
    world.undo_at_heal("sleep", lambda: asyncio.to_thread(sleep.heal))
    for pid in world.postgres_pids():  # its children are born into the group from the first one on
        try:
            sleep.add([pid])
        except CannotInject:
            if state_of(pid):
                raise

    schedules = world.load.tenant(RED).hg.admin.schedules
    before = {name: (await schedules.get(name)).fired for name in ("every-third-all", "each-second")}
    async with world.faulty("sleep"):
        await asyncio.to_thread(sleep.freeze)
        await asyncio.sleep(asleep)
        await asyncio.to_thread(sleep.thaw)
    await work_flows(world, within=30)
    ended = await jobs.end()
    assert max(one.attempt for one in ended) <= 2, ended

    async def caught_up() -> bool:
        # Every third second, none left out; the other makes one job of all it has missed, and continues.
        all_of_them = (await schedules.get("every-third-all")).fired - before["every-third-all"]
        return all_of_them >= asleep // 3 and (await schedules.get("each-second")).fired > before["each-second"]

    await eventually(caught_up, "what came due in its sleep is fired", within=30)
