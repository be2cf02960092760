"""The recorded screen of the first steps is what they print; that of the demo is compared by tests/e2e/test_demo.py."""

from __future__ import annotations

from tests.support import recorded_screens
from tests.support.recorded_screens import FIRST_STEPS, shape


def test_the_first_steps_print_what_their_recorded_screen_shows() -> None:
    again = f"{FIRST_STEPS} shows something else; `make screens` records it"
    assert shape(recorded_screens.first_steps()) == shape(FIRST_STEPS.read_text()), again


def test_a_shape_keeps_every_word_and_column_and_no_id_time_or_count() -> None:
    first = "vm-12  0.1.0   1  7.9s\n019a8cf2-4f1e-7a10-9c55-0000000000f2 at 2026-11-16T13:52:54.840Z"
    second = "vm-1234  0.1.0  22  14s\n019a8cf3-4f1e-7a10-9c55-0000000000f3 at 2026-11-17T02:18:00.990Z"
    assert shape(first) == shape(second)
    assert shape("IN/s  DONE/s  RETRIED/s") != shape("IN/s  DONE/s  FAILED/s")
