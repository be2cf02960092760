from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from headgate.domain.rank import AGEING_CLASS, rank_of
from headgate.domain.timestamps import unix_us
from tests.support.ageing import ageing_wait_bound
from tests.unit.refusals import assert_refused

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LOWEST, HIGHEST = -(2**31), 2**31 - 1


@pytest.mark.parametrize(
    ("priority", "rank_class"), [(0, -1), (1, -2), (-1, 0), (10, -11), (HIGHEST, LOWEST), (LOWEST, HIGHEST)]
)
def test_strict_rank_maps_int32_onto_int32(priority: int, rank_class: int) -> None:
    assert rank_of(priority, None) == (rank_class, 0)


@pytest.mark.parametrize(
    ("priority", "step", "offset_us"),
    [
        (0, MINUTE, 0),
        (1, MINUTE, -60_000_000),
        (-3, MINUTE, 180_000_000),
        (1, timedelta(microseconds=1_500), -1_500),  # not rounded: ranks are microseconds
    ],
)
def test_ageing_rank_moves_a_job_by_its_bonus_within_the_class_of_priority_0(
    priority: int, step: timedelta, offset_us: int
) -> None:
    assert rank_of(priority, step) == (AGEING_CLASS, offset_us)
    assert rank_of(0, None)[0] == AGEING_CLASS


def test_the_widest_ageing_rank_fits_a_bigint_at_any_time() -> None:
    far = unix_us(datetime(9999, 12, 31, tzinfo=UTC))
    for priority in (LOWEST, HIGHEST):
        _, offset_us = rank_of(priority, HOUR)
        assert -(2**63) <= offset_us <= far + offset_us < 2**63


def test_microseconds_are_exact_and_the_zone_does_not_matter() -> None:
    moment = datetime(2025, 11, 15, 12, 0, 0, 123_457, tzinfo=UTC)
    assert unix_us(moment) == 1_763_208_000_123_457
    assert unix_us(moment.astimezone(timezone(timedelta(hours=5)))) == unix_us(moment)


def test_the_wait_bound_is_the_lead_of_the_highest_times_the_step() -> None:
    assert ageing_wait_bound(0, 20, MINUTE) == 20 * MINUTE
    assert ageing_wait_bound(-10, 20, MINUTE) == 30 * MINUTE
    assert ageing_wait_bound(20, 20, MINUTE) == timedelta(0) == ageing_wait_bound(30, 20, MINUTE)


@pytest.mark.parametrize(
    ("call", "field", "says"),
    [
        (lambda: rank_of(2**31, None), "priority", "-2147483648 to 2147483647"),
        (lambda: rank_of(-(2**31) - 1, None), "priority", "-2147483648 to 2147483647"),
        (lambda: rank_of(1.5, None), "priority", "got 1.5"),
        (lambda: rank_of(True, None), "priority", "got True"),
        (lambda: rank_of("high", None), "priority", "'high'"),
        (lambda: rank_of(0, timedelta(microseconds=999)), "ageing_step", "1ms to 1h"),
        (lambda: rank_of(0, timedelta(0)), "ageing_step", "1ms to 1h"),
        (lambda: rank_of(0, -MINUTE), "ageing_step", "1h"),
        (lambda: rank_of(0, HOUR + timedelta(microseconds=1)), "ageing_step", "1h"),
        (lambda: rank_of(0, 60), "ageing_step", "timedelta"),
        (lambda: ageing_wait_bound(2**31, 0, MINUTE), "priority", "2147483647"),
        (lambda: ageing_wait_bound(0, 2**31, MINUTE), "highest", "2147483647"),
        (lambda: ageing_wait_bound(0, 1, 2 * HOUR), "step", "1h"),
    ],
)
def test_what_would_not_fit_the_key_is_refused(call: Callable[[], object], field: str, says: str) -> None:
    assert_refused(call, field=field, says=says)
