from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate.domain import lifecycle
from headgate.domain.backoff import RetryPolicy, jitter_of
from headgate.domain.errors import WrongState
from headgate.domain.ids import Epoch, new_job_id
from headgate.domain.jobs import Submission, TopicRules
from headgate.domain.lifecycle import JobRecord, Step, Verdict, receipt_for, settle
from headgate.domain.outcomes import Abandon, Completed, Ending, ErrorInfo, Failed, LeaseExpired, Nack, Snooze
from headgate.domain.states import EventKind, OutcomeKind, Receipt, State
from headgate.domain.timestamps import unix_us
from tests.unit.refusals import assert_refused

NOON = datetime(2025, 11, 15, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
MICRO = timedelta(microseconds=1)
ID = new_job_id(now_ms=1_763_208_000_000, random_bits=b"0123456789")
BOOM = Failed(error=ErrorInfo(type="Boom"))
FATAL = Failed(error=ErrorInfo(type="Boom"), permanent=True)
BUSY = Nack(delay=30 * SECOND, reason="busy")
BUSY_NOW = Nack(delay=0 * SECOND, reason="busy")


def submission(**changes: Any) -> Submission:
    return Submission(**{"tenant": "acme", "topic": "mail", "id": ID, **changes})


def job(state: State = State.PENDING, **changes: Any) -> JobRecord:
    values: dict[str, Any] = {
        "id": ID,
        "state": state,
        "run_at": NOON,
        "max_attempts": 3,
        "policy": RetryPolicy(),
        "priority": 0,
        "rank_class": -1,
        "rank_at": unix_us(NOON),
    }
    if state is State.RUNNING:
        values |= {"attempt": 1, "epoch": 1, "lease_until": NOON + MINUTE}
    return JobRecord(**(values | changes))


# --- submit, promote, claim, renew ----------------------------------------------------------------------------------


def test_a_submitted_job_takes_from_its_topic_what_it_does_not_say() -> None:
    rules = TopicRules(max_attempts=7, policy=RetryPolicy.fixed(SECOND))
    made = lifecycle.submit(submission(), now=NOON, rules=rules)
    assert (made.state, made.attempt, made.epoch, made.run_at) == (State.PENDING, 0, 0, NOON)
    assert (made.max_attempts, made.policy) == (7, rules.policy)
    own = lifecycle.submit(submission(max_attempts=2, policy=RetryPolicy()), now=NOON, rules=rules)
    assert (own.max_attempts, own.policy) == (2, RetryPolicy())


def test_a_job_starts_pending_scheduled_or_blocked() -> None:
    rules = TopicRules()
    assert lifecycle.submit(submission(run_at=NOON), now=NOON, rules=rules).state is State.PENDING
    later = lifecycle.submit(submission(delay=MINUTE), now=NOON, rules=rules)
    assert (later.state, later.run_at) == (State.SCHEDULED, NOON + MINUTE)
    assert lifecycle.submit(submission(), now=NOON, rules=rules, blocked=True).state is State.BLOCKED


def test_rank_is_time_of_submit_place_in_the_flush_and_ageing_bonus() -> None:
    strict = lifecycle.submit(submission(priority=5, delay=MINUTE), now=NOON, rules=TopicRules(), position=3)
    assert strict.order_key == (-6, unix_us(NOON) + 3)
    ageing = lifecycle.submit(submission(priority=5), now=NOON, rules=TopicRules(ageing_step=MINUTE), position=3)
    assert ageing.order_key == (-1, unix_us(NOON - 5 * MINUTE) + 3)


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYING])
def test_promotion_waits_for_the_due_time_and_keeps_the_rank(state: State) -> None:
    waiting = job(state, run_at=NOON, last_outcome=OutcomeKind.FAILED)
    assert lifecycle.promote(waiting, now=NOON - MICRO) is waiting
    assert lifecycle.promote(waiting, now=NOON) == replace(waiting, state=State.PENDING)


def test_promotion_leaves_all_other_states_alone() -> None:
    for state in set(State) - {State.SCHEDULED, State.RETRYING}:
        other = job(state)
        assert lifecycle.promote(other, now=NOON + MINUTE) is other


def test_a_freed_job_still_waits_for_its_time() -> None:
    blocked = job(State.BLOCKED, run_at=NOON)
    freed = Step(job=replace(blocked, state=State.PENDING), event=EventKind.UNBLOCKED)
    assert lifecycle.unblock(blocked, now=NOON) == freed
    assert lifecycle.unblock(blocked, now=NOON - MICRO).job.state is State.SCHEDULED


def test_a_claim_costs_an_attempt_and_raises_the_fence() -> None:
    pending = job(attempt=1, epoch=4, last_outcome=OutcomeKind.FAILED)
    claimed = lifecycle.claim(pending, now=NOON, lease=MINUTE)
    assert claimed == replace(pending, state=State.RUNNING, attempt=2, epoch=5, lease_until=NOON + MINUTE)


def test_a_renewal_pushes_the_lease_forward_but_never_back() -> None:
    running = job(State.RUNNING, lease_until=NOON + 10 * MINUTE)
    assert lifecycle.renew(running, Epoch(1), now=NOON, lease=MINUTE) == Step(job=running)
    longer = lifecycle.renew(running, Epoch(1), now=NOON, lease=20 * MINUTE)
    assert longer == Step(job=replace(running, lease_until=NOON + 20 * MINUTE))
    late = lifecycle.renew(running, Epoch(1), now=NOON + 60 * MINUTE, lease=MINUTE)  # expired, but no one reaped it
    assert late.receipt is Receipt.APPLIED


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_renewal_needs_the_running_epoch(state: State, epoch: int) -> None:
    held = job(state, epoch=1)
    step = lifecycle.renew(held, Epoch(epoch), now=NOON, lease=5 * MINUTE)
    if state is State.RUNNING and epoch == 1:
        assert step.receipt is Receipt.APPLIED
    else:
        assert step == Step(job=held, receipt=Receipt.STALE)


# --- settle ---------------------------------------------------------------------------------------------------------

FIRST, LAST = 1, 3
SETTLED: list[tuple[int, Ending, Verdict]] = [
    (FIRST, Completed(), Verdict(state=State.COMPLETED)),
    (LAST, Completed(), Verdict(state=State.COMPLETED)),
    (FIRST, BOOM, Verdict(state=State.RETRYING, run_at=NOON + SECOND, event=EventKind.FAILED)),
    (2, BOOM, Verdict(state=State.RETRYING, run_at=NOON + 4 * SECOND, event=EventKind.FAILED)),
    (LAST, BOOM, Verdict(state=State.DEAD, event=EventKind.FAILED)),
    (FIRST, FATAL, Verdict(state=State.DEAD, event=EventKind.FAILED)),
    (FIRST, BUSY, Verdict(state=State.RETRYING, run_at=NOON + 30 * SECOND, event=EventKind.NACKED)),
    (FIRST, BUSY_NOW, Verdict(state=State.PENDING, run_at=NOON, event=EventKind.NACKED)),
    (LAST, BUSY, Verdict(state=State.DEAD, event=EventKind.NACKED)),
    (LAST, BUSY_NOW, Verdict(state=State.DEAD, event=EventKind.NACKED)),
    (FIRST, Abandon(), Verdict(state=State.PENDING, refund=True, event=EventKind.ABANDONED)),
    (LAST, Abandon(), Verdict(state=State.PENDING, refund=True, event=EventKind.ABANDONED)),
    (
        LAST,
        Snooze(delay=MINUTE),
        Verdict(state=State.SCHEDULED, run_at=NOON + MINUTE, refund=True, event=EventKind.SNOOZED),
    ),
    (
        FIRST,
        Snooze(delay=0 * MINUTE),
        Verdict(state=State.PENDING, run_at=NOON, refund=True, event=EventKind.SNOOZED),
    ),
    (FIRST, LeaseExpired(), Verdict(state=State.RETRYING, run_at=NOON + SECOND, event=EventKind.LEASE_EXPIRED)),
    (LAST, LeaseExpired(), Verdict(state=State.DEAD, event=EventKind.LEASE_EXPIRED)),
]


@pytest.mark.parametrize(("attempt", "ending", "verdict"), SETTLED)
def test_what_an_ending_means(attempt: int, ending: Ending, verdict: Verdict) -> None:
    assert settle(job(State.RUNNING, attempt=attempt, epoch=9), ending, now=NOON) == verdict


@pytest.mark.parametrize(("attempt", "ending", "verdict"), SETTLED)
def test_a_requested_cancel_wins_over_everything_but_done(attempt: int, ending: Ending, verdict: Verdict) -> None:
    cancelled = settle(job(State.RUNNING, attempt=attempt, epoch=9, cancel_requested=True), ending, now=NOON)
    if isinstance(ending, Completed):
        assert cancelled == Verdict(state=State.COMPLETED, event=EventKind.COMPLETED_AFTER_CANCEL)
    else:
        assert cancelled == Verdict(state=State.CANCELLED, event=verdict.event)


def test_a_policy_without_a_wait_sends_the_job_straight_back() -> None:
    at_once = job(State.RUNNING, policy=RetryPolicy.explicit(timedelta(0)))
    assert settle(at_once, BOOM, now=NOON) == Verdict(state=State.PENDING, run_at=NOON, event=EventKind.FAILED)


def test_jitter_comes_from_the_job_and_the_attempt() -> None:
    policy = RetryPolicy.exponential_full_jitter(MINUTE)
    verdict = settle(job(State.RUNNING, attempt=2, epoch=2, policy=policy), BOOM, now=NOON)
    delay_ms = policy.delay_ms(2, jitter=jitter_of(ID, 2))
    assert 0 < delay_ms < 120_000
    assert verdict.run_at == NOON + timedelta(milliseconds=delay_ms)


def test_a_report_settles_the_record() -> None:
    running = job(State.RUNNING, attempt=2, epoch=5)
    step = lifecycle.report(running, Epoch(5), Snooze(delay=MINUTE), now=NOON)
    assert step.receipt is Receipt.APPLIED
    assert step.event is EventKind.SNOOZED
    assert step.job == replace(
        running,
        state=State.SCHEDULED,
        run_at=NOON + MINUTE,
        attempt=1,
        lease_until=None,
        last_outcome=OutcomeKind.SNOOZE,
    )


def test_an_abandoned_job_keeps_its_place() -> None:
    running = job(State.RUNNING, run_at=NOON - MINUTE)
    back = lifecycle.report(running, Epoch(1), Abandon(), now=NOON).job
    assert (back.order_key, back.run_at, back.attempt, back.epoch) == (running.order_key, NOON - MINUTE, 0, 1)


def test_a_late_outcome_counts_until_the_job_is_reaped() -> None:
    running = job(State.RUNNING)
    late = NOON + 60 * MINUTE
    assert lifecycle.report(running, Epoch(1), Completed(), now=late).job.state is State.COMPLETED
    reaped = lifecycle.expire_lease(running, now=late).job
    assert lifecycle.report(reaped, Epoch(1), Completed(), now=late) == Step(job=reaped, receipt=Receipt.STALE)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_receipts(kind: OutcomeKind, state: State) -> None:
    for last in (None, *OutcomeKind):
        held = job(state, epoch=1, last_outcome=last)
        assert receipt_for(held, 0, kind) is receipt_for(held, 2, kind) is Receipt.STALE
        if state is State.RUNNING:
            assert receipt_for(held, 1, kind) is Receipt.APPLIED
        else:
            assert receipt_for(held, 1, kind) is (Receipt.DUPLICATE if last is kind else Receipt.STALE)


def test_an_outcome_for_no_job_is_unknown() -> None:
    assert receipt_for(None, 1, OutcomeKind.COMPLETED) is Receipt.UNKNOWN


# --- the watchdog and the operators ---------------------------------------------------------------------------------


def test_a_lease_expires_after_its_last_instant() -> None:
    running = job(State.RUNNING, lease_until=NOON)
    assert lifecycle.expire_lease(running, now=NOON) == Step(job=running)
    expired = lifecycle.expire_lease(running, now=NOON + MICRO)
    assert expired.event is EventKind.LEASE_EXPIRED
    assert (expired.job.state, expired.job.last_outcome) == (State.RETRYING, OutcomeKind.LEASE_EXPIRED)
    assert expired.job.run_at == NOON + MICRO + SECOND
    asked = lifecycle.expire_lease(replace(running, cancel_requested=True), now=NOON + MICRO)
    assert asked.job.state is State.CANCELLED


def test_only_running_jobs_expire() -> None:
    for state in set(State) - {State.RUNNING}:
        other = job(state)
        assert lifecycle.expire_lease(other, now=NOON + 60 * MINUTE) == Step(job=other)


@pytest.mark.parametrize("state", [state for state in State if state.is_queued])
def test_cancel_ends_a_waiting_job_at_once(state: State) -> None:
    waiting = job(state)
    assert lifecycle.cancel(waiting) == Step(job=replace(waiting, state=State.CANCELLED), event=EventKind.CANCELLED)


def test_cancel_asks_a_running_job_once() -> None:
    running = job(State.RUNNING)
    asked = lifecycle.cancel(running)
    assert asked == Step(job=replace(running, cancel_requested=True), event=EventKind.CANCEL_REQUESTED)
    assert lifecycle.cancel(asked.job) == Step(job=asked.job)


def test_cancel_of_a_cancelled_job_is_harmless() -> None:
    for flag in (False, True):
        gone = job(State.CANCELLED, cancel_requested=flag)
        assert lifecycle.cancel(gone) == Step(job=gone)


@pytest.mark.parametrize("state", [State.COMPLETED, State.DEAD, State.CANCELLED])
def test_redrive_starts_a_new_life_behind_the_same_fence(state: State) -> None:
    over = job(state, attempt=3, epoch=8, cancel_requested=True, last_outcome=OutcomeKind.FAILED, priority=2)
    later = NOON + 60 * MINUTE
    step = lifecycle.redrive(over, now=later, ageing_step=None, position=4)
    assert step.event is EventKind.REDRIVEN
    assert step.job == replace(
        over,
        state=State.PENDING,
        attempt=0,
        run_at=later,
        cancel_requested=False,
        rank_class=-3,
        rank_at=unix_us(later) + 4,
    )
    assert (step.job.epoch, step.job.last_outcome) == (8, OutcomeKind.FAILED)
    assert lifecycle.report(step.job, Epoch(8), BOOM, now=later).receipt is Receipt.DUPLICATE


def test_redrive_can_wait_and_knows_ageing() -> None:
    over = job(State.DEAD, priority=2)
    step = lifecycle.redrive(over, now=NOON, ageing_step=MINUTE, delay=SECOND)
    assert (step.job.state, step.job.run_at) == (State.SCHEDULED, NOON + SECOND)
    assert step.job.order_key == (-1, unix_us(NOON - 2 * MINUTE))
    assert_refused(
        lambda: lifecycle.redrive(over, now=NOON, ageing_step=None, delay=-SECOND), field="delay", says="1825d"
    )


@pytest.mark.parametrize("state", [state for state in State if state.is_queued])
def test_a_new_priority_keeps_the_age(state: State) -> None:
    waiting = job(state, priority=1, rank_class=-2)
    strict = lifecycle.reprioritise(waiting, 10, ageing_step=None)
    assert strict == Step(job=replace(waiting, priority=10, rank_class=-11), event=EventKind.REPRIORITISED)
    ageing = lifecycle.submit(submission(priority=1), now=NOON, rules=TopicRules(ageing_step=MINUTE))
    raised = lifecycle.reprioritise(ageing, 10, ageing_step=MINUTE).job
    asked_at_once = lifecycle.submit(submission(priority=10), now=NOON, rules=TopicRules(ageing_step=MINUTE))
    assert raised == asked_at_once


def test_a_bad_priority_is_refused() -> None:
    assert_refused(lambda: lifecycle.reprioritise(job(), 2**31, ageing_step=None), field="priority", says="2147483647")


@pytest.mark.parametrize("lease", [timedelta(0), -SECOND, timedelta(days=2), 60, None])
def test_a_bad_lease_is_refused(lease: Any) -> None:
    assert_refused(lambda: lifecycle.claim(job(), now=NOON, lease=lease), field="lease", says="1s to 1d")
    running = job(State.RUNNING)
    assert_refused(lambda: lifecycle.renew(running, Epoch(1), now=NOON, lease=lease), field="lease", says="1s to 1d")


VERBS: dict[str, tuple[set[State], Any]] = {
    "claim": ({State.PENDING}, lambda j: lifecycle.claim(j, now=NOON, lease=MINUTE)),
    "settle": ({State.RUNNING}, lambda j: settle(j, Completed(), now=NOON)),
    "unblock": ({State.BLOCKED}, lambda j: lifecycle.unblock(j, now=NOON)),
    "cancel": (set(State) - {State.COMPLETED, State.DEAD}, lifecycle.cancel),
    "redrive": ({s for s in State if s.is_final}, lambda j: lifecycle.redrive(j, now=NOON, ageing_step=None)),
    "reprioritise": ({s for s in State if s.is_queued}, lambda j: lifecycle.reprioritise(j, 1, ageing_step=None)),
    "discard": ({State.DEAD, State.CANCELLED}, lifecycle.discard),
}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("verb", list(VERBS))
def test_a_verb_applies_to_its_states_and_is_refused_in_all_others(verb: str, state: State) -> None:
    allowed, call = VERBS[verb]
    if state in allowed:
        call(job(state))
        return
    with pytest.raises(WrongState) as caught:
        call(job(state))
    assert (caught.value.verb, caught.value.state, caught.value.job_id) == (verb, state.label, ID)
    assert state.label in str(caught.value)


def test_a_discarded_job_leaves_an_event() -> None:
    assert lifecycle.discard(job(State.DEAD)) is EventKind.DISCARDED


@pytest.mark.parametrize(
    ("build", "field", "says"),
    [
        (lambda: job(State.RUNNING, lease_until=None), "lease_until", "running"),
        (lambda: job(State.PENDING, lease_until=NOON), "lease_until", "this one is pending"),
        (lambda: job(State.COMPLETED, lease_until=NOON), "lease_until", "this one is completed"),
        (lambda: job(attempt=3, epoch=3), "attempt", "0 to 2"),
        (lambda: job(State.RUNNING, attempt=4, epoch=4), "attempt", "0 to 3"),
        (lambda: job(attempt=-1), "attempt", "0 to 2"),
        (lambda: job(attempt=2, epoch=1), "attempt", "epoch 1"),
        (lambda: job(cancel_requested=True), "cancel_requested", "pending"),
        (lambda: job(State.RETRYING, cancel_requested=True), "cancel_requested", "retrying"),
    ],
)
def test_an_impossible_record_cannot_be_built(build: Any, field: str, says: str) -> None:
    assert_refused(build, field=field, says=says)
