"""How many jobs a worker asks for ahead: by what it gets done, and only where that helps."""

from __future__ import annotations

from headgate.sdk.worker.read_ahead import AHEAD_MAX, AHEAD_SECONDS, SHARED_SECONDS, ReadAhead


def run(ahead: ReadAhead, *, start: float, seconds: float, a_second: int, took: float) -> float:
    """Finish jobs evenly over a span; gives its end."""
    count = int(seconds * a_second)
    for number in range(1, count + 1):
        ahead.finished(took, start + number / a_second)
    return start + seconds


def test_nothing_is_asked_for_ahead_before_anything_is_known() -> None:
    assert ReadAhead().jobs == 0


def test_short_jobs_are_asked_for_a_twentieth_of_a_second_ahead() -> None:
    ahead = ReadAhead()
    run(ahead, start=100.0, seconds=0.5, a_second=4_000, took=0.001)
    assert 0.8 <= ahead.jobs / (4_000 * AHEAD_SECONDS) <= 1.2


def test_slow_handlers_get_nothing_ahead() -> None:
    ahead = ReadAhead()
    end = run(ahead, start=100.0, seconds=0.5, a_second=4_000, took=0.001)
    run(ahead, start=end, seconds=0.5, a_second=64, took=0.5)
    assert ahead.jobs == 0


def test_the_number_ahead_is_bounded() -> None:
    ahead = ReadAhead()
    run(ahead, start=100.0, seconds=0.2, a_second=200_000, took=0.0001)
    assert ahead.jobs == AHEAD_MAX


def test_a_quiet_time_does_not_count_into_the_rate() -> None:
    ahead = ReadAhead()
    end = run(ahead, start=100.0, seconds=0.5, a_second=4_000, took=0.001)
    run(ahead, start=end + 3600.0, seconds=0.5, a_second=2_000, took=0.001)
    assert 0.8 <= ahead.jobs / (2_000 * AHEAD_SECONDS) <= 1.2


def test_a_worker_that_shares_short_jobs_with_many_asks_for_half_a_second_of_its_rate() -> None:
    ahead = ReadAhead()
    run(ahead, start=100.0, seconds=0.5, a_second=1_000, took=0.00001)
    assert 0.8 <= ahead.jobs / (1_000 * SHARED_SECONDS) <= 1.2


def test_no_more_than_it_could_do_alone_in_a_twentieth_of_a_second() -> None:
    ahead = ReadAhead()
    run(ahead, start=100.0, seconds=0.5, a_second=500, took=0.001)
    assert 0.8 <= ahead.jobs / (AHEAD_SECONDS / 0.00105) <= 1.2


def test_what_is_asked_for_beyond_that_fits_into_a_frame() -> None:
    ahead = ReadAhead()
    for number in range(1, 501):
        ahead.finished(0.00001, 100.0 + number / 1_000, 20_000)
    assert ahead.jobs == 50  # not 25 MB


def test_nothing_is_asked_for_ahead_while_what_was_is_not_begun() -> None:
    ahead = ReadAhead()
    end = run(ahead, start=100.0, seconds=0.5, a_second=4_000, took=0.001)
    ahead.stalled(end)
    assert ahead.jobs == 0
    run(ahead, start=end, seconds=0.5, a_second=4_000, took=0.001)
    assert ahead.jobs > 100
