from __future__ import annotations

import pytest

from headgate.domain.states import EventKind, OutcomeKind, Receipt, State, SubmitReceipt
from tests.unit.refusals import assert_refused

WORDS = (State, OutcomeKind, Receipt, SubmitReceipt, EventKind)


def test_the_stored_numbers_never_change() -> None:
    assert {word.label: int(word) for word in State} == {
        "pending": 0,
        "running": 1,
        "scheduled": 2,
        "retrying": 3,
        "blocked": 4,
        "completed": 5,
        "dead": 6,
        "cancelled": 7,
    }
    assert [word.label for word in OutcomeKind] == ["completed", "failed", "nack", "abandon", "snooze", "lease_expired"]
    assert [word.label for word in Receipt] == ["applied", "duplicate", "stale", "unknown", "locked"]
    assert [word.label for word in SubmitReceipt] == ["created", "duplicate", "conflict", "refused"]
    assert [int(word) for word in OutcomeKind] == [0, 1, 2, 3, 4, 5]
    assert [int(word) for word in SubmitReceipt] == [0, 1, 2, 3]
    assert [int(word) for word in Receipt] == [0, 1, 2, 3, 5]  # 4 is the wire's own: invalid
    assert {word.label: int(word) for word in EventKind} == {
        "failed": 1,
        "nacked": 2,
        "lease_expired": 3,
        "abandoned": 4,
        "snoozed": 5,
        "cancel_requested": 6,
        "cancelled": 7,
        "redriven": 8,
        "reprioritised": 9,
        "completed_after_cancel": 10,
        "discarded": 11,
        "unblocked": 12,
        "moved": 13,
        "blocked": 20,
        "replaced": 21,
        "rescheduled": 22,
    }


def test_every_state_is_queued_running_or_final() -> None:
    assert {state for state in State if state.is_final} == {State.COMPLETED, State.DEAD, State.CANCELLED}
    assert {state for state in State if not state.is_final and not state.is_queued} == {State.RUNNING}
    assert not any(state.is_final and state.is_queued for state in State)


@pytest.mark.parametrize("words", WORDS)
def test_labels_are_read_back(words: type[State]) -> None:
    assert [words.parse(word.label) for word in words] == list(words)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("label", ["", "PENDING", "done", 0, None, b"pending", "x" * 100_000, "\ud800\n"], ids=range(8))
def test_unknown_labels_are_refused_with_the_known_ones(words: type[State], label: object) -> None:
    known = ", ".join(word.label for word in words)
    assert_refused(lambda: words.parse(label), field=words.__name__.lower(), says=known)
    assert_refused(lambda: words.parse(label, field="filter"), field="filter", says=known)
