"""Faults of PostgreSQL and of the way to it."""

from __future__ import annotations

import asyncio

from tests.fault.lab.scenarios import World, scenario


@scenario("F29", "random backend kills", checks=("I1", "I5"))
async def backends_are_ended_at_random(world: World) -> None:
    """One to three sessions of the servers end every moment; calls are made again where that is safe."""
    for _ in range(12):
        await world.kill_backends(most=world.chance.randint(1, 3))
        await asyncio.sleep(world.chance.uniform(0.2, 1.0))
