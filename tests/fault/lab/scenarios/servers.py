"""Faults of servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from headgate import Headgate
from headgate.domain.states import EventKind
from tests.fault.lab.armed import EXIT_CODE
from tests.fault.lab.inject.processes import FewDescriptors, state_of
from tests.fault.lab.load import Tenant
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import (
    OTHERS_LOAD,
    add_worker,
    client_of,
    completed,
    count_events,
    eventually,
    hold,
    noted,
    printed,
    raw_worker,
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

    async def meets(self, site: str, action: str, *, within: float = 15.0) -> None:
        """Do this at the next hit of a site, once, and wait until it happened."""
        pattern = f"failpoint site={site} "
        before = seen(self._world, self.name, pattern)
        self.plan(f"{site}={action}@once")
        await printed(self._world, self.name, pattern, times=before + 1, within=within)

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


Stir = Callable[[World, Tenant], Awaitable[object]]


async def _each_dies(world: World, sites: Mapping[str, Stir]) -> None:
    """Kill s1 at each of these sites, while somebody does what leads there, past the load that may be elsewhere."""
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    await add_worker(world, "w8", servers=["s1"], topics=["fast", "slow"])
    caller = client_of(world, world.address("s1"))
    missed = []
    try:
        for site, stir in sites.items():
            stirring = asyncio.create_task(_keep_stirring(world, caller, stir), name=f"stir {site}")
            try:
                if not await server.dies_at(site):
                    missed.append(site)
            finally:
                stirring.cancel()
                await asyncio.wait((stirring,))
    finally:
        await caller.hg.close(flush=0.1)
    assert not missed, f"not reached: {', '.join(missed)}"
    world.coverage.add("killed_at_a_failpoint")


async def _keep_stirring(world: World, caller: Tenant, stir: Stir) -> None:
    while True:
        try:
            await stir(world, caller)
        except Exception as error:  # noqa: BLE001 -- its server is being killed; the record tells what else it was
            world.recorder.note("stir_failed", error=repr(error)[:300])
        await asyncio.sleep(0.1)


async def _submit_one(world: World, caller: Tenant) -> None:
    await world.load.submit(caller, "progress", key=f"stir-{world.chance.randrange(10**9)}")


async def _submit_for_who_waits(world: World, caller: Tenant) -> None:
    await world.load.submit(caller, "fast")  # without a key: only what is plain is claimed by the same call


async def _submit_slow(world: World, caller: Tenant) -> None:
    await world.load.submit(caller, "slow", ms=2000)  # longer than half a lease: it is renewed


async def _batch(world: World, caller: Tenant) -> None:
    await world.load._do_batch(caller)


async def _depends(world: World, caller: Tenant) -> None:
    await world.load._do_depends(caller)


async def _ask(world: World, caller: Tenant) -> None:
    await caller.hg.admin.status()


async def _greet(world: World, caller: Tenant) -> None:
    async with raw_worker(world, "greeter", resumed=True):
        pass


@scenario("F9", "server killed at each failpoint: jobs in", checks=("I1", "I8", "I10"))
async def servers_die_while_they_take_jobs(world: World) -> None:
    """Before and after every commit of a submit: no half state, and who asks again with a key gets the same job."""
    sites: dict[str, Stir] = {
        "submit.before_commit": _submit_one,
        "submit.after_commit": _submit_one,
        "submit_claim.before_commit": _submit_for_who_waits,
        "submit_claim.after_commit": _submit_for_who_waits,
        "batch.before_commit": _batch,
        "batch.after_commit": _batch,
        "call.before_reply": _ask,
    }
    await _each_dies(world, sites)


@scenario("F9b", "server killed at each failpoint: jobs out", checks=("I1", "I2", "I3"))
async def servers_die_while_they_hand_out_jobs(world: World) -> None:
    """Claimed and not sent, sent and not written down: the lease, or the worker that comes back, brings it home."""
    sites: dict[str, Stir] = {
        "claim.before_commit": _submit_slow,
        "claim.after_commit": _submit_slow,
        "claim.before_send": _submit_slow,
        "deliver.after_send": _submit_slow,
        "hello.before_ack": _greet,
        "undeclared.before_commit": _greet,
        "undeclared.after_commit": _greet,
        "beat.before_ack": _ask,
    }
    await _each_dies(world, sites)


@scenario("F9c", "server killed at each failpoint: outcomes", checks=("I1", "I3", "I4", "I5"))
async def servers_die_while_they_settle(world: World) -> None:
    """Outcomes are sent again to whoever is there, and count once."""
    sites: dict[str, Stir] = {
        "settle.before_commit": _submit_for_who_waits,
        "settle.after_commit": _submit_for_who_waits,
        "renew.before_commit": _submit_slow,
        "renew.after_commit": _submit_slow,
        "free.before_commit": _depends,
        "free.after_commit": _depends,
        "tick.before_commit": _ask,
        "tick.after_commit": _ask,
    }
    await _each_dies(world, sites)


@scenario("F9d", "server killed at each failpoint: schedules, operations", checks=("I1", "I8"))
async def servers_die_while_they_fire_and_operate(world: World) -> None:
    """Occurrences fire once, whoever fires them; an operation goes on elsewhere."""
    sites: dict[str, Stir] = {
        "schedule.before_commit": _ask,
        "schedule.after_mark": _ask,
        "schedule.after_commit": _ask,
        "operation.before_commit": _operate,
        "operation.after_commit": _operate,
        "transaction.before_commit": _operate,
        "transaction.after_commit": _operate,
    }
    await _each_dies(world, sites)


@scenario("F9e", "server killed while it starts or drains", checks=("I1", "I13"))
async def servers_die_while_they_start_or_stop(world: World) -> None:
    """A start that failed is simply repeated; a drain that was cut short is a kill."""
    server = ArmedServer(world, "s1")
    for site in ("boot.checked", "boot.registered", "boot.listening"):
        await world.kill("s1")
        server.plan(f"{site}=exit")
        before = seen(world, "s1", f"failpoint site={site} ")
        with contextlib.suppress(AssertionError):  # it ended before it was ready
            await world.start("s1")
        assert seen(world, "s1", f"failpoint site={site} ") == before + 1, f"it did not die at {site}"
        server.disarm()
        await world.start("s1")
    server.plan("drain.begun=exit")
    assert await world.stop("s1") == EXIT_CODE
    server.disarm()
    await world.start("s1")


async def _operate(world: World, caller: Tenant) -> None:
    """An operation that finds nothing has a chunk all the same; quieting a worker is an explicit transaction."""
    await caller.hg.admin.operations.start("cancel", "topic:fatal", reason="lab")
    await caller.hg.admin.workers.unquiet("nobody")


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
        await asyncio.sleep(1.0)


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
        await server.meets("tick.after_commit", "block:5")
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
        await server.meets("beat.before_ack", "forget")
        server.disarm()
        await printed(world, "w8", "connected to ", times=links + 1, within=5 + world.lease)
    assert seen(world, "s1", "link_ended .*reason=link_forgotten") >= 1
    ended = await jobs.end()
    assert {(one.attempt, one.epoch) for one in ended} == {(1, 1)}, ended
    hg = Headgate(world.address("s1"), token=world.tokens["red"])
    try:
        shown = [str(one) for one in await hg.admin.workers.list()]
        assert [one for one in shown if "w8" in one], f"the operator does not see it: {shown}"
    finally:
        await hg.close(flush=0.1)
