"""Rate limits of credentials: the bucket, the classes, the debt of a large batch, and that nothing grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.api.grpc.errors import retry_info
from headgate.control import rate_limits
from headgate.control.permissions import RULES
from headgate.control.rate_limits import RateLimits
from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Identity, Scope
from headgate.domain.rate_limits import (
    Bucket,
    RateClass,
    RateLimited,
    Rates,
    milliseconds,
    parse_rate,
    parse_rates,
    rate_text,
)
from headgate.sdk.errors import RETRIED


class Env:
    def __init__(self, default: str = "") -> None:
        self.now = 100.0
        self.limits = RateLimits(parse_rates(default, field="--rates"), now=lambda: self.now)


def caller(credential: str = "one", rates: str = "") -> Identity:
    return Identity(
        tenant="acme",
        subject="ana",
        scopes=frozenset(Scope),
        credential=credential,
        rates=parse_rates(rates, field="rates"),
    )


def test_a_credential_has_its_burst_and_then_its_rate_and_is_told_how_long_to_wait() -> None:
    env = Env("submit=10/1s:3")
    for _ in range(3):
        env.limits.take(caller(), RateClass.SUBMIT)
    with pytest.raises(RateLimited, match=r"limited to 10/1s:3 for submit.*in 100 ms") as refused:
        env.limits.take(caller(), RateClass.SUBMIT)
    assert refused.value.retry_after_ms == 100
    env.now += 0.1
    env.limits.take(caller(), RateClass.SUBMIT)
    with pytest.raises(RateLimited):
        env.limits.take(caller(), RateClass.SUBMIT)


def test_each_credential_and_each_class_has_a_bucket_of_its_own() -> None:
    env = Env("submit=1/1s,read=1/1s")
    env.limits.take(caller(), RateClass.SUBMIT)
    env.limits.take(caller(), RateClass.READ)
    env.limits.take(caller("two"), RateClass.SUBMIT)
    for _ in range(100):
        env.limits.take(caller(), RateClass.WORK)  # has no limit
    for kind in (RateClass.SUBMIT, RateClass.READ):
        with pytest.raises(RateLimited):
            env.limits.take(caller(), kind)


def test_the_limits_of_a_credential_replace_those_of_the_server() -> None:
    env = Env("submit=1/1s,read=1/1s")
    mine = caller(rates="submit=5/1s")
    for _ in range(5):
        env.limits.take(mine, RateClass.SUBMIT)
    for _ in range(9):
        env.limits.take(mine, RateClass.READ)
    with pytest.raises(RateLimited, match="5/1s"):
        env.limits.take(mine, RateClass.SUBMIT)


def test_more_jobs_than_the_burst_pass_with_a_full_bucket_and_the_next_wait_for_the_debt() -> None:
    env = Env("submit=10/1s:20")
    env.limits.take(caller(), RateClass.SUBMIT, 100)
    with pytest.raises(RateLimited) as refused:
        env.limits.take(caller(), RateClass.SUBMIT)
    assert refused.value.retry_after_ms == 8_100, "80 in debt, and one more"
    with pytest.raises(RateLimited) as refused:
        env.limits.take(caller(), RateClass.SUBMIT, 100)
    assert refused.value.retry_after_ms == 10_000
    env.now += 10
    env.limits.take(caller(), RateClass.SUBMIT, 100)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 3)), max_size=40))
def test_no_more_than_the_burst_and_the_rate_is_taken_beside_one_large_request(steps: list[tuple[int, float]]) -> None:
    now, taken, largest = 0.0, 0, 0
    bucket = Bucket(parse_rate("10/1s:20", field="rate"), now)
    for count, pause in steps:
        now += pause
        wait = bucket.take(count, now)
        if not wait:
            taken, largest = taken + count, max(largest, count)
        else:
            assert bucket.take(count, now + wait * 1.000001 + 1e-9) == 0.0, "the told time is enough"
            now += wait * 1.000001 + 1e-9
            taken, largest = taken + count, max(largest, count)
    # The bucket allows for a rounding error of 1e-6; the sums here have one of their own.
    assert taken <= 20 + 10 * now + max(0, largest - 20) + 1e-6 + 1e-9


def test_without_limits_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Env()
    for number in range(1_000):
        env.limits.take(caller(str(number)), RateClass.SUBMIT, 10)
    assert env.limits.buckets == 0


def test_buckets_that_are_full_again_are_dropped_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "BUCKETS_MAX", 10)
    env = Env("submit=1/1s:2")
    for number in range(10):
        env.limits.take(caller(str(number)), RateClass.SUBMIT, 2)
    env.now += 1
    env.limits.take(caller("0"), RateClass.SUBMIT)  # not full: stays
    env.now += 1.5
    env.limits.take(caller("new"), RateClass.SUBMIT)
    assert env.limits.buckets == 2
    with pytest.raises(RateLimited):
        env.limits.take(caller("0"), RateClass.SUBMIT, 2)


def test_a_bucket_is_full_until_it_is_used_and_as_soon_as_it_is_filled_again() -> None:
    bucket = Bucket(parse_rate("10/1s:20", field="rate"), now=100.0)
    assert bucket.is_full(100.0)
    assert bucket.take(5, 100.0) == 0
    assert [bucket.is_full(now) for now in (100.0, 100.25, 100.5)] == [False, False, True]


def test_no_client_is_told_to_come_too_early() -> None:
    assert [milliseconds(seconds) for seconds in (0.0001, 0.002, 0.0021)] == [1, 2, 3]


def test_a_stream_of_a_worker_counts_once_and_heartbeats_and_outcomes_never() -> None:
    worker = {name.rpartition("/")[2]: rule for name, rule in RULES.items() if "WorkerService" in name}
    counted = {name for name, rule in worker.items() if rule.rate_class is RateClass.WORK}
    assert counted == {"Work", "StreamJobs", "Claim"}
    assert worker["Heartbeat"].rate_class is worker["ReportOutcome"].rate_class is None


def test_submits_count_their_jobs_and_not_their_calls() -> None:
    for name in ("Produce", "Submit", "SubmitBatch"):
        assert RULES[f"/headgate.v1.ProducerService/{name}"].rate_class is None
    assert RULES["/headgate.v1.BatchService/OpenBatch"].rate_class is RateClass.SUBMIT
    assert RULES["/headgate.v1.KeyService/CreateKey"].rate_class is RateClass.OPERATE
    assert RULES["/grpc.health.v1.Health/Check"].rate_class is None
    assert "rate_limited" in RETRIED


@pytest.mark.parametrize("text", ["100/1s", "100/1s:20", "6000/60s"])
def test_rates_are_written_as_they_are_read(text: str) -> None:
    assert rate_text(parse_rate(text, field="rate")) == text
    assert parse_rate("6000/1m", field="rate") == parse_rate("6000/60s", field="rate")


@pytest.mark.parametrize(
    "wrong", ["submit", "submit=", "submit=1", "submit=0/1s", "submit=1/0s", "writes=1/1s", "=1/1s"]
)
def test_wrong_limits_are_refused_with_their_field(wrong: str) -> None:
    with pytest.raises(InvalidInput):
        parse_rates(wrong, field="--rates")
    assert parse_rates("", field="--rates") is None
    assert Rates.parse({}, field="rates") is None


def test_the_retry_time_is_a_retry_info_as_grpc_clients_read_it() -> None:
    import grpc

    raw = retry_info(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", 1_500)
    # Status{code: 8, message, details: [Any{type_url, RetryInfo{Duration{seconds: 1, nanos: 500000000}}}]}
    duration = b"\x08\x01\x10\x80\xca\xb5\xee\x01"
    kind = b"type.googleapis.com/google.rpc.RetryInfo"
    inner = b"\x0a" + bytes([len(duration)]) + duration
    packed = b"\x0a" + bytes([len(kind)]) + kind + b"\x12" + bytes([len(inner)]) + inner
    assert raw == b"\x08\x08\x12\x09slow down\x1a" + bytes([len(packed)]) + packed
