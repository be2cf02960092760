"""The rules of a worker session, whatever carries its frames: hello, credit, outcomes, beats, its end.

A transport translates: it turns messages into the values below, and sends what `WorkerSession.next_part` gives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from headgate.dispatch.delivery import Answer, ControlFrame
from headgate.dispatch.demands import Demands
from headgate.dispatch.job_logs import LogWriter
from headgate.dispatch.lost_workers import LostWorkers
from headgate.dispatch.outcome_writes import OutcomeWrite, put_in_parts
from headgate.dispatch.outcomes import OutcomeWriter
from headgate.dispatch.ports import TenantNumbers
from headgate.dispatch.progress import ProgressWriter
from headgate.dispatch.pull_workers import PullWorkers
from headgate.dispatch.renewals import LeaseRenewer
from headgate.dispatch.session import UNKNOWN_MOST, WorkerSession
from headgate.dispatch.session_ends import ClosedByWorker, ConnectionLost, SessionForgotten
from headgate.dispatch.sessions import WorkerSessions
from headgate.domain import failpoints, limits
from headgate.domain.errors import HeadgateError, InvalidInput, ShuttingDown, TooLarge
from headgate.domain.identity import Identity
from headgate.domain.job_logs import AttemptLines
from headgate.domain.outcomes import Outcome
from headgate.domain.states import Receipt, State
from headgate.domain.tallies import Tallies
from headgate.domain.validation import check_integer, check_topic, check_worker_id

log = logging.getLogger("headgate.sessions")
MAX_TOPICS: Final = 1_000
FEW_TOPICS, TOPICS_PER_SECOND = 64, 10_000
"""A request that names more than a few topics, and others than the last one did, is taken after a pause: its names cost
the event loop a millisecond or two. Workers name the same topics each time, and do not wait."""
MAX_CREDIT: Final = 100_000
LONGEST_MS: Final = 10 * 365 * 86_400_000
"""A process counts as connected for ten years at most, whatever it reports: times stay within the calendar."""
LOST_AT_ONCE: Final = 1_000
"""Jobs that one beat is answered to be lost because they are not known here. What is listed again is answered again."""

Progress: TypeAlias = tuple[UUID, int, Mapping[str, object]]
"""A job, its epoch, and how far it is."""
Extension: TypeAlias = tuple[UUID, int, int]
"""A job, its epoch, and the lease it should have, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """How a worker opens its session; `ids` and `epochs` are the `declared` jobs that it still holds."""

    worker_id: str
    incarnation: int = 0
    client: str = ""  # for display
    clock_us: int = 0  # by its own clock; for display
    connected_ms: int = 0  # how long ago its process was first connected
    resumed: bool = False
    declared: int = 0
    ids: Callable[[], Sequence[UUID]] = list  # made once the session is accepted: there may be many
    epochs: Sequence[int] = ()


@dataclass(slots=True, kw_only=True)
class OutcomeFrame:
    """One frame's outcomes: completions as parallel lists, then the others."""

    seq: int
    ids: Sequence[UUID]
    epochs: Sequence[int]
    results: Sequence[bytes]
    others: Sequence[tuple[UUID, int, Outcome]]
    indexes: Sequence[int]  # the index in the frame of each of them
    refused: Sequence[tuple[int, HeadgateError]]  # what is wrong with outcomes that are not among them, by index
    size: int


@dataclass(slots=True, kw_only=True)
class Beat:
    """A sign of life. `listed` gives the jobs that the worker holds, and raises InvalidInput.

    Of extensions and progress that are not valid, the error stands in their place.
    """

    count: int
    listed: Callable[[], Sequence[tuple[UUID, int]]]
    jobs_seen: int
    extensions: Iterable[Extension | HeadgateError]
    progress: Iterable[Progress | HeadgateError]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """Applies what workers send to their sessions."""

    sessions: WorkerSessions
    pulls: PullWorkers
    demands: Demands
    outcomes: OutcomeWriter
    unmatched: OutcomeWriter
    renewer: LeaseRenewer
    lost_workers: LostWorkers
    progress: ProgressWriter
    logs: LogWriter
    tenants: TenantNumbers
    now: Callable[[], float]
    lease_ms: int
    accepting: Callable[[], bool]
    tallies: Tallies = field(default_factory=Tallies)
    stop_if_asked: Callable[[WorkerSession], None] = lambda _session: None
    """A process that connects again may have missed that it was asked to stop."""
    admit: Callable[[str, Callable[[], int]], Awaitable[None]] | None = None
    """Raises QuotaExceeded if a tenant may not open a session; gets its name, and how many it has here."""

    # ------------------------------------------------------------------ begin and end

    async def open(self, identity: Identity, hello: Hello) -> tuple[WorkerSession, list[tuple[UUID, int]]]:
        """Open a session, and take over what its worker holds; returns it, and the jobs that are not its own any more.

        The caller must call `close`. Raises WorkerIdTaken, QuotaExceeded, Overloaded, ShuttingDown.
        """
        check_worker_id(hello.worker_id)
        session = await self.new_session(identity, hello.worker_id, self.lease_ms, hello.incarnation)
        session.client, session.clock_us = hello.client, hello.clock_us
        session.takes_stop, session.connected_before = True, min(hello.connected_ms, LONGEST_MS) / 1000
        self.sessions.check_capacity(session.tenant_no, hello.declared)
        if not hello.declared:  # who holds jobs must not lose them to a quota
            await self.check_quota(session)
        session.declaring = hello.declared
        self.sessions.open(session)
        # Before the peer knows of it, and whatever comes of it: each session in the log begins, then ends.
        log.info("session_opened worker=%s tenant=%s held=%d", session.worker_id, identity.tenant, hello.declared)
        try:
            lost = await self.renewer.declare(session, hello.ids(), hello.epochs, self.lease_ms)
            session.declaring = 0
            if hello.resumed and hello.incarnation:
                # Without an incarnation, its jobs cannot be distinguished from those of another process of that name.
                # A lost one counts as undeclared: under its new epoch it may have been sent to this very worker.
                held = list(session.held)
                await self.renewer.calls.abandon_undeclared(session.tenant_no, session.claims_as, held)
                self.demands.wake_all()
            if failpoints.armed:
                await failpoints.armed.reach("hello.before_ack")
        except BaseException:
            self.close(session, f"worker {session.worker_id} left before it was greeted")
            raise
        self.lost_workers.came_back(session)
        self.stop_if_asked(session)
        return session, lost

    async def new_session(
        self, identity: Identity, worker_id: str, lease_ms: int, incarnation: int = 0
    ) -> WorkerSession:
        """A session that is not registered yet. Raises ShuttingDown."""
        tenant_no = await self.tenants.tenant_no(identity.tenant)
        # Right before it is opened, too: one that comes after the others were asked to drain would hear nothing.
        self.check_accepting()
        session = WorkerSession(identity, tenant_no, worker_id, self.now, lease_ms, incarnation)
        session.mark_seen()
        return session

    async def check_quota(self, session: WorkerSession) -> None:
        """Raises QuotaExceeded if the tenant has as many workers as it may have, with and without a connection.

        The caller registers the session without waiting in between: others that come meanwhile must count it.
        """
        if self.admit is None:
            return
        await self.admit(
            session.identity.tenant, lambda: self.sessions.others_of(session) + self.pulls.others_of(session)
        )
        self.check_accepting()

    def check_accepting(self) -> None:
        """Raises ShuttingDown."""
        if not self.accepting():
            raise ShuttingDown("this instance is shutting down; connect to another one")

    def close(self, session: WorkerSession, lost: str) -> None:
        """End a session that is not served any more; `lost` is the reason where there was none before."""
        # The end of the stream alone says nothing: a connection that is lost ends it as well.
        closed = session.finishing and (session.withdrawn or not self.accepting())
        session.end(ClosedByWorker(lost) if closed else ConnectionLost(lost))
        self.sessions.close(session)
        self.demands.revoke(session)
        if self.accepting():  # else this instance ends: its workers connect to others
            self.lost_workers.add(session)
        log.info("session_ended worker=%s reason=%s", session.worker_id, session.ended and session.ended.code)

    def withdraw(self, session: WorkerSession) -> None:
        """The worker wants no more jobs until it asks again."""
        session.withdrawn = True
        self.demands.withdraw(session)
        session.send_control(ControlFrame(quieted=True))

    def finish(self, session: WorkerSession) -> None:
        """The worker sends nothing more: it gets no jobs, but the receipts of what it has sent."""
        self.demands.withdraw(session)
        session.finish()

    # ------------------------------------------------------------------ credit

    async def request_jobs(
        self, session: WorkerSession, topics: Sequence[str], count: int, *, lease_seconds: int = 0
    ) -> None:
        """Grant credit for `count` more jobs of these topics; without any, of those that it asked for before."""
        named = session.topics
        if not named or (topics and list(topics) != named):
            if len(topics) > FEW_TOPICS:
                await asyncio.sleep(min(len(topics), MAX_TOPICS) / TOPICS_PER_SECOND)
            named = allowed_topics(session.identity, topics, field="ready.topics")
        check_integer(count, field="ready.count", low=1, high=MAX_CREDIT)
        lease_ms = self.lease_ms_of(lease_seconds, field="ready.lease_seconds")
        if not lease_seconds:
            lease_ms = self.demands.lease_ms_of(session.tenant_no, named) or lease_ms
        self.demands.ask(session, named, lease_ms, count)
        session.topics, session.withdrawn = named, False

    def lease_ms_of(self, seconds: int, *, field: str) -> int:
        """The lease that is asked for, or the default. Raises InvalidInput."""
        if not seconds:
            return self.lease_ms
        most = int(limits.LEASE_MAX.total_seconds())
        return check_integer(seconds, field=field, low=1, high=most) * 1000

    # ------------------------------------------------------------------ outcomes

    def report(self, session: WorkerSession, frame: OutcomeFrame) -> None:
        """Queue outcomes; the session gets their receipts after the commit. Raises Overloaded."""

        def done(answers: Mapping[int, Answer]) -> None:
            exceptions = [(frame.indexes[row], answer) for row, answer in answers.items() if not _is_plain(answer)]
            exceptions += frame.refused
            session.answer(ControlFrame(receipts_seq=frame.seq, receipt_exceptions=exceptions))
            session.reported(number)

        def failed(error: HeadgateError) -> None:
            session.send_control(ControlFrame(error=error, error_seq=frame.seq))
            session.reported(number)

        ids, others, number = frame.ids, frame.others, 0
        if not ids and not others:
            done({})  # nothing to write, so nothing to wait for, and nothing to hold on to meanwhile
            return
        write = OutcomeWrite(
            session.tenant_no,
            ids,
            frame.epochs,
            frame.results or [b""] * len(ids),
            others,
            done=done,
            failed=failed,
            session=session,
            size=frame.size,
        )
        held = session.held
        if all(map(held.__contains__, ids)) and (not others or all(job_id in held for job_id, _, _ in others)):
            session.reported_jobs(given=write.rows)
            self.outcomes.put(write)
        else:
            write.topics = session.identity.topics
            put_in_parts(write, held, given=self.outcomes.put, unmatched=self.unmatched.put)
        number = session.reporting([*ids, *(job_id for job_id, _, _ in others)] if others else ids)

    # ------------------------------------------------------------------ beats

    def beat(self, session: WorkerSession, beat: Beat) -> None:
        """Take a sign of life, and answer it. Raises InvalidInput."""
        if not self.sessions.knows(session):
            # Answered, it would beat forever: never renewed, given no job, and shown as alive.
            session.end(SessionForgotten(f"worker {session.worker_id} is not known here any more; connect again"))
            return
        now, excused = self.now(), session.excused()
        surplus = beat.count - len(session.held) - excused
        if UNKNOWN_MOST < surplus < limits.HELD_MAX:  # by their number alone; more are refused as a whole
            session.reported_jobs(given=len(session.held), unknown=surplus)
            if session.ended is not None:
                return
        if session.may_list(beat.count):
            self._keep_listed(session, beat, excused)
        for error in (self._extend(session, beat.extensions, now), self._note(session, beat.progress)):
            if error is not None:  # in a part of the beat: the beat itself counts, and is answered as one
                session.send_control(ControlFrame(error=error))
        if failpoints.armed:
            failpoints.armed.touch("beat.before_ack")
        session.send_control(ControlFrame(beat_ack=True))

    def _keep_listed(self, session: WorkerSession, beat: Beat, excused: int) -> None:
        listed = beat.listed()
        # What it does not hold is not its own, whatever the database knows of it: it was neither given to it here nor
        # declared. It is answered as lost and not kept, and the database is not asked.
        unknown = [(job_id, epoch) for job_id, epoch in listed if not session.holds(job_id, epoch)]
        if unknown:
            session.send_control(ControlFrame(lost=unknown[:LOST_AT_ONCE]))
        session.reported_jobs(given=len(listed) - len(unknown), unknown=max(0, len(unknown) - excused))
        if beat.jobs_seen:
            session.keep_only(set(listed), seen=beat.jobs_seen)

    def _extend(
        self, session: WorkerSession, extensions: Iterable[Extension | HeadgateError], now: float
    ) -> HeadgateError | None:
        """Grant longer leases; returns the first error, and grants the others nevertheless."""
        first: HeadgateError | None = None
        for extension in extensions:
            if isinstance(extension, HeadgateError):
                first = first or extension
                continue
            job_id, epoch, lease_seconds = extension
            try:
                lease_ms = self.lease_ms_of(lease_seconds, field="extension.lease_seconds")
            except HeadgateError as error:
                first = first or error.with_traceback(None)
                continue
            # Not that of an earlier attempt: it would put its own epoch in place of the one that is held.
            session.extend(job_id, epoch, lease_ms, now)
        return first

    def _note(self, session: WorkerSession, progress: Iterable[Progress | HeadgateError]) -> HeadgateError | None:
        """Note how far jobs are; returns the first error, and notes the others nevertheless."""
        first: HeadgateError | None = None
        for one in progress:
            if isinstance(one, HeadgateError):
                first = first or one
            elif session.holds(one[0], one[1]):
                self.progress.note(session.tenant_no, *one)
        return first

    # ------------------------------------------------------------------ log lines

    def log(self, session: WorkerSession, attempts: Iterable[AttemptLines | HeadgateError]) -> HeadgateError | None:
        """Keep log lines of attempts that this session holds, others are ignored; returns the first error."""
        first: HeadgateError | None = None
        for one in attempts:
            if isinstance(one, HeadgateError):
                first = first or one
            elif session.holds(one.job_id, one.epoch):
                self.logs.note(session.tenant_no, one)
        return first


@contextmanager
def reporting_errors(session: WorkerSession, *, seq: int = 0) -> Iterator[None]:
    """Send a worker what is wrong with a part of its frame, and go on; but end the session if it may not be here."""
    try:
        yield
    except HeadgateError as error:
        if error.code in ("permission_denied", "shutting_down"):
            raise
        session.send_control(ControlFrame(error=error.with_traceback(None), error_seq=seq))


def allowed_topics(identity: Identity, topics: Sequence[str], *, field: str) -> list[str]:
    """The topics that are named, each once. Raises InvalidInput, PermissionDenied."""
    if not topics:
        raise InvalidInput(field, "is empty; name the topics to take jobs from")
    if len(topics) > MAX_TOPICS:
        raise InvalidInput(field, f"{len(topics)} topics; the limit is {MAX_TOPICS}")
    for topic in topics:
        check_topic(topic, field=field)
    return identity.allowed(dict.fromkeys(topics))


def check_outcome_count(count: int) -> None:
    """Raises TooLarge if a frame or call has more outcomes than one flush takes."""
    if count > limits.SETTLE_FLUSH_MAX_ROWS:
        raise TooLarge("outcomes", size=count, limit=limits.SETTLE_FLUSH_MAX_ROWS, unit="outcomes")


def _is_plain(answer: Answer) -> bool:
    return (
        not isinstance(answer, HeadgateError) and answer.receipt is Receipt.APPLIED and answer.state is State.COMPLETED
    )
