from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest

from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import TooLarge
from headgate.domain.ids import new_job_id
from headgate.domain.jobs import Submission, TopicRules, body_digest
from tests.unit.refusals import assert_refused

NOON = datetime(2025, 11, 15, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ID = new_job_id(now_ms=1_763_208_000_000, random_bits=b"0123456789")


def submission(**changes: Any) -> Submission:
    return Submission(**{"tenant": "acme", "topic": "mail", "id": ID, **changes})


def test_a_bare_submission_leaves_all_else_to_its_topic() -> None:
    plain = submission()
    assert (plain.payload, plain.priority, plain.tags, dict(plain.headers)) == (b"", None, (), {})
    assert plain.max_attempts is plain.policy is plain.delay is plain.run_at is plain.key is plain.key_window is None
    assert plain.new_id is False
    assert plain.due_at(NOON) == NOON


def test_a_full_submission_is_kept_in_its_one_accepted_form() -> None:
    full = submission(
        id=str(ID).upper(),
        payload=b"\x00",
        priority=-(2**31),
        run_at=datetime(2025, 11, 15, 17, tzinfo=timezone(5 * timedelta(hours=1))),
        max_attempts=1,
        policy=RetryPolicy.fixed(MINUTE),
        headers={"traceparent": "00"},
        tags=["a", "b", "a"],
        key="order-1",
        key_window=timedelta(seconds=1, microseconds=1),
        new_id=True,
    )
    assert full.id == ID
    assert full.run_at == NOON
    assert full.run_at.tzinfo is UTC
    assert full.tags == ("a", "b")
    assert full.headers == {"traceparent": "00"}
    assert full.key_window == timedelta(milliseconds=1_001)
    assert full == submission(
        payload=b"\x00",
        priority=-(2**31),
        run_at=NOON,
        max_attempts=1,
        policy=RetryPolicy.fixed(MINUTE),
        headers={"traceparent": "00"},
        tags=("a", "b"),
        key="order-1",
        key_window=timedelta(milliseconds=1_001),
        new_id=True,
    )


def test_a_submission_is_a_value() -> None:
    assert submission(headers={"a": "1"}) == submission(headers={"a": "1"}) != submission(headers={"a": "2"})
    assert len({submission(headers={"a": "1"}), submission(headers={"a": "1"})}) == 1
    with pytest.raises(FrozenInstanceError):
        submission().priority = 1


def test_a_key_without_a_window_holds_for_a_day() -> None:
    assert submission(key="k").key_window == timedelta(hours=24)


def test_a_delay_counts_from_now_and_a_due_time_stands_for_itself() -> None:
    assert submission(delay=timedelta(microseconds=1)).due_at(NOON) == NOON + timedelta(milliseconds=1)
    assert submission(run_at=NOON - MINUTE).due_at(NOON) == NOON - MINUTE


def test_a_due_time_too_far_ahead_is_refused_once_the_clock_is_known() -> None:
    far = submission(run_at=NOON + timedelta(days=1825))
    assert far.due_at(NOON) == NOON + timedelta(days=1825)
    assert_refused(lambda: far.due_at(NOON - MINUTE), field="run_at", says="5 years ahead")


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"tenant": ""}, "tenant", "1 to 63"),
        ({"tenant": "Acme"}, "tenant", "a-z 0-9 -"),
        ({"topic": ""}, "topic", "1 to 200"),
        ({"topic": "a/../b"}, "topic", "'..'"),
        ({"topic": "a\u202eb"}, "topic", "U+202E"),
        ({"topic": None}, "topic", "None"),
        ({"id": uuid4()}, "id", ("version 7 or 8", "leave the id out", "idempotency key")),
        ({"id": "1"}, "id", "36 characters"),
        ({"payload": "text"}, "payload", ("bytes", "1048576", "encode it")),
        ({"payload": None}, "payload", "None"),
        ({"priority": 2**31}, "priority", "2147483647"),
        ({"priority": "high"}, "priority", "'high'"),
        ({"priority": True}, "priority", "got True"),
        ({"delay": -MINUTE}, "delay", "1825d"),
        ({"delay": 5}, "delay", "timedelta"),
        ({"delay": MINUTE, "run_at": NOON}, "run_at", "together with delay"),
        ({"run_at": datetime(2025, 11, 15)}, "run_at", "naive"),  # noqa: DTZ001
        ({"run_at": datetime(1, 1, 1, tzinfo=UTC)}, "run_at", "2000-01-01"),
        ({"run_at": "tomorrow"}, "run_at", "datetime"),
        ({"deadline": datetime(2025, 11, 15)}, "deadline", "naive"),  # noqa: DTZ001
        ({"deadline": 5}, "deadline", "datetime with a time zone or a timedelta"),
        ({"deadline": timedelta(0)}, "deadline", "1ms"),
        ({"deadline": timedelta(days=1826)}, "deadline", "1825d"),
        ({"deadline": datetime(1, 1, 1, tzinfo=UTC)}, "deadline", "2000-01-01"),
        ({"deadline": NOON, "run_at": NOON}, "deadline", "after the time the job is due"),
        ({"deadline": MINUTE, "delay": MINUTE}, "deadline", "after the time the job is due"),
        ({"max_attempts": 0}, "max_attempts", "1 to 10000"),
        ({"max_attempts": 10**9}, "max_attempts", "1 to 10000"),
        ({"policy": 3}, "policy", "RetryPolicy"),
        ({"headers": [("a", "b")]}, "headers", "32"),
        ({"headers": {"a": 5}}, "headers[a]", "5"),
        ({"tags": "mail"}, "tags", "list of at most 20"),
        ({"tags": [""]}, "tags[0]", "1 to 100"),
        ({"key": ""}, "key", "1 to 255"),
        ({"key": "a\x00"}, "key", "U+0000"),
        ({"key": "k", "key_window": timedelta(0)}, "key_window", "365d"),
        ({"key_window": MINUTE}, "key_window", "needs a key"),
        ({"new_id": 1}, "new_id", "bool"),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_a_bad_submission_is_refused_by_field(changes: dict[str, Any], field: str, says: str | tuple[str, ...]) -> None:
    assert_refused(lambda: submission(**changes), field=field, says=says)


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"topic": "t" * 201}, "topic", ("201", "200")),
        ({"payload": bytes(1_048_577)}, "payload", ("1048577", "1048576")),
        ({"tags": [str(at) for at in range(21)]}, "tags", ("21", "20")),
        ({"headers": {"a": "x" * 8_192}}, "headers", ("8193", "8192")),
        ({"key": "k" * 256}, "key", ("256", "255")),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_a_submission_that_is_too_large_names_both_sizes(
    changes: dict[str, Any], field: str, says: tuple[str, ...]
) -> None:
    assert_refused(lambda: submission(**changes), field=field, says=says, kind=TooLarge)


def test_a_topics_rules_default_to_strict_order_and_20_attempts() -> None:
    rules = TopicRules()
    assert (rules.max_attempts, rules.policy, rules.ageing_step) == (20, RetryPolicy(), None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"policy": None}, "policy"),
        ({"ageing_step": timedelta(0)}, "ageing_step"),
        ({"ageing_step": timedelta(hours=2)}, "ageing_step"),
    ],
)
def test_bad_rules_are_refused_by_field(changes: dict[str, Any], field: str) -> None:
    assert_refused(lambda: TopicRules(**changes), field=field, says="must be")


def test_the_body_digest_tells_topics_and_payloads_apart() -> None:
    assert body_digest("mail", b"x") == sha256(b"mail\x00x").digest()[:16]
    assert len({body_digest("a", b"bc"), body_digest("ab", b"c"), body_digest("a", b""), body_digest("b", b"")}) == 4
