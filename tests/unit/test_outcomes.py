from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest

from headgate.domain.errors import TooLarge
from headgate.domain.outcomes import (
    LEASE_EXPIRED,
    Abandon,
    Completed,
    ErrorInfo,
    Failed,
    LeaseExpired,
    Nack,
    Snooze,
    kind_of,
)
from headgate.domain.states import OutcomeKind
from tests.unit.refusals import assert_refused

SECOND = timedelta(seconds=1)
ERROR = ErrorInfo(type="ValueError", message="no")


def test_every_ending_has_its_kind() -> None:
    endings = [
        Completed(),
        Failed(error=ERROR),
        Nack(delay=SECOND, reason="busy"),
        Abandon(),
        Snooze(delay=SECOND),
        LeaseExpired(),
    ]
    assert [kind_of(ending) for ending in endings] == list(OutcomeKind)


def test_outcomes_are_values() -> None:
    assert Completed() == Completed(result=b"")
    assert Nack(delay=SECOND, reason="x") != Nack(delay=SECOND, reason="y")
    with pytest.raises(FrozenInstanceError):
        Completed().result = b"x"


def test_results_may_hold_any_bytes_up_to_a_mebibyte() -> None:
    assert Completed(result=b"\x00\xff").result == b"\x00\xff"
    assert len(Completed(result=bytes(1_048_576)).result) == 1_048_576


def test_error_texts_are_mended_and_cut_rather_than_refused() -> None:
    error = ErrorInfo(type="E\x00" + "t" * 300, message="m\ud800" + "m" * 9_000, traceback="t" * 70_000)
    assert error.type.startswith("E\ufffd")
    assert error.message.startswith("m\ufffd")
    assert error.traceback.endswith("more characters]")
    for part, limit in ((error.type, 200), (error.message, 8_192), (error.traceback, 65_536)):
        assert limit - 2 <= len(part) <= limit  # the count of what was cut may need fewer digits than were set aside
    assert Nack(delay=SECOND, reason="r\x00" * 1_000).reason.startswith("r\ufffdr")
    assert 998 <= len(Nack(delay=SECOND, reason="r" * 1_001).reason) <= 1_000


def test_delays_are_whole_milliseconds_rounded_up() -> None:
    assert Nack(delay=timedelta(microseconds=1), reason="").delay == timedelta(milliseconds=1)
    assert Snooze(delay=timedelta(microseconds=1_001)).delay == timedelta(milliseconds=2)
    assert Nack(delay=timedelta(0), reason="").delay == timedelta(0)


def test_an_expired_lease_leaves_an_error_like_a_failure() -> None:
    assert LEASE_EXPIRED.type == "LeaseExpired"
    assert "did not renew" in LEASE_EXPIRED.message


@pytest.mark.parametrize(
    ("build", "field", "says"),
    [
        (lambda: Completed(result="done"), "result", "bytes, 0 to 1048576"),
        (lambda: Completed(result=None), "result", "got None"),
        (lambda: Failed(error="boom"), "error", "must be an ErrorInfo, got 'boom'"),
        (lambda: Failed(error=None), "error", "must be an ErrorInfo"),
        (lambda: Failed(error=ERROR, permanent=1), "permanent", "must be a bool, got 1"),
        (lambda: ErrorInfo(type=None), "type", "str of at most 200"),
        (lambda: ErrorInfo(type="E", message=b"m"), "message", "str of at most 8192"),
        (lambda: ErrorInfo(type="E", traceback=["t"]), "traceback", "str of at most 65536"),
        (lambda: Nack(delay=-SECOND, reason=""), "delay", "0s to 1825d"),
        (lambda: Nack(delay=timedelta(microseconds=-1), reason=""), "delay", "0s to 1825d"),
        (lambda: Nack(delay=timedelta(days=1826), reason=""), "delay", "0s to 1825d"),
        (lambda: Nack(delay=30, reason=""), "delay", "timedelta"),
        (lambda: Nack(delay=SECOND, reason=None), "reason", "str of at most 1000"),
        (lambda: Snooze(delay=-SECOND), "delay", "0s to 1825d"),
        (lambda: Snooze(delay=timedelta.max), "delay", "0s to 1825d"),
        (lambda: Snooze(delay=None), "delay", "timedelta"),
    ],
)
def test_a_bad_outcome_is_its_senders_error(build: Callable[[], object], field: str, says: str) -> None:
    assert_refused(build, field=field, says=says)


def test_a_result_one_byte_too_long_names_both_sizes() -> None:
    assert_refused(
        lambda: Completed(result=bytes(1_048_577)), field="result", says=("1048577", "1048576"), kind=TooLarge
    )
