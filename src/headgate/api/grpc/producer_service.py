"""What producers call: a pipelined stream, unary twins, reads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

import grpc

from headgate.api.grpc import codec
from headgate.api.grpc.auth import caller, recheck
from headgate.api.grpc.errors import GONE, ProtocolError, end_with, message_of
from headgate.api.grpc.methods import first_message, next_message
from headgate.control.auth import TokenValidator
from headgate.control.ports import JobStore
from headgate.control.results import Waiters
from headgate.control.revocation import OpenCall, OpenCalls
from headgate.dispatch.ports import SubmitAnswerRow, SubmitStore
from headgate.dispatch.submits import CALL_BYTES, SubmitAccount, Submitter, SubmitWrite
from headgate.dispatch.writer import Account, ShuttingDown
from headgate.domain import limits
from headgate.domain.errors import (
    Conflict,
    HeadgateError,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    QuotaExceeded,
    TooLarge,
)
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.ids import JobId
from headgate.domain.jobs import Submission
from headgate.domain.pacing import Pace
from headgate.domain.states import SubmitReceipt
from headgate.domain.validation import check_priority, check_topic
from headgate.wire import jobs_pb2, producer_pb2

log = logging.getLogger("headgate.producer")
REPLIES_WAITING = 1_024
WAIT_MOST_MS = 60_000
FAREWELL_SECONDS = 2.0
"""What a producer gets to take what it is still to be told, when it may not be here any more."""
Call: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(slots=True, kw_only=True)
class ProducerParts:
    """What the producer calls are made of."""

    validator: TokenValidator
    store: SubmitStore
    jobs: JobStore
    submitter: Submitter
    waiters: Waiters
    calls: OpenCalls
    make_id: Callable[[], JobId]
    instance: str
    version: str
    draining: asyncio.Event


class ProducerService:
    """Produce, Submit, SubmitBatch, GetJob, WaitResult."""

    def __init__(self, parts: ProducerParts) -> None:
        self._parts = parts

    async def produce(self, _requests: object, stream: Call) -> None:
        """The fast path: frames are pipelined, replies come by seq after commit."""
        try:
            first = await first_message(stream, producer_pb2.ProducerFrame, hello=True)
            if first is None or not first.HasField("hello"):
                raise ProtocolError("the first frame must carry hello")
        except HeadgateError as error:
            await end_with(stream, error)
        except GONE:
            raise asyncio.CancelledError from None  # the peer has left: there is nothing to answer or log
        identity = caller()
        hello = producer_pb2.ProducerHelloAck(
            tenant=identity.tenant, instance=self._parts.instance, server=self._parts.version
        )
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await stream.write(producer_pb2.ProducerReply(hello_ack=hello))
        except TimeoutError:
            raise asyncio.CancelledError from None  # the peer reads nothing
        replies = _Replies()
        writer = asyncio.create_task(replies.write_to(stream), name="replies to a producer")
        reader = asyncio.create_task(self._read(stream, [first], identity, replies), name="frames of a producer")
        del first  # a stream that says nothing for hours keeps none of its frames
        stopping = asyncio.create_task(self._parts.draining.wait(), name="stop of a producer")
        revoked = asyncio.create_task(self._revoked(identity), name="revocation of a producer")
        tasks: list[asyncio.Task[Any]] = [reader, writer, stopping, revoked]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                reader.cancel()
                await asyncio.wait((reader,))
            # The producer has said all it had to say, or is not listened to any more; what it sent is still answered.
            answered = asyncio.create_task(replies.all_written(), name="last replies to a producer")
            tasks.append(answered)
            if not revoked.done():
                await asyncio.wait((answered, writer, revoked), return_when=asyncio.FIRST_COMPLETED)
            if revoked.done():  # not for long: it may never read what it is told
                await asyncio.wait((answered, writer), timeout=FAREWELL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, HeadgateError):
                try:
                    async with asyncio.timeout(FAREWELL_SECONDS):
                        await end_with(stream, end)
                except TimeoutError:
                    raise asyncio.CancelledError from None  # the status stays with gRPC until the peer reads, or leaves
            if isinstance(end, Exception) and not isinstance(end, GONE):
                raise end
        if self._parts.draining.is_set():
            await end_with(stream, ShuttingDown("this instance is shutting down; connect to another one"))

    async def _revoked(self, identity: Identity) -> None:
        """Wait until the token of a stream permits no submits any more, and raise why."""
        with self._parts.calls.watched(identity) as call:
            while True:
                await call.changed.wait()
                call.identity = self._parts.validator.recheck(call.identity)
                call.identity.require(Scope.SUBMIT)
                call.changed.clear()

    async def _read(
        self, stream: Call, opening: list[producer_pb2.ProducerFrame], identity: Identity, replies: _Replies
    ) -> None:
        account: SubmitAccount = Account()
        frame: producer_pb2.ProducerFrame | None = opening.pop()
        greeted = False
        while frame is not None:
            if greeted or frame.HasField("plain") or frame.jobs:
                # For every frame: a token that was revoked meanwhile submits nothing more.
                identity = recheck(self._parts.validator, identity, Scope.SUBMIT)
                await replies.promise()
                await self._take(identity, frame, account, replies.keep, greeted=greeted)
            greeted, frame = True, None  # not kept while the next one is waited for, which may take hours
            frame = await next_message(stream, producer_pb2.ProducerFrame)

    async def _take(
        self,
        identity: Identity,
        frame: producer_pb2.ProducerFrame,
        account: SubmitAccount,
        reply: Callable[[producer_pb2.ProducerReply], None],
        *,
        greeted: bool,
    ) -> None:
        seq = frame.seq
        try:
            if greeted and frame.HasField("hello"):
                raise ProtocolError("hello was said already; nothing of this frame was written")
            if not frame.HasField("plain") and not frame.jobs:
                raise InvalidInput("frame", "carries no jobs; give plain or jobs")
            plain, refused = frame.plain, list[producer_pb2.SubmitReceipt]()
            first = len(plain.ids)
            _check_plain(plain)  # before anything is made of each of them
            size = sum(map(len, plain.payloads)) + sum(len(job.payload) for job in frame.jobs)
            size += 200 * (first + len(frame.jobs))
            # Before anything else is done with it: under overload, refusing must cost little.
            self._parts.submitter.admit(first + len(frame.jobs), size, account)
            rows, indexes, sent = None, list(range(first)), list(plain.ids)
            if frame.HasField("plain"):
                try:
                    rows = await self._plain(identity, plain)
                except (InvalidInput, PermissionDenied, QuotaExceeded) as error:
                    if not frame.jobs:
                        raise
                    # Others' jobs may share the frame: what is wrong with these is not their fault.
                    refused += [codec.refused_receipt(index, error) for index in indexes]
                    indexes, sent = [], []
            if frame.jobs:
                special, bad = await self._special(identity, frame.jobs, first)
                refused += bad
                if special is not None:
                    flush, their_indexes, their_ids = special
                    indexes += their_indexes
                    sent += their_ids
                    if rows is None:
                        rows = flush
                    else:
                        rows.extend(flush)
            if rows is None:
                reply(producer_pb2.ProducerReply(seq=seq, exceptions=refused))
                return
            # The server's own ids must be told; a producer's own need no echo.
            unnamed = {first + index for index, job in enumerate(frame.jobs) if not job.id}

            def done(answers: Mapping[int, SubmitAnswerRow]) -> None:
                exceptions = [codec.submit_receipt(indexes[row], sent[row], answer) for row, answer in answers.items()]
                exceptions += [
                    codec.submit_receipt(index, sent[row], None)
                    for row, index in enumerate(indexes)
                    if index in unnamed and row not in answers
                ]
                reply(producer_pb2.ProducerReply(seq=seq, exceptions=[*exceptions, *refused]))

            self._parts.submitter.put(
                SubmitWrite(
                    rows,
                    size,
                    done=done,
                    failed=lambda error: reply(producer_pb2.ProducerReply(seq=seq, error=message_of(error))),
                ),
                account,
            )
        except HeadgateError as error:
            reply(producer_pb2.ProducerReply(seq=seq, error=message_of(error)))
        except asyncio.CancelledError:  # before it was handed on: nothing of it was written
            away = ShuttingDown("this instance is shutting down; send it to another one")
            reply(producer_pb2.ProducerReply(seq=seq, error=message_of(away)))
            raise

    async def _plain(self, identity: Identity, plain: producer_pb2.PlainJobs):  # type: ignore[no-untyped-def]
        check_topic(plain.topic)
        identity.allowed([plain.topic])
        if not plain.ids:
            raise InvalidInput("plain.ids", "is empty; give one for each job")
        if len(plain.payloads) != len(plain.ids):
            raise InvalidInput("plain.payloads", f"{len(plain.payloads)} payloads for {len(plain.ids)} ids")
        if plain.priorities and len(plain.priorities) != len(plain.ids):
            raise InvalidInput("plain.priorities", f"{len(plain.priorities)} priorities for {len(plain.ids)} ids")
        if not codec.are_job_ids(plain.ids):
            raise InvalidInput("plain.ids", "must each be the 16 bytes of a UUID of version 7")
        longest = max(map(len, plain.payloads), default=0)
        if longest > limits.PAYLOAD_MAX_BYTES:
            raise TooLarge("payload", size=longest, limit=limits.PAYLOAD_MAX_BYTES)
        for priority in set(plain.priorities):
            check_priority(priority)
        return await self._parts.store.fill_plain(
            identity.tenant,
            plain.topic,
            list(plain.ids),
            list(plain.payloads),
            list(plain.priorities),
            new_id=plain.new_id,
        )

    async def _special(self, identity: Identity, jobs, first: int):  # type: ignore[no-untyped-def]
        """Jobs with options; a bad one is refused by itself."""
        _check_jobs(len(jobs))
        good, indexes, refused = [], [], []
        pace = Pace(time.monotonic)
        for index, job in enumerate(jobs, first):
            await pace.rest()
            try:
                submission = self._submission(identity, job)
            except HeadgateError as error:
                refused.append(codec.refused_receipt(index, error))
                continue
            good.append(submission)
            indexes.append(index)
        over = await self._parts.store.refusals(identity.tenant, good) if good else {}
        if over:
            refused += [codec.refused_receipt(indexes[row], error) for row, error in over.items()]
            left = [row for row in range(len(good)) if row not in over]
            good, indexes = [good[row] for row in left], [indexes[row] for row in left]
        if not good:
            return None, refused
        return (await self._parts.store.fill(good), indexes, [job.id.bytes for job in good]), refused

    def _submission(self, identity: Identity, job: producer_pb2.NewJob) -> Submission:
        """A job with options, of a topic that the token permits."""
        make_id = self._parts.make_id
        submission = codec.submission_of(job, tenant=identity.tenant, make_id=make_id, sees=identity.topics)
        identity.allowed([submission.topic])
        return submission

    # ------------------------------------------------------------------ unary

    async def submit(self, request: producer_pb2.SubmitRequest, _call: Call) -> producer_pb2.SubmitResponse:
        """One job."""
        identity = caller()
        account = self._parts.submitter.account_of_calls(identity.tenant)
        size = len(request.job.payload) + CALL_BYTES
        self._parts.submitter.admit(1, size, account)
        job, store = request.job, self._parts.store
        if codec.is_plain(job):  # nearly always, and half the work
            identity.allowed([check_topic(job.topic)])
            job_id, payloads = job.id, [job.payload]
            rows = await store.fill_plain(identity.tenant, job.topic, [job_id], payloads, (), new_id=job.new_id)
        else:
            submission = self._submission(identity, job)
            job_id = submission.id.bytes
            rows = await store.fill([submission])
        answers = await self._parts.submitter.submit(rows, size=size, account=account)
        answer = answers.get(0)
        if answer is not None and answer.error is not None:
            raise answer.error
        return producer_pb2.SubmitResponse(receipt=codec.submit_receipt(0, job_id, answer))

    async def submit_batch(
        self, request: producer_pb2.SubmitBatchRequest, _call: Call
    ) -> producer_pb2.SubmitBatchResponse:
        """Many jobs, a result for each; all or nothing when asked for."""
        identity = caller()
        if not request.jobs:
            raise InvalidInput("jobs", "is empty; give at least one job")
        _check_jobs(len(request.jobs))
        if len(request.jobs) > limits.SUBMIT_FLUSH_MAX_ROWS and request.atomic:
            raise TooLarge(
                "jobs", size=len(request.jobs), limit=limits.SUBMIT_FLUSH_MAX_ROWS, unit="jobs in one atomic batch"
            )
        account = self._parts.submitter.account_of_calls(identity.tenant)
        size = sum(len(job.payload) for job in request.jobs) + 200 * len(request.jobs) + CALL_BYTES
        # Before anything is asked of the database, and counted while it makes new names known.
        with self._parts.submitter.writer.holding(len(request.jobs), size, account):
            special, receipts = await self._special(identity, request.jobs, 0)
        if request.atomic and receipts:
            worst = receipts[0]
            raise InvalidInput(f"jobs[{worst.index}]", worst.error.message, hint="nothing was submitted")
        if special is not None:
            rows, indexes, ids = special
            answers = await self._batch(rows, account, atomic=request.atomic)
            receipts += [codec.submit_receipt(index, ids[row], answers.get(row)) for row, index in enumerate(indexes)]
        return producer_pb2.SubmitBatchResponse(receipts=sorted(receipts, key=lambda one: one.index))

    async def _batch(  # type: ignore[no-untyped-def]
        self, rows, account: SubmitAccount, *, atomic: bool
    ) -> Mapping[int, SubmitAnswerRow]:
        submitter = self._parts.submitter
        size = sum(map(len, rows.payloads)) + 200 * len(rows) + CALL_BYTES
        if atomic:
            with submitter.writer.holding(len(rows), size, account):
                answers = await self._parts.store.submit_atomic(rows)
            for row, answer in answers.items():
                if answer.error is not None:  # refused, and so nothing was submitted
                    raise answer.error
                if answer.receipt is SubmitReceipt.CONFLICT:
                    raise Conflict(f"jobs[{row}], and so nothing was submitted", first=answer.job_id)
            submitter.submitted(rows)
            return answers
        submitter.admit(len(rows), size, account)  # all of it or nothing: a call has one answer to being overloaded
        starts = range(0, len(rows), limits.SUBMIT_FLUSH_MAX_ROWS)
        parts = [rows.pick(range(start, min(len(rows), start + limits.SUBMIT_FLUSH_MAX_ROWS))) for start in starts]
        told = await asyncio.gather(
            *(submitter.submit(part, size=size // len(parts), account=account, admitted=True) for part in parts),
            return_exceptions=True,
        )
        failed = [one for one in told if isinstance(one, BaseException)]
        if failed and len(failed) < len(told):
            raise OutcomeUnknown(f"{failed[0]}; a part of the batch was committed: send it again") from failed[0]
        if failed:
            raise failed[0]
        return {
            start + row: answer
            for start, answers in zip(starts, told, strict=True)
            if not isinstance(answers, BaseException)
            for row, answer in answers.items()
        }

    async def get_job(self, request: producer_pb2.GetJobRequest, _call: Call) -> jobs_pb2.JobInfo:
        """One job as it stands."""
        return await self._info(
            caller(),
            _id(request.id),
            payload=request.with_payload,
            result=request.with_result,
            events=request.with_events,
        )

    async def wait_result(self, request: producer_pb2.WaitResultRequest, _call: Call) -> jobs_pb2.JobInfo:
        """The job when it has ended, or as it stands when the time is over."""
        identity = caller()
        job_id = _id(request.id)
        until = asyncio.get_running_loop().time() + min(request.wait_ms, WAIT_MOST_MS) / 1000
        with self._parts.calls.watched(identity) as watched:
            while True:
                info = await self._info(watched.identity, job_id, payload=False, result=True, events=False)
                seconds = until - asyncio.get_running_loop().time()
                if info.state >= jobs_pb2.STATE_COMPLETED or seconds <= 0:
                    return info
                if self._parts.draining.is_set():
                    raise ShuttingDown("this instance is shutting down; ask another one")
                await self._wait(watched, job_id, seconds)
                # Again: the token may have been narrowed or revoked meanwhile, in this very moment too.
                watched.identity = self._parts.validator.recheck(watched.identity)
                watched.identity.require(Scope.READ)
                watched.changed.clear()

    async def _wait(self, call: OpenCall, job_id: UUID, seconds: float) -> None:
        """Return when the job has ended, the time is over, the instance stops, or the token is not what it was."""
        tenant_no = await self._parts.store.tenant_no(call.identity.tenant)
        ended = asyncio.create_task(self._parts.waiters.wait(tenant_no, job_id, seconds), name="wait for a result")
        changed = asyncio.create_task(call.changed.wait(), name="revocation of a wait")
        try:
            await asyncio.wait((ended, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            changed.cancel()

    async def _info(
        self, identity: Identity, job_id: UUID, *, payload: bool, result: bool, events: bool
    ) -> jobs_pb2.JobInfo:
        found = await self._parts.jobs.job(identity.tenant, job_id, payload=payload, result=result, events=events)
        if identity.topics is not None and found.topic not in identity.topics:
            raise NotFound("job", str(job_id))  # as if it were another tenant's
        return codec.job_info(found)


class _Replies:
    """What one producer is still to be told. Bounded: a producer that reads no replies is not read from either."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(REPLIES_WAITING)
        self._queue: asyncio.Queue[producer_pb2.ProducerReply] = asyncio.Queue(REPLIES_WAITING)
        self._promised = 0
        self._none_promised = asyncio.Event()
        self._none_promised.set()

    async def promise(self) -> None:
        """A reply will be kept; waits for room."""
        await self._room.acquire()
        self._promised += 1
        self._none_promised.clear()

    def keep(self, reply: producer_pb2.ProducerReply) -> None:
        """Here is one that was promised."""
        self._promised -= 1
        self._queue.put_nowait(reply)
        if not self._promised:
            self._none_promised.set()

    async def write_to(self, stream: Call) -> None:
        """Write until cancelled."""
        while True:
            await stream.write(await self._queue.get())
            self._queue.task_done()
            self._room.release()

    async def all_written(self) -> None:
        """Return when every promise is kept and written."""
        await self._none_promised.wait()
        await self._queue.join()


def _check_plain(plain: producer_pb2.PlainJobs) -> None:
    most = limits.SUBMIT_FLUSH_MAX_ROWS
    for name, count in (
        ("ids", len(plain.ids)),
        ("payloads", len(plain.payloads)),
        ("priorities", len(plain.priorities)),
    ):
        if count > most:
            raise TooLarge(f"plain.{name}", size=count, limit=most, unit="jobs")


def _check_jobs(count: int) -> None:
    if count > limits.SUBMIT_BATCH_MAX:
        raise TooLarge("jobs", size=count, limit=limits.SUBMIT_BATCH_MAX, unit="jobs")


def _id(raw: bytes) -> UUID:
    if len(raw) != codec.ID_BYTES:
        raise InvalidInput("id", f"has {len(raw)} bytes; it must be the 16 bytes of a UUID")
    return UUID(bytes=raw)
