from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.domain import lifecycle
from headgate.domain.backoff import RetryPolicy
from headgate.domain.ids import Epoch, new_job_id
from headgate.domain.jobs import Submission, TopicRules
from headgate.domain.lifecycle import JobRecord, Step
from headgate.domain.outcomes import Abandon, LeaseExpired, Outcome, Snooze, kind_of
from headgate.domain.states import EventKind, OutcomeKind, Receipt, State
from tests.property.strategies import NOON, ageing_steps, delays, leases, outcomes, policies, priorities

ID = new_job_id(now_ms=1_763_208_000_000, random_bits=b"0123456789")
SECOND = timedelta(seconds=1)


def new_job(policy: RetryPolicy, max_attempts: int) -> JobRecord:
    asked = Submission(tenant="acme", topic="mail", id=ID, policy=policy, max_attempts=max_attempts)
    return lifecycle.submit(asked, now=NOON, rules=TopicRules())


@given(
    policy=policies(),
    max_attempts=st.integers(1, 10),
    endings=st.lists(outcomes() | st.builds(LeaseExpired), max_size=50),
)
def test_no_job_runs_more_often_than_its_max_attempts_allow(
    policy: RetryPolicy, max_attempts: int, endings: list[Outcome | LeaseExpired]
) -> None:
    job, now, paid = new_job(policy, max_attempts), NOON, 0
    for ending in endings:
        if job.state.is_final:
            break
        now = max(now, job.run_at)
        job = lifecycle.claim(lifecycle.promote(job, now=now), now=now, lease=SECOND)
        if isinstance(ending, LeaseExpired):
            now += 2 * SECOND
            job = lifecycle.expire_lease(job, now=now).job
        else:
            job = lifecycle.report(job, job.epoch, ending, now=now).job
        paid += not isinstance(ending, Abandon | Snooze)
        assert job.attempt == paid
        assert job.state.is_final or isinstance(ending, Abandon) or job.run_at >= now
    assert paid <= max_attempts
    assert job.state is not State.DEAD or paid >= 1


@given(max_attempts=st.integers(1, 30), policy=policies())
def test_a_job_whose_workers_all_die_is_dead_after_exactly_its_max_attempts(
    max_attempts: int, policy: RetryPolicy
) -> None:
    job, now = new_job(policy, max_attempts), NOON
    for run in range(1, max_attempts + 1):
        now = max(now, job.run_at)
        job = lifecycle.claim(lifecycle.promote(job, now=now), now=now, lease=SECOND)
        now += 2 * SECOND
        job = lifecycle.expire_lease(job, now=now).job
        assert (job.state is State.DEAD) == (run == max_attempts)
    assert (job.attempt, job.epoch) == (max_attempts, max_attempts)


class LifeOfAJob(RuleBasedStateMachine):
    """Any sequence of verbs, in any state: what holds of every job at every moment."""

    job: JobRecord
    now: datetime
    step: timedelta | None

    @initialize(
        policy=policies(),
        max_attempts=st.integers(1, 4),
        priority=priorities,
        step=ageing_steps | st.none(),
        delay=delays,
        blocked=st.booleans(),
    )
    def submit(
        self,
        policy: RetryPolicy,
        max_attempts: int,
        priority: int,
        step: timedelta | None,
        delay: timedelta,
        blocked: bool,
    ) -> None:
        self.now, self.step = NOON, step
        asked = Submission(
            tenant="acme",
            topic="mail",
            id=ID,
            policy=policy,
            max_attempts=max_attempts,
            priority=priority,
            delay=delay,
        )
        self.job = lifecycle.submit(asked, now=self.now, rules=TopicRules(ageing_step=step), blocked=blocked)
        self.told: list[tuple[int, OutcomeKind]] = []  # outcomes that were applied, in this life and earlier ones
        self.fence = 0

    def take(self, step: Step) -> None:
        """What only a redrive may do, and what no verb may do."""
        if self.job.state.is_final and step.event is not EventKind.REDRIVEN:
            assert step.job == self.job
        assert step.receipt is Receipt.APPLIED or step.job == self.job
        self.job = step.job

    @rule(span=st.timedeltas(timedelta(0), timedelta(days=1)))
    def time_passes(self, span: timedelta) -> None:
        self.now += span

    @rule()
    def comes_due(self) -> None:
        if self.job.state in (State.SCHEDULED, State.RETRYING):
            self.now = max(self.now, self.job.run_at)
        before = self.job
        self.take(Step(job=lifecycle.promote(self.job, now=self.now)))
        assert self.job.order_key == before.order_key

    @precondition(lambda self: self.job.state is State.BLOCKED)
    @rule()
    def is_freed(self) -> None:
        self.take(lifecycle.unblock(self.job, now=self.now))

    @precondition(lambda self: self.job.state is State.PENDING)
    @rule(lease=leases)
    def is_claimed(self, lease: timedelta) -> None:
        self.take(Step(job=lifecycle.claim(self.job, now=self.now, lease=lease)))
        assert self.job.epoch == self.fence + 1

    @rule(outcome=outcomes(), behind=st.integers(-1, 2))
    def is_reported(self, outcome: Outcome, behind: int) -> None:
        epoch, kind = Epoch(self.job.epoch - behind), kind_of(outcome)
        held = self.job.state is State.RUNNING and behind == 0
        step = lifecycle.report(self.job, epoch, outcome, now=self.now)
        assert (step.receipt is Receipt.APPLIED) == held
        if step.receipt is Receipt.DUPLICATE:
            assert (epoch, kind) == self.told[-1]
        self.take(step)
        if held:
            self.told.append((epoch, kind))
            again = lifecycle.report(self.job, epoch, outcome, now=self.now + SECOND)
            assert again == Step(job=self.job, receipt=Receipt.DUPLICATE)

    @rule(lease=leases, behind=st.integers(-1, 2))
    def is_renewed(self, lease: timedelta, behind: int) -> None:
        before = self.job.lease_until
        step = lifecycle.renew(self.job, Epoch(self.job.epoch - behind), now=self.now, lease=lease)
        assert (step.receipt is Receipt.APPLIED) == (self.job.state is State.RUNNING and behind == 0)
        self.take(step)
        if step.receipt is Receipt.APPLIED:
            assert before is not None
            assert self.job.lease_until is not None
            assert self.job.lease_until >= max(before, self.now + lease)

    @rule(late=st.booleans())
    def is_swept(self, late: bool) -> None:
        if late and self.job.lease_until is not None:
            self.now = max(self.now, self.job.lease_until + SECOND)
        running = self.job
        step = lifecycle.expire_lease(self.job, now=self.now)
        self.take(step)
        if step.job != running:
            assert running.lease_until is not None
            assert running.lease_until < self.now
            self.told.append((running.epoch, OutcomeKind.LEASE_EXPIRED))

    @precondition(lambda self: self.job.state not in (State.COMPLETED, State.DEAD))
    @rule()
    def is_cancelled(self) -> None:
        self.take(lifecycle.cancel(self.job))
        assert self.job.state is State.CANCELLED or self.job.cancel_requested

    @precondition(lambda self: self.job.state.is_final)
    @rule(delay=delays)
    def is_redriven(self, delay: timedelta) -> None:
        self.take(lifecycle.redrive(self.job, now=self.now, ageing_step=self.step, delay=delay))
        assert (self.job.attempt, self.job.state.is_queued) == (0, True)

    @precondition(lambda self: self.job.state.is_queued)
    @rule(priority=priorities)
    def is_reprioritised(self, priority: int) -> None:
        before = self.job
        self.take(lifecycle.reprioritise(self.job, priority, ageing_step=self.step))
        back = lifecycle.reprioritise(self.job, before.priority, ageing_step=self.step)
        assert back.job == before
        if priority > before.priority:
            assert self.job.order_key < before.order_key

    @invariant()
    def the_fence_never_falls(self) -> None:
        assert self.job.epoch >= self.fence
        self.fence = self.job.epoch

    @invariant()
    def attempts_stay_within_their_limit(self) -> None:
        assert 0 <= self.job.attempt <= self.job.max_attempts
        assert (self.job.state is State.RUNNING) == (self.job.lease_until is not None)

    @invariant()
    def the_order_key_fits_its_columns(self) -> None:
        assert -(2**31) <= self.job.rank_class < 2**31
        assert -(2**63) <= self.job.rank_at < 2**63


TestLifeOfAJob = LifeOfAJob.TestCase
