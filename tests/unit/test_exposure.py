"""Which addresses count as loopback, and which files with secrets are refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.domain.errors import InvalidSetting
from headgate.ops.exposure import check_encrypted, check_private, exposure_of, is_loopback


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def found(host: str, port: None, **_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "127.1", "::1", "[::1]", "::ffff:127.0.0.1", "localhost"])
def test_loopback_is_known_by_its_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "[::]", "10.0.0.1", "::ffff:10.0.0.1", "128.0.0.1", "127.x.invalid"],  # noqa: S104
)
def test_reachable_and_unresolvable_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_name_is_what_it_resolves_to_and_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, "93.184.216.34")
    assert not is_loopback("127.evil.example")
    assert not is_loopback("localhost")
    resolves_to(monkeypatch, "127.0.0.1", "10.0.0.7")
    assert not is_loopback("both.example")
    resolves_to(monkeypatch, "127.0.0.1", "::1")
    assert is_loopback("here.example")


def test_plain_text_beyond_loopback_must_be_asked_for() -> None:
    with pytest.raises(InvalidSetting, match=r"10\.0\.0\.1 is reachable from other machines.*--tls-cert.*--insecure"):
        check_encrypted("10.0.0.1", tls=False, insecure=False)
    check_encrypted("10.0.0.1", tls=True, insecure=False)
    check_encrypted("10.0.0.1", tls=False, insecure=True)
    check_encrypted("127.0.0.1", tls=False, insecure=False)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666, 0o601])
def test_a_secret_that_others_may_read_or_write_is_refused_with_the_command_to_run(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "my tokens.json"
    path.write_text("{}")
    path.chmod(mode)
    with pytest.raises(InvalidSetting) as refused:
        check_private(path, setting="--tokens")
    assert str(refused.value).startswith(
        f"--tokens: {path} is accessible to users other than its owner (mode {mode:04o}); run: "
    )
    assert str(refused.value).endswith(f"chmod 600 '{path}'")


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_secret_of_its_owner_alone_is_accepted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.json"
    path.write_text("{}")
    path.chmod(mode)
    check_private(path, setting="--tokens")
    check_private(tmp_path / "missing", setting="--tokens")
    check_private(None, setting="--tokens")


def test_a_link_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    path, link = tmp_path / "tokens.json", tmp_path / "link"
    path.write_text("{}")
    path.chmod(0o644)
    link.symlink_to(path)
    assert exposure_of(link) is not None
    path.chmod(0o600)
    assert exposure_of(link) is None


def test_a_file_of_roots_may_be_readable_by_the_group_of_a_server_that_is_not_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def of(uid: int, mode: int) -> bool:
        path: Any = SimpleNamespace(stat=lambda: SimpleNamespace(st_uid=uid, st_mode=0o100000 | mode))
        return exposure_of(path) is not None

    assert not of(0, 0o440)
    assert not of(0, 0o640)
    assert of(0, 0o660)
    assert of(0, 0o650)
    assert of(0, 0o644)
    assert of(1000, 0o440)
