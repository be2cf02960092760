from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headgate.domain import limits
from headgate.domain.backoff import JITTER_MAX, BackoffKind, RetryPolicy, jitter_of
from tests.property.strategies import job_ids, policies

attempts = st.integers(1, limits.MAX_ATTEMPTS_LIMIT) | st.integers(1, 40)
jitters = st.integers(0, JITTER_MAX)
JITTERED = (BackoffKind.EXPONENTIAL_EQUAL_JITTER, BackoffKind.EXPONENTIAL_FULL_JITTER)


@given(policy=policies(), attempt=attempts, jitter=jitters)
def test_a_delay_is_between_zero_and_the_cap(policy: RetryPolicy, attempt: int, jitter: int) -> None:
    delay = policy.delay_ms(attempt, jitter=jitter)
    assert type(delay) is int
    assert 0 <= delay <= (max(policy.delays_ms) if policy.delays_ms else policy.cap_ms)


@given(policy=policies(), attempt=st.integers(1, limits.MAX_ATTEMPTS_LIMIT - 1), jitter=jitters)
def test_delays_never_shrink_from_attempt_to_attempt_but_by_a_list(
    policy: RetryPolicy, attempt: int, jitter: int
) -> None:
    if policy.kind is not BackoffKind.EXPLICIT:
        assert policy.delay_ms(attempt, jitter=jitter) <= policy.delay_ms(attempt + 1, jitter=jitter)


@given(policy=policies(), attempt=attempts, one=jitters, two=jitters)
def test_jitter_matters_to_the_two_kinds_that_say_so(policy: RetryPolicy, attempt: int, one: int, two: int) -> None:
    if policy.kind not in JITTERED:
        assert policy.delay_ms(attempt, jitter=one) == policy.delay_ms(attempt, jitter=two)


@given(policy=policies(), attempt=attempts, jitter=jitters)
def test_equal_jitter_keeps_half_and_full_jitter_less_than_all(policy: RetryPolicy, attempt: int, jitter: int) -> None:
    full = min(policy.cap_ms, policy.base_ms * 2 ** min(attempt - 1, 31))
    delay = policy.delay_ms(attempt, jitter=jitter)
    if policy.kind is BackoffKind.EXPONENTIAL_EQUAL_JITTER:
        assert full / 2 < delay <= full
    if policy.kind is BackoffKind.EXPONENTIAL_FULL_JITTER:
        assert 0 <= delay < full


@given(policy=policies(), attempt=attempts)
def test_no_product_on_the_way_passes_a_bigint(policy: RetryPolicy, attempt: int) -> None:
    assert policy.base_ms * attempt * attempt < 2**63
    assert policy.base_ms << min(attempt - 1, 31) < 2**63
    assert policy.cap_ms * JITTER_MAX < 2**63


@given(job_id=job_ids(), attempt=attempts)
def test_jitter_is_twenty_bits_and_stays_the_same(job_id: UUID, attempt: int) -> None:
    assert 0 <= jitter_of(job_id, attempt) <= JITTER_MAX
    assert jitter_of(job_id, attempt) == jitter_of(UUID(str(job_id)), attempt)


def test_jitter_spreads_jobs_that_failed_together() -> None:
    ids = (UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0000 + at) for at in range(4_096))
    buckets = [0] * 16
    for job_id in ids:
        buckets[jitter_of(job_id, 1) >> 16] += 1
    assert min(buckets) > 256 * 0.7
    assert max(buckets) < 256 * 1.3
