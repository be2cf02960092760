from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import IntEnum
from functools import partial
from typing import Any

import pytest

from headgate.domain import limits
from headgate.domain import validation as v
from headgate.domain.errors import InvalidInput, TooLarge
from tests.unit.refusals import assert_refused

NOON = datetime(2025, 11, 15, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MICRO = timedelta(microseconds=1)
FIVE_YEARS = timedelta(days=1825)
HUGE = 10**5_000  # more digits than Python will print
DIRTY = ["a\x00b", "a\nb", "a\x7f", "\x85", "a\u202eb", "\u2066a", "a\u2028b", "a\ud800", "\udfffa"]


class Loud:
    """A value whose repr must not be asked for."""

    def __repr__(self) -> str:
        raise AssertionError("repr of a refused value was used")


class Vague(tzinfo):
    """A zone that does not know its offset: such a datetime is naive for all purposes."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None


# --- what is accepted, and in which form ----------------------------------------------------------------------------


class Level(IntEnum):
    HIGH = 10


def short(value: object) -> str:
    return value.__name__ if callable(value) and hasattr(value, "__name__") else type(value).__name__


def many_tags(count: int) -> list[str]:
    return [f"tag-{at}" for at in range(count)]


def many_headers(count: int) -> dict[str, str]:
    return {f"name-{at}": "" for at in range(count)}


@pytest.mark.parametrize(
    ("check", "value", "accepted"),
    [
        (v.check_topic, "a", "a"),
        (v.check_topic, "Mail.eu:bulk/v1_2-x", "Mail.eu:bulk/v1_2-x"),
        (v.check_topic, "9" * 200, "9" * 200),
        (v.check_tenant, "a", "a"),
        (v.check_tenant, "0-a-", "0-a-"),
        (v.check_tenant, "a" * 63, "a" * 63),
        (v.check_worker_id, "pod 7 (eu) – ä👩‍💻", "pod 7 (eu) – ä👩‍💻"),
        (v.check_worker_id, "w" * 200, "w" * 200),
        (v.check_priority, 2**31 - 1, 2**31 - 1),
        (v.check_priority, -(2**31), -(2**31)),
        (v.check_priority, Level.HIGH, 10),
        (v.priority_of_tier, "bulk", -10),
        (v.priority_of_tier, "normal", 0),
        (v.priority_of_tier, "high", 10),
        (v.priority_of_tier, "urgent", 20),
        (v.check_max_attempts, 1, 1),
        (v.check_max_attempts, 10_000, 10_000),
        (v.check_delay, timedelta(0), timedelta(0)),
        (v.check_delay, FIVE_YEARS, FIVE_YEARS),
        (v.check_delay, MICRO, timedelta(milliseconds=1)),  # never none at all
        (v.check_delay, timedelta(milliseconds=1), timedelta(milliseconds=1)),
        (v.check_lease, SECOND, SECOND),
        (v.check_lease, timedelta(hours=24), timedelta(hours=24)),
        (v.check_lease, SECOND + MICRO, timedelta(milliseconds=1_001)),
        (v.check_ageing_step, 1_500 * MICRO, 1_500 * MICRO),
        (v.check_payload, b"", b""),
        (v.check_payload, b"\x00\xff", b"\x00\xff"),
        (v.check_tags, [], ()),
        (v.check_tags, ["b", "a", "b"], ("b", "a")),
        (v.check_tags, many_tags(20), tuple(many_tags(20))),
        (v.check_tags, ["t" * 100], ("t" * 100,)),
        (v.check_headers, {}, {}),
        (v.check_headers, {"traceparent": "00-ab", "x": ""}, {"traceparent": "00-ab", "x": ""}),
        (v.check_headers, many_headers(32), many_headers(32)),
        (v.check_headers, {"n": "v" * 8_191}, {"n": "v" * 8_191}),
        (v.check_key, "order 17 / käse", "order 17 / käse"),
        (v.check_key, "k" * 255, "k" * 255),
        (v.check_key_window, SECOND, SECOND),
        (v.check_key_window, timedelta(days=365), timedelta(days=365)),
        (v.check_claim_size, 5_000, 5_000),
        (v.check_page_size, 1_000, 1_000),
        (v.check_reason, "disk is full", "disk is full"),
        (partial(v.check_flag, field="new_id"), True, True),
        (v.check_run_at, datetime(2000, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC)),
        (partial(v.check_run_at, now=NOON), NOON + FIVE_YEARS, NOON + FIVE_YEARS),
        (partial(v.check_run_at, now=NOON), NOON - timedelta(days=9), NOON - timedelta(days=9)),
    ],
    ids=short,
)
def test_what_is_within_the_limits_is_accepted(
    check: Callable[[object], object], value: object, accepted: object
) -> None:
    assert check(value) == accepted


def test_the_largest_payload_and_result_are_accepted() -> None:
    body = bytes(1_048_576)
    assert v.check_payload(body) is body
    assert v.check_result(body) is body


def test_an_int_subclass_becomes_a_plain_int() -> None:
    assert type(v.check_priority(Level.HIGH)) is int


def test_due_times_are_given_in_utc() -> None:
    east = datetime(2025, 11, 15, 17, tzinfo=timezone(timedelta(hours=5)))
    assert v.check_run_at(east, now=NOON) == NOON
    assert v.check_run_at(east, now=NOON).tzinfo is UTC


def test_headers_are_a_copy_that_cannot_change() -> None:
    given = {"a": "1"}
    kept = v.check_headers(given)
    given["a"] = "2"
    assert kept == {"a": "1"}
    with pytest.raises(TypeError):
        kept["a"] = "3"


# --- what is refused ------------------------------------------------------------------------------------------------

TOPIC = "1 to 200 of A-Z a-z 0-9 . _ : / -"
TENANT = "1 to 63 of a-z 0-9 -"
INT32 = "whole number from -2147483648 to 2147483647"

REFUSED: list[tuple[Callable[[Any], object], str, object, str]] = [
    *(
        (v.check_topic, "topic", bad, TOPIC)
        for bad in ["", "../a", "a..b", "a//b", "/a", ".a", "-a", "a b", "a%00", "ä"]
    ),
    *((v.check_topic, "topic", bad, TOPIC) for bad in [*DIRTY, "a\n", None, 5, b"a", True, ["a"]]),
    *((v.check_tenant, "tenant", bad, TENANT) for bad in ["", "A", "-a", "a_b", "a.b", "ä", "a\n", None, 1, *DIRTY]),
    *((v.check_worker_id, "worker_id", bad, "1 to 200") for bad in ["", None, 7, b"w", *DIRTY]),
    *((v.check_key, "key", bad, "1 to 255") for bad in ["", None, 7, b"k", *DIRTY]),
    *((v.check_reason, "reason", bad, "0 to 1000") for bad in [None, 7, *DIRTY]),
    *((v.check_priority, "priority", bad, INT32) for bad in [2**31, -(2**31) - 1, 1.5, 1.0, "high", True, None, HUGE]),
    *((v.check_max_attempts, "max_attempts", bad, "1 to 10000") for bad in [0, -1, 10**9, 3.0, True, "3", None]),
    *((v.check_claim_size, "count", bad, "1 to 5000") for bad in [0, -1, 5_001, 2**31, 1.0, False, None]),
    *((v.check_page_size, "limit", bad, "1 to 1000") for bad in [0, -1, 1_001, 10**6, 1.0, True, None]),
    *(
        (v.priority_of_tier, "priority", bad, "bulk, normal, high, urgent")
        for bad in ["", "HIGH", "medium", 10, None, ["high"]]
    ),
    *(
        (v.check_delay, "delay", bad, "0s to 1825d")
        for bad in [-MICRO, -SECOND, FIVE_YEARS + MICRO, 5, 1.5, None, "5s"]
    ),
    *(
        (v.check_lease, "lease", bad, "1s to 1d")
        for bad in [timedelta(0), SECOND - MICRO, -SECOND, timedelta(hours=24) + MICRO, timedelta.max, 60, None]
    ),
    *(
        (v.check_ageing_step, "ageing_step", bad, "1ms to 1h")
        for bad in [timedelta(0), 999 * MICRO, -SECOND, timedelta(hours=1) + MICRO, 1, None]
    ),
    *(
        (v.check_key_window, "key_window", bad, "1s to 365d")
        for bad in [timedelta(0), SECOND - MICRO, timedelta(days=365) + MICRO, timedelta.min, 86_400, None]
    ),
    *(
        (v.check_payload, "payload", bad, "0 to 1048576")
        for bad in [None, "{}", bytearray(b"x"), memoryview(b"x"), {}, 1]
    ),
    *((v.check_result, "result", bad, "0 to 1048576") for bad in [None, "{}", [], Loud()]),
    *((v.check_tags, "tags", bad, "at most 20 str") for bad in ["mail", b"mail", None, 5, {"a"}, {"a": 1}, Loud()]),
    *((v.check_tags, "tags[1]", ["ok", bad], "1 to 100") for bad in ["", None, 7, b"t", Loud(), *DIRTY]),
    *((v.check_headers, "headers", bad, "at most 32 str to str") for bad in [None, [("a", "b")], "a=b", 5]),
    *(
        (v.check_headers, "headers name", {bad: ""}, "1 to 100 of A-Z")
        for bad in ["", " a", "-a", "a b", "ä", None, 5, *DIRTY]
    ),
    *((v.check_headers, "headers[a]", {"a": bad}, "0 to 8192") for bad in [None, 5, b"v", "x\r\ny: z", *DIRTY]),
    *((partial(v.check_flag, field="new_id"), "new_id", bad, "must be a bool") for bad in [None, 0, 1, "true", Loud()]),
    *(
        (v.check_run_at, "run_at", bad, "time zone")
        for bad in [None, 1_763_208_000, "2025-11-15T12:00Z", NOON.date(), Loud()]
    ),
    *(
        (v.check_run_at, "run_at", bad, "naive")
        for bad in [datetime(2025, 11, 15), datetime(2025, 11, 15, tzinfo=Vague())]  # type: ignore[abstract]  # noqa: DTZ001
    ),
    *(
        (partial(v.check_run_at, now=NOON), "run_at", bad, "from 2000-01-01 to 5 years ahead")
        for bad in [
            datetime.min.replace(tzinfo=UTC),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
            datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            NOON + FIVE_YEARS + MICRO,
            datetime.max.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        ]
    ),
    (v.check_run_at, "run_at", datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), "from 2000-01-01"),
]


# Named by number: what is refused must not become a test id either.
@pytest.mark.parametrize(
    ("check", "field", "value", "says"), REFUSED, ids=[f"{row[1]}-{at}" for at, row in enumerate(REFUSED)]
)
def test_what_is_outside_the_limits_is_refused_by_field_and_limit(
    check: Callable[[object], object], field: str, value: object, says: str
) -> None:
    assert_refused(lambda: check(value), field=field, says=says)


@pytest.mark.parametrize(
    ("check", "field", "value", "says"),
    [
        (v.check_topic, "topic", "a" * 201, ("201 characters", "limit of 200 characters", TOPIC)),
        (v.check_topic, "topic", "\x00" * 1_000_000, ("1000000 characters", "limit of 200")),
        (v.check_tenant, "tenant", "a" * 64, ("64 characters", "limit of 63", TENANT)),
        (v.check_worker_id, "worker_id", "w" * 201, ("201 characters", "limit of 200")),
        (v.check_key, "key", "k" * 1_024, ("1024 characters", "limit of 255")),
        (v.check_reason, "reason", "r" * 1_001, ("1001 characters", "limit of 1000")),
        (v.check_payload, "payload", bytes(1_048_577), ("1048577 bytes", "limit of 1048576 bytes", "send a reference")),
        (v.check_result, "result", bytes(1_048_577), ("1048577 bytes", "limit of 1048576 bytes")),
        (v.check_tags, "tags", many_tags(21), ("21 tags", "limit of 20 tags")),
        (v.check_tags, "tags[0]", ["t" * 101], ("101 characters", "limit of 100")),
        (v.check_headers, "headers", many_headers(33), ("33 headers", "limit of 32")),
        (v.check_headers, "headers name", {"n" * 101: ""}, ("101 characters", "limit of 100")),
        (v.check_headers, "headers", {"n": "v" * 8_192}, ("8193 bytes", "limit of 8192 bytes")),
        (v.check_headers, "headers", {"n": "ä" * 4_096}, ("8193 bytes", "limit of 8192 bytes")),
        (v.check_headers, "headers[n]", {"n": "v" * 8_193}, ("8193 characters", "limit of 8192")),
    ],
    ids=short,
)
def test_what_is_too_large_names_both_sizes(
    check: Callable[[object], object], field: str, value: object, says: tuple[str, ...]
) -> None:
    assert_refused(lambda: check(value), field=field, says=says, kind=TooLarge)


@pytest.mark.parametrize("check", sorted({row[0] for row in REFUSED if not isinstance(row[0], partial)}, key=repr))
def test_the_field_is_called_what_the_caller_calls_it(check: Callable[..., object]) -> None:
    assert_refused(lambda: check(Loud(), field="jobs[3].it"), field="jobs[3].it", says="jobs[3].it: ")


def test_the_error_names_the_position_of_a_control_character() -> None:
    assert_refused(lambda: v.check_key("ab\x1bc"), field="key", says="U+001B at position 2")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (True, "True"),
        (17, "17"),
        (HUGE, f"a number of {HUGE.bit_length()} bits"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        ("a\x00\u202e\ud800", "'a\\x00\\u202e\\ud800'"),
        (b"secret", "bytes of length 6"),
        (SECOND, "0:00:01"),
        (NOON, "2025-11-15T12:00:00"),
        (Loud(), "a value of type Loud"),
        (["x"], "a value of type list"),
    ],
    ids=short,
)
def test_a_refused_value_is_shown_without_words_of_python(value: object, expected: str) -> None:
    assert v.shown(value) == expected


@pytest.mark.parametrize("text", ["x" * 81, "x" * 10**6, "\ud800" * 81, "\U0010ffff" * 10**5, "'" * 79], ids=short)
def test_a_long_value_is_shown_in_part(text: str) -> None:
    shown = v.shown(text)
    assert len(shown) <= 110
    assert shown.startswith(("text of ", "'"))
    shown.encode()


# --- texts of workers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit", "clean"),
    [
        ("", 10, ""),
        ("fine\n\ttext ä👩‍💻", 100, "fine\n\ttext ä👩‍💻"),
        ("a\x00b\ud83d\ude00c\udfff", 100, "a\ufffdb\ufffd\ufffdc\ufffd"),
        ("x" * 50, 50, "x" * 50),
        ("x" * 51, 50, "x" * 28 + "… [23 more characters]"),
        ("x" * 1_000_000, 60, "x" * 33 + "… [999967 more characters]"),
        ("x" * 100, 5, "xxxxx"),
        ("\x00" * 100, 5, "\ufffd" * 5),
        ("x" * 100, 0, ""),
        ("x", -1, ""),
    ],
    ids=short,
)
def test_a_workers_text_is_mended_and_never_refused(text: str, limit: int, clean: str) -> None:
    assert v.clean_text(text, limit) == clean
    assert len(clean) <= max(limit, 0)


def test_what_was_cut_and_what_was_kept_add_up() -> None:
    for size in range(30, 1_300, 7):
        clean = v.clean_text("x" * size, 100)
        kept, mark, rest = clean.partition("… [")
        assert len(kept) + (int(rest.split()[0]) if mark else 0) == size
        assert len(clean) <= 100


def test_the_limits_hold_together() -> None:
    assert timedelta(milliseconds=limits.DELAY_MAX_MS) == FIVE_YEARS
    assert timedelta(milliseconds=limits.RETRY_CAP_MAX_MS) == timedelta(days=30)
    assert 2**31 * (limits.AGEING_STEP_MAX // MICRO) < 2**63
    assert limits.RETRY_CAP_MAX_MS * 2**31 < 2**63
    assert limits.RETRY_CAP_MAX_MS * limits.MAX_ATTEMPTS_LIMIT**2 < 2**63
    assert limits.SUBMIT_FLUSH_MAX_ROWS <= limits.SUBMIT_BATCH_MAX
    assert limits.PAYLOAD_INLINE_MAX_BYTES < limits.PAYLOAD_MAX_BYTES
    assert limits.LEASE_MIN <= limits.LEASE_DEFAULT <= limits.LEASE_MAX
    assert limits.KEY_WINDOW_MIN <= limits.KEY_WINDOW_DEFAULT <= limits.KEY_WINDOW_MAX
    assert 1 <= limits.MAX_ATTEMPTS_DEFAULT <= limits.MAX_ATTEMPTS_LIMIT


@pytest.mark.parametrize("due", [timedelta(hours=1), NOON + timedelta(hours=1)])
@pytest.mark.parametrize("deadline", [timedelta(hours=1), NOON + timedelta(hours=1)])
def test_a_deadline_is_after_the_due_time_whichever_way_each_is_given(due: Any, deadline: Any) -> None:
    with pytest.raises(InvalidInput, match="must be after the time the job is due"):
        v.check_deadline(deadline, due=due, now=NOON)
    later = deadline + timedelta(milliseconds=1)
    assert v.check_deadline(later, due=due, now=NOON) == later
