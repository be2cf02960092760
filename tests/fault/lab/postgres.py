"""PostgreSQL of a world, between two of its lives: stopped, changed, started again; or started with a false clock."""

from __future__ import annotations

import asyncio
import atexit
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from headgate.embedded import Binaries, find_binaries
from headgate.embedded.privileges import reachable_binaries
from tests.fault.lab.inject.processes import FalseClock
from tests.fault.lab.steps import eventually
from tests.fault.lab.world import World


def pgdata(world: World) -> Path:
    """Its data folder."""
    return world.cluster.data / "pgdata"


@asynccontextmanager
async def postgres_stopped(world: World, number: signal.Signals = signal.SIGINT) -> AsyncIterator[Path]:
    """It has ended (SIGINT: in order) while the block lasts; gives its data folder. Then it starts again."""
    await stop_postgres(world, number)
    try:
        yield pgdata(world)
    finally:
        await asyncio.to_thread(world.cluster.restart)


async def stop_postgres(world: World, number: signal.Signals = signal.SIGINT) -> None:
    """Wait until it has ended."""
    pid = world.cluster.pid
    if pid is not None:
        os.kill(pid, number)

    async def gone() -> bool:
        return world.cluster.pid is None

    await eventually(gone, "PostgreSQL has ended", within=30)


async def with_false_clock(world: World) -> FalseClock:
    """Start it again with a wall clock that can be set, by way of a wrapper: its environment is not ours to choose."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-lab-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # wanted for as long as it may start once more
    folder.chmod(0o755)
    clock = FalseClock(folder)
    launch = world.cluster._launch
    found = reachable_binaries(launch.binaries or find_binaries(), world.cluster._folder.account())
    for name in ("postgres", "initdb"):
        wrapper = folder / name
        command = shlex.join([*clock.prefix, str(found.bin_dir / name)])
        wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        wrapper.chmod(0o755)
    wrapped = Binaries(bin_dir=folder, major=found.major, version=found.version, source="laboratory")
    world.cluster._launch = replace(launch, binaries=wrapped)
    await asyncio.to_thread(world.cluster.restart)

    async def true_again() -> None:
        clock.heal()

    world.undo_at_heal("false clock of postgres", true_again)
    return clock
