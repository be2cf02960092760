"""Faults of workers."""

from __future__ import annotations

import asyncio

from tests.fault.lab.scenarios import World, scenario


@scenario("F1", "worker SIGKILL mid-run", checks=("I1", "I3", "I13"))
async def workers_are_killed(world: World) -> None:
    """A random worker dies every second or so and comes back; what it ran lapses and runs elsewhere."""
    for _ in range(8):
        victim = world.chance.choice(sorted(world.workers))
        await world.kill(victim)
        await asyncio.sleep(world.chance.uniform(0.3, 1.2))
        await world.start(victim)
