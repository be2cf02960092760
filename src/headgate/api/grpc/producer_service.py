"""ProducerService: submit by stream or by call, read jobs, wait for results. Translates and delegates to control/."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import grpc

from headgate.api.grpc import codec, submit_codec
from headgate.api.grpc.auth import caller
from headgate.api.grpc.methods import Context, bidi_stream, grpc_service, unary
from headgate.api.grpc.peers import PeerStreams
from headgate.api.grpc.producer_stream import ProducerStream
from headgate.control.auth import TokenValidator
from headgate.control.jobs import Jobs
from headgate.control.revocation import OpenCalls
from headgate.control.submit import Submits
from headgate.domain.ids import id_from_bytes
from headgate.wire import jobs_pb2
from headgate.wire import producer_pb2 as pb

NAME: Final = "headgate.v1.ProducerService"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerService:
    """Produce, Submit, SubmitBatch, GetJob, WaitResult."""

    submits: Submits[Any, Any]
    jobs: Jobs
    validator: TokenValidator
    calls: OpenCalls
    instance: str
    version: str
    draining: asyncio.Event

    async def produce(self, _requests: object, stream: Context) -> None:
        """The fast path: frames are pipelined, replies come by seq after commit."""
        hello = pb.ProducerHelloAck(instance=self.instance, server=self.version)
        await ProducerStream(self.submits, self.validator, self.calls, self.draining, stream).run(hello)

    async def submit(self, request: pb.SubmitRequest, _call: Context) -> pb.SubmitResponse:
        """One job."""
        job = request.job
        result = await self.submits.one(caller(), job, submit_codec.submission_of, plain=submit_codec.is_plain(job))
        return pb.SubmitResponse(receipt=submit_codec.receipt_of(result))

    async def submit_batch(self, request: pb.SubmitBatchRequest, _call: Context) -> pb.SubmitBatchResponse:
        """Many jobs, a receipt for each; all or nothing when asked for."""
        results = await self.submits.many(caller(), request.jobs, submit_codec.submission_of, atomic=request.atomic)
        return pb.SubmitBatchResponse(receipts=map(submit_codec.receipt_of, results))

    async def get_job(self, request: pb.GetJobRequest, _call: Context) -> jobs_pb2.JobInfo:
        """One job as it is now."""
        found = await self.jobs.get(
            caller(),
            id_from_bytes(request.id),
            payload=request.with_payload,
            result=request.with_result,
            events=request.with_events,
            events_before=request.events_before,
        )
        return codec.job_info(found)

    async def wait_result(self, request: pb.WaitResultRequest, _call: Context) -> jobs_pb2.JobInfo:
        """The job when it has ended, or as it is when the time is over."""
        job_id = id_from_bytes(request.id)
        return codec.job_info(await self.jobs.wait(caller(), job_id, seconds=request.wait_ms / 1000))


def producer_methods(service: ProducerService, peers: PeerStreams) -> grpc.GenericRpcHandler:
    """The service's methods; `peers` bounds the streams."""
    return grpc_service(
        NAME,
        {
            "Produce": bidi_stream(peers.bounded(service.produce), pb.ProducerFrame, pb.ProducerReply),
            "Submit": unary(service.submit, pb.SubmitRequest, pb.SubmitResponse),
            "SubmitBatch": unary(service.submit_batch, pb.SubmitBatchRequest, pb.SubmitBatchResponse),
            "GetJob": unary(service.get_job, pb.GetJobRequest, jobs_pb2.JobInfo),
            "WaitResult": unary(service.wait_result, pb.WaitResultRequest, jobs_pb2.JobInfo),
        },
    )
