"""Faults of the links between workers, clients and servers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import grpc.aio

from headgate import Headgate
from headgate.domain.states import State
from headgate.wire import jobs_pb2
from headgate.wire import worker_pb2 as pb
from tests.fault.lab.inject.networks import Toward
from tests.fault.lab.load_notes import random_id
from tests.fault.lab.proxy_connections import CLIENT
from tests.fault.lab.scenarios import World, scenario
from tests.fault.lab.scenarios.slow_connections import EVERYWHERE, island_worker
from tests.fault.lab.steps import (
    OTHERS_LOAD,
    RED,
    HeldJobs,
    add_worker,
    all_are,
    client_of,
    completed,
    eventually,
    hold,
    look,
    printed,
    raw_worker,
    seen,
    submit,
    via,
)
from tests.support.epochs import claims


async def _gone(world: World, server: str, reason: str, *, times: int = 1, within: float) -> None:
    await printed(world, server, f"session_ended .*reason=({reason})", times=times, within=within)


async def _taken_over(world: World, jobs: HeldJobs, name: str) -> None:
    """Another worker runs them, once their leases are over, and ends them."""
    await add_worker(world, name, concurrency=8)
    await jobs.run_at(name, within=5 * world.lease + 5)
    ended = await jobs.end()
    assert {(one.attempt, claims(one.epoch)) for one in ended} == {(2, 2)}, ended


# ---------------------------------------------------------------------- silence


@scenario("F17", "silent half-open link", checks=("I2", "I13"), world=OTHERS_LOAD)
async def a_link_falls_silent(world: World) -> None:
    """Neither side is notified: the server frees the slots when the lease is over, the worker looks for another way."""
    proxy = via(world)
    await add_worker(world, "w8", servers=["via"])
    jobs = await hold(world, 4)
    await jobs.run_at("w8")
    async with world.faulty("silence between w8 and s1"):
        proxy.hold()
        await printed(world, "w8", "server_silent ", within=2 * world.lease)
        await _gone(world, "s1", "session_silent|connection_lost", within=3 * world.lease)
        await _taken_over(world, jobs, "w9")
    links = seen(world, "w8", " connected server=")
    proxy.heal()
    await printed(world, "w8", " connected server=", times=links + 1, within=25)


@scenario("F27", "one-way partition", checks=("I2",), world={**OTHERS_LOAD, "server_args": EVERYWHERE})
async def a_wire_carries_one_way_only(world: World) -> None:
    """As silence both ways, whichever direction is left: the lease ends, another takes over, nothing runs twice."""
    ways: tuple[Toward, ...] = ("inside", "outside")
    for number, toward in enumerate(ways):
        async with island_worker(world, f"w{20 + number}") as island:
            jobs = await hold(world, 3)
            await jobs.run_at(f"w{20 + number}")
            async with world.faulty(f"nothing passes {toward}"):
                await asyncio.to_thread(island.drop, toward=toward)
                await _gone(world, "s1", "session_silent|connection_lost", times=number + 1, within=3 * world.lease)
                await _taken_over(world, jobs, f"w{30 + number}")
            await world.stop(f"w{30 + number}")
            world.worker_specs.pop(f"w{30 + number}")
            world.workers.pop(f"w{30 + number}")


# ---------------------------------------------------------------------- breaking


@scenario("F18", "reset during assignment", checks=("I1", "I3"), world={**OTHERS_LOAD, "reconnect_grace": 1.0})
async def a_link_breaks_under_an_assignment(world: World) -> None:
    """Claimed and never arrived: the worker reports that when it is back, and it is offered again at no cost."""
    proxy = via(world)
    await add_worker(world, "w8", servers=["via"])
    async with world.faulty("reset when jobs pass"):
        cut = proxy.cut('"until"', toward=CLIENT, when="before", times=3)
        jobs = await hold(world, 6)
        await jobs.run_at("w8")
        assert cut.struck >= 1
    proxy.heal()
    ended = await jobs.end()
    assert {one.attempt for one in ended} == {1}, ended
    assert max(claims(one.epoch) for one in ended) >= 2


@scenario("F21", "replies lost", checks=("I4", "I10"), world=OTHERS_LOAD)
async def replies_are_lost(world: World) -> None:
    """The job is stored, its caller hears nothing: asked again, under its key, it is the same job."""
    proxy = via(world)
    caller = client_of(world, proxy.address)
    try:
        first = await world.load.submit(caller, "fast", key=f"before-{world.seed}")
        assert first is not None
        async with world.faulty("swallow what s1 says to a client"):
            proxy.swallow(toward=CLIENT)
            asked = asyncio.create_task(world.load.submit(caller, "slow", key=f"lost-{world.seed}", ms=5))

            async def stored() -> bool:
                async with world.database() as db:
                    return bool(await db.fetchval(_BY_KEY, f"lost-{world.seed}"))

            await eventually(stored, "it is stored")
        proxy.heal()
        job = await asyncio.wait_for(asked, 45)
        assert job is not None
        async with world.database() as db:
            assert await db.fetchval(_BY_KEY, f"lost-{world.seed}") == job
        await completed(world, [first, job])
    finally:
        await caller.hg.close(flush=0.1)


_BY_KEY: Final = "SELECT job_id FROM headgate.idempotency_keys WHERE key = $1"


@scenario("F22", "request replayed", checks=("I5", "I10"), world=OTHERS_LOAD)
async def a_client_is_replayed(world: World) -> None:
    """All bytes of a client are sent once more, by someone who has recorded them: the same jobs, once.

    A job with a key or an id of the caller's is known also after its end, any other one for as long as it is alive: for
    those the client says that it has never sent them before (ADR 0006). The other side of that is the next scenario.
    """
    await add_worker(world, "w8")
    gate = world.folder / "gate-replay"
    proxy = via(world, record=True)
    caller = client_of(world, proxy.address)
    chosen = [random_id(world.chance) for _ in range(3)]
    try:
        live = [await world.load.submit(caller, "held", extra={"until": str(gate)}) for _ in range(3)]
        ended = [await world.load.submit(caller, "fast", key=f"replay-{world.seed}-{n}") for n in range(3)]
        ended += [await world.load.submit(caller, "fast", id=one) for one in chosen]
    finally:
        await caller.hg.close(flush=1)
    known = [job for job in (*live, *ended) if job is not None]
    assert len(known) == 9
    await completed(world, known[3:])
    await all_are(world, known[:3], State.RUNNING)
    before = await look(world, known)
    async with world.faulty("replay a client"):
        answers = [await asyncio.to_thread(proxy.replay, made) for made in tuple(proxy.made)]
    assert any(len(answer) > 100 for answer in answers), "the server did not understand the replay"
    after = await look(world, known)
    gate.touch()
    assert sorted(after, key=str) == sorted(before, key=str), (before, after)
    await completed(world, known)


@scenario("F22b", "a fresh submit replayed after its job has ended", checks=("I5",), world=OTHERS_LOAD)
async def a_fresh_submit_is_replayed_after_its_end(world: World) -> None:
    """What the limits of promise 8 say: such a copy makes the job once more, and one that is alive no second one.

    Past the record, and discarded in the end: by the laboratory's own rules no job may end twice.
    """
    proxy = via(world, record=True)
    hg = Headgate(proxy.address, token=world.tokens[RED])
    try:
        job = (await hg.submit("held", b"{}")).id
    finally:
        await hg.close(flush=1)
    assert await _fail_by_hand(world) == [job]
    await all_are(world, [job], State.DEAD)
    async with world.faulty("replay a client"):
        for _ in range(2):  # the second copy meets the first one's job, which is alive
            for made in tuple(proxy.made):
                await asyncio.to_thread(proxy.replay, made)
    found = sorted((one.state.label, one.attempt, claims(one.epoch)) for one in await look(world, [job]))
    assert found == [("dead", 1, 1), ("pending", 0, 0)], found
    assert await _fail_by_hand(world) == [job]

    async def ended_twice() -> bool:
        return [one.state for one in await look(world, [job])] == [State.DEAD, State.DEAD]

    await eventually(ended_twice, "the copy has ended, too")
    await world.clients[RED].admin.jobs.discard(job)
    assert await look(world, [job]) == []


async def _fail_by_hand(world: World) -> list[UUID]:
    """Take the one job of the topic `held` with a stream of our own, which no one records, and fail it for good."""
    async with raw_worker(world, f"by-hand-{world.chance.randrange(10**9)}") as call:
        await call.write(pb.WorkerFrame(ready=pb.Ready(topics=["held"], count=1, lease_seconds=30)))
        async with asyncio.timeout(20):
            while not (frame := await call.read()).HasField("jobs"):
                pass
            ids, epochs = list(frame.jobs.ids), list(frame.jobs.epochs)
            failed = jobs_pb2.Failed(type="Replayed", message="not again", permanent=True)
            others = [jobs_pb2.Outcome(id=raw, epoch=n, failed=failed) for raw, n in zip(ids, epochs, strict=True)]
            await call.write(pb.WorkerFrame(outcomes=pb.Outcomes(seq=1, others=others)))
            while not (await call.read()).HasField("receipts"):
                pass
    return [UUID(bytes=bytes(raw)) for raw in ids]


# ---------------------------------------------------------------------- odd peers


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


@scenario("F19", "worker never reads its stream", checks=("I13",), world=OTHERS_LOAD)
async def a_worker_does_not_read(world: World) -> None:
    """It asks for everything and reads nothing: its link is ended at a bound, and what waited for it goes to others."""
    before = _memory(world.servers["s1"].pid)
    async with raw_worker(world, "deaf") as call, world.faulty("a worker that does not read"):
        ready = pb.Ready(topics=["held"], count=500, lease_seconds=int(world.lease))
        await call.write(pb.WorkerFrame(ready=ready))
        jobs = await hold(world, 40, extra={"pad": "x" * 300_000})
        beating = asyncio.create_task(_beat_without_end(call))
        try:
            await _gone(world, "s1", "session_overflow|session_silent", within=40)
        finally:
            beating.cancel()
            await asyncio.wait((beating,))
        assert _memory(world.servers["s1"].pid) - before < 128 << 20
    await add_worker(world, "w8", concurrency=40)
    await jobs.end(within=40)
    world.coverage.add("session_overflow")


async def _beat_without_end(call: Any) -> None:
    frame = pb.WorkerFrame(beat=pb.Beat())
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
        while True:
            await call.write(frame)
            await asyncio.sleep(0.002)


@scenario("F20", "slow-loris headers and body", checks=("I13",))
async def clients_dribble(world: World) -> None:
    """A hundred connections that say a byte a second or nothing: they are hung up on; others notice nothing."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    port = world.servers["s1"].port
    async with world.faulty("slow clients of s1"):
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        try:
            began = time.monotonic()
            for second in range(12):
                for reader, writer in slow[:50]:
                    if not reader.at_eof() and not writer.is_closing():
                        with contextlib.suppress(OSError):
                            writer.write(preface[second : second + 1])
                jobs = await submit(world, "fast", 2)
                await completed(world, jobs, within=5)
                await asyncio.sleep(max(0.0, began + second + 1 - time.monotonic()))

            async def hung_up() -> bool:
                return all([await _is_closed(reader) for reader, _ in slow])

            await eventually(hung_up, "the server has hung up on all of them", within=10)
        finally:
            for _, writer in slow:
                writer.transport.abort()


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    """What the server says first, its own settings, is read away."""
    try:
        while True:
            if not await asyncio.wait_for(reader.read(65536), 0.01):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True


@scenario("F23", "two live streams, one worker id", checks=("I2",), world=OTHERS_LOAD)
async def two_workers_share_a_name(world: World) -> None:
    """The newer stream counts; the older is notified that it was superseded, and gets nothing more."""
    async with raw_worker(world, "twin") as older:
        await older.write(pb.WorkerFrame(ready=pb.Ready(topics=["held"], count=1, lease_seconds=30)))
        async with world.faulty("two workers of one name"), raw_worker(world, "twin") as newer:
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await asyncio.wait_for(older.read(), 10) is not grpc.aio.EOF:
                    pass
            assert await older.code() == grpc.StatusCode.ABORTED
            trailers = dict(await older.trailing_metadata())
            assert trailers.get("headgate-code") == "superseded"
            await newer.write(pb.WorkerFrame(ready=pb.Ready(topics=["held"], count=1, lease_seconds=30)))
            jobs = await hold(world, 1)
            frame = await asyncio.wait_for(newer.read(), 10)
            assert [bytes(raw) for raw in frame.jobs.ids] == [job.bytes for job in jobs.ids]
            back = [
                jobs_pb2.Outcome(id=raw, epoch=epoch, abandon=jobs_pb2.Abandon())
                for raw, epoch in zip(frame.jobs.ids, frame.jobs.epochs, strict=True)
            ]
            await newer.write(pb.WorkerFrame(outcomes=pb.Outcomes(seq=1, others=back)))
            await all_are(world, jobs.ids, State.PENDING)
            await add_worker(world, "w8")
            ended = await jobs.end()
            assert {(one.attempt, claims(one.epoch)) for one in ended} == {(1, 2)}, ended
    assert seen(world, "s1", "session_ended worker=twin reason=superseded") == 1
