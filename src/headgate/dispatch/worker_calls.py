"""What workers can do without a session of frames: heartbeats, outcomes and claims by single calls, and a plain stream.

The rules are those of a session; a claim opens one for the length of its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headgate.dispatch.delivery import Answer, Delivery
from headgate.dispatch.outcome_writes import OutcomeWrite, is_locked
from headgate.dispatch.outcomes import OutcomeWriter
from headgate.dispatch.session import ConnectionLost, WorkerSession
from headgate.dispatch.session_rules import MAX_CREDIT, Progress, SessionRules, allowed_topics
from headgate.domain import limits
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Identity
from headgate.domain.outcomes import Outcome
from headgate.domain.states import Receipt
from headgate.domain.validation import check_integer, check_worker_id

MAX_WAIT_MS: Final = 60_000
_SHORTEST_WAIT_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What a heartbeat must answer; all others were renewed."""

    lost: Sequence[tuple[UUID, int]]
    cancel: Sequence[tuple[UUID, int]]
    skipped: Sequence[tuple[UUID, int]]


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
    ) -> Renewed:
        """Renew leases without a session. Raises Overloaded."""
        rules = self._rules
        lease_ms = rules.lease_ms_of(lease_seconds, field="lease_seconds")
        tenant_no = await rules.tenants.tenant_no(identity.tenant)
        answers = await rules.renewer.calls.renew(tenant_no, lease_ms, ids, epochs, topics=identity.topics)
        lost = [(job_id, epoch) for (_, job_id, epoch), answer in answers.items() if answer.lost]
        kept = set(zip(ids, epochs, strict=True)).difference(lost)
        for job_id, epoch, report in progress:
            if (job_id, epoch) in kept:
                rules.progress.note(tenant_no, job_id, epoch, report)
        session = rules.sessions.find(tenant_no, worker_id)
        # Only of the same credential's worker: another one that knows its id must not keep a dead worker's leases.
        if session is not None and session.identity.subject == identity.subject:
            session.mark_seen()
        return Renewed(
            lost=lost,
            cancel=[(job_id, epoch) for (_, job_id, epoch), answer in answers.items() if answer.cancel],
            skipped=[(job_id, epoch) for (_, job_id, epoch), answer in answers.items() if answer.skipped],
        )

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
            )
        )
        answers = await settled
        decided = [outcome for index, outcome in enumerate(outcomes) if _is_decided(answers.get(index))]
        self._return_credit(tenant_no, worker_id, decided)
        return answers

    def _writer_for(
        self, identity: Identity, tenant_no: int, worker_id: str, outcomes: Sequence[tuple[UUID, int, Outcome]]
    ) -> OutcomeWriter:
        """Where the jobs were given to a plain stream here, of this worker and credential, as outcomes of a session."""
        rules = self._rules
        session = rules.sessions.find(tenant_no, worker_id)
        if session is None:
            return rules.unmatched
        theirs = session.identity
        if theirs.subject != identity.subject or theirs.topics != identity.topics:
            return rules.unmatched
        return rules.outcomes if all(job_id in session.held for job_id, _, _ in outcomes) else rules.unmatched

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
        """Open a plain stream: `max_in_flight` is its credit, which reported outcomes return."""
        check_integer(max_in_flight, field="max_in_flight", low=1, high=MAX_CREDIT)
        session = await self._new_session(identity, worker_id, topics, lease_seconds)
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
        lease_seconds: int,
        count: int,
        wait_ms: int,
    ) -> Delivery | None:
        """A single claim: a session for the length of the call. Raises why it ended, if it got nothing."""
        rules = self._rules
        count = check_integer(count or 1, field="count", low=1, high=limits.CLAIM_MAX)
        session = await self._new_session(identity, worker_id, topics, lease_seconds)
        rules.sessions.begin_call(session)
        rules.demands.ask(session, session.topics, session.default_lease_ms, count)
        try:
            async with asyncio.timeout(min(wait_ms, MAX_WAIT_MS) / 1000 or _SHORTEST_WAIT_SECONDS):
                part = await session.next_part()
            session.written()  # as far as anybody can know: the answer leaves in one piece, or not at all
        except TimeoutError:
            part = None
        finally:
            ended = session.ended
            session.end(ConnectionLost("a single claim is over"))
            rules.sessions.end_call(session)
            rules.demands.revoke(session)
        if part is None and ended is not None:
            raise ended
        return part if isinstance(part, Delivery) else None

    async def _new_session(
        self, identity: Identity, worker_id: str, topics: Sequence[str], lease_seconds: int
    ) -> WorkerSession:
        """A session for a call that names its topics once, not yet registered."""
        check_worker_id(worker_id)
        named = allowed_topics(identity, topics, field="topics")
        lease_ms = self._rules.lease_ms_of(lease_seconds, field="lease_seconds")
        session = await self._rules.new_session(identity, worker_id, lease_ms)
        session.topics = named
        return session


def _is_decided(answer: Answer | None) -> bool:
    """Whether the job is not held any more: not one that is locked, nor one that is unknown to its sender."""
    if is_locked(answer):
        return False
    return answer is None or isinstance(answer, HeadgateError) or answer.receipt is not Receipt.UNKNOWN
