"""The life of a job as pure functions: the model that the SQL functions in `store/` are tested against.

`now` stands for the database's clock. An expected answer (a stale outcome, a lease not yet over) is a value and leaves
the job as it was; a verb that makes no sense for the job's state raises `WrongState`.

One outcome is accepted after its lease has run out, as long as the job was neither reaped nor claimed since: the epoch
decides, not the time, so work that was done is not thrown away because its report was slow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from headgate.domain.backoff import RetryPolicy, jitter_of
from headgate.domain.errors import InvalidInput, WrongState
from headgate.domain.ids import Epoch, JobId
from headgate.domain.jobs import Submission, TopicRules
from headgate.domain.outcomes import Abandon, Completed, Ending, Failed, LeaseExpired, Nack, Outcome, Snooze, kind_of
from headgate.domain.rank import rank_of
from headgate.domain.states import EventKind, OutcomeKind, Receipt, State
from headgate.domain.timestamps import MICROSECOND, unix_us
from headgate.domain.validation import MILLISECOND, check_ageing_step, check_delay, check_lease, check_priority

NEVER_CLAIMED: Final = Epoch(0)
_AT_ONCE: Final = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What the rules need to know of a job. A record that breaks an invariant cannot be built; the table's constraints
    (jobs_lease, jobs_attempts, jobs_cancel) say the same."""

    id: JobId
    state: State
    run_at: datetime  # when it is, or was, due
    max_attempts: int
    policy: RetryPolicy
    priority: int
    rank_class: int
    rank_at: int  # µs
    attempt: int = 0  # paid runs: grows at claim, so that a silent crash counts; given back by Abandon and Snooze
    epoch: Epoch = NEVER_CLAIMED  # grows at every claim and never shrinks: the fence
    lease_until: datetime | None = None
    cancel_requested: bool = False
    last_outcome: OutcomeKind | None = None  # of the epoch that was settled last

    def __post_init__(self) -> None:
        state = self.state
        if (state is State.RUNNING) != (self.lease_until is not None):
            raise InvalidInput("lease_until", f"belongs to running jobs, and to all of them; this one is {state.label}")
        most = self.max_attempts - 1 if state.is_queued else self.max_attempts  # what waits must have a run left
        if not 0 <= self.attempt <= min(most, self.epoch):
            raise InvalidInput("attempt", f"{self.attempt} is not within 0 to {most} and epoch {self.epoch}")
        if self.cancel_requested and state.is_queued:
            raise InvalidInput("cancel_requested", f"is for running jobs; one that is {state.label} ends at once")

    @property
    def order_key(self) -> tuple[int, int]:
        """Lower is claimed first, over all topics a worker listens to."""
        return self.rank_class, self.rank_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one finished attempt means for its job."""

    state: State
    run_at: datetime | None = None  # None: stays as it is
    refund: bool = False  # the attempt is given back
    event: EventKind | None = None  # what the timeline says, beside the state it led to


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A job after a verb, what its timeline got, and the answer to the caller."""

    job: JobRecord
    event: EventKind | None = None
    receipt: Receipt = Receipt.APPLIED


def submit(
    submission: Submission, *, now: datetime, rules: TopicRules, position: int = 0, blocked: bool = False
) -> JobRecord:
    """Make the job. `position` is its place in the flush, added as µs: one clock read per flush keeps FIFO order."""
    run_at = submission.due_at(now)
    priority = rules.priority if submission.priority is None else submission.priority
    rank_class, offset_us = rank_of(priority, rules.ageing_step)
    return JobRecord(
        id=submission.id,
        state=State.BLOCKED if blocked else _waiting(run_at, now),
        run_at=run_at,
        max_attempts=submission.max_attempts or rules.max_attempts,
        policy=submission.policy or rules.policy,
        priority=priority,
        rank_class=rank_class,
        rank_at=unix_us(now) + position + offset_us,
    )


def promote(job: JobRecord, *, now: datetime) -> JobRecord:
    """Make a due job claimable, at the rank it always had; any other is left as it is."""
    if job.state in (State.SCHEDULED, State.RETRYING) and job.run_at <= now:
        return replace(job, state=State.PENDING)
    return job


def unblock(job: JobRecord, *, now: datetime) -> Step:
    """Free a job that waited for others; one that is not due yet continues waiting for its time."""
    _demand(job, job.state is State.BLOCKED, verb="unblock", allowed="blocked")
    return Step(job=replace(job, state=_waiting(job.run_at, now)), event=EventKind.UNBLOCKED)


def claim(job: JobRecord, *, now: datetime, lease: timedelta) -> JobRecord:
    """Lease a pending job."""
    _demand(job, job.state is State.PENDING, verb="claim", allowed="pending")
    return replace(
        job,
        state=State.RUNNING,
        attempt=job.attempt + 1,
        # A new epoch on every claim, or a worker back from a long pause could settle its successor's run.
        epoch=Epoch(job.epoch + 1),
        lease_until=now + check_lease(lease),
    )


def renew(job: JobRecord, epoch: Epoch, *, now: datetime, lease: timedelta) -> Step:
    """Push a lease forward, never back: a handler may have asked for longer than the session's usual beat."""
    if job.state is not State.RUNNING or job.epoch != epoch or job.lease_until is None:
        return Step(job=job, receipt=Receipt.STALE)
    return Step(job=replace(job, lease_until=max(job.lease_until, now + check_lease(lease))))


def receipt_for(job: JobRecord | None, epoch: int, kind: OutcomeKind) -> Receipt:
    """Tell what becomes of an outcome of this kind and epoch, before anything is done."""
    if job is None:
        return Receipt.UNKNOWN
    if job.epoch != epoch:  # also a larger one: no such lease was ever given
        return Receipt.STALE
    if job.state is State.RUNNING:
        return Receipt.APPLIED
    # Only the same kind is a repeat; another one contradicts what was settled, and must not look accepted.
    return Receipt.DUPLICATE if job.last_outcome is kind else Receipt.STALE


def settle(job: JobRecord, ending: Ending, *, now: datetime) -> Verdict:
    """Decide what one finished attempt means for its job. The job must be running."""
    _demand(job, job.state is State.RUNNING, verb="settle", allowed="running")
    event = _event_of(ending)
    if isinstance(ending, Completed):
        # The work is done, whatever was wished meanwhile.
        after_cancel = EventKind.COMPLETED_AFTER_CANCEL if job.cancel_requested else None
        return Verdict(state=State.COMPLETED, event=after_cancel)
    if job.cancel_requested:
        # Not even Abandon gives the attempt back here: there is no next run it could pay for.
        return Verdict(state=State.CANCELLED, event=event)
    exhausted = job.attempt >= job.max_attempts
    match ending:
        case Abandon():  # at its old place: neither its rank nor its due time moves
            return Verdict(state=State.PENDING, refund=True, event=event)
        case Snooze(delay=delay):
            state = State.SCHEDULED if delay else State.PENDING
            return Verdict(state=state, run_at=now + delay, refund=True, event=event)
        case Nack() | Failed() | LeaseExpired() if exhausted or (isinstance(ending, Failed) and ending.permanent):
            return Verdict(state=State.DEAD, event=event)
        case Nack(delay=delay):
            return _again(now, delay, event)
        case Failed() | LeaseExpired():
            delay_ms = job.policy.delay_ms(job.attempt, jitter=jitter_of(job.id, job.attempt))
            return _again(now, delay_ms * MILLISECOND, event)
        case _:
            assert_never(ending)


def report(job: JobRecord, epoch: Epoch, outcome: Outcome, *, now: datetime) -> Step:
    """Apply a worker's outcome if its epoch still holds the job; else change nothing and say why."""
    receipt = receipt_for(job, epoch, kind_of(outcome))
    if receipt is not Receipt.APPLIED:
        return Step(job=job, receipt=receipt)
    return _settled(job, outcome, now=now)


def expire_lease(job: JobRecord, *, now: datetime) -> Step:
    """End the attempt of a running job whose lease is over, as if it had failed; any other is left as it is."""
    if job.lease_until is None or job.lease_until >= now:  # the last instant still belongs to the holder
        return Step(job=job)
    return _settled(job, LeaseExpired(), now=now)


def cancel(job: JobRecord) -> Step:
    """End a waiting job at once; ask a running one to stop. Asking twice is harmless."""
    if job.state is State.CANCELLED or (job.state is State.RUNNING and job.cancel_requested):
        return Step(job=job)
    _demand(job, not job.state.is_final, verb="cancel", allowed="unfinished")
    if job.state is State.RUNNING:
        # Still running, and still fenced: it ends when the worker answers or its lease expires.
        return Step(job=replace(job, cancel_requested=True), event=EventKind.CANCEL_REQUESTED)
    return Step(job=replace(job, state=State.CANCELLED), event=EventKind.CANCELLED)


def redrive(
    job: JobRecord, *, now: datetime, ageing_step: timedelta | None, position: int = 0, delay: timedelta = _AT_ONCE
) -> Step:
    """Give a finished job a new life: due after `delay`, ranked as if submitted now, with all its attempts.

    Epoch and last outcome stay: an outcome sent again from the old life is still known as a repeat.
    """
    _demand(job, job.state.is_final, verb="redrive", allowed="finished")
    rank_class, offset_us = rank_of(job.priority, ageing_step)
    run_at = now + check_delay(delay)
    again = replace(
        job,
        state=_waiting(run_at, now),
        attempt=0,
        run_at=run_at,
        cancel_requested=False,
        rank_class=rank_class,
        rank_at=unix_us(now) + position + offset_us,
    )
    return Step(job=again, event=EventKind.REDRIVEN)


def reprioritise(job: JobRecord, priority: int, *, ageing_step: timedelta | None) -> Step:
    """Move a waiting job to another priority, keeping its age. A running one has left the queue already.

    `ageing_step` is the one the job was ranked with: a topic that changes its step ranks its waiting jobs again.
    """
    _demand(job, job.state.is_queued, verb="reprioritise", allowed="waiting")
    rank_class, _ = rank_of(check_priority(priority), ageing_step)
    rank_at = job.rank_at
    if ageing_step is not None:
        rank_at += (job.priority - priority) * (check_ageing_step(ageing_step) // MICROSECOND)
    moved = replace(job, priority=priority, rank_class=rank_class, rank_at=rank_at)
    return Step(job=moved, event=EventKind.REPRIORITISED)


def discard(job: JobRecord) -> EventKind:
    """Allow the removal of a job that ended badly, and name the event that outlives it."""
    _demand(job, job.state in (State.DEAD, State.CANCELLED), verb="discard", allowed="dead or cancelled")
    return EventKind.DISCARDED


def _settled(job: JobRecord, ending: Ending, *, now: datetime) -> Step:
    verdict = settle(job, ending, now=now)
    settled = replace(
        job,
        state=verdict.state,
        run_at=job.run_at if verdict.run_at is None else verdict.run_at,
        attempt=job.attempt - verdict.refund,
        lease_until=None,
        last_outcome=kind_of(ending),
    )
    return Step(job=settled, event=verdict.event)


def _again(now: datetime, delay: timedelta, event: EventKind | None) -> Verdict:
    # No wait: straight to pending, without a round through the due index and the promoter.
    return Verdict(state=State.RETRYING if delay else State.PENDING, run_at=now + delay, event=event)


def _event_of(ending: Ending) -> EventKind | None:
    match ending:
        case Completed():
            return None  # the hot path writes no history; finished_at on the row says it
        case Failed():
            return EventKind.FAILED
        case Nack():
            return EventKind.NACKED
        case Abandon():
            return EventKind.ABANDONED
        case Snooze():
            return EventKind.SNOOZED
        case LeaseExpired():
            return EventKind.LEASE_EXPIRED
        case _:
            assert_never(ending)


def _waiting(run_at: datetime, now: datetime) -> State:
    return State.SCHEDULED if run_at > now else State.PENDING


def _demand(job: JobRecord, holds: bool, *, verb: str, allowed: str) -> None:  # noqa: FBT001  # private, reads as a sentence
    if not holds:
        raise WrongState(job.id, verb=verb, state=job.state.label, allowed=allowed)
