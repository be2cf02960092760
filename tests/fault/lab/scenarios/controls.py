"""Controls: what must hold without a fault, and small sharp runs in which a planted bug must show (see `mutants`)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from tests.fault.lab.load import WEIGHTS
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import completed, eventually, look, noted
from tests.support.epochs import claims

RUNNING: Final = """
SELECT j.id, j.worker FROM headgate.jobs j JOIN headgate.topics t USING (topic_no)
 WHERE t.name = $1 AND j.state = 1"""

BUSY_VERBS = {"pause": 4, "cancel": 8, "delayed": 10, "discard": 3, "redrive": 3, "handback": 4, "list": 4,
              "limited": 15, "unique": 14, "depends": 8, "batch": 4, "bulk": 4, "own_id": 6}  # fmt: skip


@scenario(
    "C1",
    "no fault: a calm mixed load",
    world={"weights": BUSY_VERBS},
    drain=timedelta(seconds=25),
    must_meet=("lateness_judged",),
)
async def nothing_happens(world: World) -> None:
    """The checker has no excuse here."""
    await asyncio.sleep(10)


async def _busy(world: World, names: Sequence[str], topic: str = "slow") -> None:
    """Wait until each of them has some of the long jobs in its hands."""

    async def so() -> bool:
        async with world.database() as db:
            rows = await db.fetch(RUNNING, topic)
        return all(any(_of([name], row["worker"]) for row in rows) for name in names)

    await eventually(so, f"{' and '.join(names)} run long jobs")


async def _taken_over(world: World, names: Sequence[str], topic: str) -> None:
    """Wait until the leases of their long jobs have expired, and these run elsewhere."""
    async with world.database() as db:
        theirs = [row["id"] for row in await db.fetch(RUNNING, topic) if _of(names, row["worker"])]

    async def so() -> bool:
        found = await look(world, theirs)
        return all(job.state.is_final or (claims(job.epoch) > 1 and not _of(names, job.worker)) for job in found)

    await eventually(so, f"others have taken over from {' and '.join(names)}", within=40)


def _of(names: Sequence[str], worker: str | None) -> bool:
    return any(re.match(rf"{name}[-.]", worker or "") for name in names)


async def _heard_of(world: World, names: Sequence[str]) -> None:
    """Wait until each of them has sent an outcome and had an answer since now."""
    since = time.monotonic_ns()

    async def so() -> bool:
        late = {event.proc for event in await noted(world, "receipt", "hello_ack") if event.t > since}
        return set(names) <= late

    await eventually(so, f"{' and '.join(names)} are back")


async def _frozen_past_their_leases(world: World, topic: str) -> None:
    for round_ in range(2):
        frozen = sorted(world.workers)[2 * round_ : 2 * round_ + 2]
        for tenant in world.tenants:
            for _ in range(12):
                await world.load.submit(world.load.tenant(tenant), topic, ms=4000)
        await _busy(world, frozen, topic)
        for name in frozen:
            await world.freeze(name)
        await _taken_over(world, frozen, topic)
        for name in frozen:
            await world.thaw(name)
        await _heard_of(world, frozen)


@scenario("C2", "workers frozen past their leases", world={"rate": 25}, drain=timedelta(seconds=25))
async def workers_freeze_past_their_leases(world: World) -> None:
    """Handlers end while their worker is frozen, and their late results meet those of the next attempt."""
    await _frozen_past_their_leases(world, "slow")


@scenario("C6", "workers frozen past their leases fail late", world={"rate": 25}, drain=timedelta(seconds=40))
async def workers_freeze_and_fail_late(world: World) -> None:
    """The same, and what their handlers end with is a failure: it must not end the attempt that runs elsewhere."""
    await _frozen_past_their_leases(world, "late")


@scenario(
    "C3",
    "one slow slot and a backlog of priorities",
    world={
        "servers": 2,
        "workers": 2,
        "rate": 90,
        "weights": dict.fromkeys(WEIGHTS, 0) | {"ranked": 1},
        "schedules": (),
        "worker_options": {"concurrency": 1, "prefetch": 0},
    },
    must_meet=("order_pairs",),
)
async def a_backlog_of_priorities(world: World) -> None:
    """Jobs of all priorities wait for seconds; each must be given in its order."""
    await asyncio.sleep(7)


@scenario("C4", "servers killed while submits are answered", world={"rate": 80}, drain=timedelta(seconds=30))
async def servers_die_while_they_answer(world: World) -> None:
    """An answer that left before its commit is a lie as soon as its server dies."""
    for round_ in range(6):
        victim = ("s1", "s2")[round_ % 2]
        await asyncio.sleep(world.chance.uniform(0.5, 1.0))
        await world.kill(victim)
        await world.start(victim)


@scenario("C5", "workers killed with jobs in their hands", world={"rate": 25}, drain=timedelta(seconds=25))
async def workers_die_with_jobs_in_their_hands(world: World) -> None:
    """What they ran expires and runs elsewhere: within the lease, a tick and a retry."""
    for tenant in world.tenants:
        for _ in range(12):
            await world.load.submit(world.load.tenant(tenant), "slow", ms=2500)
    await _busy(world, ("w1", "w2"))
    for name in ("w1", "w2"):
        await world.restart(name)
    # No wait for the expiry: where a bug keeps it from happening, the checker is to say so.


GIVEN: Final = 8
"""So many leases must have run out without a renewal."""


@scenario(
    "C7", "jobs claimed for frozen workers", world={"rate": 10, "weights": {"pause": 0}}, drain=timedelta(seconds=25)
)
async def frozen_workers_are_given_jobs(world: World) -> None:
    """No beat renews these leases: each ends at the time that its claim set, and others run the job from then on.

    A worker that runs a job is renewed once more after its last beat, by which its lease is longer than it ever heard.
    """
    given = 0
    for round_ in range(6):
        frozen = sorted(world.workers)[2 * (round_ % 2) : 2 * (round_ % 2) + 2]
        for name in frozen:
            await world.freeze(name)
        await asyncio.sleep(world.lease / 4)  # by the time half a lease has passed, they will have missed a beat
        jobs = [
            job for name in world.tenants for job in await world.load.submit_many(world.load.tenant(name), "slow", 20)
        ]

        async def all_claimed(jobs: Sequence[UUID] = jobs, frozen: Sequence[str] = frozen) -> bool:
            return all(job.state.is_final or _of(frozen, job.worker) for job in await look(world, jobs))

        await eventually(all_claimed, "all jobs have ended, or are at the frozen workers")
        given += sum(not job.state.is_final for job in await look(world, jobs))
        await completed(world, jobs)
        for name in frozen:
            await world.thaw(name)
        await _heard_of(world, frozen)
        if round_ and given >= GIVEN:
            break
    assert given >= GIVEN, f"only {given} jobs were claimed for the frozen workers"


@scenario("C8", "a server ends that no fault has ended", expect_red=("I13",))
async def a_server_ends_by_itself(world: World) -> None:
    """Past the laboratory, without a line in a log: `heal` starts it again, and the run must fail nevertheless."""
    os.kill(world.servers["s1"].pid, signal.SIGKILL)

    async def ended() -> bool:
        return not world.alive("s1")

    await eventually(ended, "s1 has ended")
