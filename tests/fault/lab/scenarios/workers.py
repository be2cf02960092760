"""Faults of workers."""

from __future__ import annotations

import asyncio
import signal

from headgate.domain.states import EventKind, State
from tests.fault.lab.armed import EXIT_CODE
from tests.fault.lab.inject.processes import Freezer, MemoryLimit
from tests.fault.lab.proxy_connections import CLIENT
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.steps import (
    OTHERS_LOAD,
    RED,
    add_worker,
    all_are,
    completed,
    count_events,
    eventually,
    hold,
    look,
    noted,
    submit,
    supervised,
    via,
)
from tests.support.epochs import claims


@scenario("F1", "worker SIGKILL mid-run", checks=("I1", "I3", "I13"), world={"reconnect_grace": 1.0})
async def workers_are_killed(world: World) -> None:
    """A random worker dies every second or so and comes back; what it ran is released and runs elsewhere."""
    for _ in range(8):
        victim = world.chance.choice(sorted(world.workers))
        await world.kill(victim)
        await asyncio.sleep(world.chance.uniform(0.3, 1.2))
        await world.start(victim)


@scenario("F2", "worker dies after work, before result", checks=("I1", "I3"))
async def workers_die_with_their_results(world: World) -> None:
    """The handlers have run, no one hears of it: their attempts are counted, and others run them again."""
    names = ("w1", "w2")
    for name in names:
        world.worker_specs[name].options["armed"] = "worker.before_result=exit@#4"
        await world.restart(name)
    async with supervised(world, *names) as ended:

        async def enough() -> bool:
            return len(ended) >= 4

        await eventually(enough, "four workers died with results in their hands", within=30)
        expired = await count_events(world, EventKind.LEASE_EXPIRED)

        async def counted() -> bool:
            return await count_events(world, EventKind.LEASE_EXPIRED) > expired

        await eventually(counted, "what they ran counts as lost")
    assert {code for _, code in ended} == {EXIT_CODE}
    for name in names:
        world.worker_specs[name].options["armed"] = ""
        await world.restart(name)


@scenario("F3", "worker dies after result sent, before reply", checks=("I4", "I5"), world=OTHERS_LOAD)
async def replies_to_results_are_lost(world: World) -> None:
    """The results are stored once: the dead worker's are not run again, the living one's repeats change nothing."""
    proxy = via(world)
    await add_worker(world, "w9", servers=["via"])
    jobs = await hold(world, 5)
    await jobs.run_at("w9")
    async with world.faulty("swallow what s1 says to w9"):
        proxy.swallow(toward=CLIENT)
        stored = await jobs.end()
        await world.kill("w9")
    proxy.heal()
    assert {(one.attempt, claims(one.epoch)) for one in stored} == {(1, 1)}
    await world.start("w9")
    jobs = await hold(world, 5)
    await jobs.run_at("w9")
    async with world.faulty("swallow what s1 says to w9"):
        proxy.swallow(toward=CLIENT)
        stored = await jobs.end()
    proxy.heal()
    repeated = {job.hex for job in jobs.ids}

    async def told_again() -> bool:
        receipts = [item for event in await noted(world, "receipt", proc="w9") for item in event["items"]]
        return repeated <= {item[0] for item in receipts}

    await eventually(told_again, "the worker sent its results again, and was answered")
    assert {(one.attempt, claims(one.epoch)) for one in await look(world, jobs.ids)} == {(1, 1)}


@scenario("F4", "worker frozen longer than lease, then thawed", checks=("I2", "I4"), world=OTHERS_LOAD)
async def frozen_workers_wake_up_too_late(world: World) -> None:
    """Others have taken over; what the thawed ones say about it is refused, and their handlers are stopped."""
    await add_worker(world, "w8", concurrency=4)
    await add_worker(world, "w9", concurrency=4)
    jobs = await hold(world, 8)
    await jobs.run_at()
    freezer = Freezer([world.workers["w9"].pid])
    async with world.faulty("freeze w9 by the freezer"):
        await world.freeze("w8")
        freezer.freeze()
        try:
            await add_worker(world, "w7", concurrency=8)
            await jobs.run_at("w7", within=6 * world.lease)
            taken = await jobs.end()
        finally:
            await world.thaw("w8")
            freezer.heal()
    assert all(claims(one.epoch) == 2 for one in taken), taken

    async def both_know() -> bool:
        for name in ("w8", "w9"):
            lost = await noted(world, "lost", proc=name)
            lost += [event for event in await noted(world, "hello_ack", proc=name) if event["lost"]]
            stale = [
                item for event in await noted(world, "receipt", proc=name) for item in event["items"] if "stale" in item
            ]
            if not lost and not stale:
                return False
        return True

    await eventually(both_know, "the thawed workers were told that they had lost their leases")


@scenario("F5", "graceful drain", checks=("I3",), world=OTHERS_LOAD)
async def workers_drain(world: World) -> None:
    """On SIGTERM a worker takes nothing more, finishes or returns within its grace; that costs no attempt."""
    await add_worker(world, "w8", concurrency=4, grace=1)
    jobs = await hold(world, 8)  # four run, the others wait at the worker or in the table

    async def four_run() -> bool:
        return len([one for one in await look(world, jobs.ids) if one.at("w8")]) >= 4

    await eventually(four_run, "four of them run")
    began = asyncio.get_running_loop().time()
    assert await world.stop("w8") == 0
    assert asyncio.get_running_loop().time() - began < 10
    handed_back = await all_are(world, jobs.ids, State.PENDING, within=5)
    assert {one.attempt for one in handed_back} == {0}
    await world.start("w8")
    await world.stop("w1")
    await world.start("w1")
    ended = await jobs.end()
    assert {one.attempt for one in ended} == {1}
    assert max(claims(one.epoch) for one in ended) == 2


@scenario("F6", "handler blocks the SDK event loop", checks=("I2", "I4"))
async def handlers_block_their_loop(world: World) -> None:
    """Beats come from a thread of their own: what spins for three leases keeps its lease, and so do its neighbours.

    If one worker gets both, the second may be handed back while the first blocks its loop: it has not begun there.
    """
    ms = int(3000 * world.lease)
    jobs = await submit(world, "spin", 2, ms=ms)
    ended = await completed(world, jobs, within=world.lease * 3 + 40)
    assert {one.attempt for one in ended} == {1}, ended
    assert await count_events(world, EventKind.LEASE_EXPIRED, jobs) == 0
    begun = sorted(event["job"] for event in await noted(world, "handler_start"))
    assert [job for job in begun if job in {one.hex for one in jobs}] == sorted(one.hex for one in jobs)


@scenario("F7", "worker OOM-killed", checks=("I3",), world=OTHERS_LOAD)
async def a_worker_runs_out_of_memory(world: World) -> None:
    """The kernel kills it in the middle of its jobs: their leases expire, the reason is on record, others run them."""
    limit = MemoryLimit(1 << 40)

    async def heal_limit() -> None:
        await asyncio.to_thread(limit.heal)

    world.undo_at_heal("limit memory", heal_limit)
    worker = await add_worker(world, "w8", concurrency=64, prefix=limit.prefix)
    limit.tighten(slack=8 << 20)
    world.fault("start", "limit memory")
    jobs = await hold(world, 24, extra={"pad": "x" * 600_000})

    async def killed() -> bool:
        return worker.exit_code is not None

    await eventually(killed, "the kernel has killed the worker", within=30)
    assert worker.exit_code == -signal.SIGKILL
    assert limit.kills >= 1
    world.worker_specs["w8"].options.pop("prefix")
    await world.start("w8")
    ended = await jobs.end(within=40)
    expired = await count_events(world, EventKind.LEASE_EXPIRED, jobs.ids)
    assert expired >= 1
    assert sum(one.attempt - 1 for one in ended) == expired
    again = next(one.id for one in ended if one.attempt > 1)
    (event,) = [one for one in await world.clients[RED].admin.jobs.events(again) if one.kind == "lease_expired"]
    assert event.worker.endswith(f"-{worker.pid}"), event  # who was lost, and how it was noticed, is there to read
    assert event.error_type == "LeaseExpired", event
    assert event.error_message == "the worker did not renew the lease in time", event


@scenario("F8", "poison job kills every worker", checks=("I3", "I13"))
async def poison_jobs_kill_their_workers(world: World) -> None:
    """A job that kills each worker that runs it is dead after its attempts; all the others flow."""
    async with supervised(world, *world.workers) as ended:
        done = world.load.done
        jobs = await submit(world, "poison", 2)
        dead = await all_are(world, jobs, State.DEAD, within=60)
        assert {one.attempt for one in dead} == {3}
        assert world.load.done > done
        fine = await submit(world, "fast", 5)
        await completed(world, fine)
    assert [code for _, code in ended].count(66) >= 3  # two of them may end with one process
