"""Faults of servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from headgate import Headgate
from headgate.domain import failpoints
from headgate.domain.errors import HeadgateError
from headgate.domain.states import EventKind
from tests.fault.lab.armed import EXIT_CODE
from tests.fault.lab.inject.processes import FewDescriptors, state_of
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import (
    OTHERS_LOAD,
    add_worker,
    completed,
    count_events,
    eventually,
    hold,
    noted,
    printed,
    seen,
    submit,
)

RETRYABLE: Final = {"NotConnected", "NotAcknowledged", "OutcomeUnknown", "Unavailable", "CallFailed", "Timeout"}
_HEALTH: Final = "/grpc.health.v1.Health/Check"


@scenario("F10", "server kill -9 loop", checks=("I1", "I2", "I3", "I4", "I5", "I13"))
async def servers_are_killed_in_turn(world: World) -> None:
    """One of two servers dies, the other carries on alone for a while, then the first is back."""
    for round_ in range(5):
        victim = ("s1", "s2")[round_ % 2]
        await world.kill(victim)
        await asyncio.sleep(world.chance.uniform(0.5, 2.0))
        await world.start(victim)
        await asyncio.sleep(world.chance.uniform(0.3, 1.0))


# ---------------------------------------------------------------------- at a named place


class ArmedServer:
    """A server whose plan is a file that changes while it runs."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self.name = world, name
        self._plan = world.folder / f"{name}.plan"
        world.server_specs[name].armed = f"@{self._plan}"

    def plan(self, text: str) -> None:
        """From the next hit on."""
        fresh = self._plan.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self._plan)

    def disarm(self) -> None:
        """No more failpoints."""
        self._plan.unlink(missing_ok=True)

    async def stirred(self, site: str, *, within: float) -> bool:
        """Whether it came to that site in time."""
        pattern = f"failpoint site={site} "
        before = seen(self._world, self.name, pattern)

        async def hit() -> bool:
            return seen(self._world, self.name, pattern) > before

        with contextlib.suppress(AssertionError):
            await eventually(hit, f"{self.name} reached {site}", within=within)
            return True
        return False

    async def dies_at(self, site: str, *, within: float = 8.0) -> bool:
        """Kill it there, and start it again; False if it did not come there in time."""
        process = self._world.servers[self.name]
        self.plan(f"{site}=exit")

        async def dead() -> bool:
            return process.exit_code is not None

        try:
            await eventually(dead, f"{self.name} died at {site}", within=within)
        except AssertionError:
            self.disarm()
            return False
        self.disarm()
        assert process.exit_code == EXIT_CODE, f"{self.name} ended with {process.exit_code} at {site}"
        self._world.fault("start", f"exit at {site}")
        await self._world.start(self.name)
        self._world.fault("stop", f"exit at {site}")
        return True


async def _each_dies(world: World, sites: Sequence[str], stir: Callable[[World], Awaitable[object]]) -> None:
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    missed = []
    for site in sites:
        stirring = asyncio.create_task(_keep_stirring(world, stir))
        try:
            if not await server.dies_at(site):
                missed.append(site)
        finally:
            stirring.cancel()
            await asyncio.wait((stirring,))
    assert not missed, f"not reached: {', '.join(missed)}"
    world.coverage.add("killed_at_a_failpoint")


async def _keep_stirring(world: World, stir: Callable[[World], Awaitable[object]]) -> None:
    while True:
        with contextlib.suppress(HeadgateError):
            await stir(world)
        await asyncio.sleep(0.2)


async def _nothing(world: World) -> None:
    """The load is enough."""


@scenario("F9", "server killed at each failpoint: jobs in", checks=("I1", "I8", "I10"), world={"rate": 60})
async def servers_die_while_they_take_jobs(world: World) -> None:
    """Before and after every commit of a submit: no half state, and who asks again with a key gets the same job."""
    groups = ("submit.", "submit_claim.", "batch.", "call.")
    weights = [site for site in failpoints.SITES if site.startswith(groups)]

    async def batch(world: World) -> None:
        await world.load._do_batch(world.load.tenant("red"))

    await _each_dies(world, weights, batch)


@scenario("F9b", "server killed at each failpoint: jobs out", checks=("I1", "I2", "I3"), world={"rate": 60})
async def servers_die_while_they_hand_out_jobs(world: World) -> None:
    """Claimed and not sent, sent and not written down: the lease, or the worker that comes back, brings it home."""

    async def reconnect(world: World) -> None:
        await world.restart("w1")

    sites = [site for site in failpoints.SITES if site.startswith(("claim.", "deliver.", "hello.", "beat."))]
    await _each_dies(world, sites, reconnect)


@scenario("F9c", "server killed at each failpoint: outcomes", checks=("I1", "I3", "I4", "I5"), world={"rate": 60})
async def servers_die_while_they_settle(world: World) -> None:
    """Outcomes are sent again to whoever is there, and count once."""

    async def slow_ones(world: World) -> None:
        await submit(world, "slow", ms=2500)  # longer than half a lease: it is renewed

    sites = [site for site in failpoints.SITES if site.startswith(("settle.", "renew.", "free.", "tick."))]
    await _each_dies(world, sites, slow_ones)


@scenario("F9d", "server killed at each failpoint: schedules, operations, boot", checks=("I1", "I8"))
async def servers_die_while_they_fire_and_operate(world: World) -> None:
    """Occurrences fire once whoever fires them; an operation goes on elsewhere; a start that failed is repeated."""

    server = ArmedServer(world, "s1")
    await world.restart("s1")
    fired = ("schedule.before_commit", "schedule.after_mark", "schedule.after_commit")
    missed = [site for site in fired if not await server.dies_at(site)]
    for site in ("operation.before_commit", "operation.after_commit", "transaction.before_commit"):
        stirring = asyncio.create_task(_keep_stirring(world, _operate))
        try:
            missed += [] if await server.dies_at(site) else [site]
        finally:
            stirring.cancel()
            await asyncio.wait((stirring,))
    for site in ("boot.checked", "boot.registered", "boot.listening"):
        await world.kill("s1")
        server.plan(f"{site}=exit")
        try:
            await world.start("s1")
            missed.append(site)
        except AssertionError:
            server.disarm()
        await world.start("s1")
    server.plan("drain.begun=exit")
    assert await world.stop("s1") == EXIT_CODE
    server.disarm()
    await world.start("s1")
    assert not missed, f"not reached: {', '.join(missed)}"


async def _operate(world: World) -> None:
    """An operation that finds nothing has a chunk all the same; quieting a worker is an explicit transaction."""
    hg = world.clients["red"]
    await hg.admin.operations.start("cancel", "topic:fatal state:dead", reason="lab")
    await hg.admin.workers.unquiet("nobody")


# ---------------------------------------------------------------------- restarts and outages


@scenario("F11", "rolling restart under load", checks=("I1", "I13"), world=OTHERS_LOAD)
async def servers_are_restarted_one_by_one(world: World) -> None:
    """Each drains: readiness goes off, its workers move on; callers see what they may try again, if anything."""
    await add_worker(world, "w8", concurrency=8)
    jobs = await hold(world, 6)
    await jobs.run_at("w8")
    for name in ("s1", "s2"):
        assert await world.stop(name) == 0
        await world.start(name)
        await asyncio.sleep(0.5)
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
        server.plan(f"{site}=stop@once")
        assert await server.stirred(site, within=15)
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
        await asyncio.sleep(1.0)


@scenario(
    "F12b", "an instance frozen between the mark and the commit", checks=("I8",), world={"server_args": ("--pooler",)}
)
async def an_instance_freezes_before_it_commits_its_firing(world: World) -> None:
    """As behind a pooler, firing is an explicit transaction: frozen in it, an instance holds what it has marked."""
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    server.plan("schedule.after_mark=stop@once")
    assert await server.stirred("schedule.after_mark", within=15)
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


@scenario("F13", "all servers down", checks=("I1", "I10"))
async def all_servers_are_down(world: World) -> None:
    """Clients and workers wait and try again, with growing pauses; what was asked for with a key is there once."""
    for name in ("s1", "s2"):
        await world.kill(name)
    tries = {name: seen(world, name, "lost the stream|cannot|not connect") for name in world.workers}
    tenant = world.load.tenant("red")
    body, key = world.load._body(tenant, ms=5), f"down-{world.seed}"
    asked = asyncio.create_task(world.load.submit(tenant, "fast", body=body, key=key))
    await asyncio.sleep(8.0)
    for name in world.workers:
        # Jittered and growing: a worker that hammered would have tried hundreds of times.
        assert seen(world, name, "lost the stream|cannot|not connect") - tries[name] < 60
        assert world.alive(name)
    for name in ("s1", "s2"):
        await world.start(name)
    job = await asked
    if job is None:  # it gave up while nobody was there: the same key again
        job = await world.load.submit(tenant, "fast", body=body, key=key)
    assert job is not None
    flowing = await submit(world, "fast", 3)
    await completed(world, flowing)


# ---------------------------------------------------------------------- short of something


async def _ready(address: str, *, seconds: float = 3.0) -> bool:
    """What a load balancer would find on a new connection."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        ask = channel.unary_unary(
            _HEALTH,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await ask(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@scenario("F14", "file-descriptor exhaustion", checks=("I13",), world=OTHERS_LOAD)
async def a_server_runs_out_of_descriptors(world: World) -> None:
    """New connections get nowhere, those there are live on; with descriptors to be had, all is well again."""
    await add_worker(world, "w8", servers=["s1"])
    process = world.servers["s1"]
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    links = seen(world, "w8", "connected to ")
    address = world.address("s1")
    assert await _ready(address)
    async with world.faulty("few descriptors for s1"):
        fault = FewDescriptors(process.pid, FewDescriptors.open_now(process.pid))
        try:
            assert not await _ready(address, seconds=2.0)
            old = await submit(world, "held", extra={"until": str(jobs.gate)})
            await asyncio.sleep(2 * world.lease)
            assert process.exit_code is None
            assert seen(world, "w8", "connected to ") == links, "the link that was there was dropped"
        finally:
            fault.heal()

    async def ready_again() -> bool:
        return await _ready(address)

    await eventually(ready_again, "s1 takes connections again", within=15)
    ended = await jobs.end()
    assert {(one.attempt, one.epoch) for one in ended} == {(1, 1)}, ended
    await completed(world, old)


@scenario("F15", "server event-loop stall 5 s", checks=("I2",), world={**OTHERS_LOAD, "lease": 6.0})
async def a_server_stands_still(world: World) -> None:
    """Its workers go elsewhere before their leases are over: nothing lapses in masses; the stall is in the log."""
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    await add_worker(world, "w8", servers=["s1", "s2"], concurrency=16)
    jobs = await hold(world, 12)
    await jobs.run_at("w8")
    lapsed = await count_events(world, EventKind.LAPSED)
    async with world.faulty("block s1 for 5 s"):
        server.plan("tick.after_commit=block:5@once")
        assert await server.stirred("tick.after_commit", within=10)
        await printed(world, "s1", r"loop_lag ms=\d{4,}", within=15)
        server.disarm()
    ended = await jobs.end()
    assert {one.attempt for one in ended} == {1}, ended
    assert await count_events(world, EventKind.LAPSED) - lapsed <= 2


@scenario("F16", "zombie stream", checks=("I13",), world=OTHERS_LOAD)
async def a_server_forgets_its_links(world: World) -> None:
    """The transport is alive and nobody keeps its leases: the next beat is answered by the end, the worker reopens."""
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    await add_worker(world, "w8", servers=["s1"])
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    links = seen(world, "w8", "connected to ")
    async with world.faulty("s1 forgets its links"):
        server.plan("beat.before_ack=forget@once")
        assert await server.stirred("beat.before_ack", within=10)
        server.disarm()
        await printed(world, "w8", "connected to ", times=links + 1, within=5 + world.lease)
    assert seen(world, "s1", "link_ended .*reason=link_forgotten") >= 1
    ended = await jobs.end()
    assert {(one.attempt, one.epoch) for one in ended} == {(1, 1)}, ended
    hg = Headgate(world.address("s1"), token=world.tokens["red"])
    try:
        assert [one for one in await hg.admin.workers.list() if one.worker.startswith("w8-")]
    finally:
        await hg.close(flush=0.1)
