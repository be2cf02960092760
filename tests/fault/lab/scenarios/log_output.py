"""Logs that cannot be written: the reader of the pipe has ended, or the disk is full."""

from __future__ import annotations

import asyncio

from tests.fault.lab.inject.disks import SmallDisk
from tests.fault.lab.inject.processes import LogPipe, state_of, tree
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import client_of, completed, eventually


async def _still_serves(world: World) -> None:
    """With much to say."""
    caller = client_of(world, world.address("s1"))
    try:
        for _ in range(3):
            await world.kill_backends(most=6)
            await world.kill_backends(application="headgate listen")  # of which it surely tells
            job = await world.load.submit(caller, "fast", key=f"mute-{world.chance.randrange(10**9)}")
            assert job is not None
            await completed(world, [job])
    finally:
        await caller.hg.close(flush=0.1)
    assert world.alive("s1")


@scenario("F58", "log pipe closed", checks=("I13",))
async def nobody_reads_the_log(world: World) -> None:
    """The reader of the log has ended: the server continues to serve, and ends with its usual exit code."""
    pipe = LogPipe(world.folder)
    world.server_specs["s1"].prefix = pipe.prefix
    await world.restart("s1")
    async with world.faulty("log pipe of s1 closed"):
        pipe.close()
        reader = [pid for pid in tree(world.servers["s1"].pid) if pid != world.servers["s1"].pid]

        async def gone() -> bool:
            return all(state_of(pid) in ("", "Z") for pid in reader)

        await eventually(gone, "the log has no reader")
        await _still_serves(world)
        await world.stop("s1")
    world.server_specs["s1"].prefix = ()
    pipe.heal()
    await world.start("s1")


@scenario("F58b", "log disk full", checks=("I13",))
async def the_log_disk_of_a_server_is_full(world: World) -> None:
    """Lines are lost while it is full, and come again afterwards."""
    disk = await asyncio.to_thread(SmallDisk, 1 << 20)
    await world.kill("s1")
    log = next(path for number in range(1, 100) if not (path := world.folder / f"s1-{number}.log").exists())
    log.symlink_to(disk.path / "s1.log")
    try:
        await world.start("s1")
        async with world.faulty("log disk of s1 full"):
            await asyncio.to_thread(disk.fill)
            await _still_serves(world)
            size = log.stat().st_size
            disk.free()
        await _still_serves(world)
        assert log.stat().st_size > size, "it has not written since"
        await world.kill("s1")
    finally:
        await world.kill("s1")
        kept = log.read_bytes() if log.exists() else b""
        log.unlink()
        log.write_bytes(kept)
        await asyncio.to_thread(disk.heal)
    await world.start("s1")
