"""Controls: what must hold without a fault, and small sharp runs in which a planted bug must show (see `mutants`)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from tests.fault.lab.load import WEIGHTS
from tests.fault.lab.scenarios import World, scenario

BUSY_VERBS = {"pause": 4, "cancel": 8, "delayed": 10, "discard": 3, "redrive": 3, "handback": 4, "list": 4,
              "limited": 15}  # fmt: skip


@scenario("C1", "no fault: a calm mixed load", world={"weights": BUSY_VERBS}, drain=timedelta(seconds=25))
async def nothing_happens(world: World) -> None:
    """The checker has no excuse here."""
    await asyncio.sleep(10)


@scenario("C2", "workers frozen past their leases", world={"rate": 25}, drain=timedelta(seconds=25))
async def workers_freeze_past_their_leases(world: World) -> None:
    """Handlers end while their worker is frozen, and their late results meet those of the next attempt."""
    for round_ in range(2):
        frozen = sorted(world.workers)[2 * round_ : 2 * round_ + 2]
        for tenant in world.tenants:
            for _ in range(12):
                await world.load.submit(world.load.tenant(tenant), "slow", ms=4000)
        await asyncio.sleep(0.5)
        for name in frozen:
            await world.freeze(name)
        await asyncio.sleep(
            world.lease + 3.0
        )  # half a lease of renewals beyond; ended here, lapsed, and running elsewhere
        for name in frozen:
            await world.thaw(name)
        await asyncio.sleep(1)


@scenario(
    "C3",
    "one slow slot and a backlog of priorities",
    world={
        "servers": 1,
        "workers": 2,
        "rate": 90,
        "weights": dict.fromkeys(WEIGHTS, 0) | {"ranked": 1},
        "schedules": (),
        "worker_options": {"concurrency": 1, "prefetch": 0},
    },
)
async def a_backlog_of_priorities(world: World) -> None:
    """Jobs of all priorities wait for seconds; each must be handed out in its order."""
    await asyncio.sleep(7)


@scenario("C4", "servers killed while submits are answered", world={"rate": 80}, drain=timedelta(seconds=30))
async def servers_die_while_they_answer(world: World) -> None:
    """An answer that left before its commit is a lie as soon as its server dies."""
    for round_ in range(6):
        victim = ("s1", "s2")[round_ % 2]
        await asyncio.sleep(world.chance.uniform(0.5, 1.0))
        await world.kill(victim)
        await world.start(victim)


@scenario("C5", "workers killed with jobs in their hands", world={"rate": 25}, drain=timedelta(seconds=25))
async def workers_die_with_jobs_in_their_hands(world: World) -> None:
    """What they ran lapses and runs elsewhere: within the lease, a tick and a retry."""
    for tenant in world.tenants:
        for _ in range(12):
            await world.load.submit(world.load.tenant(tenant), "slow", ms=2500)
    await asyncio.sleep(0.5)
    for name in ("w1", "w2"):
        await world.restart(name)
    await asyncio.sleep(2)
