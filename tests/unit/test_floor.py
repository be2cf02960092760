from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headgate.store.floor import Floor
from headgate.store.new_ids import BEGINNING

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_a_floor_waits_for_what_was_in_flight_when_it_was_found() -> None:
    floor = Floor()
    floor.offer(NOON, 10)
    floor.passed(9, None)
    assert floor.at == BEGINNING
    floor.passed(10, None)
    assert floor.at == NOON


def test_a_later_offer_does_not_put_off_the_one_that_waits() -> None:
    floor = Floor()
    floor.offer(NOON, 10)
    floor.offer(NOON + SECOND, 20)
    floor.passed(10, None)
    assert floor.at == NOON


def test_a_floor_is_no_higher_than_what_was_seen_at_last() -> None:
    floor = Floor()
    floor.offer(NOON, 10)
    floor.passed(10, NOON - SECOND)
    assert floor.at == NOON - SECOND


def test_a_look_below_that_finds_nothing_there_leaves_the_floor() -> None:
    floor = Floor()
    floor.offer(NOON, 10)
    floor.passed(10, None)
    floor.looked_below(NOON + SECOND)
    assert floor.at == NOON
    floor.looked_below(None)
    assert floor.at == NOON


def test_a_floor_is_lowered_to_what_a_look_below_has_found() -> None:
    floor = Floor()
    floor.offer(NOON, 10)
    floor.passed(10, None)
    floor.offer(NOON + SECOND, 20)  # found by a look that did not see what lies below
    floor.looked_below(NOON - SECOND)
    assert floor.at == NOON - SECOND
    floor.passed(20, None)
    assert floor.at == NOON - SECOND


def test_after_a_reset_nothing_waits() -> None:
    floor = Floor()
    floor.offer(NOON, 10)
    floor.reset()
    floor.passed(10, None)
    assert floor.at == BEGINNING
