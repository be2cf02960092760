"""What workers call. One reader and one writer per stream; everything else happens in dispatch/."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import grpc

from headgate.api.grpc import codec
from headgate.api.grpc.auth import caller
from headgate.api.grpc.errors import GONE, ProtocolError, end_with
from headgate.api.grpc.methods import first_message, next_message
from headgate.dispatch.coordinator import Coordinator
from headgate.dispatch.outcomes import Answer, OutcomeWrite, OutcomeWriter, is_locked, put_in_parts
from headgate.dispatch.ports import SubmitStore
from headgate.dispatch.progress import ProgressWriter
from headgate.dispatch.renewals import LeaseRenewer, beat_seconds
from headgate.dispatch.sessions import (
    UNKNOWN_MOST,
    ControlFrame,
    Delivery,
    SessionEnded,
    SessionForgotten,
    WorkerSession,
    WorkerSessions,
)
from headgate.dispatch.writer import ShuttingDown
from headgate.domain import failpoints, limits
from headgate.domain.errors import HeadgateError, InvalidInput, TooLarge
from headgate.domain.identity import Identity
from headgate.domain.outcomes import Outcome
from headgate.domain.states import Receipt, State
from headgate.domain.validation import check_integer, check_topic, check_worker_id
from headgate.wire import jobs_pb2, worker_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("headgate.worker")
MAX_TOPICS = 1_000
FEW_TOPICS, TOPICS_PER_SECOND = 64, 10_000
"""A Ready that names more than a few topics, and others than the last one did, is taken after a pause: its names cost
the event loop a millisecond or two. Workers name the same topics each time, and do not wait."""
MAX_CREDIT = 100_000
MAX_WAIT_MS = 60_000
LOST_AT_ONCE = 1_000
"""Jobs that one beat is told to be lost because they are not known here. What is listed again is told again."""
FAREWELL_SECONDS = 2.0
"""What a peer gets to take what it is still to be told, before nobody waits for it any more."""
# What grpc.aio hands to a servicer; its reads give a message or grpc.aio.EOF, which the stubs do not say.
WorkStream: TypeAlias = "grpc.aio.ServicerContext[Any, worker_pb2.ServerFrame]"
Call: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ConnectionLost(SessionEnded):
    """The worker's end of the stream is gone."""

    code = "connection_lost"


@dataclass(slots=True, kw_only=True)
class WorkerParts:
    """What the worker calls are made of."""

    store: SubmitStore
    sessions: WorkerSessions
    coordinator: Coordinator
    outcomes: OutcomeWriter
    unmatched: OutcomeWriter
    renewer: LeaseRenewer
    progress: ProgressWriter
    instance: str
    version: str
    now: Callable[[], float]
    lease_ms: int
    accepting: Callable[[], bool]


class WorkerService:
    """Work, StreamJobs, Heartbeat, ReportOutcome, Claim."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts

    # ------------------------------------------------------------------ Work

    async def work(self, _requests: object, stream: WorkStream) -> None:
        """The fast path: one stream for any number of slots."""
        opening: list[worker_pb2.WorkerFrame] = []
        try:
            opening.append(await self._hello(stream))
            session = await self._open(opening[0].hello, stream)
        except HeadgateError as error:
            opening.clear()
            await end_with(stream, error)
        except GONE:
            raise asyncio.CancelledError from None  # the peer has left: there is nobody to greet, and nothing to log
        await self._serve(
            session, stream, self._write(session, stream), self._read(session, stream, opening, topics=[])
        )

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
        others = [
            asyncio.create_task(one, name=f"frames from {session.worker_id}") for one in (*reading, session.over())
        ]
        try:
            done, _ = await asyncio.wait((writer, *others), return_when=asyncio.FIRST_COMPLETED)
            if session.finishing and writer not in done:
                # A half-close: nothing more comes from the peer, but it listens for the receipts of what it sent. The
                # writer ends with the last of them; silence ends the session when they take too long.
                await asyncio.wait((writer, others[-1]), return_when=asyncio.FIRST_COMPLETED)
            if session.ended is not None:
                self._parts.coordinator.forget(session)  # first: others must not wait for what it never got
                await asyncio.wait((writer,), timeout=FAREWELL_SECONDS)  # for what the peer is yet to be told
        finally:
            # All of it at once, without an await: when the peer goes, gRPC may cancel us a second time.
            self._close(session, f"worker {session.worker_id} closed its stream")
            for task in (writer, *others):
                task.cancel()
            ends = await asyncio.gather(writer, *others, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, GONE):
                raise end
        if session.ended is not None and not isinstance(session.ended, ConnectionLost):
            try:
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await end_with(stream, session.ended)
            except TimeoutError:
                # The peer still reads nothing. The status stays with gRPC until it does, or leaves.
                raise asyncio.CancelledError from None

    def _close(self, session: WorkerSession, lost: str) -> None:
        """End a session that nobody serves any more; `lost` is the reason where there was none before."""
        session.end(ConnectionLost(lost))
        self._parts.sessions.close(session)
        self._parts.coordinator.forget(session)
        log.info("session_ended worker=%s reason=%s", session.worker_id, session.ended and session.ended.code)

    async def _hello(self, stream: WorkStream) -> worker_pb2.WorkerFrame:
        self._check_accepting()
        frame = await first_message(stream, worker_pb2.WorkerFrame, hello=True)
        if frame is None or not frame.HasField("hello"):
            raise ProtocolError("the first frame must carry hello with a worker_id")
        return frame

    async def _open(self, hello: worker_pb2.Hello, stream: WorkStream) -> WorkerSession:
        parts = self._parts
        identity = caller()
        check_worker_id(hello.worker_id)
        codec.check_held(hello.held, field="hello.held")
        tenant_no = await parts.store.tenant_no(identity.tenant)
        self._check_accepting()
        session = WorkerSession(identity, tenant_no, hello.worker_id, parts.now, parts.lease_ms, hello.incarnation)
        session.mark_seen()
        parts.sessions.check_capacity(tenant_no, len(hello.held.ids))
        session.declaring = len(hello.held.ids)
        parts.sessions.open(session)
        # Before the peer hears of it, and whatever comes of it: who counts sessions sees each begin, then end.
        log.info("session_opened worker=%s tenant=%s held=%d", session.worker_id, identity.tenant, len(hello.held.ids))
        try:
            ids = parts.store.uuids(hello.held.ids)
            lost = await parts.renewer.declare(session, ids, hello.held.epochs, parts.lease_ms)
            session.declaring = 0
            if hello.resumed and hello.incarnation:
                # Without an incarnation, its jobs cannot be distinguished from those of another process of that name.
                # A lost one counts as undeclared: under its new epoch it may have been sent to this very worker.
                kept = list(session.held)
                await parts.renewer.calls.abandon_undeclared(tenant_no, session.claims_as, kept)
                parts.coordinator.wake_all()
            if failpoints.armed:
                await failpoints.armed.reach("hello.before_ack")
            ack = worker_pb2.HelloAck(
                worker_id=hello.worker_id,
                tenant=identity.tenant,
                instance=parts.instance,
                lease_seconds=parts.lease_ms // 1000,
                beat_seconds=beat_seconds(parts.lease_ms),
                lost=codec.held_of(lost),
                server=parts.version,
            )
            try:
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await stream.write(worker_pb2.ServerFrame(hello_ack=ack))
            except TimeoutError:
                raise asyncio.CancelledError from None  # the peer reads nothing
        except BaseException:
            self._close(session, f"worker {session.worker_id} left before it was greeted")
            raise
        return session

    async def _read(
        self, session: WorkerSession, stream: WorkStream, opening: list[worker_pb2.WorkerFrame], topics: list[str]
    ) -> None:
        # Beside hello the first one may carry outcomes, a beat and ready already.
        frame: worker_pb2.WorkerFrame | None = opening.pop()
        greeted = over = False
        try:
            while frame is not None and session.ended is None:
                session.mark_seen()
                await self._take(session, frame, topics, greeted=greeted)
                greeted, frame = True, None  # not kept while the next one is waited for
                frame = await next_message(stream, worker_pb2.WorkerFrame)
            over = frame is None
        except HeadgateError as error:
            session.end(error)
        if over:
            self._parts.coordinator.withdraw(session)
            session.finish()

    async def _take(
        self, session: WorkerSession, frame: worker_pb2.WorkerFrame, topics: list[str], *, greeted: bool
    ) -> None:
        """Take a frame part by part; an error in one of them is told, and the others are taken."""
        if greeted and frame.HasField("hello"):
            session.send_control(ControlFrame(error=ProtocolError("hello was said already; this one is ignored")))
        if frame.HasField("quiet"):
            # Before the outcomes: a job that is handed back in this very frame must not come back here.
            self._parts.coordinator.withdraw(session)
            session.send_control(ControlFrame(quieted=True))
        if frame.HasField("outcomes"):
            with _told(session, seq=frame.outcomes.seq):
                self._take_outcomes(session, frame.outcomes)
        if frame.HasField("beat"):
            with _told(session):
                self._take_beat(session, frame.beat)
        if frame.HasField("ready"):
            with _told(session):
                await self._take_ready(session, frame.ready, topics)

    async def _write(self, session: WorkerSession, stream: WorkStream) -> None:
        name = self._parts.store.topic_name
        while (part := await session.next_part()) is not None:
            if isinstance(part, Delivery):
                await stream.write(codec.jobs_frame(part, name, session.take_receipts()))
                session.written()  # at once: the session may end before the next part is asked for
                if failpoints.armed:
                    await failpoints.armed.reach("deliver.after_send")
            else:
                await stream.write(codec.control_frame(part))

    # ------------------------------------------------------------------ parts of a frame

    async def _take_ready(self, session: WorkerSession, ready: worker_pb2.Ready, topics: list[str]) -> None:
        """Grant credit; `topics` are those of the last Ready that was taken, and of this one when it is."""
        named: Sequence[str] = topics
        if not topics or (ready.topics and list(ready.topics) != topics):
            if len(ready.topics) > FEW_TOPICS:
                await asyncio.sleep(min(len(ready.topics), MAX_TOPICS) / TOPICS_PER_SECOND)
            named = self._allowed(session.identity, ready.topics, field="ready.topics")
        check_integer(ready.count, field="ready.count", low=1, high=MAX_CREDIT)
        lease_ms = self._lease_ms(ready.lease_seconds, "ready.lease_seconds")
        self._parts.coordinator.ask(session, named, lease_ms, ready.count)
        topics[:] = named

    def _allowed(self, identity: Identity, topics: Sequence[str], *, field: str) -> list[str]:
        if not topics:
            raise InvalidInput(field, "is empty; name the topics to take jobs from")
        if len(topics) > MAX_TOPICS:
            raise InvalidInput(field, f"{len(topics)} topics; the limit is {MAX_TOPICS}")
        for topic in topics:
            check_topic(topic, field=field)
        return identity.allowed(dict.fromkeys(topics))

    def _lease_ms(self, seconds: int, field: str) -> int:
        if not seconds:
            return self._parts.lease_ms
        most = int(limits.LEASE_MAX.total_seconds())
        return check_integer(seconds, field=field, low=1, high=most) * 1000

    def _take_outcomes(self, session: WorkerSession, outcomes: worker_pb2.Outcomes) -> None:
        codec.check_parallel(outcomes.ids, outcomes.epochs, field="outcomes.ids")
        if outcomes.results and len(outcomes.results) != len(outcomes.ids):
            raise InvalidInput("outcomes.results", f"{len(outcomes.results)} results for {len(outcomes.ids)} jobs")
        seq, first_other = outcomes.seq, len(outcomes.ids)
        _check_count(first_other + len(outcomes.others))
        ids: Sequence[bytes] = outcomes.ids
        epochs: Sequence[int] = outcomes.epochs
        results: Sequence[bytes] = outcomes.results
        keep: Sequence[int] = range(first_other)
        bad = codec.bad_completions(outcomes)
        if bad:
            keep = [place for place in keep if place not in bad]
            ids, epochs = [ids[place] for place in keep], [epochs[place] for place in keep]
            results = [results[place] for place in keep] if results else []
        bad_others, others, places = self._judge(outcomes.others)
        refused = [codec.receipt(place, error) for place, error in bad.items()]
        refused += [codec.receipt(first_other + place, error) for place, error in bad_others.items()]

        def done(answer: Mapping[int, Answer]) -> None:
            odd: list[jobs_pb2.Receipt] = []
            for place, settled in answer.items():
                if (
                    not isinstance(settled, HeadgateError)
                    and settled.receipt is Receipt.APPLIED
                    and settled.state is State.COMPLETED
                ):
                    continue
                wire_place = keep[place] if place < len(keep) else first_other + places[place - len(keep)]
                odd.append(codec.receipt(wire_place, settled))
            session.answer(ControlFrame(receipts_seq=seq, receipt_exceptions=[*odd, *refused]))
            session.reported(number)

        def failed(error: HeadgateError) -> None:
            session.send_control(ControlFrame(error=error, error_seq=seq))
            session.reported(number)

        count, number = len(ids), 0
        if not count and not others:
            done({})  # nothing to write, so nothing to wait for, and nothing to hold on to meanwhile
            return
        uuids = self._parts.store.uuids(ids)
        write = OutcomeWrite(
            session.tenant_no,
            uuids,
            list(epochs),
            list(results) if results else [b""] * count,
            others,
            done=done,
            failed=failed,
            session=session,
            size=sum(map(len, results)) + 100 * count + sum(other.ByteSize() for other in outcomes.others),
        )
        held = session.held
        if all(map(held.__contains__, uuids)) and (not others or all(job_id in held for job_id, _, _ in others)):
            session.reported_jobs(given=write.rows)
            self._parts.outcomes.put(write)
        else:
            write.topics = session.identity.topics
            put_in_parts(write, held, given=self._parts.outcomes, unmatched=self._parts.unmatched)
        number = session.reporting([*uuids, *(job_id for job_id, _, _ in others)] if others else uuids)

    def _judge(
        self, messages: Sequence[jobs_pb2.Outcome]
    ) -> tuple[dict[int, HeadgateError], list[tuple[UUID, int, Outcome]], list[int]]:
        """Part the bad from the good: a bad outcome is its sender's error, and its neighbours are written."""
        bad: dict[int, HeadgateError] = {}
        good: list[tuple[UUID, int, Outcome]] = []
        places: list[int] = []
        for place, message in enumerate(messages):
            try:
                codec.check_ids([message.id], [message.epoch], field="outcome.id")
                outcome = codec.outcome_of(message)
            except HeadgateError as error:
                # Without its traceback: that leads to this frame, hence to all the others, and only the collector
                # would part them.
                bad[place] = error.with_traceback(None)
                continue
            good.append((self._parts.store.uuids([message.id])[0], message.epoch, outcome))
            places.append(place)
        return bad, good, places

    def _take_beat(self, session: WorkerSession, beat: worker_pb2.Beat) -> None:
        if not self._parts.sessions.knows(session):
            # Answered, it would beat on for ever: renewed by nobody, given no job, and alive in everybody's eyes.
            session.end(SessionForgotten(f"worker {session.worker_id} is not known here any more; connect again"))
            return
        now, excused = self._parts.now(), session.excused()
        surplus = len(beat.held.ids) - len(session.held) - excused
        if UNKNOWN_MOST < surplus < codec.HELD_MAX:  # by their number alone; more are refused as a whole
            session.reported_jobs(given=len(session.held), unknown=surplus)
            if session.ended is not None:
                return
        if session.may_list(len(beat.held.ids)):
            self._take_list(session, beat, excused)
        for wrong in (self._extend(session, beat.extensions, now), self._note(session, beat.progress)):
            if wrong is not None:  # a wish or a word, not the beat: it counts, and is answered as one
                session.send_control(ControlFrame(error=wrong))
        if failpoints.armed:
            failpoints.armed.touch("beat.before_ack")
        session.send_control(ControlFrame(beat_ack=True))

    def _take_list(self, session: WorkerSession, beat: worker_pb2.Beat, excused: int) -> None:
        codec.check_held(beat.held, field="beat.held")
        listed = list(zip(self._parts.store.uuids(beat.held.ids), beat.held.epochs, strict=True))
        # What it does not hold is not its own, whatever the database knows of it: it was neither given to it here nor
        # declared. It is told so and not kept, and the database is not asked.
        unknown = [(job_id, epoch) for job_id, epoch in listed if not session.holds(job_id, epoch)]
        if unknown:
            session.send_control(ControlFrame(lost=unknown[:LOST_AT_ONCE]))
        session.reported_jobs(given=len(listed) - len(unknown), unknown=max(0, len(unknown) - excused))
        if beat.jobs_seen:
            session.keep_only(set(listed), seen=beat.jobs_seen)

    def _extend(
        self, session: WorkerSession, wishes: Sequence[worker_pb2.Extension], now: float
    ) -> HeadgateError | None:
        """Grant longer leases; returns the first error, and grants the others nevertheless."""
        wrong: HeadgateError | None = None
        for wish in wishes:
            try:
                codec.check_ids([wish.id], [wish.epoch], field="beat.extensions")
                lease_ms = self._lease_ms(wish.lease_seconds, "extension.lease_seconds")
            except HeadgateError as error:
                wrong = wrong or error.with_traceback(None)
                continue
            (wished,) = self._parts.store.uuids([wish.id])
            # Not the wish of an earlier attempt: it would put its own epoch in place of the one that is held.
            session.extend(wished, wish.epoch, lease_ms, now)
        return wrong

    def _note(self, session: WorkerSession, words: Sequence[worker_pb2.JobProgress]) -> HeadgateError | None:
        """Note how far jobs are; returns the first error, and notes the others nevertheless."""
        wrong: HeadgateError | None = None
        for word in words:
            try:
                job_id, epoch, progress = self._word(word)
            except HeadgateError as error:
                wrong = wrong or error.with_traceback(None)
                continue
            if session.holds(job_id, epoch):
                self._parts.progress.note(session.tenant_no, job_id, epoch, progress)
        return wrong

    def _word(self, word: worker_pb2.JobProgress) -> tuple[UUID, int, dict[str, object]]:
        """How far a job is; raises InvalidInput."""
        codec.check_ids([word.id], [word.epoch], field="progress.id")
        (job_id,) = self._parts.store.uuids([word.id])
        return job_id, word.epoch, codec.progress_of(word.progress)

    # ------------------------------------------------------------------ unary twins

    async def heartbeat(self, request: worker_pb2.HeartbeatRequest, _call: Call) -> worker_pb2.HeartbeatResponse:
        """Keep leases without a stream."""
        identity = caller()
        codec.check_held(
            request.held,
            field="held",
            limit=limits.HEARTBEAT_MAX_JOBS,
            hint="make several calls, or hold jobs by a Work stream",
        )
        lease_ms = self._lease_ms(request.lease_seconds, "lease_seconds")
        tenant_no = await self._parts.store.tenant_no(identity.tenant)
        ids, epochs = self._parts.store.uuids(request.held.ids), list(request.held.epochs)
        # All of it is judged before anything is renewed: a call that is refused has done nothing.
        words = [self._word(word) for word in request.progress]
        calls = self._parts.renewer.calls
        answers = await calls.renew(tenant_no, lease_ms, ids, epochs, topics=identity.topics)
        kept = set(zip(ids, epochs, strict=True))
        kept -= {(one, epoch) for (_, one, epoch), answer in answers.items() if answer.lost}
        for job_id, epoch, progress in words:
            if (job_id, epoch) in kept:
                self._parts.progress.note(tenant_no, job_id, epoch, progress)
        session = self._parts.sessions.find(tenant_no, request.worker_id)
        # Only of the same credential's worker: another one that knows its id must not keep a dead worker's leases.
        if session is not None and session.identity.subject == identity.subject:
            session.mark_seen()
        return worker_pb2.HeartbeatResponse(
            lost=codec.held_of([(one, epoch) for (_, one, epoch), answer in answers.items() if answer.lost]),
            cancel=codec.held_of([(one, epoch) for (_, one, epoch), answer in answers.items() if answer.cancel]),
            skipped=codec.held_of([(one, epoch) for (_, one, epoch), answer in answers.items() if answer.skipped]),
        )

    async def report_outcome(
        self, request: worker_pb2.ReportOutcomeRequest, _call: Call
    ) -> worker_pb2.ReportOutcomeResponse:
        """Report outcomes without a stream, also for jobs that a stream delivered, here or elsewhere."""
        identity = caller()
        tenant_no = await self._parts.store.tenant_no(identity.tenant)
        _check_count(len(request.outcomes))
        bad, good, places = self._judge(request.outcomes)
        writer = self._writer_for(identity, tenant_no, request.worker_id, good)
        answer = await self._settle(writer, identity, tenant_no, good, size=request.ByteSize()) if good else {}
        decided = [outcome for row, outcome in enumerate(good) if _is_decided(answer.get(row))]
        self._free(tenant_no, request.worker_id, decided)
        receipts = [
            codec.receipt(place, settled if (settled := answer.get(row)) is not None else None)
            for row, place in enumerate(places)
        ]
        receipts += [codec.receipt(place, error) for place, error in bad.items()]
        return worker_pb2.ReportOutcomeResponse(receipts=sorted(receipts, key=lambda one: one.place))

    def _writer_for(
        self, identity: Identity, tenant_no: int, worker_id: str, outcomes: Sequence[tuple[UUID, int, Outcome]]
    ) -> OutcomeWriter:
        """Where the jobs were given to a plain stream here, of this worker and credential, as outcomes of a stream."""
        session = self._parts.sessions.find(tenant_no, worker_id)
        if (
            session is None
            or session.identity.subject != identity.subject
            or session.identity.topics != identity.topics
        ):
            return self._parts.unmatched
        held = session.held
        return self._parts.outcomes if all(job_id in held for job_id, _, _ in outcomes) else self._parts.unmatched

    async def _settle(
        self,
        writer: OutcomeWriter,
        identity: Identity,
        tenant_no: int,
        outcomes: list[tuple[UUID, int, Outcome]],
        *,
        size: int,
    ) -> Mapping[int, Answer]:
        answer: asyncio.Future[Mapping[int, Answer]] = asyncio.get_running_loop().create_future()
        writer.put(
            OutcomeWrite(
                tenant_no,
                (),
                (),
                (),
                outcomes,
                done=lambda told: None if answer.done() else answer.set_result(told),
                failed=lambda error: None if answer.done() else answer.set_exception(error),
                size=size,
                topics=identity.topics,
            )
        )
        return await answer

    def _free(self, tenant_no: int, worker_id: str, outcomes: Sequence[tuple[UUID, int, Outcome]]) -> None:
        """A report frees the credit of the stream that delivered the job, when that stream is here."""
        attempts = {(job_id, epoch) for job_id, epoch, _ in outcomes}
        ids = {job_id for job_id, _ in attempts}
        if not ids:
            return
        named = self._parts.sessions.find(tenant_no, worker_id)
        sessions: Iterable[WorkerSession] = self._parts.sessions if not worker_id else () if named is None else (named,)
        for session in sessions:
            if session.tenant_no != tenant_no:
                continue
            # By the smaller of the two: a call may name thousands of jobs, and there may be thousands of sessions.
            mine = [job_id for job_id in session.held.keys() & ids if (job_id, session.held[job_id][0]) in attempts]
            session.settled(mine)
            if mine and session.on_freed is not None:
                session.on_freed(len(mine))

    async def stream_jobs(self, request: worker_pb2.StreamJobsRequest, stream: Call) -> None:
        """A plain server stream: max_in_flight is its credit, a reported outcome frees it."""
        parts = self._parts
        try:
            identity = caller()
            check_integer(request.max_in_flight, field="max_in_flight", low=1, high=MAX_CREDIT)
            session, topics = await self._asked(request, identity)
            parts.sessions.open(session)
        except HeadgateError as error:
            await end_with(stream, error)
        lease_ms = session.default_lease_ms
        session.on_freed = lambda count: parts.coordinator.ask(session, topics, lease_ms, count)
        parts.coordinator.ask(session, topics, lease_ms, request.max_in_flight)
        await self._serve(session, stream, self._write_batches(session, stream))

    async def _write_batches(self, session: WorkerSession, stream: Call) -> None:
        while (part := await session.next_part()) is not None:
            batch = worker_pb2.JobBatch()
            if isinstance(part, Delivery):
                batch.jobs.extend(codec.job_messages(part, self._parts.store.topic_name, session.identity.tenant))
            else:
                batch.lost.CopyFrom(codec.held_of(part.lost))
                batch.cancel.CopyFrom(codec.held_of(part.cancel))
                if part.drain_seconds is not None:
                    batch.drain.grace_seconds = part.drain_seconds
            await stream.write(batch)
            session.written()
            # A server stream has no way to beat: as long as the wire takes what we write, and leases are kept by
            # Heartbeat, it counts as heard.
            session.mark_seen()

    async def claim(self, request: worker_pb2.ClaimRequest, _call: Call) -> worker_pb2.ClaimResponse:
        """A single claim for scripts: a session for the length of the call, through the same coordinator."""
        parts = self._parts
        identity = caller()
        count = check_integer(request.count or 1, field="count", low=1, high=limits.CLAIM_MAX)
        session, topics = await self._asked(request, identity)
        parts.sessions.begin_call(session)
        parts.coordinator.ask(session, topics, session.default_lease_ms, count)
        try:
            async with asyncio.timeout(min(request.wait_ms, MAX_WAIT_MS) / 1000 or 0.25):
                part = await session.next_part()
            session.written()  # as far as anybody can know: the answer leaves in one piece, or not at all
        except TimeoutError:
            part = None
        finally:
            drained = session.ended
            session.end(ConnectionLost("a single claim is over"))
            parts.sessions.end_call(session)
            parts.coordinator.forget(session)
        if part is None and drained is not None:
            raise drained
        if not isinstance(part, Delivery):
            return worker_pb2.ClaimResponse()
        return worker_pb2.ClaimResponse(jobs=codec.job_messages(part, parts.store.topic_name, identity.tenant))

    async def _asked(
        self, request: worker_pb2.StreamJobsRequest | worker_pb2.ClaimRequest, identity: Identity
    ) -> tuple[WorkerSession, list[str]]:
        """A session for a call that names its topics once, not yet opened, and the topics it may have."""
        parts = self._parts
        check_worker_id(request.worker_id)
        topics = self._allowed(identity, request.topics, field="topics")
        lease_ms = self._lease_ms(request.lease_seconds, "lease_seconds")
        tenant_no = await parts.store.tenant_no(identity.tenant)
        self._check_accepting()
        session = WorkerSession(identity, tenant_no, request.worker_id, parts.now, lease_ms)
        session.mark_seen()
        return session, topics

    def _check_accepting(self) -> None:
        """Right before a session is opened, too: one that comes after the others were asked to drain hears nothing."""
        if not self._parts.accepting():
            raise ShuttingDown("this instance is shutting down; connect to another one")


@contextmanager
def _told(session: WorkerSession, *, seq: int = 0) -> Iterator[None]:
    """Tell a worker what is wrong with a part of its frame, and go on; but end the session when it may not be here."""
    try:
        yield
    except HeadgateError as error:
        if error.code in ("permission_denied", "shutting_down"):
            raise
        session.send_control(ControlFrame(error=error.with_traceback(None), error_seq=seq))


def _is_decided(told: Answer | None) -> bool:
    """Whether the job is not held any more: not one that is locked, nor one that is unknown to its sender."""
    if is_locked(told):
        return False
    return told is None or isinstance(told, HeadgateError) or told.receipt is not Receipt.UNKNOWN


def _check_count(outcomes: int) -> None:
    if outcomes > limits.SETTLE_FLUSH_MAX_ROWS:
        raise TooLarge("outcomes", size=outcomes, limit=limits.SETTLE_FLUSH_MAX_ROWS, unit="outcomes")
