"""Producers and workers of the long lanes, each a process: `python -m bench.load_roles KIND ADDRESSES TOKEN OPTIONS`.

Open loop: what is due by the clock is sent, whether or not earlier sends were answered. They hear `rate N` and `stop`
on standard input, and print one JSON line a second, the last of them with `"ended": true` (see `load.LoadProcess`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from datetime import timedelta

import grpc
import uvloop

from bench.lane_store import make_ids
from headgate import Headgate, Job
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import HeadgateError
from headgate.sdk import rpc
from headgate.wire import producer_pb2 as pb

PLAIN, FLAKY, SLOW = "load", "load-flaky", "load-slow"
PRIORITIES = (0, 10, -5)
STEP_SECONDS = 0.005
DELAY_SECONDS = 3.0
SAMPLED = 16
"""One job in so many is timed: all of them would cost the worker more than the jobs."""
SUBMIT = rpc.Method("ProducerService/Submit", pb.SubmitRequest, pb.SubmitResponse)
OVERLOADED = "overloaded"


def body(*, delay: float = 0.0) -> bytes:
    """100 bytes that begin with the time at which the job is due, on the clock that all processes share."""
    return struct.pack("<q", time.monotonic_ns() + int(delay * 1e9)) + b"x" * 92


class Meter:
    """What happened in the second that runs, and since the beginning."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.times: list[float] = []
        self.hints: list[int] = []
        self.id_sum = 0
        self.rate = 0.0
        self.stop = asyncio.Event()

    def count(self, what: str, number: int = 1) -> None:
        self.now[what] += number
        self.total[what] += number

    def timed(self, seconds: float) -> None:
        self.times.append(seconds)

    def refused(self, code: str, hint_ms: int, number: int = 1) -> None:
        """Not taken: by the server's word for it."""
        self.count("refused" if code == OVERLOADED else "failed", number)
        self.errors[code] += number
        if code == OVERLOADED:
            self.hints.append(hint_ms)

    def acked(self, ids: list[bytes]) -> None:
        self.count("acked", len(ids))
        self.id_sum += sum(int.from_bytes(one[8:]) for one in ids)

    def tell(self, **more: object) -> None:
        """One line: this second's counts, and its times in milliseconds."""
        times, self.times = sorted(self.times), []
        hints, self.hints = self.hints, []
        line: dict[str, object] = {"at": time.monotonic(), **self.now, **more}
        if times:
            line |= {"p50": 1000 * times[len(times) // 2], "p99": 1000 * times[int(len(times) * 0.99)]}
        if hints:
            line |= {"hint_least": min(hints), "hint_most": max(hints)}
        self.now = Counter()
        print(json.dumps(line), flush=True)

    async def tell_each_second(self) -> None:
        due = time.monotonic()
        while not self.stop.is_set():
            due += 1
            try:
                await asyncio.wait_for(self.stop.wait(), max(0.0, due - time.monotonic()))
            except TimeoutError:
                self.tell()

    def listen(self) -> None:
        """Commands come one a line, and each in one piece."""
        told = os.read(sys.stdin.fileno(), 4096).decode()  # not readline: a second line would stay in its buffer
        for line in told.splitlines() or ["stop"]:  # at the end of the input no one is there any more
            if line.startswith("rate "):
                self.rate = float(line[5:])
            else:
                asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
                self.stop.set()

    async def pace(self, send: Callable[[int], Awaitable[None]], *, least: int = 1, most: int = 1_000) -> None:
        """Call `send` with how many are due, at least `least` at once, until it is asked to stop."""
        due, last = 0.0, time.monotonic()
        while not self.stop.is_set():
            await asyncio.sleep(STEP_SECONDS)
            now = time.monotonic()
            due += self.rate * (now - last)
            last = now
            if due > max(least, self.rate):  # `send` was held back for more than a second: an application gives up
                self.count("offered", int(due - self.rate))
                self.count("held_back", int(due - self.rate))
                due = self.rate
            while due >= least:
                number = min(int(due), most)
                self.count("offered", number)
                await send(number)
                due -= number


async def frames(meter: Meter, hg: Headgate, token: str, options: dict[str, int]) -> None:
    """Frames over a Produce stream of its own; nothing is sent again."""
    size = options.get("size", 100)
    address = hg._connection.addresses[0]
    channel = rpc.open_channel(address)
    call = rpc.open_produce(channel, token)
    await call.write(pb.ProducerFrame(hello=pb.ProducerHello()))
    await call.read()
    sent: dict[int, tuple[float, list[bytes]]] = {}
    unwanted: deque[list[bytes]] = deque(maxlen=1_000)  # ids of refused frames: they are as new as on the first day
    seq = 0

    async def read() -> None:
        while isinstance(reply := await call.read(), pb.ProducerReply):
            at, ids = sent.pop(reply.seq)
            if reply.HasField("error"):
                meter.refused(reply.error.code, reply.error.retry_after_ms, len(ids))
                if reply.error.code == OVERLOADED and len(ids) == size:
                    unwanted.append(ids)
            else:
                meter.acked(ids)
                meter.timed(time.monotonic() - at)

    async def send(number: int) -> None:
        nonlocal seq
        seq += 1
        # New ids for each frame would cost this machine as much as taking it does.
        ids = unwanted.popleft() if unwanted else [one.bytes for one in make_ids.make(number)]
        plain = pb.PlainJobs(topic=PLAIN, ids=ids, payloads=[body()] * number, new_id=True)
        sent[seq] = time.monotonic(), ids
        await call.write(pb.ProducerFrame(seq=seq, plain=plain))

    reader = asyncio.create_task(read())
    await meter.pace(send, least=size, most=size)
    deadline = time.monotonic() + 30
    while sent and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    meter.errors["unanswered"] += sum(len(ids) for _, ids in sent.values())
    await call.done_writing()
    call.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await channel.close()


async def calls(meter: Meter, hg: Headgate, token: str, options: dict[str, int]) -> None:
    """One unary Submit for each job, over a channel as any client of gRPC has it; a refused one is not sent again.

    Such a channel sends a call again by itself that was reset unread, as one is when 1,000 are open on a connection.
    """
    most = options.get("waiting", 2_000)
    channel = grpc.aio.insecure_channel(hg._connection.addresses[0].target)

    async def call() -> None:
        at, raw = time.monotonic(), make_ids.next_id().bytes
        job = pb.NewJob(id=raw, topic=PLAIN, payload=body(), new_id=True)
        try:
            await SUBMIT(channel, pb.SubmitRequest(job=job), token=token, seconds=30)
        except grpc.aio.AioRpcError as error:
            trailers = {str(name): value for name, value in error.trailing_metadata() or ()}
            code = rpc.reported_code(error)
            # An explicit refusal is one by all of its three marks.
            right = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            hint = int(trailers.get("headgate-retry-after-ms", 0))
            meter.refused(
                code if right and hint else f"{error.code().name} {code} {(error.details() or '')[:90]}", hint
            )
        else:
            meter.acked([raw])
            meter.timed(time.monotonic() - at)

    await _spawning(meter, call, most)
    await channel.close()


async def tasks(meter: Meter, hg: Headgate, token: str, options: dict[str, int]) -> None:
    """`await submit(...)` by a plain user of the SDK, from as many tasks as are due."""
    del token

    @hg.job(PLAIN)
    async def handle(job: Job) -> None:
        del job

    async def submit() -> None:
        at = time.monotonic()
        try:
            handle_ = await hg.submit(PLAIN, body())
        except HeadgateError as error:
            meter.refused(getattr(error, "reported", "") or error.code, 1)
        else:
            meter.acked([handle_.id.bytes])
            meter.timed(time.monotonic() - at)

    await _spawning(meter, submit, options.get("waiting", 5_000))


async def _spawning(meter: Meter, call: Callable[[], Awaitable[None]], most: int) -> None:
    """A task for each that is due; `held_back` counts those that an application with `most` waiting would not start."""
    running: set[asyncio.Task[None]] = set()

    async def send(number: int) -> None:
        room = most - len(running)
        if number > room:
            meter.count("held_back", number - room)
        for _ in range(min(number, room)):
            task = asyncio.ensure_future(call())
            running.add(task)
            task.add_done_callback(running.discard)

    await meter.pace(send)
    if running:
        await asyncio.wait(running, timeout=60)
    meter.errors["unanswered"] += len(running)


async def mixed(meter: Meter, hg: Headgate, token: str, options: dict[str, int]) -> None:
    """What a service does all day: pages of three priorities, single jobs, retries, a few that are slow or wait."""
    del token
    flaky, slow, delayed = options.get("flaky", 10), options.get("slow", 1), options.get("delayed", 2)  # of 100 pages
    fixed = RetryPolicy.fixed(timedelta(seconds=1))
    page = options.get("page", 50)
    running: set[asyncio.Task[None]] = set()
    chance = random.Random(os.getpid())  # noqa: S311 - load, not a secret
    turn = 0

    async def submit(number: int, pick: float, priority: int) -> None:
        at = time.monotonic()
        bodies = [body()] * number
        try:
            if pick < slow:
                got = await hg.submit_many(SLOW, bodies[: max(1, number // 10)], priority=priority, timeout=120)
            elif pick < slow + flaky:
                got = await hg.submit_many(FLAKY, bodies, priority=priority, retry=fixed, timeout=120)
            elif pick < slow + flaky + delayed:
                late = [body(delay=DELAY_SECONDS)] * number
                got = await hg.submit_many(PLAIN, late, priority=priority, delay=DELAY_SECONDS, timeout=120)
            elif pick < slow + flaky + delayed + 5:
                got = await asyncio.gather(*(hg.submit(PLAIN, one, priority=priority, timeout=120) for one in bodies))
            else:
                got = await hg.submit_many(PLAIN, bodies, priority=priority, timeout=120)
        except HeadgateError as error:
            meter.refused(getattr(error, "reported", "") or error.code, 1, number)
        else:
            meter.acked([one.id.bytes for one in got])
            meter.timed(time.monotonic() - at)

    async def send(number: int) -> None:
        nonlocal turn
        turn += 1
        if len(running) > 2_000:  # the server is away: an application would not go on forever either
            meter.count("held_back", number)
            return
        task = asyncio.ensure_future(submit(number, chance.uniform(0, 100), PRIORITIES[turn % len(PRIORITIES)]))
        running.add(task)
        task.add_done_callback(running.discard)

    await meter.pace(send, least=page, most=page)
    if running:
        await asyncio.wait(running, timeout=130)
    meter.errors["unanswered"] += len(running)


async def work(meter: Meter, hg: Headgate, token: str, options: dict[str, int]) -> None:
    """Handle all topics; `acked` are the outcomes that the server has taken, times are from when a job is due on."""
    del token
    seen = 0

    def note(job: Job) -> None:
        nonlocal seen
        seen += 1
        if seen % SAMPLED == 0 and job.attempt == 1:
            meter.timed((time.monotonic_ns() - struct.unpack_from("<q", job.payload)[0]) / 1e9)

    @hg.job(PLAIN)
    async def plain(job: Job) -> None:
        note(job)

    @hg.job(FLAKY)
    async def flaky(job: Job) -> None:
        if job.attempt == 1:
            raise RuntimeError("the first attempt fails")

    @hg.job(SLOW)
    async def slow(job: Job) -> None:
        await asyncio.sleep(options.get("slow_ms", 50) / 1000)

    settings = {name: options[name] for name in ("concurrency", "prefetch", "lease") if name in options}
    worker = hg.worker(**settings)  # type: ignore[arg-type]  # a worker's own options
    running = asyncio.create_task(worker.run())

    async def count() -> None:
        known: Counter[str] = Counter()
        while True:
            now = Counter(worker.receipts)
            for receipt, number in (now - known).items():
                meter.count("acked" if receipt == "applied" else receipt, number)
            known = now
            await asyncio.sleep(0.1)

    counting = asyncio.create_task(count())
    stopping = asyncio.create_task(meter.stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    worker.stop()
    await running
    await asyncio.sleep(0.15)
    counting.cancel()
    meter.count("handled", seen)


KINDS = {"frames": frames, "calls": calls, "tasks": tasks, "mixed": mixed, "work": work}


async def main(kind: str, addresses: str, token: str, options: str) -> None:
    """Run one until it is asked to stop."""
    meter = Meter()
    hg = Headgate(addresses, token=token)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), meter.listen)
    print("ready", flush=True)
    telling = asyncio.create_task(meter.tell_each_second())
    await KINDS[kind](meter, hg, token, json.loads(options))
    await hg.close()
    meter.stop.set()
    await telling
    meter.now = meter.total
    meter.tell(ended=True, errors=meter.errors, id_sum=str(meter.id_sum))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
