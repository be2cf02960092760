"""One call at a time: unary submits beside a call that does nothing, and claiming by stream beside claiming by call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import grpc

from bench.figures import spread
from bench.lane_store import make_ids
from bench.stack import stack
from headgate.sdk import rpc
from headgate.sdk.addresses import Address
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as producer
from headgate.wire import worker_pb2 as worker

SubmitMethod: TypeAlias = rpc.Method[producer.SubmitRequest, producer.SubmitResponse]
SUBMIT = rpc.Method("ProducerService/Submit", producer.SubmitRequest, producer.SubmitResponse)
ECHO = rpc.Method("BenchService/Echo", producer.SubmitRequest, producer.SubmitResponse)
CLAIM = rpc.Method("WorkerService/Claim", worker.ClaimRequest, worker.ClaimResponse)
CALLERS = 64
TOPIC = "calls"


async def run(*, quick: bool = False) -> dict[str, object]:
    """Calls a second, and microseconds per job taken and completed by one slot."""
    calls, taken, rounds = (640, 100, 1) if quick else (10_000, 1_000, 3)
    found: dict[str, list[float]] = {
        name: [] for name in ("submit_unary", "echo_unary", "echo_unprotected", "stream_claim_us", "unary_claim_us")
    }
    async with (
        stack("calls", program="bench.echo") as made,
        stack("calls-unprotected", program="bench.echo_unprotected") as other,
    ):
        channel = rpc.open_channel(Address(made.addresses[0]))
        unprotected = rpc.open_channel(Address(other.addresses[0]))
        try:
            for _ in range(rounds):
                await made.clean()
                found["echo_unprotected"].append(await rate(calls, lambda: submit(unprotected, ECHO)))
                found["echo_unary"].append(await rate(calls, lambda: submit(channel, ECHO)))
                found["submit_unary"].append(await rate(calls, lambda: submit(channel, SUBMIT)))
                found["stream_claim_us"].append(await by_stream(channel, taken))
                found["unary_claim_us"].append(await by_calls(channel, taken))
        finally:
            await channel.close()
            await unprotected.close()
    report: dict[str, object] = {name: spread(values) for name, values in found.items()}
    pairs = zip(found["submit_unary"], found["echo_unary"], strict=True)  # of one round each, in the same seconds
    claims = zip(found["stream_claim_us"], found["unary_claim_us"], strict=True)
    report["stream_claim_to_unary"] = spread([stream / unary for stream, unary in claims], 3)
    protected = zip(found["echo_unary"], found["echo_unprotected"], strict=True)
    report["overload_protection"] = spread([with_it / without for with_it, without in protected], 3)
    report["submit_unary_to_echo"] = spread([submitted / echoed for submitted, echoed in pairs], 3)
    return report


async def submit(
    channel: grpc.aio.Channel, method: rpc.Method[producer.SubmitRequest, producer.SubmitResponse]
) -> None:
    """One job of 100 bytes with an id of its own."""
    job = producer.NewJob(id=make_ids.next_id().bytes, topic=TOPIC, payload=b"x" * 100, new_id=True)
    await method(channel, producer.SubmitRequest(job=job), token="", seconds=30)


async def rate(calls: int, call: Callable[[], Awaitable[None]]) -> float:
    """How many a second, from `CALLERS` tasks."""

    async def many() -> None:
        for _ in range(calls // CALLERS):
            await call()

    started = time.perf_counter()
    await asyncio.gather(*(many() for _ in range(CALLERS)))
    return calls // CALLERS * CALLERS / (time.perf_counter() - started)


async def by_stream(channel: grpc.aio.Channel, count: int) -> float:
    """Ready, a job, its outcome: one slot over the worker's stream."""
    call = rpc.open_work(channel, "")
    await call.write(worker.WorkerFrame(hello=worker.Hello(worker_id="bench-stream")))
    await rpc.next_frame(call)
    outcomes = worker.Outcomes()
    frame = worker.WorkerFrame(ready=worker.Ready(topics=[TOPIC], count=1))
    started = time.perf_counter()
    for seq in range(1, count + 1):
        await call.write(frame)
        while True:
            answer = await rpc.next_frame(call)
            assert answer is not None
            if answer.HasField("jobs"):
                break
        outcomes = worker.Outcomes(seq=seq, ids=answer.jobs.ids, epochs=answer.jobs.epochs)
        frame = worker.WorkerFrame(outcomes=outcomes, ready=worker.Ready(topics=[TOPIC], count=1))
    spent = time.perf_counter() - started
    await call.write(worker.WorkerFrame(outcomes=outcomes))
    while True:
        answer = await rpc.next_frame(call)
        assert answer is not None
        if answer.HasField("receipts") and answer.receipts.seq == count:
            break
    call.cancel()
    return spent / count * 1e6


async def by_calls(channel: grpc.aio.Channel, count: int) -> float:
    """The same by two unary calls per job."""
    request = worker.ClaimRequest(worker_id="bench-calls", topics=[TOPIC], count=1, wait_ms=5_000)
    started = time.perf_counter()
    for _ in range(count):
        (job,) = (await CLAIM(channel, request, token="", seconds=30)).jobs
        done = jobs.Outcome(id=job.id, epoch=job.epoch, completed=jobs.Completed())
        report = worker.ReportOutcomeRequest(worker_id="bench-calls", outcomes=[done])
        await rpc.REPORT_OUTCOME(channel, report, token="", seconds=30)
    return (time.perf_counter() - started) / count * 1e6
