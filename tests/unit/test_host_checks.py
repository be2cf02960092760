"""Checks of the machine by `headgate doctor`: ports, files, certificates, limits, disk."""

from __future__ import annotations

import socket
from collections import namedtuple
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from headgate.domain.diagnosis import Finding, Level, fail, ok, skip, warn, worst
from headgate.ops.diagnosis import (
    EXPIRY_WARN,
    check_certificate,
    check_disk,
    check_files,
    check_port,
    check_secret_file,
    utc_now,
)
from headgate.sdk.probe import is_headgate

NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)
Usage = namedtuple("Usage", "total used free")


def port_of(port: int, *, headgate: bool = False) -> Finding:
    return check_port("grpc", "127.0.0.1", port, setting="--port", is_headgate=lambda _host, _port: headgate)


def test_a_port_is_free_or_used_by_headgate_or_by_another_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port_of(port).level is Level.FAIL
        assert f"sport = :{port}" in port_of(port).fix
        assert port_of(port, headgate=True).level is Level.OK
    assert port_of(port).level is Level.OK
    assert port_of(0).level is Level.OK
    assert check_port("grpc", "192.0.2.1", 7070, setting="--port", is_headgate=is_headgate).level is Level.FAIL


def test_a_program_that_accepts_connections_and_is_silent_is_not_headgate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.sdk.probe.PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert not is_headgate("127.0.0.1", other.getsockname()[1])


def test_a_secret_file_must_exist_and_be_private(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    assert check_secret_file("tokens", None).level is Level.SKIP
    assert check_secret_file("tokens", path).level is Level.FAIL
    path.write_text("{}")
    path.chmod(0o644)
    found = check_secret_file("tokens", path)
    assert (found.level, found.fix) == (Level.FAIL, f"chmod 600 {path}")
    path.chmod(0o600)
    assert check_secret_file("tokens", path).level is Level.OK


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    made = trustme.CA().issue_cert("localhost", not_before=NOON, not_after=NOON + timedelta(days=60))
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    made.private_key_pem.write_to_path(folder / "key.pem")
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (NOON - timedelta(seconds=1), Level.FAIL),
        (NOON, Level.OK),
        (NOON + timedelta(days=60) - EXPIRY_WARN + timedelta(seconds=1), Level.WARN),
        (NOON + timedelta(days=60), Level.FAIL),
    ],
)
def test_a_certificate_is_judged_by_its_dates(certificate: tuple[Path, Path], at: datetime, expected: Level) -> None:
    assert check_certificate(*certificate, now=lambda: at).level is expected


def test_a_chain_is_as_valid_as_the_certificate_that_ends_first(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    made = trustme.CA().issue_cert("between", not_before=NOON + timedelta(days=1), not_after=NOON + timedelta(days=30))
    chain = tmp_path / "chain.pem"
    chain.write_bytes(certificate[0].read_bytes() + made.cert_chain_pems[0].bytes())
    for days, expected in ((0, Level.FAIL), (1, Level.OK), (29, Level.WARN), (30, Level.FAIL)):
        found = check_certificate(chain, certificate[1], now=lambda days=days: NOON + timedelta(days=days))
        assert found.level is expected, days


def test_a_certificate_with_another_key_fails(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "key.pem")
    found = check_certificate(certificate[0], tmp_path / "key.pem", now=utc_now)
    assert found.level is Level.FAIL
    assert check_certificate(certificate[0], tmp_path / "missing.pem", now=utc_now).level is Level.FAIL
    assert check_certificate(None, None, now=utc_now).level is Level.SKIP


def test_half_of_what_tls_needs_fails_as_a_server_does(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    chain, key = certificate
    for given in ((chain, None), (None, key), (None, None, chain)):
        found = check_certificate(*given, now=utc_now)
        assert (found.level, "--tls-cert" in found.fix) == (Level.FAIL, True)
    at = utc_now()
    assert check_certificate(chain, key, tmp_path / "missing.pem", now=lambda: at).found.startswith(
        str(tmp_path / "missing.pem")
    )


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, Level.SKIP), (100, Level.FAIL), (1_024, Level.WARN), (65_536, Level.OK)]
)
def test_few_open_files_are_few_clients(limit: int | None, expected: Level) -> None:
    assert check_files(limit).level is expected


@pytest.mark.parametrize(("free", "expected"), [(0.5, Level.OK), (0.1, Level.WARN), (0.04, Level.FAIL)])
def test_a_disk_that_is_nearly_full_is_found(free: float, expected: Level, tmp_path: Path) -> None:
    total = 100 << 30
    found = check_disk(tmp_path, size="1GiB", usage=lambda _: Usage(total, 0, int(total * free)))
    assert found.level is expected
    for gib, free_gib, level in ((5, 1.9, Level.WARN), (5, 2, Level.OK), (1_000, 19.9, Level.FAIL)):
        of_size = Usage(gib << 30, 0, int(free_gib * (1 << 30)))
        assert check_disk(tmp_path, size="1GiB", usage=lambda _, usage=of_size: usage).level is level
    much = Usage(1_000 << 30, 0, 100 << 30)  # a tenth, and enough
    assert check_disk(tmp_path, size="1GiB", usage=lambda _: much).level is Level.OK
    assert check_disk(tmp_path, size="1GiB").level is not Level.SKIP  # the real disk
    assert check_disk(tmp_path / "missing", size="1GiB").level is Level.SKIP
    assert check_disk(None, size="1GiB").level is Level.SKIP


def test_the_worst_finding_decides() -> None:
    fine, unknown = ok("a", "b"), skip("a", "b")
    assert worst([fine, unknown]) is Level.OK
    assert worst([fine, warn("a", "b", fix="c"), unknown]) is Level.WARN
    assert worst([warn("a", "b", fix="c"), fail("a", "b", fix="c"), fine]) is Level.FAIL
