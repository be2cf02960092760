"""Settings come from flags, variables and a file, by one table; a bad one is named with its place, never its value."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

from headgate.cli import REFUSING, main
from headgate.domain.errors import InvalidInput, InvalidSetting
from headgate.domain.redaction import DEFAULT_NAMES
from headgate.ops.config_file import BYTES_MAX
from headgate.ops.configuration import Configuration, Origin, parsed, read_configuration, unknown_variables
from headgate.ops.setting import Kind, Setting
from headgate.ops.settings import BY_NAME, SECTIONS, SETTINGS
from headgate.server import ServerOptions
from tests.support.configuration_page import PAGE, page


def read(folder: Path = Path("/nowhere"), environ: dict[str, str] | None = None, **flags: object) -> Configuration:
    return read_configuration(flags=flags, environ=environ or {}, folder=folder)


def file(folder: Path, text: str) -> Path:
    path = folder / "headgate.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


# --- the table


def test_the_help_of_a_list_says_how_its_values_are_separated() -> None:
    lists = [one for one in SETTINGS if one.kind is Kind.NAMES or one.name in ("rates", "webhook_ports")]
    assert len(lists) == 5
    assert [one.name for one in lists if "separated by commas" not in one.help] == []


def test_a_setting_has_one_name_in_every_form() -> None:
    names = [one.name for one in SETTINGS]
    assert len(set(names)) == len(names)
    assert sum(map(len, SECTIONS.values())) == len([one for one in SETTINGS if one.in_file])
    assert BY_NAME["reconnect_grace"].flag == "--reconnect-grace"
    assert BY_NAME["reconnect_grace"].variable == "HEADGATE_RECONNECT_GRACE"
    assert BY_NAME["reconnect_grace"].path == "server.reconnect_grace"
    assert BY_NAME["database_url"].path == "database.url"
    assert BY_NAME["log_level"].path == "log.level"


def test_the_server_gets_every_setting_and_has_the_same_defaults() -> None:
    fields = {one.name: one.default for one in dataclasses.fields(ServerOptions)}
    given = read().server_options()
    assert given.keys() <= fields.keys()
    assert {name: (value, fields[name]) for name, value in given.items() if value != fields[name]} == {}
    unset = fields.keys() - given.keys()
    # Of the database, of the command itself, or for tests.
    assert unset == {
        *("database_url", "direct_database_url", "http_port", "shared_port", "version"),
        *("claim_limit", "tick_seconds", "retention_seconds", "wakes"),
        *("process", "processes", "processes_folder"),
    }


def test_the_reference_page_is_made_from_the_table() -> None:
    text = PAGE.read_text()
    assert text == page(text), "run: make configuration"
    for setting in SETTINGS:
        assert not setting.in_environment or f"`{setting.variable}`" in text


# --- precedence and origins


def test_a_flag_counts_before_a_variable_before_the_file_before_the_default(tmp_path: Path) -> None:
    path = file(tmp_path, '[server]\nlease = "90s"\ngrace = "2m"\n\n[log]\nlevel = "debug"\n')
    environ = {"HEADGATE_LEASE": "80s", "HEADGATE_GRACE": "45s"}
    found = read(tmp_path, environ, lease="70s")
    origins = {name: (found[name], found.values[name].origin, found.values[name].where) for name in BY_NAME}
    assert origins["lease"] == (timedelta(seconds=70), Origin.FLAG, "--lease")
    assert origins["grace"] == (timedelta(seconds=45), Origin.ENVIRONMENT, "HEADGATE_GRACE")
    assert origins["log_level"] == ("DEBUG", Origin.FILE, f"{path}:6")
    assert origins["port"] == (7070, Origin.DEFAULT, "default")
    assert read(tmp_path)["lease"] == timedelta(seconds=90)


def test_the_file_is_that_of_the_flag_then_of_the_variable_then_of_the_folder(tmp_path: Path) -> None:
    folder, other, third = tmp_path / "cwd", tmp_path / "other.toml", tmp_path / "third.toml"
    folder.mkdir()
    file(folder, "[server]\nport = 1\n")
    other.write_text("[server]\nport = 2\n")
    third.write_text("[server]\nport = 3\n")
    assert read(folder)["port"] == 1
    assert read(folder, {"HEADGATE_CONFIG": str(other)})["port"] == 2
    assert read(folder, {"HEADGATE_CONFIG": str(other)}, config=str(third))["port"] == 3
    assert read(tmp_path)["port"] == 7070
    with pytest.raises(InvalidSetting, match=r"missing.toml: cannot be read: No such file"):
        read(folder, config=str(tmp_path / "missing.toml"))


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read(environ={"HEADGATE_DATABASE_URL": " ", "HEADGATE_DATA": ""}).database_url is None


def test_a_path_of_the_file_begins_at_its_folder_and_others_at_the_current_one(tmp_path: Path) -> None:
    file(tmp_path, '[server]\ntokens = "tokens.json"\ntls_cert = "/etc/server.pem"\n')
    found = read(tmp_path, {"HEADGATE_DATA": "data"})
    assert found["tokens"] == tmp_path / "tokens.json"
    assert found["tls_cert"] == Path("/etc/server.pem")
    assert found.data == Path.cwd() / "data"


def test_migrations_go_past_the_pooler_but_never_to_a_database_of_a_weaker_origin(tmp_path: Path) -> None:
    file(tmp_path, '[database]\nurl = "postgresql://a/b"\ndirect_url = "postgresql://a:6/b"\n')
    assert read(tmp_path).url_for_migrations == "postgresql://a:6/b"
    assert read(tmp_path, database_url="postgresql://other/b").url_for_migrations == "postgresql://other/b"
    assert read(tmp_path, {"HEADGATE_DATABASE_URL": "postgresql://c/d"}).url_for_migrations == "postgresql://c/d"
    direct = {"HEADGATE_DIRECT_DATABASE_URL": "postgresql://e/f"}
    assert read(tmp_path, direct).url_for_migrations == "postgresql://e/f"


def test_names_are_an_array_in_the_file_and_a_list_with_commas_elsewhere(tmp_path: Path) -> None:
    file(tmp_path, '[payload]\nredact = ["plan", "national_id"]\n')
    names = (*DEFAULT_NAMES, "plan", "national_id")
    assert read(tmp_path).redaction.names == names
    assert read(environ={"HEADGATE_REDACT": " plan, national_id "}).redaction.names == names
    assert read(environ={"HEADGATE_REDACT": "none"}).redaction.names == ()


# --- what is refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nport = 1\nleese = 3\n", "3: server.leese is not a known setting; did you mean lease?"),
        ("[servr]\nport = 1\n", "1: [servr] is not a known section; did you mean [server]?"),
        ("# a comment\nlease = '30s'\n", "2: lease is outside of a section; did you mean lease in [server]?"),
        ("[log]\ndatabase_url = 'x'\n", "2: log.database_url is not a known setting; did you mean url in [database]?"),
        ("[server]\n\nlease = '10min'\n", "3: server.lease: is not a duration, got '10min'; use 250ms, 30s,"),
        ("[server]\nlease = '40d'\n", "2: server.lease: must be from 1s to 1d, got 40d"),
        ("[server]\nport = '7070'\n", "2: server.port must be a whole number, got a text; for example port = 1"),
        ("[server]\nport = true\n", "2: server.port must be a whole number, got true or false"),
        ("[server]\nport = 70000\n", "2: server.port: must be a whole number from 0 to 65535, got 70000"),
        ("[server]\ndev = 'yes'\n", "2: server.dev must be true or false, got a text"),
        ("[server]\nhost = 2020-01-01\n", "2: server.host must be a text in quotes, got a time"),
        ("[payload]\nredact = [1]\n", "2: payload.redact must be an array of texts"),
        ("[log]\nlevel = 'LOUD'\n", "2: log.level: is not one of its values, got 'LOUD'; use DEBUG, INFO, WARNING or"),
        ("server.port = 70000\n", "1: server.port: must be a whole number"),
        (
            '[server]\nname = """\nport = 1\n"""\nprot = 1\n',
            "5: server.prot is not a known setting; did you mean port?",
        ),
        (
            '[server]\nname = """\n\'\'\'\n"""\nprot = 1\n',
            "5: server.prot is not a known setting; did you mean port?",
        ),
        ('[server]\nname = """a"""\nprot = 1\n', "3: server.prot is not a known setting; did you mean port?"),
        ("server = 1\n", "1: server is not a section; write [server]"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    path = file(tmp_path, text)
    with pytest.raises(InvalidSetting) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{path}:{says}")


def test_a_file_of_the_greatest_size_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "[server]\nport = 1\n".ljust(BYTES_MAX, "#"))
    assert read(tmp_path)["port"] == 1
    path.write_text(path.read_text() + "#")
    with pytest.raises(InvalidSetting, match=f"is larger than {BYTES_MAX} bytes"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[server\n", r"is not TOML: .*line 1"),
        (b"\xff", "is not UTF-8 at byte 0"),
        (b"x=" + b"[" * 99_999, "TOML|deep"),
    ],
)
def test_a_file_that_is_no_toml_is_refused(text: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_bytes(text)
    with pytest.raises(InvalidSetting, match=says):
        read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '[client]\ntoken = "s3cret"\n',
        '[database]\nurl = "postgresql://ann:s3cret@db/queue"\n',
        '[database]\nurl = "postgresql://db/queue?user=ann&password=s3cret"\n',
        '[database]\nurl = "postgresql://ann@db/queue?sslkey=key.pem&sslpassword=s3cret"\n',
        '[server]\nport = 7001\n[database]\ndirect_url = "postgresql://ann:s3cret@db/queue"\n',
    ],
)
def test_a_file_with_secrets_that_others_can_read_is_refused_with_the_command_to_run(text: str, tmp_path: Path) -> None:
    path = file(tmp_path, text)
    assert read(tmp_path).file == path
    path.chmod(0o644)
    with pytest.raises(InvalidSetting, match=f"run: chmod 600 {path}") as caught:
        read(tmp_path)
    assert "s3cret" not in str(caught.value)
    path.write_text('[database]\nurl = "postgresql://ann@db/queue"\n')  # no password: nothing to hide
    assert read(tmp_path).database_url == "postgresql://ann@db/queue"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("HEADGATE_LEASE", "10min", "is not a duration"),
        ("HEADGATE_PORT", "seven", "must be a whole number from 0 to 65535"),
        ("HEADGATE_DEV", "maybe", "must be true or false"),
        ("HEADGATE_DATA", "~nobody-of-that-name/data", "starts with the home folder of an unknown user"),
        ("HEADGATE_DATABASE_URL", "mysql://root:s3cret@h/x", "is not a PostgreSQL URL"),
        ("HEADGATE_DIRECT_DATABASE_URL", "mysql://root:s3cret@h/x", "is not a PostgreSQL URL"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_and_its_secret_is_not_shown(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^{name}: {says}") as caught:
        read(environ={name: text})
    assert "s3cret" not in str(caught.value)


def test_an_error_of_a_flag_is_one_of_the_command_line() -> None:
    with pytest.raises(InvalidInput, match="--lease: is not a duration") as caught:
        read(lease="10min")
    assert not isinstance(caught.value, InvalidSetting)


def test_a_port_that_kubernetes_has_set_is_no_setting_of_ours() -> None:
    assert read(environ={"HEADGATE_PORT": "tcp://10.0.0.1:7070"})["port"] == 7070
    assert read(environ={"HEADGATE_PORT": "7001"})["port"] == 7001


def test_a_misspelt_port_is_not_taken_for_a_variable_of_kubernetes() -> None:
    of_kubernetes = {
        "HEADGATE_WORKERS_PORT": "tcp://10.0.0.1:7070",
        "HEADGATE_WORKERS_PORT_7070_TCP_PORT": "7070",
        "HEADGATE_SERVICE_PORT": "7070",
        "HEADGATE_SERVICE_PORT_GRPC": "7070",
    }
    assert unknown_variables(of_kubernetes) == []
    (error,) = unknown_variables({"HEADGATE_HTTPS_PORT": "7071"})
    assert "HEADGATE_HTTP_PORT" in error.hint
    assert len(unknown_variables({"HEADGATE_PORT_GRPC": "7071"})) == 1


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.low is not None], ids=lambda one: one.name)
def test_both_bounds_of_a_setting_are_values_of_it_and_what_is_beyond_is_refused(setting: Setting) -> None:
    assert setting.low is not None
    assert setting.high is not None
    for bound in (setting.low, setting.high):
        text = "x" * int(bound) if setting.kind is Kind.TEXT and isinstance(bound, int) else setting.text_of(bound)
        if text:
            value = parsed(setting, text, field="it")
            assert (len(str(value)) if setting.kind is Kind.TEXT else value) == bound
    beyond = setting.high + (1 if isinstance(setting.high, int) else timedelta(seconds=1))  # type: ignore[operator]
    text = "x" * int(beyond) if setting.kind is Kind.TEXT and isinstance(beyond, int) else setting.text_of(beyond)
    with pytest.raises(InvalidInput):
        parsed(setting, text, field="it")


def test_a_value_that_only_a_server_can_judge_is_named_by_its_line_or_variable(tmp_path: Path) -> None:
    file(tmp_path, '[server]\nwebhook_allow = ["everything"]\n')
    error = InvalidSetting("--webhook-allow", "is not a network")
    assert read(tmp_path).located(error).field.endswith("headgate.toml:2: server.webhook_allow")
    assert read(environ={"HEADGATE_WEBHOOK_ALLOW": "x"}).located(error).field == "HEADGATE_WEBHOOK_ALLOW"
    assert read(webhook_allow="x").located(error) is error


def test_an_application_that_a_command_loads_gets_the_address_and_the_secret_keys_of_the_command(
    tmp_path: Path,
) -> None:
    file(tmp_path, '[client]\nurl = "queue:7070"\ntoken = "t"\n[payload]\nredact = ["card", "iban"]\n')
    found = read(tmp_path).client_environment()
    assert (found["HEADGATE_URL"], found["HEADGATE_TOKEN"]) == ("queue:7070", "t")
    assert found["HEADGATE_REDACT"] == "card,iban"


def test_polling_alone_means_no_notifications() -> None:
    assert read().server_options()["notifications"] is True
    assert read(environ={"HEADGATE_POLL_ONLY": "true"}).server_options()["notifications"] is False


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_reads_back_what_it_shows(kind: Kind) -> None:
    from headgate.ops.configuration import parsed

    for setting in SETTINGS:
        if setting.kind is kind and setting.text_of(setting.default):
            text = setting.text_of(setting.default)
            assert parsed(setting, text, field="x") == setting.default, setting.name


# --- commands


@pytest.mark.parametrize(
    "command", ["--version", "--help", *(f"{name} --help" for name in ("status", "worker", "job"))]
)
def test_every_command_reports_a_misspelt_variable(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that read settings of the server refuse it instead; see tests/catalogue/test_config.py."""
    monkeypatch.setenv("HEADGATE_TOKN", "secret")
    assert main(command.split()) == 0
    warning = "warning: HEADGATE_TOKN: is not a known setting; did you mean HEADGATE_TOKEN?\n"
    assert capsys.readouterr().err == warning


@pytest.mark.parametrize("command", [*(name for name in REFUSING if name not in ("serve", "config")), "config show"])
def test_a_command_that_reads_settings_refuses_a_misspelt_variable_once(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_DATABSE_URL", "postgresql://a/b")
    assert main(command.split()) == 78
    error = "error: HEADGATE_DATABSE_URL: is not a known setting; did you mean HEADGATE_DATABASE_URL?\n"
    assert capsys.readouterr().err == error


def _shown(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main(["config", "show", *line]) == 0, capsys.readouterr()
    return capsys.readouterr().out


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    import os

    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_config_show_prints_each_value_with_its_origin_and_masks_secrets(
    no_settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file(
        no_settings,
        '[client]\ntoken = "s3cret-token"\n[database]\nurl = "postgresql://ann:s3c@ret@db/q?password=s3cret&sslpassword=s3cret"\n',
    )
    monkeypatch.setenv("HEADGATE_GRACE", "45s")
    out = _shown(capsys)
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["grace"][1:3] == ["45s", "HEADGATE_GRACE"]
    assert rows["lease"][1:3] == ["60s", "default"]
    assert rows["token"][1:3] == ["•••", "headgate.toml:2"]
    assert rows["database_url"][1:3] == [
        "postgresql://…@db/q?password=•••&sslpassword=•••",
        "headgate.toml:4",
    ]
    assert "s3c" not in out
    assert rows.keys() >= BY_NAME.keys()
    assert "s3c" not in _shown(capsys, "-o", "json")


def test_the_examples_of_the_page_print_what_it_shows(
    no_settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    file(no_settings, example)
    (no_settings / "bad.toml").write_text("[server]\nleese = 3\n")
    monkeypatch.setenv("HEADGATE_GRACE", "45s")
    printed = [line.split() for line in _shown(capsys).splitlines()]
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("error: ") or line == "…":
                continue
            if not line.startswith("$ "):
                assert line.split() in printed, line
    monkeypatch.delenv("HEADGATE_GRACE")
    assert main(["config", "show", "--config", "bad.toml"]) == 78
    assert capsys.readouterr().err.strip() in text
    monkeypatch.setenv("HEADGATE_LEASE", "10min")
    assert main(["config", "show"]) == 78
    assert capsys.readouterr().err.strip() in text
