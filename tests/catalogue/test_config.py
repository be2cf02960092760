"""Rows 89-91: a server that cannot be what it was configured to be does not start, and says why in one line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from headgate.cli import main
from headgate.cli.configured import configuration
from headgate.cli.doctor import check_options
from headgate.domain.diagnosis import Level
from tests.catalogue.conftest import Env
from tests.support.server import HEADGATE, clean_environ

SERVE = ("serve", "--port", "0")
DEV = (*SERVE, "--dev")
OPEN = (*SERVE, "--host", "0.0.0.0")  # noqa: S104
NOWHERE = "postgresql://ann:s3cret@127.0.0.1:1/queue"


async def _never(_: object) -> None:
    raise AssertionError("it came to be started")


def _tokens(entries: object) -> str:
    return json.dumps(entries)


CASES: list[tuple[str, tuple[str, ...], dict[str, str], str, int, tuple[str, ...]]] = [
    (
        "a misspelt variable",
        DEV,
        {"HEADGATE_DATABSE_URL": "x"},
        "",
        78,
        ("mean HEADGATE_DATABASE_URL?",),
    ),
    ("an unknown variable", DEV, {"HEADGATE_COLOUR": "red"}, "", 78, ("HEADGATE_COLOUR", "is not a known setting")),
    ("a URL of another kind", DEV, {"HEADGATE_DATABASE_URL": "mysql://s3cret@h"}, "", 78, ("HEADGATE_DATABASE_URL",)),
    ("a lease with a unit", (*DEV, "--lease", "10min"), {}, "", 2, ("--lease",)),
    ("a lease of nothing", (*DEV, "--lease", "0"), {}, "", 2, ("--lease", "1s", "1d")),
    (
        "a lease without two beats",
        (*DEV, "--lease", "1.5"),
        {},
        "",
        78,
        ("--lease", "1.5 s", "beat every 1 s", "use 2"),
    ),
    ("a lease that is no number", (*DEV, "--lease", "nan"), {}, "", 2, ("--lease",)),
    ("a lease for ever", (*DEV, "--lease", "inf"), {}, "", 2, ("--lease",)),
    ("a grace below nothing", (*DEV, "--grace=-1"), {}, "", 2, ("--grace",)),
    ("streams below nothing", (*DEV, "--streams-per-peer=-1"), {}, "", 2, ("--streams-per-peer", "0 to 1000000")),
    ("a port that is none", ("serve", "--dev", "--port", "70000"), {}, "", 2, ("--port", "0 to 65535")),
    ("a log level nobody knows", (*DEV, "--log-level", "LOUD"), {}, "", 2, ("--log-level", "DEBUG")),
    ("a name of two lines", (*DEV, "--name", "a\nb"), {}, "", 2, ("--name",)),
    ("a log format nobody knows", (*DEV, "--log-format", "xml"), {}, "", 2, ("--log-format", "json")),
    ("the same by its variable", DEV, {"HEADGATE_LOG_FORMAT": "xml"}, "", 78, ("HEADGATE_LOG_FORMAT", "json")),
    ("rates that are none", (*SERVE, "--rates", "submit=fast"), {}, "", 2, ("--rates", "is not a rate")),
    ("issuers that are nowhere", (*SERVE, "--jwt-issuers", "no.json"), {}, "", 78, ("--jwt-issuers", "cannot be read")),
    ("no login, and open to all", (*DEV, "--host", "0.0.0.0"), {}, "", 78, ("--host", "127.0.0.1")),  # noqa: S104
    ("plain text for others", (*OPEN, "--tokens", "tokens.json"), {}, "{}", 78, ("--host", "--insecure", "--tls-cert")),
    ("a name that only looks like loopback", (*DEV, "--host", "127.0.0.1.invalid"), {}, "", 78, ("--host",)),
    ("tokens that are not there", (*SERVE, "--tokens", "missing.json"), {}, "", 78, ("missing.json", "No such file")),
    ("tokens that are no JSON", (*SERVE, "--tokens", "tokens.json"), {}, "{oops", 78, ("tokens.json", "not JSON")),
    (
        "a token by a digest that is none",
        (*SERVE, "--tokens", "tokens.json"),
        {},
        _tokens({"sha256:s3cret": {"tenant": "acme"}}),
        78,
        ("tokens.json", "token 1", "64 hexadecimal digits"),
    ),
    (
        "a token that expires at no time at all",
        (*SERVE, "--tokens", "tokens.json"),
        {},
        _tokens({"s3cret-s3cret-s3cret": {"tenant": "acme", "expires": "2027-01-31"}}),
        78,
        ("tokens.json", "token 1", "expires", "2027-01-31T00:00:00Z"),
    ),
    ("tokens that are a list", (*SERVE, "--tokens", "tokens.json"), {}, "[]", 78, ("tokens.json", "object")),
    ("tokens nested too deep", (*SERVE, "--tokens", "tokens.json"), {}, "[" * 10**5, 78, ("tokens.json", "deep")),
    (
        "a token too short",
        (*SERVE, "--tokens", "tokens.json"),
        {},
        _tokens({"s3cret": {"tenant": "acme"}}),
        78,
        ("tokens.json", "token 1", "16 or more"),
    ),
    (
        "a scope nobody knows",
        (*SERVE, "--tokens", "tokens.json"),
        {},
        _tokens({"s3cret-s3cret-s3cret": {"tenant": "acme", "scopes": ["rule"]}}),
        78,
        ("tokens.json", "token 1", "submit, work, read, operate, admin"),
    ),
    (
        "a tenant that is none",
        (*SERVE, "--tokens", "tokens.json"),
        {},
        _tokens({"s3cret-s3cret-s3cret": {"tenant": "Acme Ltd."}}),
        78,
        ("tokens.json", "token 1", "tenant"),
    ),
]


@pytest.mark.parametrize(
    ("line", "environ", "tokens", "code", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_setting_that_cannot_be_used_is_named_and_nothing_starts(
    line: tuple[str, ...],
    environ: dict[str, str],
    tokens: str,
    code: int,
    says: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    for name, value in {"HEADGATE_DATABASE_URL": NOWHERE, **environ}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headgate.server.Server.start", _never)
    if tokens:
        Path("tokens.json").write_text(tokens)
        Path("tokens.json").chmod(0o600)
    assert main(list(line)) == code, capfd.readouterr()
    out, err = capfd.readouterr()
    (error,) = [text for text in err.splitlines() if text.startswith("error: ")]
    assert out == ""
    assert "Traceback" not in err
    assert "s3cret" not in err
    assert [word for word in says if word not in error] == [], error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[server]\n\nrates = "submit=fast"\n', "headgate.toml:3: server.rates.submit: is not a rate"),
        ('[server]\nrates = "sbmit=1/1s"\n', "headgate.toml:2: server.rates: has no class 'sbmit'"),
        ('[server]\nwebhook_allow = ["home"]\n', "headgate.toml:2: server.webhook_allow: 'home' is not a network"),
        ('[server]\nwebhook_ports = "a"\n', "headgate.toml:2: server.webhook_ports: 'a' is not a port"),
        ("[server]\nprocesses = 0\n", "headgate.toml:2: server.processes: is 0"),
        ('[server]\njwt_issuers = "no.json"\n', "headgate.toml:2: server.jwt_issuers: no.json cannot be read"),
        ('[server]\nlease = "2s"\nreconnect_grace = "5s"\n', "headgate.toml:3: server.reconnect_grace: 5 s is not"),
    ],
)
def test_what_only_a_server_can_judge_is_refused_with_its_line_and_by_doctor_as_well(
    text: str, says: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADGATE_DATABASE_URL", NOWHERE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headgate.server.Server.start", _never)
    Path("headgate.toml").write_text(text)
    assert main(["serve"]) == 78
    assert f"error: {says}" in capfd.readouterr().err
    found = check_options(configuration({}))
    assert (found.level, found.found.startswith(says)) == (Level.FAIL, True), found


def test_what_only_a_server_can_judge_is_refused_with_its_variable(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_DATABASE_URL", NOWHERE)
    monkeypatch.setattr("headgate.server.Server.start", _never)
    monkeypatch.setenv("HEADGATE_RATES", "submit=fast")
    assert main([*SERVE]) == 78
    assert "error: HEADGATE_RATES.submit: is not a rate" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--tokens", "--tls-key"])
def test_a_secret_that_others_can_read_is_refused_with_the_command_to_run(
    option: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADGATE_DATABASE_URL", NOWHERE)
    monkeypatch.setattr("headgate.server.Server.start", _never)
    secret = tmp_path / "secret"
    secret.write_text("{}")
    secret.chmod(0o640)
    more = ("--dev", "--tls-cert", str(secret)) if option == "--tls-key" else ()
    assert main([*SERVE, *more, option, str(secret)]) == 78
    _, err = capfd.readouterr()
    assert f"{option}: {secret} is accessible to users other than its owner (mode 0640); run: chmod 600 {secret}" in err


def test_kubernetes_service_variables_are_no_settings_of_ours(
    env: Env, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADGATE_SERVICE_HOST", "HEADGATE_PORT_7070_TCP_ADDR", "HEADGATE_WORKERS_SERVICE_PORT_GRPC"):
        monkeypatch.setenv(name, "10.0.0.1")
    monkeypatch.setenv("HEADGATE_DATABASE_URL", env.dsn)
    assert main(["migrate", "--plan"]) == 0, capfd.readouterr()


def _served(dsn: str, folder: Path, *line: str) -> tuple[int, str]:
    """As a process of its own, where it comes as far as gRPC: that wants to be alone with its event loop."""
    ran = subprocess.run(
        [HEADGATE, "serve", "--dev", *line],
        env={**clean_environ(), "HEADGATE_DATABASE_URL": dsn},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (error,) = [text for text in ran.stderr.splitlines() if text.startswith("error: ")]
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""
    return ran.returncode, error


def test_a_port_in_use_is_one_line_and_exit_78(env: Env, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = _served(env.dsn, tmp_path, "--port", str(port))
    assert code == 78
    assert f"127.0.0.1:{port}" in error
    assert "in use" in error


def test_a_database_that_was_never_migrated_is_exit_78_with_the_command(blank_database: str, tmp_path: Path) -> None:
    code, error = _served(blank_database, tmp_path, "--port", "0")
    assert code == 78
    assert "headgate migrate" in error


def test_a_database_that_is_not_there_is_exit_5_with_its_address(tmp_path: Path) -> None:
    code, error = _served(NOWHERE, tmp_path, "--port", "0")
    assert code == 5
    assert 'database "queue" at 127.0.0.1:1' in error
    assert "s3cret" not in error
