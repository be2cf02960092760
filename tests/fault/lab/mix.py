"""Random faults under a mixed load: what, to whom and when is decided by the seed alone."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.fault.lab.world import World

GAP: Final = (0.5, 2.5)
"""Seconds between two faults."""
CALM: Final = 13.0
"""In the middle of a mix nothing breaks for so long: order, lateness and the speed of cancels are judged in calm times
only."""
BACKLOG_FROM: Final = 7.0
"""Seconds of it until a backlog of ranked jobs is made: cancels and lateness are judged while slots are free."""
CALM_FROM: Final = 45.0
"""A shorter mix has no time for that."""
Deed = Callable[[World, str, float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault to come: so many seconds after the one before, to this one, for so long."""

    after: float
    what: str
    whom: str
    lasting: float


def plan(seed: int, seconds: float, *, servers: Sequence[str], workers: Sequence[str], proxies: bool) -> list[Planned]:
    """The faults of a run. The same seed gives the same list, whatever happens in between."""
    chance = random.Random(f"mix {seed}")
    names = [name for name, (_, weight, _, _) in DEEDS.items() for _ in range(weight) if proxies or name != "cut"]
    found: list[Planned] = []
    total = 0.0
    calm = seconds >= CALM_FROM
    while total < seconds:
        if calm and total >= seconds / 2:
            calm = False
            found.append(Planned(after=0.0, what="calm", whom="pg", lasting=CALM))
            total += CALM
            continue
        what = chance.choice(names)
        _, _, kind, (shortest, longest) = DEEDS[what]
        whom = chance.choice({"server": servers, "worker": workers, "pg": ("pg",)}[kind])
        after, lasting = chance.uniform(*GAP), chance.uniform(shortest, longest)
        found.append(Planned(after=after, what=what, whom=whom, lasting=lasting))
        total += after + lasting
    return found


def setting() -> dict[str, Any]:
    """How the world of a mix is made: behind proxies, where this tree has them."""
    return {"proxy_servers": importlib.util.find_spec("tests.fault.lab.proxy") is not None}


async def mix(world: World, *, seconds: float) -> None:
    """Do them one after the other; those that kill everything wait until the victim is back."""
    faults = plan(
        world.seed, seconds, servers=sorted(world.server_specs), workers=sorted(world.worker_specs),
        proxies=bool(world.proxies),
    )  # fmt: skip
    for one in faults:
        await asyncio.sleep(one.after)
        await DEEDS[one.what][0](world, one.whom, one.lasting)


async def _kill(world: World, name: str, lasting: float) -> None:
    await world.kill(name)
    await asyncio.sleep(lasting)
    await world.start(name)


async def _stop(world: World, name: str, lasting: float) -> None:
    await world.stop(name)
    await asyncio.sleep(lasting)
    await world.start(name)


async def _freeze(world: World, name: str, lasting: float) -> None:
    await world.freeze(name)
    await asyncio.sleep(lasting)
    await world.thaw(name)


async def _kill_backends(world: World, name: str, lasting: float) -> None:
    await world.kill_backends(most=world.chance.randint(1, 8))


async def _restart_postgres(world: World, name: str, lasting: float) -> None:
    await world.restart_postgres("immediate")


async def _calm(world: World, name: str, lasting: float) -> None:
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(BACKLOG_FROM)
    await asyncio.gather(*(world.load.ranked_backlog(world.load.tenant(tenant)) for tenant in world.tenants))
    await asyncio.sleep(max(0.0, began + lasting - asyncio.get_running_loop().time()))


async def _cut(world: World, name: str, lasting: float) -> None:
    proxy = world.proxies.get(name)
    if proxy is None:
        return
    async with world.faulty(f"cut {name}"):
        world.chance.choice((proxy.hold, proxy.swallow, proxy.reset))()
        await asyncio.sleep(lasting)
        proxy.heal()


DEEDS: Final[dict[str, tuple[Deed, int, str, tuple[float, float]]]] = {
    "kill worker": (_kill, 3, "worker", (0.1, 1.0)),
    "stop worker": (_stop, 2, "worker", (0.0, 0.5)),
    "freeze worker": (_freeze, 3, "worker", (0.5, 5.0)),
    "kill server": (_kill, 3, "server", (0.2, 2.0)),
    "stop server": (_stop, 1, "server", (0.1, 1.0)),
    "freeze server": (_freeze, 2, "server", (0.5, 5.0)),
    "kill backends": (_kill_backends, 4, "pg", (0.0, 0.0)),
    "freeze postgres": (_freeze, 1, "pg", (0.3, 4.0)),
    "crash postgres": (_restart_postgres, 1, "pg", (0.0, 0.0)),
    "cut": (_cut, 3, "server", (0.3, 4.0)),
    "calm": (_calm, 0, "pg", (CALM, CALM)),
}
"""What is done, how often among the others, to what kind, and for how long."""
