"""Forms of the dashboard: what they send is all that a policy has, and strict JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from headgate.api.http.origins import ForgedRequest, check_local_host, check_no_other_site
from headgate.domain.errors import InvalidInput
from headgate.domain.redaction import Redaction
from headgate.domain.topic_rules import NAMES
from headgate.web.csrf import check_origin
from headgate.web.forms import Form
from headgate.web.pages.topic_policies import SETTINGS
from headgate.web.routing import safe_path
from headgate.web.schedule_forms import fields_of, spec_of


def test_the_form_of_a_policy_has_every_setting() -> None:
    """Saving it releases what it does not send."""
    assert sorted(one.name for one in SETTINGS) == sorted(NAMES)


@pytest.mark.parametrize("payload", ['{"n": NaN}', '{"n": 1, "n": 2}'])
def test_the_payload_of_a_schedule_is_strict_json(payload: str) -> None:
    with pytest.raises(InvalidInput, match="payload"):
        spec_of(Form([("topic", "mail"), ("cron", "0 * * * *"), ("payload", payload)]), None, Redaction())


def test_secrets_of_a_schedule_are_masked_in_its_form_and_stay_when_it_is_saved() -> None:
    redaction, sent = Redaction(), [("topic", "mail"), ("cron", "0 * * * *")]
    stored = spec_of(Form([*sent, ("payload", '{"password": "hunter", "n": 1}')]), None, redaction)
    shown = fields_of(stored, redaction)["payload"]
    assert "hunter" not in shown
    assert spec_of(Form([*sent, ("payload", shown)]), stored, redaction).payload == stored.payload
    edited = spec_of(Form([*sent, ("payload", shown.replace("1", "2"))]), stored, redaction)
    assert json.loads(edited.payload) == {"password": "hunter", "n": 2}
    with pytest.raises(InvalidInput, match="payload"):  # a mask that stands for nothing
        spec_of(Form([*sent, ("payload", shown)]), None, redaction)


def test_times_and_durations_of_a_form_name_their_field() -> None:
    form = Form([("at", "2026-12-24T18:00"), ("lasts", " 30m "), ("empty", " "), ("wrong", "soon")])
    assert form.time("at") == datetime(2026, 12, 24, 18, tzinfo=UTC)
    assert form.duration("lasts") == timedelta(minutes=30)
    assert (form.time("empty"), form.duration("empty"), form.duration("none", timedelta(0))) == (
        None,
        None,
        timedelta(0),
    )
    with pytest.raises(InvalidInput, match="wrong: is not a time, got 'soon'"):
        form.time("wrong")
    with pytest.raises(InvalidInput, match="wrong: is not a duration"):
        form.duration("wrong")


@pytest.mark.parametrize("path", ["//[", "/ui/日", "http://[", "/ui/../x\\y"])
def test_a_page_to_return_to_that_is_none_is_the_overview(path: str) -> None:
    assert safe_path(path) == "/ui"


@pytest.mark.parametrize("path", ["/ui/..", "/ui/../v1/jobs", "/ui/./x", "/ui/%2e%2E/v1/jobs", "/ui/a/.%2e/b"])
def test_a_page_to_return_to_does_not_lead_out_of_the_dashboard(path: str) -> None:
    assert safe_path(path) == "/ui"


@pytest.mark.parametrize("path", ["/ui/topics/a..b", "/ui/workers/...", "/ui/topics/a%2Fb?since=1h", "/ui?next=/.."])
def test_a_page_of_the_dashboard_is_returned_to(path: str) -> None:
    assert safe_path(path) == path


def test_over_tls_a_page_of_plain_http_is_another_site() -> None:
    check_origin({"host": "a", "origin": "https://a"}, secure=True)
    check_origin({"host": "a", "origin": "https://a"})  # a proxy has decrypted it
    with pytest.raises(ForgedRequest, match="another origin"):
        check_origin({"host": "a", "origin": "http://a"}, secure=True)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:8081"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "cross-site"},
    ],
)
def test_a_change_of_a_page_of_another_site_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ForgedRequest):
        check_no_other_site({"host": "127.0.0.1:8080", **headers})


def test_a_program_and_a_page_of_this_site_may_change() -> None:
    for headers in ({}, {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}):
        check_no_other_site({"host": "127.0.0.1:8080", **headers})


def test_headers_that_are_no_urls_are_refused() -> None:
    with pytest.raises(ForgedRequest):
        check_origin({"origin": "http://[", "host": "127.0.0.1"})
    with pytest.raises(ForgedRequest):
        check_local_host("[")
