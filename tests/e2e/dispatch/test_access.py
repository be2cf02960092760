"""Tenants, scopes and topics; reflection, and a server that stops."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headgate.wire import jobs_pb2, producer_pb2, worker_pb2
from tests.e2e.conftest import Serve
from tests.e2e.dispatch.calls import BETA, MAIL, READS, SUBMITS, TOKENS, UNKNOWN, WORKS, _report
from tests.support.server import ServerProcess
from tests.support.wire import Wire, completed, failed, held, new_id

# ---------------------------------------------------------------------- tenants, scopes, topics


async def test_tenants_neither_see_nor_settle_each_others_jobs(server: ServerProcess, wire: Wire) -> None:
    shared = new_id()
    async with (
        Wire(server.address, token=BETA) as beta,
        wire.worker("same-name") as session,
        beta.worker("same-name") as other,
    ):
        for one, body in ((wire, b"alpha"), (beta, b"beta")):
            assert await one.submit("same-topic", body, id=shared) == shared  # the same id, and two jobs
        await other.ready(9, "same-topic")
        (theirs,) = await other.take(1)
        await session.ready(9, "same-topic")
        (mine,) = await session.take(1)
        assert (theirs.id, theirs.payload, mine.id, mine.payload) == (shared, b"beta", shared, b"alpha")
        only_mine = await wire.submit("same-topic", b"only alpha")
        (job,) = await session.take(1)
        assert (await other.report(completed(job._replace(id=only_mine))))[0].code == UNKNOWN
        assert [receipt.code for receipt in await _report(beta, "same-name", failed(job))] == [UNKNOWN]
        beat = worker_pb2.HeartbeatRequest(worker_id="same-name", held=held(job))
        assert list((await beta.call("Heartbeat", beat)).lost.ids) == [only_mine]
        missing = await beta.refused("GetJob", producer_pb2.GetJobRequest(id=only_mine))
        nobodys = await beta.refused("GetJob", producer_pb2.GetJobRequest(id=(stranger := new_id())))
        assert (missing.status, missing.code) == (grpc.StatusCode.NOT_FOUND, "not_found")
        assert missing.details.replace(str(UUID(bytes=only_mine)), "") == nobodys.details.replace(
            str(UUID(bytes=stranger)), ""
        )
        assert (await beta.refused("WaitResult", producer_pb2.WaitResultRequest(id=only_mine))).code == "not_found"
        assert await other.complete(theirs, results=[b"b"]) == {}
        assert (await wire.job(shared)).state == jobs_pb2.STATE_RUNNING
        assert await session.complete(mine, job, results=[b"a", b""]) == {}
        assert ((await wire.job(shared)).result, (await beta.job(shared)).result) == (b"a", b"b")
        assert not other.jobs


async def test_a_token_may_do_what_its_scopes_say_and_no_more(server: ServerProcess, wire: Wire, topic: str) -> None:
    job_id = await wire.submit(topic)
    requests: dict[str, tuple[str, Any]] = {
        "Submit": (SUBMITS, producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=topic))),
        "SubmitBatch": (SUBMITS, producer_pb2.SubmitBatchRequest(jobs=[producer_pb2.NewJob(topic=topic)])),
        "GetJob": (READS, producer_pb2.GetJobRequest(id=job_id)),
        "WaitResult": (READS, producer_pb2.WaitResultRequest(id=job_id)),
        "Claim": (WORKS, worker_pb2.ClaimRequest(worker_id="w", topics=["none-there"])),
        "Heartbeat": (WORKS, worker_pb2.HeartbeatRequest(worker_id="w")),
        "ReportOutcome": (WORKS, worker_pb2.ReportOutcomeRequest(worker_id="w")),
    }
    for token in (SUBMITS, READS, WORKS, "", "a-token-not-in-the-file"):
        async with Wire(server.address, token=token) as caller:
            for method, (needed, request) in requests.items():
                if token == needed:
                    await caller.call(method, request)
                    continue
                refused = await caller.refused(method, request)
                expected = "permission_denied" if token in TOKENS else "unauthenticated"
                assert (method, refused.code) == (method, expected)
                assert (refused.status is grpc.StatusCode.PERMISSION_DENIED) is (token in TOKENS)


async def test_a_token_for_some_topics_submits_and_works_on_those_only(server: ServerProcess, topic: str) -> None:
    async with Wire(server.address, token=MAIL) as mail:
        await mail.submit("mail")
        request = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic=topic))
        refused = await mail.refused("Submit", request)
        assert (refused.status, refused.code) == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
        assert topic in refused.details
        batch = producer_pb2.SubmitBatchRequest(
            jobs=[producer_pb2.NewJob(topic="mail"), producer_pb2.NewJob(topic=topic)]
        )
        answer = await mail.call("SubmitBatch", batch)
        assert [receipt.code for receipt in answer.receipts] == [
            producer_pb2.SUBMIT_CREATED,
            producer_pb2.SUBMIT_REFUSED,
        ]
        assert answer.receipts[1].error.code == "permission_denied"
        async with mail.producer() as producer:
            plain = producer_pb2.PlainJobs(topic=topic, ids=[new_id()], payloads=[b""])
            await producer.send(producer_pb2.ProducerFrame(seq=1, plain=plain))
            assert (await producer.reply(1)).error.code == "permission_denied"
            # Jobs of others in the same frame are none the worse for it.
            job = producer_pb2.NewJob(topic="mail", id=new_id(), new_id=True)
            await producer.send(producer_pb2.ProducerFrame(seq=2, plain=plain, jobs=[job]))
            (refusal,) = (await producer.reply(2)).exceptions
            assert (refusal.index, refusal.error.code) == (0, "permission_denied")
            assert (await mail.job(job.id)).state == jobs_pb2.STATE_PENDING
        claim = worker_pb2.ClaimRequest(worker_id="w", topics=[topic])
        assert (await mail.refused("Claim", claim)).code == "permission_denied"
        async with mail.stream_jobs("w", topic, max_in_flight=1) as stream:
            assert (await stream.ended()).code == "permission_denied"


# ---------------------------------------------------------------------- what operators ask


async def test_reflection_tells_what_there_is_in_dev_mode(wire: Wire) -> None:
    call: Any = wire.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(metadata=wire.metadata)
    async with asyncio.timeout(60):
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = {service.name for service in (await call.read()).list_services_response.service}
        assert {"headgate.v1.WorkerService", "headgate.v1.ProducerService"} <= services
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="headgate.v1.WorkerService"))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()


async def test_a_server_that_stops_reports_it_and_sends_workers_and_producers_away(serve: Serve, topic: str) -> None:
    server = await asyncio.to_thread(serve, "--grace", "40")
    async with Wire(server.address) as wire, wire.worker() as session, wire.producer() as producer:
        async with asyncio.timeout(60):
            assert await _health(wire) == health_pb2.HealthCheckResponse.SERVING
        watch: Any = wire.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        job_id = await wire.submit(topic)
        await session.ready(5, topic)
        (job,) = await session.take(1)
        waiting = asyncio.create_task(wire.ended(job_id))
        began = time.monotonic()
        stopping = asyncio.create_task(asyncio.to_thread(server.terminate))
        async with asyncio.timeout(60):
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await session.until(lambda: session.drain is not None, "the worker was asked to leave")
        assert session.drain == 40
        assert (await producer.ended()).code == "shutting_down"
        waiting.cancel()
        assert await session.complete(job) == {}  # what was begun is still taken
        await session.done_writing()
        assert await stopping == 0
        assert time.monotonic() - began < 20  # no one was left to wait for


async def _health(wire: Wire) -> int:
    call = wire.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await call(health_pb2.HealthCheckRequest(), timeout=60)
    return int(answer.status)
