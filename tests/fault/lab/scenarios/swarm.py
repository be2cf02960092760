"""Several kinds of faults in one run, chosen by the seed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from tests.fault.lab.armed_server import ArmedServer
from tests.fault.lab.inject.databases import HostileLock
from tests.fault.lab.inject.processes import FalseClock
from tests.fault.lab.mix import DEEDS
from tests.fault.lab.scenarios import World, scenario

Deed = Callable[[World], Awaitable[None]]


def _from_mix(name: str) -> Deed:
    deed, _, kind, (shortest, longest) = DEEDS[name]

    async def do(world: World) -> None:
        there = {"server": list(world.server_specs), "worker": list(world.worker_specs), "pg": ["pg"]}
        await deed(world, world.chance.choice(sorted(there[kind])), world.chance.uniform(shortest, longest))

    return do


async def _way_to_postgres(world: World) -> None:
    proxy = world.proxies["pg"]
    async with world.faulty("cut pg"):
        world.chance.choice((proxy.hold, proxy.swallow, proxy.reset, proxy.refuse))()
        await asyncio.sleep(world.chance.uniform(0.2, 3.0))
        proxy.heal()


async def _lost_commits(world: World) -> None:
    async with world.faulty("cut after commit"):
        world.proxies["pg"].cut(r"headgate\.(submit|claim|settle|renew|fire)", statements=True, times=3)
        await asyncio.sleep(1.0)
        world.proxies["pg"].heal()


async def _slow_links(world: World) -> None:
    async with world.faulty("slow links"):
        for name in world.server_specs:
            world.proxies[name].worsen(latency=0.1, jitter=0.1)
        await asyncio.sleep(2.0)
        for name in world.server_specs:
            world.proxies[name].heal()


async def _false_clock(world: World) -> None:
    file = world.chance.choice(sorted(world.folder.glob("clock-*")))
    async with world.faulty(f"false {file.name}"):
        offset = int(world.chance.choice((-3600, 3600, -86400)) * 1e9)
        with file.open("r+b", buffering=0) as shift:
            shift.write(offset.to_bytes(8, "little", signed=True))
        await asyncio.sleep(0.5)


async def _refused(world: World) -> None:
    name = world.chance.choice(sorted(world.server_specs))
    server = ArmedServer(world, name)
    async with world.faulty(f"{name} is refused"):
        server.plan("*.before_commit=raise:40001@0.3")
        await asyncio.sleep(1.5)
        server.disarm()


async def _locked(world: World) -> None:
    async with world.faulty("lock jobs"), HostileLock(world.dsn) as lock:
        await lock.table("headgate.jobs")
        await asyncio.sleep(world.chance.uniform(0.2, 1.0))


async def _deaf(world: World) -> None:
    await world.kill_backends(application="headgate listen")


SWARM: Final[dict[str, Deed]] = {
    **{name: _from_mix(name) for name in DEEDS},
    "way to postgres": _way_to_postgres,
    "lost commits": _lost_commits,
    "slow links": _slow_links,
    "false clock": _false_clock,
    "refused": _refused,
    "locked": _locked,
    "deaf": _deaf,
}
AT_ONCE: Final = 6
SWARM_SECONDS: Final = float(os.environ.get("SWARM_SECONDS", "0"))


@scenario(
    "F60",
    "swarm",
    checks=("all",),
    world={"proxy_servers": True, "proxy_database": True},
    within=timedelta(minutes=4) + timedelta(seconds=2 * SWARM_SECONDS),
    longer=timedelta(minutes=8),
)
async def everything_at_once(world: World) -> None:
    """A seeded few of all kinds of faults, one after the other: pairs find what each alone does not. SWARM_SECONDS=."""
    clocks = {name: FalseClock(world.folder) for name in ("s1", "w1")}
    world.server_specs["s1"].variables = clocks["s1"].environ
    world.worker_specs["w1"].options["variables"] = clocks["w1"].environ
    for name in world.server_specs:
        ArmedServer(world, name)
    for name in (*world.server_specs, "w1"):
        await world.restart(name)
    chosen = world.chance.sample(sorted(SWARM), AT_ONCE)
    world.recorder.note("swarm", chosen=chosen)
    until = asyncio.get_running_loop().time() + (SWARM_SECONDS or world.lasting(20, 300))
    while asyncio.get_running_loop().time() < until:
        await SWARM[world.chance.choice(chosen)](world)
        await asyncio.sleep(world.chance.uniform(0.2, 1.5))
    for clock in clocks.values():
        clock.heal()
    for name in world.server_specs:
        (world.folder / f"{name}.plan").unlink(missing_ok=True)
