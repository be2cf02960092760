"""When scans are due, who makes them, and for how much of the time."""

from __future__ import annotations

from headgate.dispatch.scans import SLOW_SECONDS, ScanPace

QUICK, SLOW = SLOW_SECONDS, 0.5


def due_from(pace: ScanPace, *, apart: bool) -> float | None:
    """The first second of the next thousand at which one is due; None: it is not up to this one to make it."""
    return next((float(at) for at in range(2_000) if pace.is_due(float(at), apart=apart)), None)


def test_the_first_scan_is_made_by_a_tick_at_once() -> None:
    pace = ScanPace(every=30.0, share=0.01)
    assert (due_from(pace, apart=False), due_from(pace, apart=True)) == (0.0, None)


def test_quick_scans_are_made_by_ticks_and_begin_at_fixed_distances() -> None:
    pace = ScanPace(every=30.0, share=0.01)
    pace.scanned(began=100.0, now=100.0 + QUICK / 2)
    assert (due_from(pace, apart=False), due_from(pace, apart=True)) == (130.0, None)


def test_after_a_slow_scan_the_next_is_apart_from_ticks_and_rests_for_its_share_of_the_time() -> None:
    pace = ScanPace(every=30.0, share=0.01)
    pace.scanned(began=100.0, now=100.0 + SLOW)
    assert (due_from(pace, apart=False), due_from(pace, apart=True)) == (None, 151.0)


def test_the_rest_begins_when_the_scan_is_over() -> None:
    pace = ScanPace(every=0.0, share=0.5)
    pace.scanned(began=100.0, now=200.0)
    assert due_from(pace, apart=True) == 400.0


def test_a_rest_shorter_than_the_distance_of_scans_brings_none_sooner() -> None:
    pace = ScanPace(every=300.0, share=0.01)
    pace.scanned(began=100.0, now=100.0 + SLOW)
    assert due_from(pace, apart=True) == 400.0


def test_however_slow_a_scan_was_the_next_comes_after_the_longest_rest() -> None:
    pace = ScanPace(every=0.0, share=0.02, longest=30.0)
    pace.scanned(began=100.0, now=110.0)
    assert due_from(pace, apart=True) == 140.0


def test_a_scan_that_was_slow_for_another_reason_than_dead_rows_is_followed_without_a_rest() -> None:
    pace = ScanPace(every=0.0, share=0.02, longest=30.0)
    pace.scanned(began=100.0, now=110.0, dead_rows=False)
    assert (due_from(pace, apart=False), due_from(pace, apart=True)) == (None, 110.0)


def test_after_a_quick_scan_of_its_own_ticks_scan_again() -> None:
    pace = ScanPace(every=0.0, share=0.02)
    pace.scanned(began=100.0, now=100.0 + SLOW)
    pace.scanned(began=200.0, now=200.0 + QUICK / 2)
    assert (due_from(pace, apart=False), due_from(pace, apart=True)) == (201.0, None)
