"""Faults of PostgreSQL and of the way to it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from headgate.domain.errors import HeadgateError
from headgate.domain.states import EventKind
from tests.fault.lab.armed_server import ArmedServer, readiness_is
from tests.fault.lab.inject.networks import Island
from tests.fault.lab.load import AGAIN
from tests.fault.lab.proxy import FaultProxy
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import (
    OTHERS_LOAD,
    RED,
    add_worker,
    client_of,
    completed,
    count_events,
    eventually,
    hold,
    noted,
    printed,
    seen,
    submit,
)
from tests.fault.lab.world import _at_port
from tests.support.epochs import claims

RESUMES_WITHIN: Final = 5.0 + 5.0
"""Five seconds is the promise; the others are for a machine with other things to do."""
GIVEN_UP_WITHIN: Final = 15.0
"""Seconds from a silent cut until no connection is left; also in docs/operations/services.md."""
LISTENERS: Final = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'headgate listen' AND query LIKE 'LISTEN%'"""


async def work_flows(world: World, *, within: float = RESUMES_WITHIN, jobs: int = 2) -> float:
    """Jobs submitted now are run; gives after how many seconds."""
    began = time.monotonic()
    for number in range(jobs):
        for _ in range(AGAIN):
            key = f"flow-{number}-{world.chance.randrange(10**9)}"
            job = await world.load.submit(world.load.tenant(RED), "fast", key=key, known_later=False)
            if job is not None:
                await completed(world, [job], within=max(1.0, began + within - time.monotonic()))
                break
        else:
            raise AssertionError("no job was acknowledged")
    return time.monotonic() - began


@scenario("F29", "random backend kills", checks=("I1", "I5"))
async def backends_are_ended_at_random(world: World) -> None:
    """One to three sessions of the servers end every moment; calls are made again where that is safe."""
    for _ in range(12):
        await world.kill_backends(most=world.chance.randint(1, 3))
        await asyncio.sleep(world.chance.uniform(0.2, 1.0))


# ---------------------------------------------------------------------- all of it


@scenario("F30", "Postgres fast restart", checks=("I1", "I13"), world={**OTHERS_LOAD, "lease": 15.0})
async def postgres_restarts(world: World) -> None:
    """Dispatch continues within seconds, what runs continues running, and no link is dropped for it."""
    await add_worker(world, "w8")
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    links = seen(world, "w8", " connected server=")
    for _ in range(2):
        await world.restart_postgres("fast")
        took = await work_flows(world)
        world.measured("dispatch resumes", f"{took:.1f} s")
        assert took < RESUMES_WITHIN, f"dispatch took {took:.1f} s to resume"
    assert seen(world, "w8", " connected server=") == links
    ended = await jobs.end()
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended


@scenario("F31", "Postgres crash", checks=("I1", "I2"))
async def postgres_crashes(world: World) -> None:
    """An immediate stop, a killed postmaster, one killed backend, which makes all others start again."""
    for mode in ("immediate", "kill"):
        await world.restart_postgres(mode)
        await work_flows(world)
    async with world.database() as db:
        pids = [
            row["pid"] for row in await db.fetch("SELECT pid FROM pg_stat_activity WHERE query ~ 'headgate.tick_v'")
        ]
        began = await db.fetchval("SELECT count(*) FROM headgate.jobs")
        assert pids, began
        async with world.faulty("kill -9 a backend"):
            os.kill(pids[0], signal.SIGKILL)

            async def noticed() -> bool:
                return "terminated by signal 9" in world.cluster.log.read_text(errors="replace")

            await eventually(noticed, "the postmaster says that a backend was killed")
    await work_flows(world)


@scenario("F32", "Postgres frozen", checks=("I2", "I4"), world=OTHERS_LOAD, longer=timedelta(minutes=1))
async def postgres_freezes(world: World) -> None:
    """For more than three leases: not ready meanwhile; what ran before continues, and no one else has it then."""
    await add_worker(world, "w8")
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    await world.freeze("pg")
    began = time.monotonic()
    await readiness_is(world, "s1", ready=False)
    await readiness_is(world, "s2", ready=False)
    await asyncio.sleep(max(0.0, began + world.lasting(3 * world.lease + 1, 20.0) - time.monotonic()))
    await world.thaw("pg")
    await readiness_is(world, "s1", ready=True)
    await readiness_is(world, "s2", ready=True)
    await work_flows(world)
    ended = await jobs.end()
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 1)}, ended


# ---------------------------------------------------------------------- the way to it


def _established(pid: int, port: int) -> int:
    """How many of a process's connections to that port its kernel holds for good, in its own network."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


@scenario("F33", "silent cut between server and Postgres", checks=("I13",))
async def the_way_to_postgres_is_cut_in_silence(world: World) -> None:
    """No one says a word: the kernel gives up every connection in time, also the one that only listens."""
    island = await asyncio.to_thread(Island)
    way = FaultProxy("127.0.0.1", world.cluster.port, listen_host=island.outside, seed=world.seed)
    inner = island._inner
    true_dsn, spec = world.server_dsn, world.server_specs["s1"]
    true_args = spec.args
    try:
        world.server_dsn = _at_port(true_dsn, way.port).replace("@127.0.0.1:", f"@{island.outside}:")
        spec.args, spec.prefix = (*true_args, "--host", island.inside, "--insecure"), island.prefix
        await world.restart("s1")
        world.proxies["s1"] = FaultProxy(island.inside, spec.port, seed=world.seed)
        world.server_dsn = true_dsn
        await add_worker(world, "w8", servers=["s1"])
        jobs = await hold(world, 2)
        pid = world.servers["s1"].pid
        assert _established(pid, way.port) >= 4, f"{_established(pid, way.port)} connections"
        async with world.faulty("cut s1 from postgres"):
            island._nft(
                f'add rule inet lab goes oifname "{inner}" tcp dport {way.port} drop',
                f'add rule inet lab came iifname "{inner}" tcp sport {way.port} drop',
            )
            began = time.monotonic()

            async def all_given_up() -> bool:
                return _established(pid, way.port) == 0

            await readiness_is(world, "s1", ready=False)
            await eventually(all_given_up, "every connection was given up", within=25)
            took = time.monotonic() - began
            world.measured("noticed", f"{took:.1f} s")
            assert took < GIVEN_UP_WITHIN, f"noticed after {took:.1f} s"
            island.heal_link()
        await readiness_is(world, "s1", ready=True, within=20)
        await printed(world, "s1", "listen_lost")
        await completed(world, await submit(world, "fast", 2))
        await jobs.end()
    finally:
        # Back among the others, for the end phase.
        world.server_dsn, spec.prefix, spec.args = true_dsn, (), true_args
        await world.kill("s1")
        if "s1" in world.proxies:
            world.proxies.pop("s1").close()
        way.close()
        await asyncio.to_thread(island.heal)
    for name in world.workers:  # they know s1 by its proxy's address
        await world.kill(name)
    await world.start("s1")


@scenario("F34", "LISTEN connection alone dies", checks=("I13",))
async def listeners_die(world: World) -> None:
    """Polling continues meanwhile; each listens again soon, and has said once that it did not."""

    async def listening() -> set[int]:
        async with world.database() as db:
            return {row["pid"] for row in await db.fetch(LISTENERS)}

    async def both() -> bool:
        return len(await listening()) == 2

    await eventually(both, "both listen")
    for _ in range(2):
        before = await listening()
        said = {name: seen(world, name, "listen_lost") for name in ("s1", "s2")}
        await world.kill_backends(application="headgate listen")
        await work_flows(world)

        async def both_anew(before: set[int] = before) -> bool:
            return len(await listening() - before) == 2

        await eventually(both_anew, "both listen anew")
        for name, times in said.items():
            assert seen(world, name, "listen_lost") == times + 1


@scenario("F35", "ambiguous COMMIT", checks=("I1", "I10"), world={"proxy_database": True})
async def commits_are_answered_into_the_void(world: World) -> None:
    """The server asks again while it has patience, then it answers that the outcome is unknown; a key makes it safe."""
    proxy = world.proxies["pg"]
    tenant = world.load.tenant(RED)
    async with world.faulty("cut after commit"):
        proxy.cut(r"headgate\.submit", statements=True, times=4)
        for number in range(6):
            key = f"void-{world.seed}-{number}"
            assert await world.load.submit(tenant, "fast", key=key, known_later=False) is not None
        assert proxy.struck >= 2, proxy.struck
    proxy.heal()
    body, key = world.load._body(tenant, ms=5), f"nobody-knows-{world.seed}"
    async with world.faulty("cut after commit, and no way back"):
        struck = proxy.struck
        proxy.cut(r"headgate\.submit", statements=True, times=20)
        asked = asyncio.create_task(world.load.submit(tenant, "fast", body=body, key=key, known_later=False))

        async def cut_off() -> bool:
            return proxy.struck > struck

        await eventually(cut_off, "an answer was lost")
        proxy.refuse()
        proxy.reset()
        unknown = [event for event in await noted(world, "info", proc="load") if event.get("error")]

        async def told() -> bool:
            now = [event for event in await noted(world, "info", proc="load") if event.get("error")]
            return len(now) > len(unknown) or asked.done()

        await eventually(told, "a caller is told that its outcome is not known", within=25)
        proxy.heal()
    job = await asked
    assert job is not None
    assert await world.load.submit(tenant, "fast", body=body, key=key, known_later=False) == job
    world.coverage.add("ambiguous_commit")
    await completed(world, [job])


# ---------------------------------------------------------------------- sessions, errors


@scenario("F40", "deadlock and serialization errors", checks=("I5",))
async def transactions_are_refused(world: World) -> None:
    """Every third call is refused in either way: asked again within bounds, with one effect; then bulk against bulk."""
    for name in ("s1", "s2"):
        server = ArmedServer(world, name)
        await world.restart(name)
        server.plan("\n".join(f"{site}=raise:{state}@0.3" for site, state in _REFUSED.items()))
    async with world.faulty("40P01 and 40001"):
        await asyncio.sleep(6.0)
        for name in ("s1", "s2"):
            ArmedServer(world, name).disarm()
    assert sum(seen(world, name, "failpoint site=") for name in ("s1", "s2")) >= 20
    await work_flows(world)
    jobs = await submit(world, "slow", 60, ms=5, delay=60)
    await asyncio.gather(
        *(_cancel_all(world, order, server) for order, server in ((jobs, "s1"), (jobs[::-1], "s2"), (jobs, "s2")))
    )
    assert await count_events(world, EventKind.CANCELLED, jobs) <= len(jobs)


_REFUSED: Final = {
    "submit.before_commit": "40P01",
    "submit_claim.before_commit": "40001",
    "claim.before_commit": "40P01",
    "settle.before_commit": "40001",
    "renew.before_commit": "40P01",
    "tick.before_commit": "40001",
    "schedule.before_commit": "40P01",
    "unblock.before_commit": "40001",
}


async def _cancel_all(world: World, jobs: list[UUID], server: str) -> None:
    caller = client_of(world, world.address(server))
    try:
        for _ in range(AGAIN):
            with suppress(HeadgateError):
                await caller.hg.admin.jobs.cancel(jobs)
                return
        raise AssertionError("cancelling many was refused again and again")
    finally:
        await caller.hg.close(flush=0.1)
