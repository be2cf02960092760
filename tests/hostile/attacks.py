"""What hostile clients do: `python -m tests.hostile.attacks NAME ADDRESSES TOKEN SECONDS`, a process for each.

An attack continues for its time, whatever it is answered, and prints what it counted. That it is refused is none of its
business: the neighbour's figures and the servers' memory are the verdict.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import grpc
import uvloop

from headgate.wire import bulk_pb2 as bulk
from headgate.wire import producer_pb2 as producer
from headgate.wire import schedules_pb2 as schedules
from headgate.wire import worker_pb2 as worker
from tests.hostile.http2 import Closed, RawConnection, message

MIB = 1024 * 1024
MOST_BYTES = 64 * MIB
PREFIX = "/headgate.v1."
SUBMIT_BATCH, PRODUCE, WORK = (
    f"{PREFIX}{name}" for name in ("ProducerService/SubmitBatch", "ProducerService/Produce", "WorkerService/Work")
)
SLOW_GLOB = "*a" * 40 + "*b"
CALL_SECONDS = 10.0
AGAIN_SECONDS = 0.05
"""How long an attacker that was sent away rests before it comes back."""
Stream: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"


@dataclass(slots=True)
class Target:
    """Where the servers are, what the attacker holds, and how long it continues."""

    addresses: Sequence[str]
    token: str
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    _until: float = 0.0

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    def going(self) -> bool:
        """Whether there is time left."""
        return self.left() > 0

    def left(self) -> float:
        """Seconds until it is over."""
        return max(0.0, self._until - time.monotonic())

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def address(self, number: int) -> str:
        return self.addresses[number % len(self.addresses)]

    @asynccontextmanager
    async def channel(self, number: int) -> AsyncIterator[grpc.aio.Channel]:
        """A connection of its own to one of the servers."""
        options = (
            ("grpc.max_send_message_length", MOST_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        )
        async with grpc.aio.insecure_channel(self.address(number), options=options) as channel:
            yield channel

    async def call(
        self, channel: grpc.aio.Channel, path: str, request: bytes, compression: grpc.Compression | None = None
    ) -> None:
        """One unary call; its answer is only counted."""
        try:
            await _bytes(channel, path)(request, timeout=CALL_SECONDS, metadata=self.metadata, compression=compression)
            self.counts["answered"] += 1
        except grpc.aio.AioRpcError as error:
            self.counts[error.code().name.lower()] += 1
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await asyncio.sleep(AGAIN_SECONDS)

    def stream(self, channel: grpc.aio.Channel, path: str) -> Stream:
        return cast("Stream", channel.stream_stream(path)(metadata=self.metadata))


Attack: TypeAlias = Callable[[Target], Awaitable[None]]
ATTACKS: dict[str, tuple[Attack, str]] = {}
"""By name: what it does, and which token it holds ("" is none)."""


def attack(name: str, holding: str = "") -> Callable[[Attack], Attack]:
    """Register one."""

    def register(function: Attack) -> Attack:
        ATTACKS[name] = function, holding
        return function

    return register


async def together(target: Target, number: int, one: Callable[[grpc.aio.Channel, int], Awaitable[None]]) -> None:
    """The same from several connections at once, again and again."""

    async def again(place: int) -> None:
        while target.going():
            async with target.channel(place) as channel:
                try:
                    await one(channel, place)
                except grpc.aio.AioRpcError as error:
                    target.counts[error.code().name.lower()] += 1
                    await asyncio.sleep(AGAIN_SECONDS)
                except asyncio.InvalidStateError:  # written to a stream that the server has ended
                    target.counts["ended"] += 1
                    await asyncio.sleep(AGAIN_SECONDS)

    await asyncio.gather(*(again(place) for place in range(number)))


# --- without a token ------------------------------------------------------------------------------------------------


async def large_batches(target: Target) -> None:
    """Twelve calls at a time of 8 MB that hold four million empty jobs."""
    request = b"\x0a\x00" * (4 * MIB - 64)
    await together(target, 12, lambda channel, _: target.call(channel, SUBMIT_BATCH, request))


attack("large batches, no token")(large_batches)
attack("large batches, a token", "default")(large_batches)


@attack("unfinished messages, no token")
async def unfinished_messages(target: Target) -> None:
    """A hundred messages of 8 MiB that are sent except for their last byte."""
    body = message(8 * MIB) + b"\0" * (8 * MIB - 1)

    async def connection(number: int) -> None:
        while target.going():
            try:
                made = await RawConnection.open(target.address(number))
            except OSError:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            reading = asyncio.create_task(made.run())
            try:
                streams = [made.begin(SUBMIT_BATCH if place % 2 else WORK, target.token) for place in range(10)]
                sizes = await asyncio.gather(*(made.send(one, body, seconds=target.seconds) for one in streams))
                target.counts["bytes"] += sum(sizes)
                await made.until_ended(len(streams), seconds=target.left())
            except Closed:
                target.counts["closed"] += 1
            finally:
                target.counts["ended_streams"] += made.ended_streams
                made.close()
                await reading

    await asyncio.gather(*(connection(number) for number in range(10)))


attack("unfinished messages, a token", "default")(unfinished_messages)


@attack("streams that never say hello, no token")
async def silent_streams(target: Target) -> None:
    """200 streams on which nothing is sent."""

    async def silent(channel: grpc.aio.Channel, place: int) -> None:
        calls = [target.stream(channel, WORK if place % 2 else PRODUCE) for _ in range(20)]
        ends = await asyncio.gather(*(asyncio.wait_for(call.code(), target.seconds) for call in calls))
        target.counts["ended"] += len(ends)

    async def give_up(channel: grpc.aio.Channel, place: int) -> None:
        try:
            await silent(channel, place)
        except TimeoutError:
            target.counts["still open"] += 20

    await together(target, 10, give_up)


attack("streams that never say hello, a token", "default")(silent_streams)


@attack("rapid reset, no token")
async def rapid_reset(target: Target) -> None:
    """Calls that are begun and reset at once, as many as the socket takes."""

    async def connection(number: int) -> None:
        while target.going():
            try:
                made = await RawConnection.open(target.address(number))
            except OSError:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            reading = asyncio.create_task(made.run())
            try:
                while target.going() and not made.closed:
                    for _ in range(100):
                        made.reset(made.begin(SUBMIT_BATCH, target.token))
                    target.counts["resets"] += 100
                    await made.flush()
                    await asyncio.sleep(0)
            except Closed:
                target.counts["closed"] += 1
            finally:
                made.close()
                await reading
            await asyncio.sleep(AGAIN_SECONDS)

    await asyncio.gather(*(connection(number) for number in range(4)))


@attack("wrong tokens", "wrong")
async def wrong_tokens(target: Target) -> None:
    """Calls with tokens that do not exist, from 16 connections."""
    request = producer.GetJobRequest(id=os.urandom(16)).SerializeToString()

    async def guess(channel: grpc.aio.Channel, _: int) -> None:
        target.token = os.urandom(16).hex()
        await target.call(channel, f"{PREFIX}ProducerService/GetJob", request)

    await together(target, 16, guess)


# --- with a token that has no `scopes`: submit, work, read ------------------------------------------------------------


@attack("a filter with forty wildcards", "default")
async def slow_glob(target: Target) -> None:
    request = bulk.ListDeadGroupsRequest(topic=SLOW_GLOB).SerializeToString()
    await together(
        target,
        4,
        lambda channel, _: target.call(channel, f"{PREFIX}BulkService/ListDeadGroups", request),
    )


@attack("previews of dates that never come", "default")
async def far_dates(target: Target) -> None:
    timing = schedules.Timing(cron=schedules.Cron(expression="0 0 31 2 *"))
    request = schedules.NextRequest(timing=timing, count=1_000).SerializeToString()
    await together(target, 4, lambda channel, _: target.call(channel, f"{PREFIX}ScheduleService/Next", request))


@attack("beats with ids that were never given", "default")
async def random_beats(target: Target) -> None:
    """Four sessions that say they hold thousands of jobs of their own invention."""

    async def session(channel: grpc.aio.Channel, place: int) -> None:
        async with _session(target, channel, f"random-beats-{place}") as call:
            while target.going():
                held = worker.Held(ids=[os.urandom(16) for _ in range(20_000)], epochs=[1] * 20_000)
                await call.write(worker.WorkerFrame(beat=worker.Beat(held=held)).SerializeToString())
                target.counts["beats"] += 1

    await together(target, 4, session)


@attack("unary heartbeats with ids that were never given", "default")
async def random_heartbeats(target: Target) -> None:
    async def beat(channel: grpc.aio.Channel, place: int) -> None:
        held = worker.Held(ids=[os.urandom(16) for _ in range(5_000)], epochs=[1] * 5_000)
        request = worker.HeartbeatRequest(worker_id=f"random-{place}", held=held).SerializeToString()
        await asyncio.gather(
            *(target.call(channel, f"{PREFIX}WorkerService/Heartbeat", request) for _ in range(20)),
        )

    await together(target, 8, beat)


@attack("outcomes of jobs that were never given", "default")
async def random_outcomes(target: Target) -> None:
    """Four sessions that complete jobs of their own invention."""

    async def session(channel: grpc.aio.Channel, place: int) -> None:
        async with _session(target, channel, f"random-outcomes-{place}") as call:
            seq = 0
            while target.going():
                seq += 1
                ids = [os.urandom(16) for _ in range(2_000)]
                outcomes = worker.Outcomes(seq=seq, ids=ids, epochs=[1] * len(ids), results=[b""] * len(ids))
                await call.write(worker.WorkerFrame(outcomes=outcomes).SerializeToString())
                target.counts["outcomes"] += len(ids)

    await together(target, 4, session)


@attack("200,000 topics by Ready", "default")
async def many_topics(target: Target) -> None:
    async def session(channel: grpc.aio.Channel, place: int) -> None:
        async with _session(target, channel, f"many-topics-{place}") as call:
            number = 0
            while target.going() and number < 100_000:
                names = [f"junk-{place}-{number + one}" for one in range(1_000)]
                ready = worker.Ready(topics=names, count=1)
                await call.write(worker.WorkerFrame(ready=ready).SerializeToString())
                number += 1_000
                target.counts["names"] += 1_000

    await together(target, 2, session)


@attack("5,000 lease times in one session", "default")
async def many_leases(target: Target) -> None:
    async def session(channel: grpc.aio.Channel, place: int) -> None:
        async with _session(target, channel, f"many-leases-{place}") as call:
            for seconds in range(10, 5_010):
                ready = worker.Ready(topics=["leases"], lease_seconds=seconds, count=1)
                await call.write(worker.WorkerFrame(ready=ready).SerializeToString())
                target.counts["demands"] += 1
            await _until_over(target, call)

    await together(target, 2, session)


@attack("20,000 retry policies and topics by submits", "default")
async def many_policies(target: Target) -> None:
    number = 0

    async def batch(channel: grpc.aio.Channel, place: int) -> None:
        nonlocal number
        made = []
        for _ in range(1_000):
            number += 1
            retry = producer.RetryPolicy(kind=producer.RetryPolicy.FIXED, base_ms=1 + number)
            topic = f"policies-{place}-{number}"
            made.append(producer.NewJob(topic=topic, retry=retry, delay_ms=86_400_000))
        await target.call(channel, SUBMIT_BATCH, producer.SubmitBatchRequest(jobs=made).SerializeToString())

    await together(target, 2, batch)


@attack("compressed bombs", "default")
async def gzip_bombs(target: Target) -> None:
    """Messages of 60 MiB that are a few kB when compressed."""
    request = producer.SubmitRequest(job=producer.NewJob(topic="bomb", payload=b"\0" * (60 * MIB))).SerializeToString()

    async def bomb(channel: grpc.aio.Channel, _: int) -> None:
        await target.call(channel, f"{PREFIX}ProducerService/Submit", request, grpc.Compression.Gzip)

    await together(target, 4, bomb)


@attack("replies that are never read", "default")
async def unread_replies(target: Target) -> None:
    """Frames of jobs that are all wrong, whose long answers are not read."""

    async def session(channel: grpc.aio.Channel, _: int) -> None:
        call = target.stream(channel, PRODUCE)
        await call.write(producer.ProducerFrame(hello=producer.ProducerHello()).SerializeToString())
        bad = [producer.NewJob(topic="?" * 150)] * 1_000
        seq = 0
        try:
            while target.going():
                seq += 1
                frame = producer.ProducerFrame(seq=seq, jobs=bad).SerializeToString()
                await asyncio.wait_for(call.write(frame), 1.0)
                target.counts["frames"] += 1
        except TimeoutError:  # the server no longer reads either, as it should
            await _until_over(target, call)
        finally:
            call.cancel()

    await together(target, 4, session)


def _bytes(channel: grpc.aio.Channel, path: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return cast(
        "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", channel.unary_unary(path)
    )  # nothing is (de)serialized


@asynccontextmanager
async def _session(target: Target, channel: grpc.aio.Channel, worker_id: str) -> AsyncIterator[Stream]:
    """A Work stream that has said hello, and whose answers are read."""
    call = target.stream(channel, WORK)
    hello = worker.Hello(worker_id=f"{worker_id}-{os.getpid()}")
    await call.write(worker.WorkerFrame(hello=hello).SerializeToString())
    await call.read()
    reading = asyncio.create_task(_read(call))
    try:
        yield call
    finally:
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _until_over(target: Target, call: Stream) -> None:
    """Until the server ends the stream, or the time is over."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(call.code()), target.left())


async def _read(call: Stream) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def main(name: str, addresses: str, token: str, seconds: str) -> None:
    """Run one."""
    target = Target(addresses.split(","), token, float(seconds))
    run, _ = ATTACKS[name]
    try:
        async with asyncio.timeout(target.seconds + CALL_SECONDS):
            await run(target)
    except TimeoutError:
        target.counts["hung"] += 1
    print(json.dumps(target.counts), flush=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
