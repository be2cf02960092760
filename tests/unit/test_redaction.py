"""Values of keys that look secret are masked wherever people look at payloads and results."""

from __future__ import annotations

import pytest

from headgate.domain.redaction import MASK, Redaction
from headgate.ops.settings import Settings, redaction_of


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


def test_the_setting_adds_names_and_none_masks_nothing() -> None:
    own = redaction_of({"HEADGATE_REDACT": " national_id, plan "})
    assert own.masked({"nationalId": 1, "plan": 2, "password": 3, "n": 4}) == {
        "nationalId": MASK,
        "plan": MASK,
        "password": MASK,
        "n": 4,
    }
    assert Settings.from_environ({"HEADGATE_REDACT": "plan"}).redaction == redaction_of({"HEADGATE_REDACT": "plan"})
    assert redaction_of({"HEADGATE_REDACT": "none"}).masked({"password": 1}) == {"password": 1}
    assert redaction_of({}) == Redaction()
