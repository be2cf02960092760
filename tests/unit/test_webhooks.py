"""Webhooks: signatures as the specification says, the schedule of attempts, bodies, and what an endpoint may be."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.redaction import MASK, Redaction
from headgate.domain.webhooks import (
    DELAYS,
    DISABLED_AFTER,
    RESULT_MAX_BYTES,
    ClaimedDelivery,
    Event,
    Mode,
    Sent,
    Verdict,
    WebhookSpec,
    body_of,
    check_overlap,
    event_names,
    events_of,
    headers_of,
    like_patterns,
    new_secret,
    retry_after_of,
    signature,
    verdict_of,
)
from tests.support.webhook_receiver import verified

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
SPEC = WebhookSpec(url="https://example.com/hook", events=("job.dead",))
SECRETS = tuple(new_secret(bytes([byte]) * 32) for byte in (1, 2))
DELIVERY = ClaimedDelivery(
    no=1,
    id=UUID("019a8ce0-4f1e-4a10-9c55-0000000000e0"),
    webhook_no=1,
    event=Event.JOB_COMPLETED,
    at=NOON,
    data={"job_id": "019a8ce0-4f1e-7a10-9c55-0000000000e1", "topic": "mail"},
    attempt=1,
    tried=1,
    url=SPEC.url,
    secrets=SECRETS,
    failing=False,
)


# ---------------------------------------------------------------------- signatures


def test_a_signature_is_the_one_of_the_specification() -> None:
    """The example of the specification's own libraries."""
    assert (
        signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
            timestamp=1614265330,
            body=b'{"test": 2432232314}',
        )
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_every_secret_signs_while_they_rotate() -> None:
    body = body_of(DELIVERY, Redaction())
    headers = dict(headers_of(DELIVERY, body, timestamp=1_700_000_000))
    assert headers["webhook-id"] == "msg_019a8ce04f1e4a109c550000000000e0"
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in SECRETS:
        assert verified(secret, headers, body)
    assert not verified(new_secret(bytes(32)), headers, body)
    assert not verified(SECRETS[0], headers, body + b" ")
    assert not verified(SECRETS[0], headers | {"webhook-timestamp": "1700000001"}, body)
    assert not verified(SECRETS[0], headers | {"webhook-id": "msg_other"}, body)


def test_a_secret_is_not_part_of_what_is_printed() -> None:
    assert SECRETS[0] not in repr(DELIVERY)


def test_a_secret_has_the_form_of_the_specification() -> None:
    assert SECRETS[0].startswith("whsec_")
    key = base64.b64decode(SECRETS[0].removeprefix("whsec_"))
    assert key == b"\x01" * 32
    assert signature(SECRETS[0], message_id="m", timestamp=1, body=b"x") == "v1," + base64.b64encode(
        hmac.new(key, b"m.1.x", hashlib.sha256).digest()
    ).decode("ascii")


# ---------------------------------------------------------------------- attempts


def test_attempts_are_spread_over_about_three_days() -> None:
    assert timedelta(hours=71) < sum(DELAYS, timedelta()) < timedelta(hours=73)
    assert len(DELAYS) == 14
    assert list(DELAYS) == sorted(DELAYS)
    assert timedelta(days=3) == DISABLED_AFTER


@pytest.mark.parametrize(
    ("sent", "tried", "expected"),
    [
        (Sent(status=200), 1, Verdict(delivered=True)),
        (Sent(status=204), 15, Verdict(delivered=True)),
        (Sent(status=410), 1, Verdict(gone=True)),
        (Sent(status=301), 1, Verdict(wait=timedelta(seconds=5))),
        (Sent(status=400), 1, Verdict(wait=timedelta(seconds=5))),
        (Sent(status=500), 2, Verdict(wait=timedelta(seconds=30))),
        (Sent(error="refused"), 14, Verdict(wait=timedelta(hours=24))),
        (Sent(status=500), 15, Verdict()),
        (Sent(status=429, retry_after=timedelta(minutes=3)), 1, Verdict(wait=timedelta(minutes=3))),
        (Sent(status=503, retry_after=timedelta(days=9)), 1, Verdict(wait=timedelta(hours=12))),
        (Sent(status=503, retry_after=timedelta(seconds=1)), 1, Verdict(wait=timedelta(seconds=5))),
        (Sent(status=500, retry_after=timedelta(hours=1)), 1, Verdict(wait=timedelta(seconds=5))),
    ],
    ids=str,
)
def test_an_answer_decides_what_becomes_of_a_delivery(sent: Sent, tried: int, expected: Verdict) -> None:
    assert verdict_of(sent, event=Event.JOB_DEAD, tried=tried, jitter=0.5) == expected


def test_waits_are_jittered_by_a_tenth() -> None:
    waits = [verdict_of(Sent(), event=Event.JOB_DEAD, tried=1, jitter=jitter).wait for jitter in (0.0, 1.0)]
    assert waits == [timedelta(seconds=4.5), timedelta(seconds=5.5)]


def test_a_ready_queue_is_announced_for_a_short_time_only() -> None:
    assert verdict_of(Sent(), event=Event.QUEUE_READY, tried=3, jitter=0.5) == Verdict()
    assert verdict_of(Sent(), event=Event.PING, tried=2, jitter=0.5).wait == timedelta(seconds=30)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_of("120", now=NOON) == timedelta(minutes=2)
    assert retry_after_of("Mon, 16 Nov 2026 12:05:00 GMT", now=NOON) == timedelta(minutes=5)
    assert retry_after_of("Mon, 16 Nov 2026 11:00:00 GMT", now=NOON) == timedelta(0)
    assert retry_after_of("soon", now=NOON) is None
    assert retry_after_of("9" * 40, now=NOON) is None


# ---------------------------------------------------------------------- bodies


def _body(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(body_of(replace(DELIVERY, **changes), Redaction()))
    return body


def test_a_body_has_type_timestamp_and_data_and_no_result() -> None:
    assert _body(result=b'{"secret": 1}') == {
        "type": "job.completed",
        "timestamp": "2026-11-16T12:00:00Z",
        "data": DELIVERY.data,
    }


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b'{"total": 3, "api_key": "k", "user": {"password": "p"}}', {"total": 3, "api_key": MASK}),
        (b"[1, 2]", [1, 2]),
        (b"", None),
    ],
)
def test_a_result_is_added_on_request_with_secret_values_masked(result: bytes, expected: object) -> None:
    data = _body(with_result=True, result=result)["data"]
    if isinstance(expected, dict):
        assert {name: data["result"][name] for name in expected} == expected
        assert data["result"]["user"] == {"password": MASK}
    else:
        assert data["result"] == expected


def test_only_a_completed_job_has_a_result_and_the_largest_one_is_sent() -> None:
    for event in (Event.JOB_DEAD, Event.JOB_CANCELLED, Event.PING):
        assert _body(event=event, with_result=True, result=b"1", data={})["data"] == {}
    largest = b'"' + b"x" * (RESULT_MAX_BYTES - 2) + b'"'
    assert len(_body(with_result=True, result=largest)["data"]["result"]) == RESULT_MAX_BYTES - 2


def test_an_error_is_sent_with_secret_values_masked() -> None:
    data = _body(event=Event.JOB_DEAD, data={"error": "ValueError: password=hunter2 of user 7"})["data"]
    assert data == {"error": f"ValueError: password={MASK} of user 7"}


@pytest.mark.parametrize(
    ("result", "reason"),
    [(None, "gone"), (b"\xff\x00", "not_json"), (b"[" * 100_000, "too_large"), (b"[" * 60_000, "not_json")],
)
def test_a_result_that_cannot_be_sent_is_left_out_and_the_body_says_why(result: bytes | None, reason: str) -> None:
    data = _body(with_result=True, result=result)["data"]
    assert data["result_omitted"] == reason
    assert "result" not in data


# ---------------------------------------------------------------------- endpoints


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"events": ()}, "events: must name at least one event"),
        ({"events": ("job.started",)}, "no event 'job.started'"),
        ({"events": ("ping",)}, "no event 'ping'"),
        ({"topics": ("a b",)}, "topics: is not a topic name"),
        ({"topics": ("a*b",)}, "topics:"),
        ({"group": "g"}, "group: has a meaning"),
        ({"mode": Mode.GROUP}, "group: is missing"),
        ({"mode": Mode.HASH, "group": "g"}, "events: must be queue.ready alone"),
        ({"min_interval": timedelta(milliseconds=10)}, "min_interval: must be"),
        ({"ttl": timedelta(seconds=1)}, "ttl: must be"),
        ({"description": "a\nb"}, "description:"),
    ],
)
def test_a_bad_endpoint_is_refused_by_its_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        replace(SPEC, **changes).checked()
    assert says in str(refused.value)


def test_no_more_than_a_hundred_patterns() -> None:
    with pytest.raises(TooLarge):
        replace(SPEC, topics=("a",) * 101).checked()


def test_events_have_names_both_ways() -> None:
    names = ("job.completed", "job.dead", "job.cancelled", "queue.ready")
    assert event_names(events_of(names)) == names
    assert int(events_of(names)) == 15
    assert event_names(events_of(("queue.ready", "job.dead"))) == ("job.dead", "queue.ready")


def test_patterns_are_literal_but_for_the_star() -> None:
    assert like_patterns(()) == ["%"]
    assert like_patterns(("mail", "*")) == ["%"]
    assert like_patterns(("a_b.*", "mail")) == ["a\\_b._%", "mail"]


@pytest.mark.parametrize("overlap", [timedelta(days=7, seconds=1), timedelta(seconds=-1), 60])
def test_a_previous_secret_signs_for_a_week_at_most(overlap: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_overlap(overlap)
    assert caught.value.field == "overlap"
    assert check_overlap(timedelta(days=7)) == timedelta(days=7)
