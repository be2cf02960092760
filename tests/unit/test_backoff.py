from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from headgate.domain.backoff import JITTER_MAX, BackoffKind, RetryPolicy, jitter_of
from headgate.domain.errors import TooLarge
from tests.unit.refusals import assert_refused

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
MONTH = timedelta(days=30)


def waits(policy: RetryPolicy, attempts: int = 5, jitter: int = 0) -> list[int]:
    return [policy.delay_ms(attempt, jitter=jitter) for attempt in range(1, attempts + 1)]


def test_the_default_is_the_square_of_the_attempt_in_seconds_up_to_a_day() -> None:
    policy = RetryPolicy()
    assert waits(policy) == [1_000, 4_000, 9_000, 16_000, 25_000]
    assert policy.delay_ms(10_000, jitter=0) == 86_400_000
    assert policy == RetryPolicy.quadratic()


@pytest.mark.parametrize(
    ("policy", "jitter", "expected"),
    [
        (RetryPolicy.quadratic(2 * SECOND, cap=30 * SECOND), 0, [2_000, 8_000, 18_000, 30_000, 30_000]),
        (RetryPolicy.fixed(3 * SECOND), 0, [3_000] * 5),
        (RetryPolicy.linear(2 * SECOND, cap=7 * SECOND), 0, [2_000, 4_000, 6_000, 7_000, 7_000]),
        (RetryPolicy.exponential(SECOND, cap=10 * SECOND), 0, [1_000, 2_000, 4_000, 8_000, 10_000]),
        (RetryPolicy.exponential_equal_jitter(SECOND), 0, [1_000, 2_000, 4_000, 8_000, 16_000]),
        (RetryPolicy.exponential_equal_jitter(SECOND), JITTER_MAX, [501, 1_001, 2_001, 4_001, 8_001]),
        (RetryPolicy.exponential_equal_jitter(SECOND), 2**19, [750, 1_500, 3_000, 6_000, 12_000]),
        (RetryPolicy.exponential_full_jitter(SECOND), 0, [0] * 5),
        (RetryPolicy.exponential_full_jitter(SECOND), 2**19, [500, 1_000, 2_000, 4_000, 8_000]),
        (RetryPolicy.exponential_full_jitter(SECOND), JITTER_MAX, [999, 1_999, 3_999, 7_999, 15_999]),
        (RetryPolicy.explicit(0 * SECOND, 5 * SECOND, SECOND), 0, [0, 5_000, 1_000, 1_000, 1_000]),
    ],
)
def test_each_kind_waits_as_it_says(policy: RetryPolicy, jitter: int, expected: list[int]) -> None:
    assert waits(policy, jitter=jitter) == expected


def test_doubling_stops_where_a_bigint_would_overflow() -> None:
    policy = RetryPolicy.exponential(MONTH, cap=MONTH)
    assert policy.base_ms << 31 < 2**63
    assert policy.delay_ms(10_000, jitter=0) == policy.cap_ms
    slowest = RetryPolicy.exponential(timedelta(milliseconds=1), cap=MONTH)
    assert slowest.delay_ms(32, jitter=0) == 2**31 == slowest.delay_ms(33, jitter=0)  # below the cap of 2.6e9


def test_an_explicit_list_ignores_base_and_cap() -> None:
    assert waits(RetryPolicy(kind=BackoffKind.EXPLICIT, base_ms=1, cap_ms=1, delays_ms=(7, 9)), 3) == [7, 9, 9]


def test_a_fixed_wait_longer_than_a_day_is_not_capped_at_one() -> None:
    assert RetryPolicy.fixed(7 * DAY).delay_ms(1, jitter=0) == 604_800_000


def test_fractions_of_a_millisecond_are_rounded_up() -> None:
    assert RetryPolicy.fixed(timedelta(microseconds=1_001)).base_ms == 2
    assert RetryPolicy.explicit(timedelta(microseconds=1)).delays_ms == (1,)


def test_the_kinds_are_stored_numbers() -> None:
    assert {kind.name: int(kind) for kind in BackoffKind} == {
        "QUADRATIC": 0,
        "FIXED": 1,
        "LINEAR": 2,
        "EXPONENTIAL": 3,
        "EXPONENTIAL_EQUAL_JITTER": 4,
        "EXPONENTIAL_FULL_JITTER": 5,
        "EXPLICIT": 6,
    }


def test_jitter_is_what_postgresql_computes() -> None:
    # SELECT ('x' || left(md5('017f22e2-79b0-7cc3-98c4-dc0c0c07398f' || ':' || 3), 5))::bit(20)::int;
    job_id = UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")
    assert jitter_of(job_id, 3) == 0xED977
    assert jitter_of(job_id, 3) == jitter_of(job_id, 3) != jitter_of(job_id, 4)


@pytest.mark.parametrize(
    ("build", "field", "says"),
    [
        (lambda: RetryPolicy(kind=0), "policy.kind", "BackoffKind, got 0"),
        (lambda: RetryPolicy(kind="fixed"), "policy.kind", "BackoffKind, got 'fixed'"),
        (lambda: RetryPolicy(base_ms=0), "policy.base_ms", "1 to 2592000000"),
        (lambda: RetryPolicy(base_ms=-1), "policy.base_ms", "1 to 2592000000"),
        (lambda: RetryPolicy(base_ms=1.5), "policy.base_ms", "got 1.5"),
        (lambda: RetryPolicy(base_ms=True), "policy.base_ms", "got True"),
        (lambda: RetryPolicy(base_ms=2_592_000_001), "policy.base_ms", "1 to 2592000000"),
        (lambda: RetryPolicy(base_ms=1_000, cap_ms=999), "policy.cap_ms", "1000 to 2592000000, got 999"),
        (lambda: RetryPolicy(cap_ms=2_592_000_001), "policy.cap_ms", "1000 to 2592000000"),
        (lambda: RetryPolicy(cap_ms=float("inf")), "policy.cap_ms", "got inf"),
        (lambda: RetryPolicy(delays_ms=(1,)), "policy.delays_ms", "empty for quadratic"),
        (lambda: RetryPolicy(kind=BackoffKind.EXPLICIT), "policy.delays_ms", "1 to 100"),
        (lambda: RetryPolicy(kind=BackoffKind.EXPLICIT, delays_ms=[1]), "policy.delays_ms", "tuple"),
        (lambda: RetryPolicy(kind=BackoffKind.EXPLICIT, delays_ms=(1, -1)), "policy.delays_ms[1]", "0 to 2592000000"),
        (lambda: RetryPolicy(kind=BackoffKind.EXPLICIT, delays_ms=("1",)), "policy.delays_ms[0]", "'1'"),
        (lambda: RetryPolicy.explicit(), "policy.delays_ms", "1 to 100"),
        (lambda: RetryPolicy.explicit(SECOND, -SECOND), "policy.delays_ms[1]", "30d"),
        (lambda: RetryPolicy.explicit(MONTH + SECOND), "policy.delays_ms[0]", "30d"),
        (lambda: RetryPolicy.explicit(5), "policy.delays_ms[0]", "timedelta"),
        (lambda: RetryPolicy.fixed(timedelta(0)), "policy.base_ms", "1ms to 30d"),
        (lambda: RetryPolicy.fixed(MONTH + SECOND), "policy.base_ms", "30d"),
        (lambda: RetryPolicy.fixed(5), "policy.base_ms", "timedelta"),
        (lambda: RetryPolicy.quadratic(-SECOND), "policy.base_ms", "30d"),
        (lambda: RetryPolicy.linear(2 * DAY), "policy.cap_ms", "2d"),
        (lambda: RetryPolicy.exponential(2 * SECOND, cap=SECOND), "policy.cap_ms", "2s"),
        (lambda: RetryPolicy.exponential_equal_jitter(SECOND, cap=MONTH + SECOND), "policy.cap_ms", "30d"),
        (lambda: RetryPolicy.exponential_full_jitter(SECOND, cap="1d"), "policy.cap_ms", "'1d'"),
        (lambda: RetryPolicy().delay_ms(0, jitter=0), "attempt", "1 to 10000"),
        (lambda: RetryPolicy().delay_ms(10_001, jitter=0), "attempt", "1 to 10000"),
        (lambda: RetryPolicy().delay_ms(True, jitter=0), "attempt", "got True"),
        (lambda: RetryPolicy().delay_ms(1, jitter=-1), "jitter", "0 to 1048575"),
        (lambda: RetryPolicy().delay_ms(1, jitter=2**20), "jitter", "0 to 1048575"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(build: Callable[[], object], field: str, says: str) -> None:
    assert_refused(build, field=field, says=says)


def test_a_list_of_more_than_100_delays_is_too_large() -> None:
    assert len(RetryPolicy.explicit(*[SECOND] * 100).delays_ms) == 100
    assert_refused(
        lambda: RetryPolicy.explicit(*[SECOND] * 101),
        field="policy.delays_ms",
        says=("101 delays", "100 delays"),
        kind=TooLarge,
    )
