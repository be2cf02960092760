"""What workers can do without a session of frames: heartbeats, outcomes and claims by single calls, and a plain stream.

The rules are those of a session; a claim opens one for the length of its call. `pull_workers` remembers who claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from headgate.dispatch.delivery import Answer, Delivery
from headgate.dispatch.outcome_writes import OutcomeWrite, is_locked
from headgate.dispatch.outcomes import OutcomeWriter
from headgate.dispatch.pull_workers import PullWorker
from headgate.dispatch.session import FRAME_BYTES, WorkerSession
from headgate.dispatch.session_ends import ConnectionLost
from headgate.dispatch.session_rules import MAX_CREDIT, Progress, SessionRules, allowed_topics
from headgate.domain import limits
from headgate.domain.dispatching import Renewal
from headgate.domain.errors import HeadgateError, ShuttingDown
from headgate.domain.identity import Identity
from headgate.domain.job_logs import AttemptLines
from headgate.domain.outcomes import Outcome
from headgate.domain.states import Receipt
from headgate.domain.tallies import Mark
from headgate.domain.validation import check_integer, check_worker_id

LOOK_SECONDS: Final = 2.0
"""How long a claim that does not wait, or whose time is over, waits for the answer of the database: what that brings
would only go back."""
UNKNOWN_SECONDS: Final = 0.25
"""How long a claim that does not wait looks for topics that are not known here: another instance may have made them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What a heartbeat must answer; all others were renewed."""

    lost: Sequence[tuple[UUID, int]]
    cancel: Sequence[tuple[UUID, int]]
    skipped: Sequence[tuple[UUID, int]]


class PulledJobs:
    """Jobs that a call has claimed: `written` when their answer is on the wire; else they go back, at no cost.

    Used as a context, what is not written when it ends goes back.
    """

    def __init__(
        self, deliveries: Sequence[Delivery], worker: PullWorker, abandon_unsent: Callable[[Delivery], None]
    ) -> None:
        self.deliveries = deliveries
        self._worker, self._abandon_unsent = worker, abandon_unsent
        self._open = bool(deliveries)

    def __len__(self) -> int:
        return sum(map(len, self.deliveries))

    def written(self) -> None:
        """The answer is on the wire: only the worker, or the lease, gives them back."""
        self._open = False

    def give_back(self) -> None:
        """The answer will not reach the worker."""
        if not self._open:
            return
        self._open = False
        for delivery in self.deliveries:
            self._worker.let_go(zip(delivery.ids, delivery.epochs, strict=True))
            self._abandon_unsent(delivery)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()


class WorkerCalls:
    """The unary twins of what a session's frames carry."""

    def __init__(self, rules: SessionRules) -> None:
        self._rules = rules

    async def heartbeat(
        self,
        identity: Identity,
        worker_id: str,
        ids: Sequence[UUID],
        epochs: Sequence[int],
        *,
        lease_seconds: int,
        progress: Sequence[Progress],
        logs: Sequence[AttemptLines] = (),
    ) -> Renewed:
        """Renew leases without a session; without `lease_seconds`, by the leases of their topics. Raises Overloaded."""
        rules = self._rules
        lease_ms = rules.lease_ms_of(lease_seconds, field="lease_seconds")
        tenant_no = await rules.tenants.tenant_no(identity.tenant)
        by_lease = {lease_ms: list(zip(ids, epochs, strict=True))}
        if not lease_seconds and tenant_no in rules.demands.names.leases:
            by_lease = await self._by_lease_of_topic(tenant_no, by_lease[lease_ms], lease_ms)
        answers: dict[tuple[int, UUID, int], Renewal] = {}
        for ms, pairs in by_lease.items():
            some, their_epochs = [job_id for job_id, _ in pairs], [epoch for _, epoch in pairs]
            answers |= await rules.renewer.calls.renew(tenant_no, ms, some, their_epochs, topics=identity.topics)
        lost = [(job_id, epoch) for (_, job_id, epoch), answer in answers.items() if answer.lost]
        kept = set(zip(ids, epochs, strict=True)).difference(lost)
        for job_id, epoch, report in progress:
            if (job_id, epoch) in kept:
                rules.progress.note(tenant_no, job_id, epoch, report)
        for one in logs:
            if (one.job_id, one.epoch) in kept:
                rules.logs.note(tenant_no, one)
        worker = rules.pulls.find(tenant_no, worker_id, identity.subject)
        if worker is not None:
            worker.let_go(lost)
            for ms, pairs in by_lease.items():
                worker.renewed(kept.intersection(pairs), ms, rules.now())
        session = rules.sessions.find(tenant_no, worker_id)
        # Only of the same credential's worker: another one that knows its id must not keep a dead worker's leases.
        if session is not None and session.identity.subject == identity.subject:
            session.mark_seen()
        return Renewed(
            lost=lost,
            cancel=[(job_id, epoch) for (_, job_id, epoch), answer in answers.items() if answer.cancel],
            skipped=[(job_id, epoch) for (_, job_id, epoch), answer in answers.items() if answer.skipped],
        )

    async def _by_lease_of_topic(
        self, tenant_no: int, pairs: Sequence[tuple[UUID, int]], default_ms: int
    ) -> dict[int, list[tuple[UUID, int]]]:
        """Jobs and epochs by the lease that a claim of their topic gets."""
        topics = await self._rules.renewer.calls.topics_of(tenant_no, [job_id for job_id, _ in pairs])
        found: dict[int, list[tuple[UUID, int]]] = {}
        for job_id, epoch in pairs:
            ms = self._rules.demands.lease_ms_of(tenant_no, [topics[job_id]]) if job_id in topics else 0
            found.setdefault(ms or default_ms, []).append((job_id, epoch))
        return found

    async def report(
        self, identity: Identity, worker_id: str, outcomes: Sequence[tuple[UUID, int, Outcome]], *, size: int
    ) -> Mapping[int, Answer]:
        """Settle outcomes, also of jobs that a stream delivered, here or elsewhere; returns the answers by index.

        What has none was applied as sent.
        """
        tenant_no = await self._rules.tenants.tenant_no(identity.tenant)
        if not outcomes:
            return {}
        writer = self._writer_for(identity, tenant_no, worker_id, outcomes)
        settled: asyncio.Future[Mapping[int, Answer]] = asyncio.get_running_loop().create_future()
        writer.put(
            OutcomeWrite(
                tenant_no,
                (),
                (),
                (),
                outcomes,
                done=lambda answers: None if settled.done() else settled.set_result(answers),
                failed=lambda error: None if settled.done() else settled.set_exception(error),
                size=size,
                topics=identity.topics,
                marks=self._marks(tenant_no, worker_id, outcomes),
            )
        )
        answers = await settled
        decided = [outcome for index, outcome in enumerate(outcomes) if _is_decided(answers.get(index))]
        worker = self._rules.pulls.find(tenant_no, worker_id, identity.subject)
        if worker is not None:
            worker.let_go((job_id, epoch) for job_id, epoch, _ in decided)
        self._return_credit(tenant_no, worker_id, decided)
        return answers

    def _writer_for(
        self, identity: Identity, tenant_no: int, worker_id: str, outcomes: Sequence[tuple[UUID, int, Outcome]]
    ) -> OutcomeWriter:
        """Where the jobs were given to a plain stream or a pull worker of this credential, as outcomes of a session."""
        rules = self._rules
        ids = [job_id for job_id, _, _ in outcomes]
        worker = rules.pulls.find(tenant_no, worker_id, identity.subject)
        if worker is not None and worker.session.identity.topics == identity.topics and worker.holds_all(ids):
            return rules.outcomes
        session = rules.sessions.find(tenant_no, worker_id)
        if session is None:
            return rules.unmatched
        theirs = session.identity
        if theirs.subject != identity.subject or theirs.topics != identity.topics:
            return rules.unmatched
        return rules.outcomes if all(job_id in session.held for job_id in ids) else rules.unmatched

    def _marks(self, tenant_no: int, worker_id: str, outcomes: Sequence[tuple[UUID, int, Outcome]]) -> dict[UUID, Mark]:
        """How the jobs were handed over, as far as this instance did it: by a stream, or by single claims."""
        session, lent = self._rules.sessions.find(tenant_no, worker_id), self._rules.tallies.lent
        if session is None:
            return {job_id: lent(job_id) for job_id, _, _ in outcomes}
        return {
            job_id: session.held[job_id][3] if session.holds(job_id, epoch) else lent(job_id)
            for job_id, epoch, _ in outcomes
        }

    def _return_credit(self, tenant_no: int, worker_id: str, outcomes: Sequence[tuple[UUID, int, Outcome]]) -> None:
        """A report returns the credit of the stream that delivered the job, when that stream is here."""
        attempts = {(job_id, epoch) for job_id, epoch, _ in outcomes}
        ids = {job_id for job_id, _ in attempts}
        if not ids:
            return
        named = self._rules.sessions.find(tenant_no, worker_id)
        sessions: Iterable[WorkerSession] = self._rules.sessions if not worker_id else () if named is None else (named,)
        for session in sessions:
            if session.tenant_no != tenant_no:
                continue
            # By the smaller of the two: a call may name thousands of jobs, and there may be thousands of sessions.
            mine = [job_id for job_id in session.held.keys() & ids if (job_id, session.held[job_id][0]) in attempts]
            session.settled(mine)
            if mine and session.return_credit is not None:
                session.return_credit(len(mine))

    async def open_stream(
        self, identity: Identity, worker_id: str, topics: Sequence[str], *, lease_seconds: int, max_in_flight: int
    ) -> WorkerSession:
        """Open a plain stream: `max_in_flight` is its credit, which reported outcomes return. Raises QuotaExceeded."""
        check_integer(max_in_flight, field="max_in_flight", low=1, high=MAX_CREDIT)
        session = await self._new_session(identity, worker_id, topics, lease_seconds)
        await self._rules.check_quota(session)
        self._rules.sessions.open(session)
        demands, lease_ms = self._rules.demands, session.default_lease_ms
        session.return_credit = lambda count: demands.ask(session, session.topics, lease_ms, count)
        try:
            demands.ask(session, session.topics, lease_ms, max_in_flight)
        except HeadgateError:
            self._rules.close(session, f"worker {worker_id} was refused")
            raise
        return session

    async def claim(
        self,
        identity: Identity,
        worker_id: str,
        topics: Sequence[str],
        *,
        count: int = 1,
        lease_seconds: int = 0,
        wait_ms: int = 0,
        most_bytes: int = FRAME_BYTES,
    ) -> PulledJobs:
        """Claim up to `count` jobs: those that are due, or the first that come within `wait_ms`. None: time is over.

        Jobs that do not fit into `most_bytes` go back at no cost. Without a wait it is over when a claim has looked. An
        instance that stops answers those that wait with nothing. Raises Overloaded, QuotaExceeded (a worker that is
        new here), ShuttingDown, TokenRevoked.
        """
        rules = self._rules
        check_integer(count, field="count", low=1, high=limits.CLAIM_MAX)
        check_integer(wait_ms, field="wait_ms", low=0, high=limits.CLAIM_WAIT_MAX_MS)
        session = await self._new_session(identity, worker_id, topics, lease_seconds)
        session.single_call = True
        if rules.pulls.find(session.tenant_no, worker_id, identity.subject) is None:
            await rules.check_quota(session)
        with rules.pulls.polling(session) as worker:
            rules.sessions.begin_call(session)
            try:
                rules.demands.ask(session, session.topics, session.default_lease_ms, count)
                rules.pulls.keep_demands(worker, session)
                rules.demands.look(session)
                await _wait(session, wait_ms / 1000)
                # No await from here on: what is taken is given to the caller, the rest goes back below.
                deliveries = [] if session.ended is not None else session.take_queued(most_bytes)
            finally:
                ended = session.ended
                rules.tallies.lend({job_id: entry[3] for job_id, entry in session.held.items()})
                session.end(ConnectionLost("a single claim is over"))
                rules.sessions.end_call(session)
                rules.demands.revoke(session)
            if ended is not None and not isinstance(ended, ShuttingDown):
                raise ended
            rules.pulls.took(worker, deliveries)
            return PulledJobs(deliveries, worker, rules.demands.abandon_unsent)

    async def _new_session(
        self, identity: Identity, worker_id: str, topics: Sequence[str], lease_seconds: int
    ) -> WorkerSession:
        """A session for a call that names its topics once, not yet registered."""
        check_worker_id(worker_id)
        named = allowed_topics(identity, topics, field="topics")
        lease_ms = self._rules.lease_ms_of(lease_seconds, field="lease_seconds")
        session = await self._rules.new_session(identity, worker_id, lease_ms)
        session.topics = named
        if not lease_seconds:
            session.default_lease_ms = self._rules.demands.lease_ms_of(session.tenant_no, named) or lease_ms
        return session


async def _wait(session: WorkerSession, seconds: float) -> None:
    """Return when jobs are queued for a call, when its time is over, or when it has ended."""
    if seconds:
        try:
            async with asyncio.timeout(seconds):
                await session.queued()
        except TimeoutError:
            if not any(demand.claiming for demand in session.credit):
                return
        else:
            return
    knows = any(demand.topic_nos for demand in session.credit)  # none: it is quiet, or waits for topics to appear
    try:
        async with asyncio.timeout(LOOK_SECONDS if knows else UNKNOWN_SECONDS):
            await session.queued(or_looked=True)
    except TimeoutError:
        pass


def _is_decided(answer: Answer | None) -> bool:
    """Whether the job is not held any more: not one that is locked, nor one that is unknown to its sender."""
    if is_locked(answer):
        return False
    return answer is None or isinstance(answer, HeadgateError) or answer.receipt is not Receipt.UNKNOWN
