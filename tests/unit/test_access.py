"""What an instance says about its credentials when it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.control.access import Access
from headgate.control.auth import AllowAll, TokenFile
from headgate.control.credentials import Credentials
from headgate.domain.identity import Unauthenticated
from tests.unit.test_keyring import KEY, Rows


class Keys(Rows):
    async def exist(self) -> bool:
        return bool(self.keys)


async def test_without_any_credential_it_starts_closed_and_says_how_to_create_the_first_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = Keys()
    access = Access(keys)
    for token in ("", "a-token-of-a-file", KEY[:-1]):
        with pytest.raises(Unauthenticated):
            access.validator.identify(token)
    await access.report()
    assert "no_credentials" in caplog.text
    assert "headgate key create" in caplog.text
    caplog.clear()
    keys.put(KEY)
    await access.report()
    assert caplog.text == ""


async def test_dev_mode_says_that_there_is_no_login(caplog: pytest.LogCaptureFixture) -> None:
    access = Access(Keys(), dev=True)
    assert isinstance(access.validator, AllowAll)
    await access.report()
    assert "dev_mode" in caplog.text


async def test_a_token_file_closes_dev_mode_and_keys_are_accepted_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text('{"a-token-of-the-file": {"tenant": "acme"}}')
    keys = Keys()
    keys.put(KEY)
    access = Access(keys, dev=True, file=TokenFile(path))
    assert isinstance(access.validator, Credentials)
    assert access.validator.identify("a-token-of-the-file").tenant == "acme"
    assert (await access.validator.lookup(KEY)).subject == "ana"
