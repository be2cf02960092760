"""The role of the idle lane: many sessions, each over a connection of its own, that wait for a job and beat."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import grpc

from bench.roles import tell, wait_for_go
from headgate.sdk import rpc
from headgate.sdk.addresses import Address
from headgate.wire import worker_pb2 as worker

TOPICS = tuple(f"idle-{number}" for number in range(4))
AT_ONCE = 50
BEAT_SECONDS = 5.0


async def idle(addresses: str, sessions: int) -> None:
    """Connect them, then beat until it is asked to stop."""
    channels: list[grpc.aio.Channel] = []
    calls: list[rpc.WorkCall] = []
    acks = 0

    async def connect(number: int) -> None:
        channel = rpc.open_channel(Address(addresses.split(",")[number % (addresses.count(",") + 1)]))
        channels.append(channel)
        call = rpc.open_work(channel, "")
        await call.write(worker.WorkerFrame(hello=worker.Hello(worker_id=f"idle-{number}")))
        greeted = await rpc.next_frame(call)
        assert greeted is not None
        assert greeted.HasField("hello_ack")
        await call.write(worker.WorkerFrame(ready=worker.Ready(topics=TOPICS, count=1)))
        calls.append(call)

    async def read(call: rpc.WorkCall) -> None:
        nonlocal acks
        while (frame := await rpc.next_frame(call)) is not None:
            acks += frame.HasField("beat_ack")

    for first in range(0, sessions, AT_ONCE):
        await asyncio.gather(*(connect(number) for number in range(first, min(first + AT_ONCE, sessions))))
    readers = [asyncio.create_task(read(call)) for call in calls]
    cpu = wait_for_go()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    beats = 0
    while not stop.is_set():
        for call in calls:
            await call.write(worker.WorkerFrame(beat=worker.Beat()))
        beats += len(calls)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), BEAT_SECONDS)
    alive = sum(not reader.done() for reader in readers)
    tell(cpu, sessions=alive, beats=beats, acks=acks)
    for call in calls:
        call.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    for channel in channels:
        await channel.close()
