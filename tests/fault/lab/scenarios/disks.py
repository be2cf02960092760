"""Disks that are full: of the tables, and of the log that comes before them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from headgate.domain.errors import HeadgateError
from tests.fault.lab.armed_server import readiness_is
from tests.fault.lab.inject.disks import SmallDisk, move_folder
from tests.fault.lab.postgres import postgres_stopped
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.scenarios.database import work_flows
from tests.fault.lab.steps import RED, eventually, noted

MEGABYTE = 1 << 20
NO_ROOM = re.compile(r"out of disk space|No space left", re.IGNORECASE)


@asynccontextmanager
async def small_disk(world: World, folder: str, size: int) -> AsyncIterator[SmallDisk]:
    """A part of the data is on a disk that can be filled while the block lasts, and then at its old place again."""
    disk = await asyncio.to_thread(SmallDisk, size)
    try:
        async with postgres_stopped(world) as data:
            await asyncio.to_thread(move_folder, data / folder, disk)
    except BaseException:
        disk.heal()
        raise

    async def free() -> None:
        disk.free()

    world.undo_at_heal("full disk", free)
    try:
        yield disk
    finally:
        disk.free()
        async with postgres_stopped(world) as data:
            await asyncio.to_thread(_move_back, data / folder, disk)


def _move_back(link: Path, disk: SmallDisk) -> None:
    old = disk.path / link.name
    owner = old.stat()
    link.unlink()
    shutil.copytree(old, link)
    for path in (link, *link.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    disk.heal()


@scenario("F36", "data disk full", checks=("I1",), world={"rate": 15.0})
async def the_data_disk_is_full(world: World) -> None:
    """Callers are notified that there is no room; what was taken stays; with room again it continues by itself."""
    async with small_disk(world, "base", 256 * MEGABYTE) as disk:
        await work_flows(world)
        async with world.faulty("data disk full"):
            await asyncio.to_thread(disk.fill)
            texts = await _refused_with(world, NO_ROOM)
            assert texts, "nobody was told that there is no room"
            assert all(world.alive(name) for name in (*world.server_specs, *world.worker_specs))
            disk.free()
        await work_flows(world, within=20)


async def _refused_with(world: World, pattern: re.Pattern[str], *, within: float = 25.0) -> set[str]:
    """Write much until callers get errors; returns them."""
    tenant = world.load.tenant(RED)
    until = time.monotonic() + within
    while time.monotonic() < until:
        await world.load.submit_many(tenant, "slow", 200)
        told = await noted(world, "fail", "info", proc="load")
        found = {str(event.get("text")) for event in told if pattern.search(str(event.get("text")))}
        if found:
            return found
    return set()


@scenario("F37", "WAL disk full", checks=("I1", "I13"), world={"rate": 15.0})
async def the_log_disk_is_full(world: World) -> None:
    """PostgreSQL panics, and cannot even recover. With room it does, and everything acknowledged is there."""
    async with small_disk(world, "pg_wal", 160 * MEGABYTE) as disk:
        await work_flows(world)
        async with world.faulty("WAL disk full"):
            await asyncio.to_thread(disk.fill)
            writer = asyncio.create_task(_write_log(world))
            try:
                await eventually(_panicked(world), "PostgreSQL has panicked", within=30)
            finally:
                writer.cancel()
                await asyncio.wait((writer,))
            await readiness_is(world, "s1", ready=False)
            disk.free()
            if world.cluster.pid is None:
                await asyncio.to_thread(world.cluster.restart)
        await readiness_is(world, "s1", ready=True, within=20)
        await work_flows(world, within=20)


def _panicked(world: World) -> Callable[[], Awaitable[bool]]:
    async def panicked() -> bool:
        return "PANIC" in world.cluster.log.read_text(errors="replace")

    return panicked


async def _write_log(world: World) -> None:
    """New segments are wanted soon."""
    while True:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, HeadgateError):
            async with world.database() as db:
                while True:
                    await db.execute("SELECT pg_logical_emit_message(true, 'lab', repeat('x', 1000000))")
        await asyncio.sleep(0.2)
