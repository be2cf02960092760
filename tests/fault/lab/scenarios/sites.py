"""Servers, and migrations, that die at a named place (F9): before and after every commit, and wherever they wait."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import grpc.aio

from headgate.wire import producer_pb2
from headgate.wire import worker_pb2 as pb
from tests.fault.lab.armed import EXIT_CODE
from tests.fault.lab.armed_server import ArmedServer
from tests.fault.lab.history import INFO, OK
from tests.fault.lab.load import Tenant
from tests.fault.lab.load_notes import body_no, random_id
from tests.fault.lab.process import ROOT, environ
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.scenarios.database import work_flows
from tests.fault.lab.steps import OTHERS_LOAD, add_worker, client_of, eventually, look, raw_worker, seen
from tests.support.releases import KNOWN, LaterRelease

Stir = Callable[[World, Tenant], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Site:
    """What leads to a failpoint, and what else is armed for that."""

    stir: Stir
    first: str = ""


async def _each_dies(world: World, sites: Mapping[str, Stir | Site]) -> None:
    """Kill s1 at each of these sites, while someone does what leads there, past the load that may be elsewhere."""
    server = ArmedServer(world, "s1")
    await world.restart("s1")
    await add_worker(world, "w8", servers=["s1"], topics=["fast", "slow"])
    caller = client_of(world, world.address("s1"))
    missed = []
    try:
        for site, found in sites.items():
            way = found if isinstance(found, Site) else Site(found)
            stirring = asyncio.create_task(_keep_stirring(world, caller, way.stir), name=f"stir {site}")
            try:
                if not await server.dies_at(site, first=way.first):
                    missed.append(site)
            finally:
                stirring.cancel()
                await asyncio.wait((stirring,))
    finally:
        await caller.hg.close(flush=0.1)
    assert not missed, f"not reached: {', '.join(missed)}"
    world.coverage.add("killed_at_a_failpoint")


async def _keep_stirring(world: World, caller: Tenant, stir: Stir) -> None:
    while True:
        try:
            await stir(world, caller)
        except Exception as error:  # noqa: BLE001 -- its server is being killed; the record tells what else it was
            world.recorder.note("stir_failed", error=repr(error)[:300])
        await asyncio.sleep(0.1)


async def _submit_one(world: World, caller: Tenant) -> None:
    await world.load.submit(caller, "progress", key=f"stir-{world.chance.randrange(10**9)}")


async def _submit_for_who_waits(world: World, caller: Tenant) -> None:
    await world.load.submit(caller, "fast")  # without a key: only what is plain is claimed by the same call


async def _submit_slow(world: World, caller: Tenant) -> None:
    await world.load.submit(caller, "slow", ms=2000)  # longer than half a lease: it is renewed


async def _batch(world: World, caller: Tenant) -> None:
    await world.load._do_batch(caller)


async def _depends(world: World, caller: Tenant) -> None:
    await world.load._do_depends(caller)


async def _ask(world: World, caller: Tenant) -> None:
    await caller.hg.admin.status()


async def _greet(world: World, caller: Tenant) -> None:
    async with raw_worker(world, "greeter", resumed=True):
        pass


@scenario("F9", "server killed at each failpoint: jobs in", checks=("I1", "I8", "I10"))
async def servers_die_while_they_take_jobs(world: World) -> None:
    """Before and after every commit of a submit: no half state, and who asks again with a key gets the same job."""
    sites: dict[str, Stir] = {
        "submit.before_commit": _submit_one,
        "submit.after_commit": _submit_one,
        "submit_claim.before_commit": _submit_for_who_waits,
        "submit_claim.after_commit": _submit_for_who_waits,
        "batch.before_commit": _batch,
        "batch.after_commit": _batch,
        "call.before_reply": _ask,
    }
    await _each_dies(world, sites)


@scenario("F9b", "server killed at each failpoint: jobs out", checks=("I1", "I2", "I3"))
async def servers_die_while_they_hand_out_jobs(world: World) -> None:
    """Claimed and not sent, sent and not written down: the lease, or the worker that comes back, brings it home."""
    sites: dict[str, Stir] = {
        "claim.before_commit": _submit_slow,
        "claim.after_commit": _submit_slow,
        "claim.before_send": _submit_slow,
        "deliver.after_send": _submit_slow,
        "hello.before_ack": _greet,
        "undeclared.before_commit": _greet,
        "undeclared.after_commit": _greet,
        "beat.before_ack": _ask,
    }
    await _each_dies(world, sites)


@scenario("F9c", "server killed at each failpoint: outcomes", checks=("I1", "I3", "I4", "I5"))
async def servers_die_while_they_settle(world: World) -> None:
    """Outcomes are sent again to a server that is there, and count once."""
    sites: dict[str, Stir] = {
        "settle.before_commit": _submit_for_who_waits,
        "settle.after_commit": _submit_for_who_waits,
        "renew.before_commit": _submit_slow,
        "renew.after_commit": _submit_slow,
        "unblock.before_commit": _depends,
        "unblock.after_commit": _depends,
        "tick.before_commit": _ask,
        "tick.after_commit": _ask,
    }
    await _each_dies(world, sites)


@scenario("F9d", "server killed at each failpoint: schedules, operations", checks=("I1", "I8"))
async def servers_die_while_they_fire_and_operate(world: World) -> None:
    """Occurrences fire once, on whichever instance; an operation continues elsewhere."""
    sites: dict[str, Stir] = {
        "schedule.before_commit": _ask,
        "schedule.after_mark": _ask,
        "schedule.after_commit": _ask,
        "bulk.before_commit": _operate,
        "bulk.after_commit": _operate,
        "transaction.before_commit": _operate,
        "transaction.after_commit": _operate,
    }
    await _each_dies(world, sites)


@scenario("F9e", "server killed while it starts or drains", checks=("I1", "I13"))
async def servers_die_while_they_start_or_stop(world: World) -> None:
    """A start that failed is simply repeated; a drain that was cut short is a kill."""
    server = ArmedServer(world, "s1")
    for site in ("boot.checked", "boot.registered", "boot.listening"):
        await world.kill("s1")
        server.plan(f"{site}=exit")
        before = seen(world, "s1", f"failpoint site={site} ")
        with contextlib.suppress(AssertionError):  # it ended before it was ready
            await world.start("s1")
        assert seen(world, "s1", f"failpoint site={site} ") == before + 1, f"it did not die at {site}"
        server.disarm()
        await world.start("s1")
    server.plan("drain.begun=exit")
    assert await world.stop("s1") == EXIT_CODE
    server.disarm()
    await world.start("s1")


async def _operate(world: World, caller: Tenant) -> None:
    """An operation that finds nothing has a chunk anyway; quieting a worker is an explicit transaction."""
    await caller.hg.admin.bulk.start("cancel", "topic:fatal", reason="lab")
    await caller.hg.admin.workers.resume("nobody")


# ---------------------------------------------------------------------- rarer ways


@dataclass(slots=True)
class AtomicBatches:
    """Batches that are all or nothing, each asked for once."""

    asked: list[list[UUID]] = field(default_factory=list)

    async def submit(self, world: World, caller: Tenant) -> None:
        """One more; whether it was answered or not, its ids are known."""
        bodies = [world.load._body(caller, ms=5) for _ in range(4)]
        ids = [random_id(world.chance) for _ in bodies]
        self.asked.append(ids)
        recorder = world.load.recorder
        numbers = [body_no(body) for body in bodies]
        op = recorder.invoke("submit_many", tenant=caller.name, topic="slow", bodies=numbers)
        request = producer_pb2.SubmitBatchRequest(
            jobs=[
                producer_pb2.NewJob(id=one.bytes, topic="slow", payload=body)
                for one, body in zip(ids, bodies, strict=True)
            ],
            atomic=True,
        )
        async with grpc.aio.insecure_channel(world.address("s1")) as channel:
            ask = channel.unary_unary(
                "/headgate.v1.ProducerService/SubmitBatch",
                request_serializer=producer_pb2.SubmitBatchRequest.SerializeToString,
                response_deserializer=producer_pb2.SubmitBatchResponse.FromString,
            )
            try:
                await ask(request, timeout=10, metadata=(("authorization", f"Bearer {world.tokens[caller.name]}"),))
            except grpc.aio.AioRpcError as error:
                recorder.end(op, INFO, error=error.code().name, text=str(error.details())[:200])
                return
        recorder.end(op, OK, jobs=[one.hex for one in ids])

    async def are_whole(self, world: World) -> int:
        """Each is there with all its jobs, or with none; gives how many are."""
        there = {one.id for ids in self.asked for one in await look(world, ids)}
        found = [sum(one in there for one in ids) for ids in self.asked]
        assert set(found) <= {0, 4}, f"half batches: {found}"
        return sum(number == 4 for number in found)


async def _vanish(world: World, caller: Tenant) -> None:
    """The only worker of its topic asks for jobs, and is gone once they are claimed and before they are sent."""
    name = f"fleeting-{world.chance.randrange(10**9)}"
    async with raw_worker(world, name) as call:
        await call.write(pb.WorkerFrame(ready=pb.Ready(topics=["held"], count=4, lease_seconds=int(world.lease))))
        jobs = [await world.load.submit(caller, "held", extra={"until": str(world.folder)}) for _ in range(2)]

        async def claimed() -> bool:
            return any(job.worker == name for job in await look(world, filter(None, jobs)))

        await eventually(claimed, "they are claimed", within=5, every=0.02)


@scenario("F9f", "server killed at each failpoint: rarer ways", checks=("I1", "I3", "I10"), world=OTHERS_LOAD)
async def servers_die_on_rarer_ways(world: World) -> None:
    """A batch is there as a whole or not at all; what no worker got comes back by its lease."""
    batches = AtomicBatches()
    sites: dict[str, Stir | Site] = {
        "submit_atomic.before_commit": batches.submit,
        "submit_atomic.after_commit": batches.submit,
        "abandon_unsent.before_queue": Site(_vanish, first="claim.before_send=sleep:1"),
    }
    await _each_dies(world, sites)
    assert await batches.are_whole(world) >= 1
    await add_worker(world, "w9")


# ---------------------------------------------------------------------- migrations

DEATHS: Final = (
    ("migrate.before_statement=exit@#2", 0),
    ("migrate.before_commit=exit", 0),
    ("migrate.after_commit=exit", 1),
    ("migrate.before_statement=exit@#2", 1),  # outside of a transaction from here on
    ("migrate.before_commit=exit", 1),
    ("migrate.after_commit=exit", 2),
)
"""Where a migration by two steps dies, one death after the other, and how many of them are finished then."""


@scenario("F57", "migration killed midway; two releases together", checks=("I1", "I15"))
async def migrations_die_under_load(world: World) -> None:
    """At each of their places: the next run continues; both releases serve meanwhile, and one beside the other then."""
    later = await asyncio.to_thread(LaterRelease, world.folder)
    paths = {"PYTHONPATH": f"{later.environ['PYTHONPATH']}:{ROOT}"}

    async def migrate(plan: str) -> int:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "tests.fault.lab.armed", plan, str(world.seed), "--", "migrate"],
            env=environ(HEADGATE_DATABASE_URL=world.dsn) | paths,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        world.recorder.note("migrate", plan=plan, code=done.returncode, text=f"{done.stdout}{done.stderr}"[-500:])
        return done.returncode

    for plan, finished in DEATHS:
        async with world.faulty(f"migration dies at {plan}"):
            assert await migrate(plan) == EXIT_CODE, plan
        async with world.database() as db:
            applied = await db.fetchval("SELECT count(*) FROM headgate.migrations WHERE applied_at IS NOT NULL")
        assert applied == KNOWN + finished, f"{applied - KNOWN} steps are finished after {plan}"
        await work_flows(world)
    assert await migrate("boot.checked=exit") == 0  # nothing is left to do
    world.server_specs["s1"].variables = paths
    assert await world.stop("s1") == 0
    await world.start("s1")
    await work_flows(world, jobs=10)
