"""Errors over HTTP: statuses, problem details, and what is said about a body that cannot be read."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from headgate.api.grpc import errors as grpc_errors
from headgate.api.http.codec import content, is_json, media_type_of, payload_bytes
from headgate.api.http.edge import SLASH, request_id_of, routed_path
from headgate.api.http.new_jobs import NewJob, raw_job
from headgate.api.http.problems import STATUS, headers_of, problem_of, status_of
from headgate.api.http.request import decoded
from headgate.api.http.routes.jobs import NewJobs, unquoted
from headgate.domain.errors import (
    Conflict,
    HeadgateError,
    InvalidInput,
    NotFound,
    Overloaded,
    StoreError,
    StoreUnavailable,
    TooLarge,
)
from headgate.domain.identity import Unauthenticated
from headgate.domain.log_fields import REQUEST_ID
from headgate.domain.validation import check_topic

PAGE = Path(__file__).parents[2] / "docs/reference/errors.md"
JOB = UUID("01890000-0000-7000-8000-000000000000")


# ---------------------------------------------------------------------- problems


def test_every_code_of_grpc_has_a_status_over_http() -> None:
    assert set(grpc_errors.STATUS) - set(STATUS) == set()


def test_the_page_of_codes_names_the_statuses_that_are_sent() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| (\d{3}|–) \|", PAGE.read_text(), flags=re.MULTILINE)
    told = {code: status for codes, status in rows for code in re.findall(r"`(\w+)`", codes)}
    assert {code: str(status) for code, status in STATUS.items()} == {
        code: status for code, status in told.items() if status != "–"
    }


def test_a_problem_names_the_field_the_limit_and_the_hint() -> None:
    problem = problem_of(TooLarge("payload", size=11, limit=10, hint="send a reference"))
    assert (problem.status, problem.code, problem.type) == (413, "too_large", "urn:headgate:error:too_large")
    assert (problem.field, problem.limit, problem.hint) == ("payload", 10, "send a reference")
    assert "11 bytes is over the limit of 10 bytes" in problem.detail


def test_a_problem_has_the_id_of_its_request_and_no_more_than_it_needs() -> None:
    token = REQUEST_ID.set("abc")
    try:
        raw = msgspec.json.decode(msgspec.json.encode(problem_of(NotFound("job", "x"))))
    finally:
        REQUEST_ID.reset(token)
    assert set(raw) == {"type", "title", "status", "detail", "code", "request_id"}
    assert raw["request_id"] == "abc"


def test_a_conflict_names_the_job_that_exists() -> None:
    assert problem_of(Conflict("key", first=JOB)).job_id == str(JOB)


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (Overloaded("full", retry_after_ms=1_500), {"retry-after": "2"}),
        (StoreUnavailable("gone"), {"retry-after": "1"}),
        (Unauthenticated(missing=True), {"www-authenticate": 'Bearer realm="headgate"'}),
        (NotFound("job", "x"), {}),
    ],
    ids=["overloaded", "unavailable", "unauthenticated", "not found"],
)
def test_an_error_has_the_headers_of_its_status(error: HeadgateError, headers: dict[str, str]) -> None:
    assert headers_of(error) == headers


def test_a_code_that_is_not_known_is_a_fault_of_the_server() -> None:
    assert status_of(HeadgateError("?")) == status_of(StoreError("?")) == 500


# ---------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        (b'{"topic": "a", "topik": 1}', "topik", "is not a known field"),
        (b'{"topic": "a", "unique": {"key": "k", "on_konflict": 1}}', "unique.on_konflict", "is not a known field"),
        (b"{}", "topic", "is missing"),
        (b'{"topic": 5}', "topic", "expected `str`, got `int`"),
        (b'{"topic": "a", "priority": "5"}', "priority", "expected `int | null`, got `str`"),
        (b'{"topic": "a", "depends_on": ["x"]}', "depends_on[0]", "invalid UUID"),
        (b'{"topic": "a",\n "payload": tru}', "body", "at line 2, column 1"),
        (b'{"topic": "a"', "body", "ends too early, line 1, column 14"),
        (b'{"topic": "a"} x', "body", "trailing characters at line 1, column 16"),
        (b"[]", "body", "expected `object`, got `array`"),
        (b'{"topic": "a", "payload": ' + b"[" * 100_000, "body", "nested too deep"),
        (b'{"topic": "\xff"}', "body", "is not UTF-8: line 1, column 12"),
        (b'{"topic": "a", "max_attempts": 0}', "max_attempts", "must be at least 1"),
        (b'{"topic": "a", "priority": 2147483648}', "priority", "must be at most 2147483647"),
    ],
)
def test_a_body_that_is_refused_names_the_field_or_the_position(raw: bytes, field: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decoded(raw, NewJob)
    assert caught.value.field == field
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "field", "limit"),
    [
        ({"tags": ["x"] * 100}, "tags", "20 elements"),
        ({"key": "k" * 256}, "key", "255 characters"),
        ({"headers": {str(no): "" for no in range(33)}}, "headers", "32 fields"),
    ],
)
def test_a_body_over_a_limit_has_the_code_of_grpc_and_the_limit(
    given: dict[str, object], field: str, limit: str
) -> None:
    with pytest.raises(TooLarge) as caught:
        decoded(msgspec.json.encode({"topic": "a", **given}), NewJob)
    found = problem_of(caught.value)
    assert (found.status, found.code, found.field, found.limit) == (413, "too_large", field, int(limit.split()[0]))
    assert found.detail == f"{field}: is over the limit of {limit}"


def test_a_topic_that_is_refused_shows_the_whole_rule_and_in_a_batch_concerns_one_job() -> None:
    jobs = decoded(b'{"jobs": [{"topic": "a"}, {"topic": ""}]}', NewJobs).jobs
    assert [job.topic for job in jobs] == ["a", ""]  # the use case refuses it, in its receipt
    with pytest.raises(InvalidInput, match="1 to 200 of A-Z a-z 0-9"):
        check_topic(jobs[1].topic)


def test_what_is_wrong_with_a_retry_policy_is_named_as_in_the_body() -> None:
    retry = {"kind": "exponential", "base_ms": 1_000, "cap_ms": 10}
    job = decoded(msgspec.json.encode({"topic": "a", "retry": retry}), NewJob)
    assert job.retry is not None
    with pytest.raises(InvalidInput, match="from 1000 to") as caught:
        job.retry.policy()
    assert caught.value.field == "retry.cap_ms"


def test_a_field_in_a_list_is_named_with_its_index() -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\[1\]\.priority: "):
        decoded(b'{"jobs": [{"topic": "a"}, {"topic": "a", "priority": 1.5}]}', NewJobs)


# ---------------------------------------------------------------------- payloads


def test_a_json_payload_is_kept_byte_by_byte_and_shown_as_json() -> None:
    job = decoded(b'{"topic": "a", "payload": {"n": 1.10, "big": 12345678901234567890123}}', NewJob)
    raw = raw_job(job).payload
    assert raw == b'{"n": 1.10, "big": 12345678901234567890123}'
    shown, other = content(raw)
    assert (bytes(shown), other) == (raw, "")


@pytest.mark.parametrize("raw", [b"\xff\x00", b"hello", b'"\xff"', b"[" * 100_000 + b"]" * 100_000, b"NaN"])
def test_other_bytes_are_shown_in_base64(raw: bytes) -> None:
    shown, other = content(raw)
    assert shown is msgspec.UNSET
    assert other
    assert not is_json(raw)
    assert payload_bytes(msgspec.UNSET, other) == raw
    assert media_type_of(raw) == "application/octet-stream"


def test_the_header_of_the_job_says_what_its_payload_is() -> None:
    assert content(b"123", {"content-type": "text/plain"}) == (msgspec.UNSET, "MTIz")
    assert bytes(content(b"123", {"content-type": "application/vnd.x+json; v=1"})[0]) == b"123"
    assert media_type_of(b"123", {"content-type": "text/plain"}) == "text/plain"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"topic": "a", "payload": 1, "payload_base64": "MQ=="}', "payload_base64"),
        (b'{"topic": "a", "payload_base64": "MQ"}', "payload_base64"),
        (b'{"topic": "a", "payload": "\xff"}', "payload"),
        (b'{"topic": "a", "payload": 1, "content_type": "text/plain"}', "content_type"),
    ],
)
def test_a_payload_is_given_in_one_way(body: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        raw_job(decoded(body, NewJob))
    assert caught.value.field == field


def test_the_header_and_the_field_of_the_key_must_agree() -> None:
    job = decoded(b'{"topic": "a", "key": "one"}', NewJob)
    assert raw_job(job, key="one").given.key == "one"
    with pytest.raises(InvalidInput, match="Idempotency-Key"):
        raw_job(job, key="two")
    assert unquoted('"one"') == unquoted("one") == "one"


# ---------------------------------------------------------------------- requests


def test_an_encoded_slash_is_part_of_a_name_and_an_encoded_nul_is_refused() -> None:
    assert routed_path(b"/v1/topics/mail%2Feu%20x/release") == f"/v1/topics/mail{SLASH}eu x/release"
    with pytest.raises(InvalidInput, match="path"):
        routed_path(b"/v1/topics/a%00b")


def test_the_id_of_a_request_is_the_clients_if_it_can_stand_in_a_log_line() -> None:
    assert request_id_of([(b"x-request-id", b"abc-123")]) == "abc-123"
    for bad in (b"a b", b'a"b', b"", b"x" * 200, b"a\xffb"):
        assert re.fullmatch(r"[0-9a-f]{32}", request_id_of([(b"x-request-id", bad)]))
