"""Faults of servers."""

from __future__ import annotations

import asyncio

from tests.fault.lab.scenarios import World, scenario


@scenario("F10", "server kill -9 loop", checks=("I1", "I2", "I3", "I4", "I5", "I13"))
async def servers_are_killed_in_turn(world: World) -> None:
    """One of two servers dies, the other carries on alone for a while, then the first is back."""
    for round_ in range(5):
        victim = ("s1", "s2")[round_ % 2]
        await world.kill(victim)
        await asyncio.sleep(world.chance.uniform(0.5, 2.0))
        await world.start(victim)
        await asyncio.sleep(world.chance.uniform(0.3, 1.0))
