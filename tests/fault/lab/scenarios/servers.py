"""Faults of servers."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import timedelta
from typing import Final

from headgate import Headgate
from headgate.domain.states import EventKind
from tests.fault.lab.armed_server import ArmedServer, is_ready, readiness_is
from tests.fault.lab.inject.processes import FewDescriptors, state_of
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import (
    OTHERS_LOAD,
    RED,
    SLOW_MACHINE,
    add_worker,
    client_of,
    completed,
    count_events,
    eventually,
    hold,
    noted,
    printed,
    seen,
    submit,
)
from tests.support.epochs import claims

RETRYABLE: Final = {"NotConnected", "NotAcknowledged", "OutcomeUnknown", "Unavailable", "CallFailed", "Timeout"}


@scenario("F10", "server kill -9 loop", checks=("I1", "I2", "I3", "I4", "I5", "I13"), longer=timedelta(minutes=7))
async def servers_are_killed_in_turn(world: World) -> None:
    """One of two servers dies, the other carries on alone for a while, then the first is back. Five minutes of it."""
    round_, until = 0, time.monotonic() + world.lasting(0, 300)
    while round_ < 5 or time.monotonic() < until:
        victim = ("s1", "s2")[round_ % 2]
        await world.kill(victim)
        await asyncio.sleep(world.chance.uniform(0.5, 2.0))
        await world.start(victim)
        await asyncio.sleep(world.lasting(world.chance.uniform(0.3, 1.0), world.chance.uniform(1.0, 5.0)))
        round_ += 1


# ---------------------------------------------------------------------- restarts and outages


@scenario(
    "F11",
    "rolling restart under load",
    checks=("I1", "I13"),
    world={**OTHERS_LOAD, "server_args": ("--grace", "3")},
)
async def servers_are_restarted_one_by_one(world: World) -> None:
    """Each drains: readiness goes off, its workers move on; callers see what they may try again, if anything."""
    await add_worker(world, "w8", concurrency=8)
    jobs = await hold(world, 6)
    await jobs.run_at("w8")
    for name in ("s1", "s2"):
        assert await world.stop(name) == 0
        await world.start(name)
        await readiness_is(world, name, ready=True)
    ended = await jobs.end()
    assert {one.attempt for one in ended} == {1}, ended
    errors = {str(event.get("error")) for event in await noted(world, "fail", "info", proc="load")} - {"None"}
    certain = {"NotFound", "Refused", "SubmitConflict", "SubmitRefused", "WrongState", "UniqueTaken"}
    odd = {error for error in errors if error not in certain and error not in RETRYABLE}
    assert not odd, f"callers saw {odd}"


@scenario("F12", "an instance frozen in the middle of firing a schedule", checks=("I8",))
async def an_instance_freezes_while_it_fires(world: World) -> None:
    """The other fires meanwhile. The thawed one's late call finds the schedule changed, and makes no job twice."""
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    for site in ("schedule.before_commit", "schedule.after_mark"):
        await server.meets(site, "stop")
        process = world.servers["s1"]

        async def stopped(pid: int = process.pid) -> bool:
            return state_of(pid) == "T"

        await eventually(stopped, "it has stopped itself")
        async with world.faulty("freeze s1 while it fires"):
            world._frozen["s1"] = [process.pid]
            before = await _fired(world)

            async def others_fire(before: int = before) -> bool:
                return await _fired(world) >= before + 4

            await eventually(others_fire, "the other instance fires")
            server.disarm()
            await world.thaw("s1")
        await server.meets("schedule.before_commit", "sleep:0")  # its next round: the late one is over
        server.disarm()


@scenario(
    "F12b", "an instance frozen between the mark and the commit", checks=("I8",), world={"server_args": ("--pooler",)}
)
async def an_instance_freezes_before_it_commits_its_firing(world: World) -> None:
    """As behind a pooler, firing is an explicit transaction: frozen in it, an instance holds what it has marked."""
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    await server.meets("schedule.after_mark", "stop")
    process = world.servers["s1"]

    async def stopped() -> bool:
        return state_of(process.pid) == "T"

    await eventually(stopped, "it has stopped itself")
    async with world.faulty("freeze s1 while it fires"):
        world._frozen["s1"] = [process.pid]
        await asyncio.sleep(3.0)
        server.disarm()
        await world.thaw("s1")
    before = await _fired(world)

    async def fires_again() -> bool:
        return await _fired(world) >= before + 4

    await eventually(fires_again, "schedules fire again")


async def _fired(world: World) -> int:
    async with world.database() as db:
        count: int = await db.fetchval("SELECT coalesce(sum(fired), 0)::bigint FROM headgate.schedules")
    return count


SAID: Final = r"(stream_lost|not_connected) "


@scenario("F13", "all servers down", checks=("I1", "I10"), longer=timedelta(minutes=2))
async def all_servers_are_down(world: World) -> None:
    """Clients and workers try again, with growing pauses and few log lines; a key gives one job."""
    down = world.lasting(12.0, 60.0)
    for name in ("s1", "s2"):
        await world.kill(name)
    began = time.monotonic()
    said = {name: seen(world, name, SAID) for name in world.workers}
    tenant = world.load.tenant(RED)
    body, key = world.load._body(tenant, ms=5), f"down-{world.seed}"
    asked = asyncio.create_task(world.load.submit(tenant, "fast", body=body, key=key, known_later=False))
    # A caller with a long timeout is served at its first try; one with a short timeout gets an error in time.
    patient = asyncio.create_task(world.load.submit(tenant, "fast", timeout=down + 60))
    assert await world.load.submit(tenant, "fast", timeout=2.0) is None
    assert time.monotonic() - began < 2.0 + SLOW_MACHINE
    await asyncio.sleep(max(0.0, began + down - time.monotonic()))
    for name in world.workers:
        # Once when it is lost, after 10 s, and then every 30 s.
        assert seen(world, name, SAID) - said[name] <= 3 + down / 30
        assert world.alive(name)
    assert not patient.done()
    for name in ("s1", "s2"):
        await world.start(name)
    assert await patient is not None
    job = await asked
    if job is None:  # it gave up while no one was there: the same key again
        job = await world.load.submit(tenant, "fast", body=body, key=key, known_later=False)
    assert job is not None
    flowing = await submit(world, "fast", 3)
    await completed(world, flowing)
    logs = [log.read_text(errors="replace") for name in world.workers for log in world.folder.glob(f"{name}-*.log")]
    attempts = [int(found) for text in logs for found in re.findall(r" connected .* attempts=(\d+)", text)]
    # From 0.1 s on they wait twice as long each time, up to 5 s, and then try both.
    assert 0 < max(attempts) < 25 + (down + SLOW_MACHINE) / 2.5 * 2


# ---------------------------------------------------------------------- short of something


@scenario("F14", "file-descriptor exhaustion", checks=("I13",), world=OTHERS_LOAD)
async def a_server_runs_out_of_descriptors(world: World) -> None:
    """New connections get nowhere, those there are live on; with descriptors to be had, all is well again."""
    await add_worker(world, "w8", servers=["s1"])
    process = world.servers["s1"]
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    links = seen(world, "w8", " connected server=")
    address = world.address("s1")
    assert await is_ready(address)
    caller = client_of(world, address)
    first = await world.load.submit(caller, "fast", key=f"before-{world.seed}")
    assert first is not None
    await caller.hg.wait_result(first, timeout=20)  # both its streams and its calls are connected
    async with world.faulty("few descriptors for s1"):
        fault = FewDescriptors(process.pid, FewDescriptors.open_now(process.pid))
        try:
            assert not await is_ready(address, seconds=2.0)
            old = await submit(world, "held", extra={"until": str(jobs.gate)})
            until = time.monotonic() + 2 * world.lease
            while time.monotonic() < until:  # who is connected is served, and who is not finds no one
                job = await world.load.submit(caller, "fast", key=f"few-{world.chance.randrange(10**9)}")
                assert job is not None
                await caller.hg.wait_result(job, timeout=20)
                assert not await is_ready(address, seconds=1.0)
            assert process.exit_code is None
            assert seen(world, "w8", " connected server=") == links, "the link that was there was dropped"
        finally:
            fault.heal()
            await caller.hg.close(flush=0.1)

    async def ready_again() -> bool:
        return await is_ready(address)

    await eventually(ready_again, "s1 takes connections again", within=15)
    ended = await jobs.end()
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended
    await completed(world, old)


@scenario("F15", "server event-loop stall 5 s", checks=("I2",), world={**OTHERS_LOAD, "lease": 6.0})
async def a_server_stands_still(world: World) -> None:
    """Its workers go elsewhere before their leases are over: nothing expires in masses; the stall is in the log."""
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    await add_worker(world, "w8", servers=["s1", "s2"], concurrency=16)
    jobs = await hold(world, 12)
    await jobs.run_at("w8")
    expired = await count_events(world, EventKind.LEASE_EXPIRED)
    async with world.faulty("block s1 for 5 s"):
        await server.meets("tick.after_commit", "block:5")
        await printed(world, "s1", r"loop_lag ms=\d{4,}", within=15)
        server.disarm()
    ended = await jobs.end()
    assert {one.attempt for one in ended} == {1}, ended
    assert await count_events(world, EventKind.LEASE_EXPIRED) - expired <= 2


@scenario("F16", "zombie stream", checks=("I13",), world={**OTHERS_LOAD, "lease": 6.0})
async def a_server_forgets_its_links(world: World) -> None:
    """The transport is alive and no one keeps its leases: the next beat is answered by the end, the worker reopens.

    One of the two cannot reopen for a moment: an operator sees it as what it is, not connected, while the kernel has
    its connection.
    """
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    await add_worker(world, "w8", servers=["s1"])
    await add_worker(world, "w9", servers=["s1"], topics=["fast"])
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    hg = Headgate(world.address("s1"), token=world.tokens[RED])

    async def shown(name: str) -> bool:
        return any(one.worker.startswith(f"{name}-") for one in await hg.admin.workers.list())

    async def shown_again() -> bool:
        return await shown("w8")

    try:
        assert await shown("w8")
        links = {name: seen(world, name, " connected server=") for name in ("w8", "w9")}
        async with world.faulty("s1 forgets its links"):
            await world.freeze("w8")
            await server.meets("beat.before_ack", "forget")
            server.disarm()
            assert not await shown("w8"), "a worker without a stream is shown as connected"
            await world.thaw("w8")
            began = time.monotonic()
            for name in ("w8", "w9"):
                await printed(world, name, " connected server=", times=links[name] + 1, within=5 + SLOW_MACHINE)
            took = time.monotonic() - began
            world.measured("the streams are open again", f"{took:.1f} s")
        assert seen(world, "s1", "session_ended .*reason=session_forgotten") >= 1
        await eventually(shown_again, "the operator sees it again")
    finally:
        await hg.close(flush=0.1)
    ended = await jobs.end()
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended
