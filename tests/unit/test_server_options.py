"""The options of an instance: which of them are refused together, and what people see of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate.domain.errors import InvalidSetting
from headgate.domain.system import MASKED
from headgate.server.options import ServerOptions, check_options
from headgate.server.settings_report import settings_of

URL = "postgresql://ana:hunter2@db.example/headgate"


def checked(**options: Any) -> None:
    check_options(ServerOptions(database_url=URL, **options))


def test_dev_mode_without_tokens_is_not_reachable_from_other_machines() -> None:
    checked(dev=True, host="127.0.0.1")
    with pytest.raises(InvalidSetting, match="dev mode has no login"):
        checked(dev=True, host="0.0.0.0", insecure=True)  # noqa: S104 - that is what is refused


@pytest.mark.parametrize("secret", ["tokens_file", "tls_key"])
def test_a_file_with_a_secret_that_others_can_read_is_refused(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    checked(**{secret: path})
    path.chmod(0o604)
    with pytest.raises(InvalidSetting, match="chmod 600"):
        checked(**{secret: path})


def test_tokens_make_dev_mode_reachable_where_they_are_encrypted_or_it_is_asked_for(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.touch(0o600)
    checked(dev=True, host="0.0.0.0", insecure=True, tokens_file=tokens)  # noqa: S104
    with pytest.raises(InvalidSetting, match="without TLS"):
        checked(dev=True, host="0.0.0.0", tokens_file=tokens)  # noqa: S104


def test_a_lease_that_is_too_short_to_renew_is_refused() -> None:
    with pytest.raises(InvalidSetting):
        checked(lease=timedelta(milliseconds=1))


def test_settings_are_shown_in_the_words_of_the_file_and_secrets_are_masked() -> None:
    shown = settings_of(
        ServerOptions(
            database_url=URL,
            direct_database_url=URL,
            lease=timedelta(seconds=90),
            redact=("card", "iban"),
            dev=True,
            jwt_issuers=Path("/etc/issuers.toml"),
        )
    )
    assert "hunter2" not in str(shown)
    assert (shown["database_url"], shown["direct_database_url"]) == (MASKED, MASKED)
    assert shown["lease"] == "90s"
    assert shown["redact"] == "card, iban"
    assert (shown["dev"], shown["pooler"]) == ("on", "off")
    assert (shown["tokens_file"], shown["rates"]) == ("", "")
    assert shown["jwt_issuers"] == "/etc/issuers.toml"
