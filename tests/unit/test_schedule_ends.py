"""Where a schedule ends, and where late begins: to the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from headgate.domain.schedules import (
    LATE_AFTER,
    At,
    CatchUp,
    Cron,
    DueSchedule,
    Every,
    Overlap,
    Timing,
    first_occurrence,
    newest,
    occurrences,
    plan,
)

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
MINUTE, INSTANT = timedelta(minutes=1), timedelta(microseconds=1)
MINUTELY = [Every(interval=MINUTE), Cron(expression="* * * * *")]


def due(timing: Timing, *, at: datetime, ends_at: datetime | None, catch_up: CatchUp = CatchUp.ONE) -> DueSchedule:
    return DueSchedule(
        schedule_no=1,
        tenant_no=1,
        seed=UUID(int=1),
        version=1,
        timing=timing,
        overlap=Overlap.ALLOW,
        catch_up=catch_up,
        catch_up_most=100,
        due=at,
        ends_at=ends_at,
    )


@pytest.mark.parametrize("timing", MINUTELY, ids=["every", "cron"])
def test_an_occurrence_exactly_at_the_end_is_the_last(timing: Timing) -> None:
    first = NOON + MINUTE
    for ends_at, expected in ((first + MINUTE, first + MINUTE), (first + MINUTE - INSTANT, None)):
        assert plan(due(timing, at=first, ends_at=ends_at), now=first).next_at == expected
    last = plan(due(timing, at=first, ends_at=first), now=first)
    assert ([run.occurrence for run in last.runs], last.next_at) == ([first], None)


@pytest.mark.parametrize("timing", MINUTELY, ids=["every", "cron"])
@pytest.mark.parametrize(("beyond", "count"), [(timedelta(0), 5), (-INSTANT, 4), (INSTANT, 5)])
def test_what_is_caught_up_after_the_end_goes_up_to_and_including_it(
    timing: Timing, beyond: timedelta, count: int
) -> None:
    ends_at = NOON + 5 * MINUTE + beyond
    late = plan(due(timing, at=NOON + MINUTE, ends_at=ends_at, catch_up=CatchUp.ALL), now=NOON + 60 * MINUTE)
    assert [run.occurrence for run in late.runs] == [NOON + n * MINUTE for n in range(1, count + 1)]
    assert late.next_at is None
    one = plan(due(timing, at=NOON + MINUTE, ends_at=ends_at), now=NOON + 60 * MINUTE)
    assert [(run.occurrence, run.covers_from) for run in one.runs] == [(NOON + count * MINUTE, NOON + MINUTE)]


@pytest.mark.parametrize("timing", [*MINUTELY, At(at=NOON + MINUTE)], ids=["every", "cron", "at"])
def test_a_schedule_that_is_stored_fires_at_its_end_and_not_after_it(timing: Timing) -> None:
    first = NOON + MINUTE
    assert first_occurrence(timing, now=NOON, last=None, ends_at=first) == first
    assert first_occurrence(timing, now=NOON, last=None, ends_at=first - INSTANT) is None
    # Never again at the newest that was dealt with.
    again = first_occurrence(timing, now=NOON, last=first, ends_at=None)
    assert again == (None if isinstance(timing, At) else first + MINUTE)


@pytest.mark.parametrize("timing", MINUTELY, ids=["every", "cron"])
def test_ranges_of_occurrences_begin_after_and_end_with_their_bounds(timing: Timing) -> None:
    until = NOON + 3 * MINUTE
    assert list(occurrences(timing, NOON, until=until)) == [NOON + n * MINUTE for n in (1, 2, 3)]
    assert list(occurrences(timing, NOON - INSTANT, until=until - INSTANT)) == [NOON + n * MINUTE for n in (0, 1, 2)]
    assert newest(timing, due=NOON, until=until, most=2) == [NOON + n * MINUTE for n in (2, 3)]
    assert newest(timing, due=NOON, until=until - INSTANT, most=9) == [NOON + n * MINUTE for n in (0, 1, 2)]
    assert newest(timing, due=NOON, until=NOON, most=9) == [NOON]


def test_late_is_what_is_more_than_thirty_seconds_over() -> None:
    schedule = due(Every(interval=MINUTE), at=NOON, ends_at=None, catch_up=CatchUp.NONE)
    in_time = plan(schedule, now=NOON + LATE_AFTER)
    assert ([run.occurrence for run in in_time.runs], in_time.missed) == ([NOON], None)
    late = plan(schedule, now=NOON + LATE_AFTER + INSTANT)
    assert (late.runs, late.missed, late.next_at) == ((), NOON, NOON + MINUTE)


def test_an_occurrence_that_comes_at_this_very_moment_has_come() -> None:
    schedule = due(Every(interval=MINUTE), at=NOON, ends_at=None, catch_up=CatchUp.ALL)
    at_once = plan(schedule, now=NOON + MINUTE)
    assert ([run.occurrence for run in at_once.runs], at_once.next_at) == ([NOON, NOON + MINUTE], NOON + 2 * MINUTE)
    before = plan(schedule, now=NOON + MINUTE - INSTANT)
    assert ([run.occurrence for run in before.runs], before.next_at) == ([NOON], NOON + MINUTE)
