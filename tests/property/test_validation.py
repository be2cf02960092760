from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.domain import validation as v
from headgate.domain.errors import InvalidInput
from tests.property.strategies import NOON

any_text = st.text(st.characters(codec=None))  # surrogates and controls included
anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), any_text, st.binary(), st.timedeltas(), st.datetimes(),
    st.datetimes(timezones=st.timezones()), st.lists(any_text), st.dictionaries(any_text, any_text),
)  # fmt: skip

CHECKS: list[Callable[[object], object]] = [
    v.check_topic, v.check_tenant, v.check_worker_id, v.check_priority, v.priority_of_tier, v.check_max_attempts,
    v.check_delay, v.check_lease, v.check_ageing_step, v.check_run_at, v.check_payload, v.check_result, v.check_tags,
    v.check_headers, v.check_key, v.check_key_window, v.check_claim_size, v.check_page_size, v.check_reason,
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
@given(value=anything)
def test_a_check_accepts_or_refuses_and_never_breaks(check: Callable[[object], object], value: object) -> None:
    try:
        accepted = check(value)
    except InvalidInput as error:
        str(error).encode()
        return
    assert check(accepted) == accepted  # what was accepted stays accepted, in the same form


@given(moment=st.datetimes(timezones=st.timezones()))
def test_an_accepted_due_time_is_within_five_years(moment: datetime) -> None:
    try:
        accepted = v.check_run_at(moment, now=NOON)
    except InvalidInput:
        return
    assert 2000 <= accepted.year <= 2030
    # Not ==: in the hour a clock change skips, Python finds no two zones equal.
    assert accepted.timestamp() == moment.timestamp()


@given(text=any_text, limit=st.integers(-1, 60))
def test_a_cleaned_text_can_be_stored_and_fits(text: str, limit: int) -> None:
    clean = v.clean_text(text, limit)
    assert "\x00" not in clean.encode().decode()
    assert len(clean) <= max(limit, 0)
    assert v.clean_text(clean, limit) == clean


@given(value=anything)
def test_what_is_shown_of_a_value_is_short_and_printable(value: object) -> None:
    shown = v.shown(value)
    assert shown.isprintable()
    assert len(shown) <= 120
