"""Values of keys that look secret are masked wherever people look at payloads and results."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headgate.domain.errors import InvalidInput
from headgate.domain.log_fields import Quoted
from headgate.domain.log_redaction import MaskSecrets
from headgate.domain.redaction import DEPTH_MAX, MASK, Redaction, restored
from headgate.ops.configuration import read_configuration
from headgate.sdk.log_quoting import quote_log_values


@pytest.mark.parametrize(
    "key", ["password", "Password", "user_password", "accessToken", "x-api-key", "API_KEY", "client-secret", "Cookie"]
)
def test_the_values_of_secret_keys_are_masked_at_any_depth(key: str) -> None:
    value = {"order": 7, "lines": [{key: {"kept": "nowhere"}}, {"n": 1}], key: "hunter2"}
    masked = Redaction().masked(value)
    assert masked == {"order": 7, "lines": [{key: MASK}, {"n": 1}], key: MASK}
    assert value[key] == "hunter2"  # the value itself is not changed


@pytest.mark.parametrize("key", ["tokens_used", "password_changed_at", "secretary", "order"])
def test_other_keys_are_shown(key: str) -> None:
    assert Redaction().masked([{key: 1}, "password", None]) == [{key: 1}, "password", None]


def redaction_of(names: str) -> Redaction:
    return read_configuration(flags={}, environ={"HEADGATE_REDACT": names}, folder=Path("/nowhere")).redaction


def test_the_setting_adds_names_and_none_masks_nothing() -> None:
    assert redaction_of(" national_id, plan ").masked({"nationalId": 1, "plan": 2, "password": 3, "n": 4}) == {
        "nationalId": MASK,
        "plan": MASK,
        "password": MASK,
        "n": 4,
    }
    assert redaction_of("none").masked({"password": 1}) == {"password": 1}
    assert redaction_of("") == Redaction()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login failed: password=hunter2", "login failed: password=•••"),
        ("KeyError: {'password': 'hunter2', 'n': 1}", "KeyError: {'password': •••, 'n': 1}"),
        ('{"accessToken": "hun ter2"} was refused', '{"accessToken": •••} was refused'),
        ("Authorization: Bearer hunter2, then", "Authorization: •••, then"),
        ("X-Api-Key: hunter2", "X-Api-Key: •••"),
        ("https://ann:hunter2@db.example/x failed", "https://ann:•••@db.example/x failed"),
        ("call(api_key='hunter2')", "call(api_key=•••)"),
    ],
)
def test_what_follows_secret_names_in_an_error_is_masked(text: str, shown: str) -> None:
    assert Redaction().masked_text(text) == shown
    assert Redaction(names=()).masked_text(text) == text


@pytest.mark.parametrize(
    "text", ["", "no secrets: 3 of 4", "the token is missing", "tokens_used=3", "password_changed_at=1"]
)
def test_other_texts_are_shown_as_they_are(text: str) -> None:
    assert Redaction().masked_text(text) == text


def test_no_text_takes_long_to_mask() -> None:
    for text in (
        "password" * 20_000,
        "a-" * 50_000,
        "password=" * 10_000,
        "x://" * 20_000,
        "password='" + "\\" * 50_000,
    ):
        Redaction().masked_text(text)


def test_a_body_is_shown_masked_as_json_or_as_text() -> None:
    redaction = Redaction()
    assert redaction.shown(b'{"password": "x", "n": 1}') == {"password": MASK, "n": 1}
    assert redaction.shown(b"password=hunter2 \xff") == "password=••• \ufffd"
    assert redaction.shown(b"") is None
    assert redaction.shown(b"null") is None


def logged(name: str, message: str, *values: object, error: Exception | None = None) -> str:
    """The line of a record, as a server writes it."""
    record = logging.LogRecord(name, logging.WARNING, "x.py", 1, message, values, None)
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    assert MaskSecrets(Redaction()).filter(record)
    return logging.Formatter("%(message)s").format(record)


def test_free_text_and_tracebacks_of_our_log_lines_are_masked() -> None:
    text = "row (token=hunter2) is bad"
    assert logged("headgate.store", "job_stuck job_id=%s error=%s rows=%d", "a", text, 3) == (
        "job_stuck job_id=a error=row (token=•••) is bad rows=3"
    )
    assert "hunter2" not in logged("headgate.x", "outcome_refused error=%s", ValueError(text))
    assert "hunter2" not in logged("headgate.x", "outcome_refused error=%s", Quoted(text))
    assert "hunter2" not in logged("headgate.x", "request_failed path=%s", "/", error=ValueError(text))
    assert logged("headgate.x", "done percent=5%% error=%s", text) == "done percent=5% error=row (token=•••) is bad"


def test_lines_of_applications_and_fields_without_free_text_stay_as_they_are() -> None:
    assert logged("shop.login", "failed error=%s", "token=hunter2") == "failed error=token=hunter2"
    assert logged("headgate.job.mail", "failed error=%s", "token=hunter2") == "failed error=token=hunter2"
    assert logged("headgate.x", "started topic=%s", "token=mail") == "started topic=token=mail"


def test_the_sdk_masks_its_lines_by_the_names_of_its_environment(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    quote_log_values()
    monkeypatch.setenv("HEADGATE_REDACT", "plan")
    logging.getLogger("headgate.worker").warning("job_failed error=%s", "plan=gold password=hunter2")
    assert caplog.records[-1].getMessage() == 'job_failed error="plan=••• password=•••"'


def test_what_a_worker_command_masks_reaches_the_sdk() -> None:
    config = read_configuration(flags={}, environ={"HEADGATE_REDACT": "plan, iban"}, folder=Path("/nowhere"))
    assert config.client_environment()["HEADGATE_REDACT"] == "plan,iban"


def test_what_is_nested_too_deep_to_look_into_cannot_be_edited() -> None:
    value: object = MASK
    for _ in range(DEPTH_MAX):
        value = [value]
    assert restored(value, value) == value
    with pytest.raises(InvalidInput, match="nested deeper than 200 levels"):
        restored([value], [value])


def test_what_is_nested_too_deep_to_look_into_is_masked_as_a_whole() -> None:
    deep = b"[" * 900 + b'{"password": "hunter2"}' + b"]" * 900
    assert "hunter2" not in repr(Redaction().shown(deep))


# --- edited in masked form --------------------------------------------------------------------------------------------


def test_a_mask_that_stays_in_its_place_stands_for_the_stored_value() -> None:
    stored = {"user": {"name": "ada", "password": "hunter2"}, "cards": [{"cvv": 1}, {"cvv": 2}], "n": 1}
    edited = Redaction().masked(stored)
    assert isinstance(edited, dict)
    edited["n"] = 2
    edited["user"]["name"] = "grace"
    edited["new"] = [None, True, 1.5]
    assert restored(edited, stored) == {
        "user": {"name": "grace", "password": "hunter2"},
        "cards": [{"cvv": 1}, {"cvv": 2}],
        "n": 2,
        "new": [None, True, 1.5],
    }


@pytest.mark.parametrize(
    ("edited", "place"),
    [({"token": MASK}, "token"), ({"a": [{"password": MASK}]}, r"a\[0\].password"), ([1, MASK], r"\[1\]")],
)
def test_a_mask_in_another_place_is_refused_by_its_path(edited: object, place: str) -> None:
    with pytest.raises(InvalidInput, match=f"{place}.*nothing is stored there; type its value") as caught:
        restored(edited, {"password": "hunter2"})
    assert caught.value.field == "payload"
