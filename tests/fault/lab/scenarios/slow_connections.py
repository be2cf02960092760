"""Links that are narrow, slow or lossy, and many of them at once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from headgate.domain.states import EventKind, State
from tests.fault.lab.inject.networks import Island
from tests.fault.lab.process import LabWorker, environ
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import (
    OTHERS_LOAD,
    RED,
    add_worker,
    completed,
    count_events,
    eventually,
    hold,
    look,
    noted,
    seen,
    submit,
)
from tests.support.epochs import claims
from tests.support.server import LoggedProcess

PATIENT: Final[dict[str, Any]] = {**OTHERS_LOAD, "lease": 6.0}
"""Beats of two seconds: on a bad link an answer takes a second by itself."""


@asynccontextmanager
async def island_worker(world: World, name: str, **options: Any) -> AsyncIterator[Island]:
    """A worker behind a wire of its own. The servers must listen on all addresses."""
    island = await asyncio.to_thread(Island)

    async def heal_island() -> None:
        await asyncio.to_thread(island.heal_link)

    world.undo_at_heal(f"wire of {name}", heal_island)
    try:
        world.workers[name] = await asyncio.to_thread(
            lambda: LabWorker(
                name,
                [f"{island.outside}:{world.servers['s1'].port}"],
                folder=world.folder,
                token=world.tokens[RED],
                topics=["held"],
                prefix=island.prefix,
                **options,
            )
        )
        world.recorder.note("proc", what="start", name=name, pid=world.workers[name].pid)
        yield island
        await asyncio.to_thread(island.heal_link)
        await asyncio.to_thread(world.workers[name].terminate)
        world.recorder.note("proc", what="exit", name=name, code=0)
    finally:
        if name in world.workers:
            world.workers.pop(name).kill()
        await asyncio.to_thread(island.heal)


EVERYWHERE: Final = ("--host", "0.0.0.0", "--insecure")  # noqa: S104 -- reached from a namespace on this machine only


@scenario(
    "F24",
    "64 kbit/s link with a 1 MB payload",
    checks=("I2",),
    world={**PATIENT, "server_args": EVERYWHERE},
    longer=timedelta(minutes=2),
)
async def a_large_payload_on_a_narrow_link(world: World) -> None:
    """What runs behind the narrow link keeps its lease, whatever is on its way there.

    What arrives within the time that a worker bears silence, arrives. A payload that takes two minutes does not, as the
    limits of promise 14 say: the worker takes its server for lost, comes back, and gets it again. That costs no attempt
    and delays no one else; a worker with a better link runs it, once the operator has quieted this one.
    """
    async with island_worker(world, "w20", concurrency=8) as island:
        small = await hold(world, 2)
        name = (await small.run_at("w20"))[0].worker
        async with world.faulty("64 kbit/s to w20"):
            await asyncio.to_thread(lambda: island.narrow(kbit=64))
            middle = []
            for _ in range(3):  # a second each, one after the other
                middle.append(await hold(world, 1, extra={"pad": "x" * 8_000}))
                await _has_begun(world, middle[-1].ids[0])
            large = await hold(world, 1, extra={"pad": "x" * 1_000_000})
            await asyncio.sleep(world.lasting(3 * world.lease, 60.0))
            running = await look(world, [job for one in (small, *middle) for job in one.ids])
            assert {(one.state, one.attempt, claims(one.epoch)) for one in running} == {(State.RUNNING, 1, 1)}, running
            assert seen(world, "w20", "server_silent ") >= 1, "the large one has arrived?"
            await add_worker(world, "w8")
            await world.clients[RED].admin.workers.quiet(name, reason="a narrow link")
            await large.run_at("w8", within=30)
            assert {one.attempt for one in await large.end()} == {1}
        await asyncio.to_thread(island.heal_link)
        for held in (small, *middle):
            ended = await held.end()
            assert {(job.attempt, claims(job.epoch)) for job in ended} == {(1, 1)}, ended


async def _has_begun(world: World, job: UUID) -> None:
    """Wait until its handler runs: a claim says nothing of that on such a link."""

    async def so() -> bool:
        return any(event["job"] == job.hex for event in await noted(world, "handler_start"))

    await eventually(so, "its handler has begun", within=30)


@scenario(
    "F25", "500 ms ± 400 ms latency", checks=("I2", "I13"), world={**PATIENT, "proxy_servers": True, "rate": 15.0}
)
async def links_are_slow(world: World) -> None:
    """Everything takes a second; no lease is lost for that."""
    await add_worker(world, "w8")
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    expired = await count_events(world, EventKind.LEASE_EXPIRED)
    async with world.faulty("latency"):
        for name in ("s1", "s2"):
            world.proxies[name].worsen(latency=0.5, jitter=0.4)
        await asyncio.sleep(2 * world.lease)
        more = await submit(world, "slow", 5, ms=50)
        await completed(world, more, within=30)
    for name in ("s1", "s2"):
        world.proxies[name].heal()
    ended = await jobs.end()
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended
    assert await count_events(world, EventKind.LEASE_EXPIRED) == expired


@scenario("F26", "20 % packet loss", checks=("I1", "I2"), world={**PATIENT, "server_args": EVERYWHERE})
async def a_wire_loses_packets(world: World) -> None:
    """Slower, and correct."""
    async with island_worker(world, "w20", concurrency=8) as island, world.faulty("20 % loss for w20"):
        await asyncio.to_thread(island.lose, percent=20)
        for _ in range(6):
            jobs = await hold(world, 8)
            await jobs.run_at("w20", within=40)
            await jobs.end(within=40)


@scenario("F28", "500 workers reconnect at once", checks=("I13",),
          world={**OTHERS_LOAD, "servers": 1, "workers": 2, "lease": 30.0, "rate": 10})  # fmt: skip
async def a_crowd_comes_back(world: World) -> None:
    """The server is restarted under 500 idle workers: they come back with jitter, and all is as before in seconds."""
    crowd = 500
    address = world.address("s1")
    groups = [
        LoggedProcess(
            f"crowd{number}",
            # For a topic that no one submits to: what they ran would be in no history.
            [sys.executable, "-m", "tests.support.workers", address, str(world.folder / f"crowd{number}.starts"),
             "--workers", str(crowd // 4), "--concurrency", "1", "--topics", "deaf"],
            folder=world.folder,
            environ=environ(HEADGATE_TOKEN=world.tokens[RED]),
        )
        for number in range(4)
    ]  # fmt: skip
    try:

        async def connected(times: int) -> bool:
            return sum(seen(world, f"crowd{number}", " connected server=") for number in range(4)) >= times

        await eventually(lambda: connected(crowd), "the crowd has connected", within=60)
        jobs = await submit(world, "fast", 5)
        await completed(world, jobs)
        await world.restart("s1")
        began = time.monotonic()
        await eventually(lambda: connected(2 * crowd), "the crowd is back", within=40)
        took = time.monotonic() - began
        jobs = await submit(world, "fast", 5)
        await completed(world, jobs)
        world.measured("500 workers are back", f"{took:.1f} s")
        assert took < 10, f"it took {took:.1f} s until 500 workers were back"
    finally:
        for process in groups:
            process.kill()
