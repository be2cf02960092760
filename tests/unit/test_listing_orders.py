"""Which days of the archive a list reads: whole ones in UTC, and all in which what matches can have ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from headgate.store.listing import Filter
from headgate.store.listing_orders import CLOCK_STEP, days_of

DAY = timedelta(days=1)
START = datetime(2026, 3, 10, tzinfo=UTC)


@pytest.mark.parametrize("hours", [-9, 0, 9])
@pytest.mark.parametrize("at", [timedelta(0), timedelta(microseconds=1), timedelta(hours=23)])
def test_bounds_in_any_zone_are_whole_days_in_utc(hours: int, at: timedelta) -> None:
    moment = (START + at).astimezone(timezone(timedelta(hours=hours)))
    assert days_of(Filter(finished_from=moment, finished_before=moment)) == (START, START + DAY)
    assert days_of(Filter(ended_by=moment))[1] == START + DAY


def test_what_was_created_since_a_day_may_have_ended_on_the_day_before() -> None:
    assert days_of(Filter(created_from=START + timedelta(hours=1)))[0] == START - CLOCK_STEP
    assert days_of(Filter(created_from=START, finished_from=START + 5 * DAY))[0] == START + 5 * DAY
    assert days_of(Filter(created_from=datetime(1, 1, 1, tzinfo=UTC)))[0] == datetime(1, 1, 1, tzinfo=UTC)


def test_the_earlier_of_two_ends_counts() -> None:
    for first, second in ((START, START + DAY), (START + DAY, START)):
        assert days_of(Filter(finished_before=first, ended_by=second))[1] == START + DAY
