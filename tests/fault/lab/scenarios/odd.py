"""Rare ones: a page that is not what was written, a log that no one takes, and everything at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from headgate.domain.errors import HeadgateError
from tests.fault.lab.armed_server import ArmedServer
from tests.fault.lab.inject.databases import HostileLock
from tests.fault.lab.inject.disks import SmallDisk
from tests.fault.lab.inject.processes import FalseClock, LogPipe, state_of, tree
from tests.fault.lab.load import Tenant
from tests.fault.lab.mix import DEEDS
from tests.fault.lab.postgres import postgres_stopped
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import OTHERS_LOAD, RED, add_worker, client_of, completed, eventually, printed
from tests.support.epochs import claims

PAGE: Final = 8192
OUR_PAGE: Final = """
SELECT (ctid::text::point)[0]::int AS page, (array_agg(id))[1] AS job, pg_relation_filepath('headgate.jobs') AS path
  FROM headgate.jobs j WHERE (ctid::text::point)[0] < pg_relation_size('headgate.jobs') / 8192 - 1
 GROUP BY 1
HAVING bool_and(id = ANY ($1)) AND 8168 - sum((pg_column_size(j) + 7) / 8 * 8 + 4)
       < 819 + (SELECT min(pg_column_size(o)) FROM headgate.jobs o)
 ORDER BY sum(pg_column_size(j)) DESC LIMIT 1"""
"""Not the last one, and so full that no other row has its place there: fillfactor leaves 819 of 8168 bytes free."""
ROW_BYTES: Final = 900
"""Of a job: eight of them fill a page."""
ON_A_PAGE: Final = """
SELECT a.id, a.tableoid::regclass::text, pg_relation_filepath(a.tableoid) FROM headgate.archive a
  JOIN headgate.tenants n USING (tenant_no)
 WHERE n.name = $1 AND (a.ctid::text::point)[0] = 0 AND pg_relation_size(a.tableoid) >= 4 * 8192 LIMIT 1"""


@scenario("F48", "flipped byte in a heap page", checks=("I13",))
async def a_page_is_broken(world: World) -> None:
    """Whoever asks for a job on it is notified, in words; all others run. PostgreSQL finds it by its checksum."""
    await completed(world, await world.load.submit_many(world.load.tenant(RED), "fast", 200))
    async with world.database() as db:
        assert await db.fetchval("SHOW data_checksums") == "on"
        row = await db.fetchrow(ON_A_PAGE, RED)
    assert row is not None
    job, path = UUID(str(row[0])), row[2]
    async with world.faulty("flip a byte"):
        async with postgres_stopped(world) as data:
            _flip(data / path)
        try:
            caller = client_of(world, world.address("s1"))
            try:
                await _told_of(caller.hg.get(job, payload=True))
                await _others_run(world, caller)
                await _told_of(caller.hg.get(job, payload=True))
            finally:
                await caller.hg.close(flush=0.1)
            assert "invalid page" in world.cluster.log.read_text(errors="replace")
        finally:
            async with postgres_stopped(world) as data:
                _flip(data / path)


@scenario("F48b", "flipped byte in a page of jobs that wait", checks=("I13",), world=OTHERS_LOAD)
async def a_page_of_waiting_jobs_is_broken(world: World) -> None:
    """Whoever asks for them is notified; their topic stalls, in words, and the others do not. Put right, they run."""
    gate = world.folder / "gate-page"
    gate.touch()
    tenant = world.load.tenant(RED)
    jobs = await world.load.submit_many(tenant, "held", 1, until=str(gate), pad="")
    async with world.database() as db:
        size: int = await db.fetchval("SELECT pg_column_size(j) FROM headgate.jobs j WHERE id = ANY ($1)", jobs)
    # No one runs them yet. By one call: rows of others would come between them.
    jobs += await world.load.submit_many(tenant, "held", 150, until=str(gate), pad="x" * (ROW_BYTES - size))
    assert len(jobs) == 151
    async with world.database() as db:
        row = await db.fetchrow(OUR_PAGE, jobs)
    assert row is not None, "none of the pages is full, and has only these jobs"
    async with world.faulty("flip a byte"):
        async with postgres_stopped(world) as data:
            _flip(data / row["path"], row["page"])
        try:
            caller = client_of(world, world.address("s1"))
            try:
                await _told_of(caller.hg.get(row["job"], payload=True))
                await add_worker(world, "w8", servers=["s1"], concurrency=130)
                await printed(world, "s1", "claim.*invalid page")
                await _others_run(world, caller)
            finally:
                await caller.hg.close(flush=0.1)
            assert all(world.alive(name) for name in (*world.server_specs, *world.worker_specs))
        finally:
            async with postgres_stopped(world) as data:
                _flip(data / row["path"], row["page"])
    ended = await completed(world, jobs)
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended


async def _others_run(world: World, caller: Tenant) -> None:
    """Looked at by the client alone: the laboratory's own look reads whole tables."""
    for _ in range(3):
        other = await world.load.submit(caller, "fast", key=f"sound-{world.chance.randrange(10**9)}")
        assert other is not None
        await caller.hg.wait_result(other, timeout=20)


def _flip(file: Path, number: int = 0) -> None:
    """One byte in the middle of a page; once more puts it right."""
    with file.open("r+b") as page:
        page.seek(number * PAGE + PAGE // 2)
        was = page.read(1)
        page.seek(number * PAGE + PAGE // 2)
        page.write(bytes([was[0] ^ 0x10]))
        os.fsync(page.fileno())


async def _told_of(asked: Awaitable[object]) -> None:
    try:
        found = await asked
    except HeadgateError as error:
        told = str(error)
    else:
        raise AssertionError(f"a job on a broken page was shown as if nothing were wrong: {found}")
    assert "page" in told, told


# ---------------------------------------------------------------------- the log


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
    """Whoever read it has gone: the server serves on, and ends in order."""
    pipe = LogPipe(world.folder)
    world.server_specs["s1"].prefix = pipe.prefix
    await world.restart("s1")
    async with world.faulty("log pipe of s1 closed"):
        pipe.close()
        reader = [pid for pid in tree(world.servers["s1"].pid) if pid != world.servers["s1"].pid]

        async def gone() -> bool:
            return all(state_of(pid) in ("", "Z") for pid in reader)

        await eventually(gone, "nobody reads it any more")
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
        world.servers["s1"].kill()
        kept = log.read_bytes() if log.exists() else b""
        log.unlink()
        log.write_bytes(kept)
        await asyncio.to_thread(disk.heal)
    await world.start("s1")


# ---------------------------------------------------------------------- everything at once

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
