from __future__ import annotations

from datetime import datetime, timedelta
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headgate.domain.rank import rank_of
from headgate.domain.timestamps import unix_us
from tests.property.strategies import MICRO, NOON, ageing_steps, priorities
from tests.support.ageing import ageing_wait_bound

moments = st.timedeltas(timedelta(0), timedelta(days=3_650)).map(lambda span: NOON + span)
near = st.timedeltas(timedelta(0), timedelta(hours=1)).map(lambda span: NOON + span)


def key(priority: int, submitted: datetime, step: timedelta | None) -> tuple[int, int]:
    rank_class, offset_us = rank_of(priority, step)
    return rank_class, unix_us(submitted) + offset_us


@given(one=st.tuples(priorities, moments), two=st.tuples(priorities, moments))
def test_strict_order_is_priority_then_age(one: tuple[int, datetime], two: tuple[int, datetime]) -> None:
    before = (-one[0], one[1]) < (-two[0], two[1])
    assert (key(*one, None) < key(*two, None)) == before


@given(
    one=st.tuples(priorities, moments | near),
    two=st.tuples(priorities, moments | near),
    step=ageing_steps,
    waits=st.tuples(st.timedeltas(timedelta(0)), st.timedeltas(timedelta(0))),
)
def test_the_static_key_is_the_ageing_order_at_every_instant(
    one: tuple[int, datetime], two: tuple[int, datetime], step: timedelta, waits: tuple[timedelta, timedelta]
) -> None:
    for wait_us in (0, *(wait // MICRO for wait in waits)):
        now_us = max(unix_us(one[1]), unix_us(two[1])) + wait_us

        def aged(job: tuple[int, datetime], now_us: int = now_us) -> Fraction:
            return job[0] + Fraction(now_us - unix_us(job[1]), step // MICRO)

        assert (key(*one, step) < key(*two, step)) == (aged(one) > aged(two))
        assert (key(*one, step) == key(*two, step)) == (aged(one) == aged(two))


@given(priority=priorities, other=priorities, step=ageing_steps, submitted=moments)
def test_after_the_wait_bound_nothing_new_can_overtake(
    priority: int, other: int, step: timedelta, submitted: datetime
) -> None:
    highest = max(priority, other)
    bound_us = ageing_wait_bound(priority, highest, step) // MICRO
    rank_class, offset_us = rank_of(priority, step)
    other_class, other_offset_us = rank_of(highest, step)
    mine = (rank_class, unix_us(submitted) + offset_us)
    newcomer = (other_class, unix_us(submitted) + bound_us + 1 + other_offset_us)
    assert mine < newcomer


@given(priority=priorities, step=ageing_steps | st.none(), submitted=moments)
def test_every_key_fits_its_columns(priority: int, step: timedelta | None, submitted: datetime) -> None:
    rank_class, rank_at = key(priority, submitted, step)
    assert -(2**31) <= rank_class < 2**31
    assert -(2**63) <= rank_at < 2**63


@given(strict=priorities, ageing=priorities, step=ageing_steps, one=moments, two=moments)
def test_ageing_jobs_stand_with_strict_jobs_of_priority_0(
    strict: int, ageing: int, step: timedelta, one: datetime, two: datetime
) -> None:
    if strict > 0:
        assert key(strict, one, None) < key(ageing, two, step)
    if strict < 0:
        assert key(strict, one, None) > key(ageing, two, step)
