"""What workers call: translates messages, and delegates to `dispatch/session_rules` and `dispatch/worker_calls`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeAlias

import grpc

from headgate.api.grpc import worker_codec
from headgate.api.grpc.auth import caller
from headgate.api.grpc.errors import GONE, ProtocolError, end_with
from headgate.api.grpc.methods import bidi_stream, first_message, grpc_service, next_message, server_stream, unary
from headgate.api.grpc.peers import PeerStreams
from headgate.dispatch.delivery import ControlFrame, Delivery
from headgate.dispatch.ports import TopicFacts
from headgate.dispatch.renewals import beat_seconds
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_ends import ConnectionLost
from headgate.dispatch.session_rules import SessionRules, check_outcome_count, reporting_errors
from headgate.dispatch.worker_calls import WorkerCalls
from headgate.domain import failpoints, limits
from headgate.domain.errors import HeadgateError
from headgate.wire import worker_pb2

NAME: Final = "headgate.v1.WorkerService"
LAST_WRITE_SECONDS = 2.0
"""How long a peer may take to read what it is still to be sent, before the server stops waiting."""
# What grpc.aio hands to a servicer; its reads give a message or grpc.aio.EOF, which the stubs do not say.
WorkStream: TypeAlias = "grpc.aio.ServicerContext[Any, worker_pb2.ServerFrame]"
Call: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class WorkerService:
    """Work, StreamJobs, Heartbeat, ReportOutcome, Claim."""

    def __init__(
        self,
        rules: SessionRules,
        *,
        uuids: worker_codec.Uuids,
        topics: TopicFacts,
        instance: str,
        version: str,
    ) -> None:
        self._rules, self._calls = rules, WorkerCalls(rules)
        self._uuids, self._topics = uuids, topics
        self._instance, self._version = instance, version

    # ------------------------------------------------------------------ Work

    async def work(self, _requests: object, stream: WorkStream) -> None:
        """The fast path: one stream for any number of slots."""
        opening: list[worker_pb2.WorkerFrame] = []
        try:
            opening.append(await self._first_frame(stream))
            session = await self._open(opening[0].hello, stream)
        except HeadgateError as error:
            opening.clear()
            await end_with(stream, error)
        except GONE:
            raise asyncio.CancelledError from None  # the peer has left: there is no one to answer, and nothing to log
        await self._serve(session, stream, self._write(session, stream), self._read(session, stream, opening))

    async def _first_frame(self, stream: WorkStream) -> worker_pb2.WorkerFrame:
        self._rules.check_accepting()
        frame = await first_message(stream, worker_pb2.WorkerFrame, hello=True)
        if frame is None or not frame.HasField("hello"):
            raise ProtocolError("the first frame must carry hello with a worker_id")
        return frame

    async def _open(self, hello: worker_pb2.Hello, stream: WorkStream) -> WorkerSession:
        rules, identity = self._rules, caller()
        session, lost = await rules.open(identity, worker_codec.hello_of(hello, self._uuids))
        try:
            ack = worker_pb2.HelloAck(
                worker_id=hello.worker_id,
                tenant=identity.tenant,
                instance=self._instance,
                lease_seconds=rules.lease_ms // 1000,
                beat_seconds=beat_seconds(rules.lease_ms),
                lost=worker_codec.held_of(lost),
                server=self._version,
            )
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await stream.write(worker_pb2.ServerFrame(hello_ack=ack))
        except BaseException as error:
            rules.close(session, f"worker {session.worker_id} left before it was greeted")
            if isinstance(error, TimeoutError):
                raise asyncio.CancelledError from None  # the peer reads nothing
            raise
        return session

    async def _serve(
        self,
        session: WorkerSession,
        stream: Call,
        writing: Coroutine[Any, Any, None],
        *reading: Coroutine[Any, Any, None],
    ) -> None:
        """Run a stream's writer and reader until the first of them ends, or the session; then send the peer why."""
        writer = asyncio.create_task(writing, name=f"frames to {session.worker_id}")
        # The session's own end is awaited as well: a writer whose peer reads nothing hangs in its write.
        reads = (*reading, session.over())
        others = [asyncio.create_task(one, name=f"frames from {session.worker_id}") for one in reads]
        try:
            done, _ = await asyncio.wait((writer, *others), return_when=asyncio.FIRST_COMPLETED)
            if session.finishing and writer not in done:
                # A half-close: nothing more comes from the peer, but it listens for the receipts of what it sent. The
                # writer ends with the last of them; silence ends the session when they take too long.
                await asyncio.wait((writer, others[-1]), return_when=asyncio.FIRST_COMPLETED)
            if session.ended is not None:
                self._rules.demands.revoke(session)  # first: others must not wait for what it never got
                await asyncio.wait((writer,), timeout=LAST_WRITE_SECONDS)  # for what the peer is yet to be sent
        finally:
            # All of it at once, without an await: when the peer goes, gRPC may cancel us a second time.
            self._rules.close(session, f"worker {session.worker_id} closed its stream")
            for task in (writer, *others):
                task.cancel()
            ends = await asyncio.gather(writer, *others, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, GONE):
                raise end
        if session.ended is not None and not isinstance(session.ended, ConnectionLost):
            try:
                async with asyncio.timeout(LAST_WRITE_SECONDS):
                    await end_with(stream, session.ended)
            except TimeoutError:
                # The peer still reads nothing. The status stays with gRPC until it does, or leaves.
                raise asyncio.CancelledError from None

    async def _read(self, session: WorkerSession, stream: WorkStream, opening: list[worker_pb2.WorkerFrame]) -> None:
        # Beside hello the first one may carry outcomes, a beat and ready already.
        frame: worker_pb2.WorkerFrame | None = opening.pop()
        greeted = over = False
        try:
            while frame is not None and session.ended is None:
                session.last_seen = session.now()
                await self._take(session, frame, greeted=greeted)
                greeted, frame = True, None  # not kept while the next one is waited for
                frame = await next_message(stream, worker_pb2.WorkerFrame)
            over = frame is None
        except HeadgateError as error:
            session.end(error)
        if over:
            self._rules.finish(session)

    async def _take(self, session: WorkerSession, frame: worker_pb2.WorkerFrame, *, greeted: bool) -> None:
        """Take a frame part by part; an error in one of them is sent, and the others are taken."""
        rules = self._rules
        if greeted and frame.HasField("hello"):
            session.send_control(ControlFrame(error=ProtocolError("hello was said already; this one is ignored")))
        if frame.HasField("quiet"):
            # Before the outcomes: a job that is abandoned in this very frame must not come back here.
            rules.withdraw(session)
        if frame.logs:
            # Before the outcomes: after their commit the session does not hold these jobs.
            error = rules.log(session, worker_codec.logs_of(frame.logs, self._uuids))
            if error is not None:
                session.send_control(ControlFrame(error=error))
        if frame.HasField("outcomes"):
            with reporting_errors(session, seq=frame.outcomes.seq):
                rules.report(session, worker_codec.outcome_frame(frame.outcomes, self._uuids))
        if frame.HasField("beat"):
            with reporting_errors(session):
                rules.beat(session, worker_codec.beat_of(frame.beat, self._uuids))
        if frame.HasField("ready"):
            ready = frame.ready
            with reporting_errors(session):
                await rules.request_jobs(session, ready.topics, ready.count, lease_seconds=ready.lease_seconds)

    async def _write(self, session: WorkerSession, stream: WorkStream) -> None:
        while (part := await session.next_part()) is not None:
            if isinstance(part, Delivery):
                await stream.write(worker_codec.jobs_frame(part, self._topics, session.take_receipts()))
                session.written()  # at once: the session may end before the next part is asked for
                if failpoints.armed:
                    await failpoints.armed.reach("deliver.after_send")
            else:
                await stream.write(worker_codec.control_frame(part))

    # ------------------------------------------------------------------ without frames

    async def stream_jobs(self, request: worker_pb2.StreamJobsRequest, stream: Call) -> None:
        """A plain server stream: max_in_flight is its credit, which reported outcomes return."""
        try:
            session = await self._calls.open_stream(
                caller(),
                request.worker_id,
                request.topics,
                lease_seconds=request.lease_seconds,
                max_in_flight=request.max_in_flight,
            )
        except HeadgateError as error:
            await end_with(stream, error)
        await self._serve(session, stream, self._write_batches(session, stream))

    async def _write_batches(self, session: WorkerSession, stream: Call) -> None:
        while (part := await session.next_part()) is not None:
            batch = worker_pb2.JobBatch()
            if isinstance(part, Delivery):
                batch.jobs.extend(worker_codec.job_messages(part, self._topics, session.identity.tenant))
            else:
                batch.lost.CopyFrom(worker_codec.held_of(part.lost))
                batch.cancel.CopyFrom(worker_codec.held_of(part.cancel))
                if part.drain_seconds is not None:
                    batch.drain.grace_seconds = part.drain_seconds
            await stream.write(batch)
            session.written()
            # A server stream has no way to beat: as long as the wire takes what we write, and leases are kept by
            # Heartbeat, its worker counts as alive.
            session.mark_seen()

    async def heartbeat(self, request: worker_pb2.HeartbeatRequest, _call: Call) -> worker_pb2.HeartbeatResponse:
        """Renew leases without a stream."""
        worker_codec.check_held(
            request.held,
            field="held",
            limit=limits.HEARTBEAT_MAX_JOBS,
            hint="make several calls, or hold jobs by a Work stream",
        )
        # All of it is judged before anything is renewed: a call that is refused has done nothing. Invalid log lines
        # are left out: they are for people, and must not cost a lease.
        progress = [worker_codec.progress_of(one, self._uuids) for one in request.progress]
        logs = [one for one in worker_codec.logs_of(request.logs, self._uuids) if not isinstance(one, HeadgateError)]
        renewed = await self._calls.heartbeat(
            caller(),
            request.worker_id,
            self._uuids(request.held.ids),
            list(request.held.epochs),
            lease_seconds=request.lease_seconds,
            progress=progress,
            logs=logs,
        )
        return worker_pb2.HeartbeatResponse(
            lost=worker_codec.held_of(renewed.lost),
            cancel=worker_codec.held_of(renewed.cancel),
            skipped=worker_codec.held_of(renewed.skipped),
        )

    async def report_outcome(
        self, request: worker_pb2.ReportOutcomeRequest, _call: Call
    ) -> worker_pb2.ReportOutcomeResponse:
        """Report outcomes without a stream, also for jobs that a stream delivered, here or elsewhere."""
        check_outcome_count(len(request.outcomes))
        bad, good, indexes = worker_codec.outcomes_of(request.outcomes, self._uuids)
        answers = await self._calls.report(caller(), request.worker_id, good, size=request.ByteSize())
        receipts = [worker_codec.receipt(index, answers.get(row)) for row, index in enumerate(indexes)]
        receipts += [worker_codec.receipt(index, error) for index, error in bad.items()]
        return worker_pb2.ReportOutcomeResponse(receipts=sorted(receipts, key=lambda one: one.index))

    async def claim(self, request: worker_pb2.ClaimRequest, _call: Call) -> worker_pb2.ClaimResponse:
        """A single claim, for scripts."""
        identity = caller()
        pulled = await self._calls.claim(
            identity,
            request.worker_id,
            request.topics,
            count=request.count or 1,
            lease_seconds=request.lease_seconds,
            wait_ms=request.wait_ms,
        )
        with pulled:
            jobs = [
                job
                for delivery in pulled.deliveries
                for job in worker_codec.job_messages(delivery, self._topics, identity.tenant)
            ]
            pulled.written()  # as far as gRPC tells: the answer leaves in one piece, or not at all
        return worker_pb2.ClaimResponse(jobs=jobs)


def worker_methods(service: WorkerService, peers: PeerStreams) -> grpc.GenericRpcHandler:
    """The methods of the service; streams are bounded by peer."""
    pb = worker_pb2
    return grpc_service(
        NAME,
        {
            "Work": bidi_stream(peers.bounded(service.work), pb.WorkerFrame, pb.ServerFrame),
            "StreamJobs": server_stream(service.stream_jobs, pb.StreamJobsRequest, pb.JobBatch, bounded=peers.bounded),
            "Heartbeat": unary(service.heartbeat, pb.HeartbeatRequest, pb.HeartbeatResponse),
            "ReportOutcome": unary(service.report_outcome, pb.ReportOutcomeRequest, pb.ReportOutcomeResponse),
            "Claim": unary(service.claim, pb.ClaimRequest, pb.ClaimResponse),
        },
    )
